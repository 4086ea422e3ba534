"""`rerail pause --all`, the supervisor's Events, and `rerail submit`, on a real API server and real Argo."""

import json
import time

import pytest
from rig.access import Cluster
from typer.testing import CliRunner

from rerail.plugins.cli.main import build
from rerail.plugins.gang.telling import Teller
from rerail.plugins.kube.api import KubeApi
from rerail.plugins.nodes.kube_guard import KubeGuard
from rerail.plugins.nodes.kube_pausing import KubePause
from rerail.policies.supervisor.state import AttemptRecord, GangSpec, Incident, LedgerEntry, RunState


@pytest.fixture
def api(cluster: Cluster, namespace, monkeypatch):
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    one = KubeApi.connect(cluster.kubeconfig, namespace=namespace)
    yield one
    one.close()


def rerail(*words: str, code: int = 0):
    done = CliRunner().invoke(build(words[:1]), [*words, "-o", "json"])
    assert done.exit_code == code, (done.output, done.exception)
    return json.loads(done.stdout)


def test_all_runs_are_paused_beside_the_guard(api, namespace):
    switch = KubePause(api, again_s=0.0)
    assert switch.why() == ""
    rerail("pause", "--all", "--guard-namespace", namespace, "--reason", "maintenance")
    assert KubeGuard(api).ask_submission("run", 2) == ""
    assert switch.why().startswith("maintenance (")
    assert rerail("resume", "--all", "--guard-namespace", namespace)["was_paused"] is True
    assert switch.why() == ""


def test_the_api_server_takes_the_supervisors_events_once(cluster, api, namespace):
    node = min(cluster.ready_nodes())
    run = f"run-{namespace}"[:40]
    fault = Incident(
        id=f"{run}-a1",
        attempt=1,
        class_name="gpu_lost",
        scope="device",
        action="reset",
        cause="hardware",
        node=node,
        detected_at_s=time.time(),
        decided_at_s=time.time(),
    )
    record = AttemptRecord(n=1, gang=f"{run}-a1", nodes=(node,), how="fresh", opened_at_s=0.0)
    running = RunState(
        run=run,
        world_size=1,
        phase="running",
        attempt=1,
        gang=GangSpec(name=f"{run}-a1", world_size=1, pods=()),
        attempts=(record,),
    )
    ending = running.model_copy(update={"phase": "ending", "incidents": (fault,)})
    said = []
    for _ in range(2):
        with Teller(api, "vcjob", f"workflow/{namespace}/flow/11-22", said.append) as teller:
            for number, state in enumerate((running, ending)):
                entry = LedgerEntry(writer="w" * 8, number=number, at_s=time.time(), note="", state=state)
                teller.entry(entry)
    assert said == []
    mine = cluster.read("events", "-n", namespace)["items"]
    found = [one["involvedObject"]["kind"] for one in mine if one["reason"] == "GangFaulted"]
    assert sorted(found) == ["Job", "Workflow"]
    of_node = [one for one in cluster.read("events", "-n", "default")["items"] if fault.id in one["message"]]
    assert len(of_node) == 1
    assert fault.id in cluster.kubectl("describe", "node", node)


def template(name: str, image: str, code: str):
    """A template of one step that Argo runs from our image."""
    container = {"image": image, "command": ["python3", "-c", code], "args": ["{{inputs.parameters.word}}"]}
    inputs = {"parameters": [{"name": "word"}]}
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "WorkflowTemplate",
        "metadata": {"name": name},
        "spec": {
            "entrypoint": "main",
            "podSpecPatch": "terminationGracePeriodSeconds: 1",
            "arguments": {"parameters": [{"name": "word"}, {"name": "how", "value": "a", "enum": ["a", "b"]}]},
            "templates": [{"name": "main", "inputs": inputs, "container": container}],
        },
    }


@pytest.mark.parametrize(("word", "phase"), [("well", "Succeeded"), ("badly", "Failed")])
def test_a_workflow_is_submitted_and_waited_for(argo, cluster, api, word, phase):
    ends = "import sys; sys.exit(sys.argv[1] != 'well')"
    argo.submit(template("one-step", cluster.image, ends))
    words = ("--template", "one-step", "-n", api.namespace, "--wait")
    told = rerail("submit", *words, "-p", f"word={word}", code=int(phase == "Failed"))
    assert told["phase"] == phase
    assert argo.workflow(told["workflow"])["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "rerail"
