"""`rerail step run` by hand against the cluster: a fault is handed over, the next step adopts, nothing is lost."""

import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from rig.gangs import full
from rig.training import BEFORE, DEADLINE_S, MIDDLE, POLICY, Gang, finished, traced

XID = {"type": "NvidiaXID79Error", "status": "True", "reason": "XID79", "message": "GPU 0 has fallen off the bus"}


class Steps:
    """Steps of one Workflow, which is only a name here, on a gang."""

    def __init__(self, gang: Gang) -> None:
        self.gang, self.uid = gang, secrets.token_hex(8)

    def start(self, document=None):
        """``rerail step run``; a later one is told nothing but the run."""
        gang = self.gang
        environment = {
            "RERAIL_STORE": gang.store,
            "RERAIL_RUN": gang.name,
            "RERAIL_NAMESPACE": gang.namespace,
            "RERAIL_BACKEND": gang.backend,
            "RERAIL_WORKFLOW": "by-hand",
            "RERAIL_WORKFLOW_UID": self.uid,
            "RERAIL_OUTPUTS": str(gang.folder / "outputs"),
            "ARGO_PROGRESS_FILE": str(gang.folder / "progress"),
        }
        if document is not None:
            environment |= {"RERAIL_MANIFEST": yaml.safe_dump(document), "RERAIL_POLICY": yaml.safe_dump(dict(POLICY))}
        with (gang.folder / f"supervisor-{len(gang.supervisors)}.log").open("w") as log:
            gang.supervisors.append(
                subprocess.Popen(
                    [str(Path(sys.executable).with_name("rerail")), "step", "run"],
                    env={
                        **os.environ,
                        **gang.cluster.s3_env,
                        "KUBECONFIG": str(gang.cluster.kubeconfig),
                        **environment,
                    },
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
            )

    def ended(self):
        try:
            return self.gang.supervisors[-1].wait(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.gang.said()) from None

    def output(self, name):
        return (self.gang.folder / "outputs" / name).read_text()


@pytest.fixture
def steps(gang) -> Steps:
    return Steps(gang)


@pytest.mark.alone
def test_a_node_condition_is_handed_over_and_the_next_step_adopts(cluster, gang, baseline, steps):
    steps.start(traced(gang))
    gang.wait_step(MIDDLE)
    sick = str(gang.pods()[-1]["spec"]["nodeName"])
    with cluster.condition(sick, XID):
        assert steps.ended() == 10, gang.said()
        handed = gang.state()
        taints = cluster.read("node", sick)["spec"].get("taints", [])
        assert "rerail.dev/quarantined" in {taint["key"] for taint in taints}
        assert (handed.phase, handed.attempt) == ("running", 2)
        assert steps.output("words").startswith(f"XID 79 on {sick} ended attempt 1 at step ")
        assert "attempt 2 goes on from step" in steps.output("words")
        steps.start()
        report = finished(gang, baseline)
    assert steps.output("outcome") == "done"
    assert (gang.folder / "progress").read_text() == "100/100"
    assert sick not in report.attempts[1].nodes
    job = cluster.read("vcjob", f"{gang.name}-a2", "-n", gang.namespace)
    assert job["metadata"]["labels"]["rerail.dev/workflow"] == "by-hand"


@full
def test_a_fault_between_two_steps_waits_for_the_next(gang, baseline, steps):
    steps.start(traced(gang))
    gang.wait_step(MIDDLE)
    gang.kill_pod(gang.pods()[1])
    assert steps.ended() == 10, gang.said()
    trace = gang.trace / "trace-a2-r0.jsonl"
    gang.cluster.wait("the second gang trains", lambda: trace.exists() and trace.read_text().count("\n") > 0)
    gang.kill_pod(next(pod for pod in gang.pods() if is_of(pod, gang, 2)))
    steps.start()
    assert steps.ended() == 10, gang.said()
    steps.start()
    report = finished(gang, baseline, attempts=3)
    assert report.attempts[1].started_from_step == BEFORE


def is_of(pod, gang, attempt):
    labels, phase = pod["metadata"]["labels"], pod["status"].get("phase")
    return labels["rerail.dev/gang"] == f"{gang.name}-a{attempt}" and phase == "Running"


@full
def test_a_runner_that_is_told_to_go_leaves_the_gang(cluster, gang, baseline, steps):
    made = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": "by-hand"},
        "spec": {"suspend": True, "entrypoint": "x", "templates": [{"name": "x", "suspend": {}}]},
    }
    if not cluster.kubectl("create", "-n", gang.namespace, "-f", "-", document=made, check=False):
        pytest.skip("the cluster knows no Workflows")
    steps.uid = cluster.read("workflow", "by-hand", "-n", gang.namespace)["metadata"]["uid"]
    steps.start(traced(gang))
    gang.wait_step(MIDDLE)
    gang.supervisors[-1].send_signal(signal.SIGTERM)
    assert steps.ended() == 143, gang.said()
    steps.start()
    finished(gang, baseline, attempts=1)


@full
def test_a_runner_whose_workflow_is_gone_saves_and_ends_the_gang(gang, steps):
    steps.start(traced(gang))
    gang.wait_step(MIDDLE)
    gang.supervisors[-1].send_signal(signal.SIGTERM)
    assert steps.ended() == 11, gang.said()
    state = gang.state()
    assert (state.phase, state.reason) == ("stopped", f"asked to stop: Workflow {gang.namespace}/by-hand is gone")
    assert state.attempts[0].last_commit_step >= MIDDLE, "all that was done is saved"
    gang.cluster.wait("its pods are gone", lambda: not [pod for pod in gang.pods() if is_of(pod, gang, 1)])
