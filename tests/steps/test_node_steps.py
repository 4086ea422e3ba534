"""Steps for nodes, for inference and for steps that are no gangs, against the fake API server."""

import importlib.util
import json
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail.plugins.kube.api import KubeApi, Patience
from rerail.plugins.steps import failover, nodes, retry
from rerail.plugins.steps.inputs import Inputs
from rerail.plugins.steps.outputs import Outputs
from rerail.policies.errors import DeadlineError, NotFoundError, RefusedError, UsageError

NOW_S = 1_800_000_000.0
QUARANTINED = "rerail.dev/quarantined"
READY = {"type": "Ready", "status": "True"}
ACK_XID = {"type": "NvidiaXID79Error", "status": "True", "reason": "x", "message": "GPU fell off"}
ACK_WELL = {"type": "NvidiaXID79Error", "status": "False", "reason": "x", "message": ""}
EKS_FAULT = {"type": "AcceleratedHardwareReady", "status": "False", "reason": "NvidiaXID79Error", "message": "m"}
EKS_WELL = {"type": "AcceleratedHardwareReady", "status": "True", "reason": "x", "message": "m"}
WORKFLOW = {"RERAIL_WORKFLOW": "wf", "RERAIL_WORKFLOW_UID": "u1", "RERAIL_NAMESPACE": "team"}


def fake_module():
    name = "rerail_test_fake_api"
    if name not in sys.modules:
        path = Path(__file__).parents[1] / "kube" / "support" / "fake_api.py"
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    module = sys.modules[name]
    module.KNOWN.setdefault("workflows", ("argoproj.io", "Workflow"))
    module.KNOWN.setdefault("deployments", ("apps", "Deployment"))
    return module


@pytest.fixture
def cluster():
    api, stop = fake_module().serve()
    yield api
    stop()


@pytest.fixture
def kube(cluster, tmp_path):
    path = tmp_path / "kubeconfig"
    path.write_text(fake_module().kubeconfig(cluster.url))
    patience = Patience(request_s=5.0, total_s=3.0, first_pause_s=0.01, longest_pause_s=0.1)
    api = KubeApi.connect(path, patience=patience)
    yield api
    api.close()


@pytest.fixture
def outputs(tmp_path):
    return Outputs(tmp_path / "out", tmp_path / "none")


def told(outputs, name):
    return (outputs.folder / name).read_text()


def inputs(**given_):
    return Inputs({**WORKFLOW, **{f"RERAIL_{key.upper()}": value for key, value in given_.items()}})


def node(name, *conditions, **spec):
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux"}},
        "spec": spec,
        "status": {"nodeInfo": {"bootID": "b0071d00-aaaa"}, "conditions": [READY, *conditions]},
    }


def node_of(cluster, name):
    return next(one for one in cluster.find("nodes") if one["metadata"]["name"] == name)


@pytest.mark.parametrize(
    "case",
    [
        ([ACK_XID], "ack", "node"),
        ([ACK_XID], "auto", "node"),
        ([ACK_XID], "eks", "none"),
        ([ACK_WELL], "ack", "none"),
        ([EKS_FAULT], "eks", None),
        ([EKS_WELL], "eks", "none"),
        ([EKS_FAULT], "npd", "none"),
        ([{**ACK_XID, "status": "Unknown"}], "auto", "none"),
        ([], "auto", "none"),
    ],
)
def test_a_node_is_judged_by_the_conditions_of_the_source_with_its_polarity(case, cluster, kube, outputs):
    conditions, source, quarantine = case
    cluster.put("nodes", node("g1", *conditions))
    found = nodes.judge(inputs(node="g1", source=source), outputs, kube, now_s=NOW_S)
    held = told(outputs, "quarantine")
    assert held == quarantine or (quarantine is None and held != "none")
    assert bool(told(outputs, "incident")) is (held != "none")
    assert told(outputs, "words") == found.words
    assert "g1" in found.words


def test_an_incident_is_that_of_node_boot_and_class(cluster, kube, outputs):
    cluster.put("nodes", node("g1", ACK_XID))
    first = nodes.judge(inputs(node="g1"), outputs, kube, now_s=NOW_S)
    again = nodes.judge(inputs(node="g1"), outputs, kube, now_s=NOW_S + 500)
    assert first.incident == again.incident == f"g1-b0071d00-{first.diagnosis.class_}"


def test_conditions_of_npd_are_read(cluster, kube, outputs):
    table = {row.types[0]: row for row in nodes.load_conditions().rows if row.source == "npd" and row.types}
    name, row = next(iter(table.items()))
    cluster.put("nodes", node("g1", {"type": name, "status": row.fault_when, "reason": "r", "message": "m"}))
    assert nodes.judge(inputs(node="g1", source="npd"), outputs, kube, now_s=NOW_S).diagnosis is not None


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"node": "g1", "source": "dcgm"}, UsageError, "use one of auto, npd, ack, eks"),
        ({}, UsageError, "parameter node is empty"),
        ({"node": "gone"}, NotFoundError, "gone"),
    ],
)
def test_what_cannot_be_judged_is_said(wrong, error, words, kube, outputs):
    with pytest.raises(error, match=words):
        nodes.judge(inputs(**wrong), outputs, kube, now_s=NOW_S)


def test_a_mark_keeps_new_work_off_once(cluster, kube, outputs):
    for name in ("g1", "g2", "g3", "g4"):
        cluster.put("nodes", node(name))
    asked = inputs(node="g1", incident="g1-b0071d00-gpu_lost", reason="gpu_lost", device="0000:3b:00")
    words = nodes.mark(asked, outputs, kube)
    nodes.mark(asked, outputs, kube)
    marked = node_of(cluster, "g1")
    assert marked["spec"]["taints"] == [{"key": QUARANTINED, "value": "gpu_lost", "effect": "NoSchedule"}]
    assert len(json.loads(marked["metadata"]["annotations"]["rerail.dev/incidents"])) == 1
    assert words == told(outputs, "words")
    assert "gpu_lost of 0000:3b:00" in words


def test_the_guard_keeps_from_fencing_half_of_the_cluster(cluster, kube, outputs):
    fenced = [{"key": QUARANTINED, "value": "x", "effect": "NoSchedule"}]
    for name in ("g1", "g2"):
        cluster.put("nodes", node(name))
    for name in ("g3", "g4", "g5"):
        cluster.put("nodes", node(name, taints=fenced))
    with pytest.raises(RefusedError, match="'g1' is not marked"):
        nodes.mark(inputs(node="g1", incident="i", reason="gpu_lost"), outputs, kube)
    assert not node_of(cluster, "g1")["spec"].get("taints")


def test_a_mark_without_an_incident_is_bad_input(kube, outputs):
    with pytest.raises(UsageError, match="parameter incident is empty"):
        nodes.mark(inputs(node="g1"), outputs, kube)


@pytest.mark.parametrize("answer", ["", "REJECT", "TIMEOUT", "approve"])
def test_a_node_stays_as_it_is_without_approval(answer, cluster, kube, outputs):
    cluster.put("nodes", node("g1", taints=[{"key": QUARANTINED, "value": "x", "effect": "NoSchedule"}]))
    with pytest.raises(RefusedError, match="stays as it is"):
        nodes.release(inputs(node="g1", approval="required", answer=answer), outputs, kube)
    assert told(outputs, "released") == "false"
    assert node_of(cluster, "g1")["spec"]["taints"]


@pytest.mark.parametrize("approved", [("required", "APPROVE"), ("automatic", "")])
@pytest.mark.parametrize("uncordon", ["true", "false"])
def test_an_approved_node_goes_back_to_work(approved, uncordon, cluster, kube, outputs):
    approval, answer = approved
    taints = [{"key": QUARANTINED, "value": "x", "effect": "NoSchedule"}]
    cluster.put("nodes", node("g1", taints=taints, unschedulable=True))
    words = nodes.release(inputs(node="g1", approval=approval, answer=answer, uncordon=uncordon), outputs, kube)
    spec = node_of(cluster, "g1")["spec"]
    assert not spec.get("taints")
    assert bool(spec.get("unschedulable")) is (uncordon == "false")
    assert ("still cordoned" in words) is (uncordon == "false")
    assert told(outputs, "released") == "true"


def test_a_repeat_offender_needs_a_persons_name(cluster, kube, outputs):
    for number in range(3):
        incident = f"incident-{number}"
        for name in ("g1", "g2", "g3", "g4"):
            if not any(one["metadata"]["name"] == name for one in cluster.find("nodes")):
                cluster.put("nodes", node(name))
        nodes.KubeNodes(kube, count_pods=False).mark("g1", incident, "gpu_lost", device="0000:3b:00")
    asked = {"node": "g1", "approval": "automatic"}
    with pytest.raises(RefusedError, match="in a person's name"):
        nodes.release(inputs(**asked), outputs, kube)
    assert "goes back to work" in nodes.release(inputs(**asked, by="kim"), outputs, kube)


# Inference


def pod(name, node_name, *, ready=True, **metadata):
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team", "uid": name, "labels": {"app": "chat"}, **metadata},
        "spec": {"nodeName": node_name},
        "status": {"phase": "Running", "conditions": conditions},
    }


class Controller(threading.Thread):
    """Plays the Deployment's controller: an evicted pod is gone, and another one is ready on the node that is left."""

    def __init__(self, cluster, *, replace=True, refuse=0):
        super().__init__(daemon=True)
        self.cluster, self.replace, self.refuse = cluster, replace, refuse
        self.evicted, self.ended = [], threading.Event()
        cluster.answers = self.answer

    def answer(self, path):
        if not path.endswith("/eviction"):
            return None
        name = path.split("/")[-2]
        if self.refuse:
            self.refuse -= 1
            return 429, fake_module().status(429, "Cannot evict pod as it would violate the pod's disruption budget.")
        self.evicted.append(name)
        return 201, {"kind": "Status", "status": "Success"}

    def run(self):
        done = set()
        while not self.ended.wait(0.02):
            for name in list(self.evicted):
                if name not in done:
                    done.add(name)
                    self.cluster.put("pods", pod(name, "g1", ready=False, deletionTimestamp="2026-11-30T00:00:00Z"))
                    if self.replace:
                        self.cluster.put("pods", pod(f"{name}-new", "g2"))


@pytest.fixture
def serving(cluster):
    for name in ("g1", "g2", "g3", "g4"):
        cluster.put("nodes", node(name))
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "chat"}}}
    metadata = {"name": "chat", "namespace": "team"}
    cluster.put("deployments", {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec})
    cluster.put("pods", pod("a", "g1"))
    cluster.put("pods", pod("b", "g2"))
    running = []

    def play(**how):
        running.append(Controller(cluster, **how))
        running[-1].start()
        return running[-1]

    yield play
    for one in running:
        one.ended.set()
        one.join()


def test_a_replica_on_a_faulty_node_is_replaced_at_once(serving, cluster, kube, outputs):
    controller = serving()
    began = time.monotonic()
    replaced = failover.perform(inputs(node="g1", deployment="chat"), outputs, kube, log=lambda _line: None)
    assert (replaced, controller.evicted) == (1, ["a"])
    assert time.monotonic() - began < 10
    assert node_of(cluster, "g1")["spec"]["taints"][0]["key"] == QUARANTINED
    assert told(outputs, "words") == "1 replicas of chat left node g1; 2 of 2 are ready elsewhere"


def test_a_disruption_budget_is_waited_for(serving, kube, outputs):
    controller = serving(refuse=1)
    asked = inputs(node="g1", deployment="chat", ready_within_s="20")
    assert failover.perform(asked, outputs, kube, log=lambda _line: None) == 1
    assert controller.evicted == ["a"]


def test_a_replica_that_is_not_replaced_in_time_is_said(serving, kube, outputs):
    serving(replace=False)
    asked = inputs(node="g1", deployment="chat", ready_within_s="1")
    with pytest.raises(DeadlineError, match="1 of 2 replicas of chat are ready on other nodes than g1"):
        failover.perform(asked, outputs, kube, log=lambda _line: None)


def test_a_fenced_node_is_not_fenced_again(serving, cluster, kube, outputs):
    serving()
    cluster.put("nodes", node("g1", unschedulable=True))
    failover.perform(inputs(node="g1", deployment="chat"), outputs, kube, log=lambda _line: None)
    assert not node_of(cluster, "g1")["spec"].get("taints")


@pytest.mark.parametrize(("wrong", "error"), [({"node": "g1"}, UsageError), ({"deployment": "chat"}, UsageError)])
def test_a_failover_of_nothing_is_bad_input(wrong, error, kube, outputs):
    with pytest.raises(error):
        failover.perform(inputs(**wrong), outputs, kube, log=lambda _line: None)


# Steps that are no gangs


def failed(**fields):
    return retry.FailedPod(**{"name": "score", "node": "g1", "phase": "Failed", **fields})


def judged(one, *conditions, look=None):
    return retry.verdict((one,), look or (lambda name: node(name, *conditions)), now_s=NOW_S)


@pytest.mark.parametrize(
    ("one", "outcome"),
    [
        (failed(exit_code=1, message="main: Error (exit code 1)"), "give-up"),
        (failed(exit_code=87), "give-up"),
        (failed(exit_code=93), "give-up"),
        (failed(exit_code=137, message="main: OOMKilled (exit code 137)"), "give-up"),
        (failed(exit_code=137, message="main: Error (exit code 137)"), "again"),
        (failed(exit_code=143), "again"),
        (failed(exit_code=85), "again"),
        (failed(phase="Error", message="pod deleted"), "again"),
        (failed(message="Pod was terminated in response to imminent node shutdown."), "again"),
        (failed(message="The node was low on resource: Evicted"), "again"),
        (failed(node="", message=""), "again"),
    ],
)
def test_a_step_is_judged_by_how_its_pod_ended(one, outcome):
    found = judged(one)
    assert (found.outcome, found.at_fault) == (outcome, "")
    assert "score" in found.words


def test_a_fault_of_the_node_explains_any_exit_and_names_the_node():
    found = judged(failed(exit_code=1), ACK_XID)
    assert (found.outcome, found.at_fault) == ("again", "g1")
    assert found.incident.startswith("g1-b0071d00-")
    assert found.reason


def test_an_end_that_says_itself_that_trying_again_is_useless_is_believed():
    found = judged(failed(exit_code=87), ACK_XID)
    assert (found.outcome, found.at_fault, found.final) == ("give-up", "", True)


def test_a_gpu_that_the_kubelet_refused_is_the_nodes_fault():
    message = (
        "Pod was rejected: Allocate failed due to device plugin GetPreferredAllocation rpc failed ... "
        "nvml: GPU is lost, which is unexpected"
    )
    found = judged(failed(message=message))
    assert (found.outcome, found.at_fault, found.reason) == ("again", "g1", "gpu_lost")


def test_a_node_that_is_gone_or_does_not_report():
    assert judged(failed(exit_code=1), look=lambda _name: None).words == "score on g1: the node is gone"
    silent = node("g1")
    silent["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]
    found = judged(failed(exit_code=1), look=lambda _name: silent)
    assert (found.outcome, found.at_fault) == ("again", "")


def test_of_several_pods_one_at_a_sick_node_is_enough_and_one_useless_end_is_the_end():
    def look(name):
        return node(name, *([ACK_XID] if name == "g2" else []))

    own, sick = failed(exit_code=1), failed(name="b", node="g2", exit_code=1)
    assert retry.verdict((own, sick), look, now_s=NOW_S).at_fault == "g2"
    useless = failed(exit_code=87)
    assert retry.verdict((sick, useless), look, now_s=NOW_S).outcome == "give-up"


def test_a_step_whose_pods_are_not_known_is_tried_again():
    assert retry.verdict((), lambda _name: None, now_s=NOW_S).outcome == "again"


def workflow_node(id_, type_="Pod", **fields):
    return {"id": id_, "displayName": id_, "type": type_, "phase": "Failed", **fields}


def test_of_a_dag_the_pods_below_it_count_and_of_a_retry_the_last_try():
    found = {
        one["id"]: one
        for one in (
            workflow_node("step", "DAG"),
            workflow_node("x", "Retry", boundaryID="step", children=["x0", "x1"]),
            workflow_node("x0", boundaryID="step0", hostNodeName="g1"),
            workflow_node("x1", boundaryID="step0", hostNodeName="g2", outputs={"exitCode": "9"}),
            workflow_node("y", boundaryID="step", phase="Succeeded"),
            workflow_node("z", boundaryID="step", phase="Error", message="pod deleted"),
            workflow_node("other", hostNodeName="g9"),
        )
    }
    pods = retry.failed_below(found, "step")
    assert [(one.name, one.node, one.exit_code, one.phase) for one in pods] == [
        ("x1", "g2", 9, "Failed"),
        ("z", "", None, "Error"),
    ]
    assert retry.failed_below(found, "missing") == ()


@pytest.fixture
def assessed(cluster, kube, outputs):
    """A factory: a Workflow with one failed pod on g1, assessed -> (exit code, outcome)."""

    def make(*conditions, exit_code="1", message="main: Error (exit code 1)", settle_s="0", **more):
        for name in ("g1", "g2", "g3", "g4"):
            cluster.put("nodes", node(name, *(conditions if name == "g1" else ())))
        step = workflow_node("wf-1", hostNodeName="g1", message=message, outputs={"exitCode": exit_code})
        metadata = {"name": "wf", "namespace": "team", "uid": "u1"}
        status = {"nodes": {"wf-1": step}}
        cluster.put("workflows", {"kind": "Workflow", "metadata": metadata, "status": status})
        asked = inputs(node_id="wf-1", settle_s=settle_s, **more)
        code = retry.perform(asked, outputs, kube, log=lambda _line: None)
        return code, told(outputs, "outcome")

    return make


def test_a_sick_node_is_marked_and_the_retry_goes_on(assessed, cluster, outputs):
    assert assessed(ACK_XID) == (86, "again")
    assert node_of(cluster, "g1")["spec"]["taints"][0]["key"] == QUARANTINED
    assert "g1" in told(outputs, "words")


def test_a_failing_program_is_not_retried_and_its_node_is_left_alone(assessed, cluster):
    assert assessed() == (0, "give-up")
    assert not node_of(cluster, "g1")["spec"].get("taints")


def test_an_agent_that_is_later_than_the_failure_is_waited_for(assessed, cluster):
    late = threading.Timer(0.3, lambda: cluster.put("nodes", node("g1", ACK_XID)))
    late.start()
    assert assessed(settle_s="10") == (86, "again")
    late.join()


def test_nothing_is_waited_for_where_nothing_could_change_the_answer(assessed):
    began = time.monotonic()
    assert assessed(exit_code="87", settle_s="30") == (0, "give-up")
    assert time.monotonic() - began < 5


def test_a_node_that_may_not_be_marked_is_avoided_by_the_retry_all_the_same(assessed, cluster, outputs):
    cluster.deny("patch", "nodes")
    assert assessed(ACK_XID) == (86, "again")
    assert "patch" in told(outputs, "words")


def test_nodes_that_may_not_be_looked_at_accuse_nobody(assessed, cluster):
    cluster.deny("get", "nodes")
    assert assessed(ACK_XID) == (0, "give-up")


CODES = st.none() | st.integers(0, 255)


@given(code=CODES, phase=st.sampled_from(["Failed", "Error"]), message=st.text(max_size=60), sick=st.booleans())
def test_every_end_has_an_answer_with_words_and_a_well_node_is_never_marked_for_an_exit(code, phase, message, sick):
    one = retry.FailedPod(name="s", node="g1", phase=phase, exit_code=code, message=message)
    found = judged(one, *([ACK_XID] if sick else []))
    assert found.outcome in ("again", "give-up")
    assert found.words
    refused = bool(retry._DEVICE_LOST.search(message))
    assert not found.at_fault or sick or refused
    assert bool(found.incident) is bool(found.at_fault)
