"""rerail-train on the cluster's own Argo: each story, told by the DAG, ends in the same training."""

import signal
from collections.abc import Iterator

import pytest
from rig import machines, network
from rig.argo import start_argo, stop_argo
from rig.gangs import full
from rig.library import Trained, installed
from rig.training import BEFORE, MIDDLE, RANKS, traced

from rerail.plugins.checkpoint.commit import read_manifest
from rerail.policies import keys

XID = {"type": "NvidiaXID79Error", "status": "True", "reason": "XID79", "message": "GPU 0 has fallen off the bus"}


@pytest.fixture
def trained(cluster, argo, gang) -> Iterator[Trained]:
    with installed(cluster, gang.namespace):
        yield Trained(argo, gang)


def used_node(gang):
    """A node that the gang is on; the other one has room for all of it."""
    return str(gang.pods()[-1]["spec"]["nodeName"])


def same_training(trained, baseline, *, attempts):
    """The end of each story that goes well: bit for bit, and the report says so under Argo's rules."""
    gang = trained.gang
    found = gang.compare(baseline)
    assert found.identical, found.differences
    document = trained.report()
    assert (document["outcome"], len(document["attempts"])) == ("done", attempts), trained.told()
    page = trained.page()
    assert page.headers["content-type"].startswith("text/html")
    assert b"<svg" in page.body
    assert "default-src 'none'" in page.headers["content-security-policy"]
    return document


def test_it_trains_and_the_dag_says_so(trained, baseline):
    trained.submit(traced(trained.gang))
    trained.ended("Succeeded")
    assert trained.steps()[1:5] == [
        ("resolve", "Succeeded"), ("attempt", "Succeeded"), ("fresh", "Succeeded"), ("report", "Succeeded")
    ]  # fmt: skip
    assert trained.node("fresh(0)")["progress"] == "100/100"
    same_training(trained, baseline, attempts=1)


@pytest.mark.alone
def test_a_lost_gpu(cluster, trained, baseline):
    gang = trained.gang
    trained.submit(traced(gang))
    trained.wait_step(MIDDLE)
    sick = used_node(gang)
    with cluster.condition(sick, XID):
        trained.ended("Succeeded")
    assert trained.steps()[1:8] == [
        ("resolve", "Succeeded"),
        ("attempt", "Succeeded"),
        ("fresh", "Failed"),
        ("assess", "Succeeded"),
        ("next-attempt", "Succeeded"),
        ("resume", "Succeeded"),
        ("report", "Succeeded"),
    ], trained.told()
    words = trained.node("fresh(0)")["message"]
    assert f"XID 79 on {sick} ended attempt 1 at step " in words
    assert "attempt 2 goes on from step " in words
    document = same_training(trained, baseline, attempts=2)
    assert sick not in document["attempts"][1]["nodes"]


@full
@pytest.mark.alone
def test_a_lost_node(cluster, trained, baseline):
    gang = trained.gang
    trained.submit(traced(gang))
    trained.wait_step(MIDDLE)
    lost = cluster.node(used_node(gang))
    runner = cluster.read("pod", trained.argo.pod_of(trained.name, "fresh(0)"), "-n", gang.namespace)
    with_its_runner = runner["spec"]["nodeName"] == lost.name
    try:
        network.cut(lost)
        machines.stop(lost)
        trained.until("the node is lost", lambda: lost.name not in cluster.ready_nodes())
        trained.give_up_on(lost.name)
        trained.ended("Succeeded")
    finally:
        network.mend(lost)
        machines.start_again(lost)
    document = same_training(trained, baseline, attempts=2)
    told = document["incidents"][0]["class"]
    assert told == "node-lost" or (told == "evicted" and with_its_runner), "Kubernetes may be first where nobody looks"
    assert lost.name not in document["attempts"][1]["nodes"]


@full
def test_a_preempted_gang_saves_and_goes_on(trained, baseline):
    gang = trained.gang
    trained.submit(traced(gang))
    trained.wait_step(MIDDLE)
    for pod in gang.pods():
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod["metadata"]["name"], "namespace": gang.namespace},
        }
        path = f"/api/v1/namespaces/{gang.namespace}/pods/{pod['metadata']['name']}/eviction"
        gang.cluster.kubectl("create", "--raw", path, "-f", "-", document=eviction)
    trained.ended("Succeeded")
    document = same_training(trained, baseline, attempts=2)
    assert document["incidents"][0]["cause"] == "preemption"
    assert document["lost_steps"] == 0


@full
def test_a_damaged_newest_checkpoint_is_left_out(trained, baseline):
    gang = trained.gang
    trained.submit(traced(gang, delay_s=1.0))  # nothing newer comes between the damage and the kill

    def newest():
        return [keys.parse_commit(one.key).step for one in gang.run.control.page(keys.manifests_of(1)).entries][:1]

    trained.until("the commit", lambda: newest() == [BEFORE])
    manifest = read_manifest(gang.run, 1, BEFORE)
    for file in manifest.files:
        gang.run.shards.delete((keys.SHARDS + file.path,))
    gang.kill_pod(gang.pods()[1])
    trained.ended("Succeeded")
    document = same_training(trained, baseline, attempts=2)
    assert document["attempts"][1]["started_from_step"] < manifest.step
    assert any("damaged" in why for why in document["attempts"][1]["skipped"])


@full
def test_a_budget_that_is_used_up_is_said_everywhere(cluster, trained):
    gang = trained.gang
    raising = {"RERAIL_DRILL_RAISE": f"step={MIDDLE},rank=1"}
    policy = {"in_place": False, "budgets": {"identical": 2}}
    name = trained.submit(traced(gang, environment=raising), policy=policy)
    trained.ended("Failed")
    assert [step for step in trained.steps() if step[0] in ("fresh", "resume", "assess", "give-up", "report")][:6] == [
        ("fresh", "Failed"),
        ("assess", "Succeeded"),
        ("resume", "Failed"),
        ("assess", "Succeeded"),
        ("give-up", "Failed"),
        ("report", "Succeeded"),
    ], trained.told()
    reason = f"run {gang.name}: the same failure at the same step {MIDDLE - 1} in 2 attempts"
    gave_up = trained.node("give-up")
    assert gave_up["type"] == "Pod", "no Retry node, whose message would be Argo's own"
    assert reason in gave_up["message"]
    workflow = trained.argo.workflow(name)
    assert workflow["metadata"]["annotations"]["rerail.dev/reason"].startswith(reason)
    events = [one for one in cluster.read("events", "-n", gang.namespace)["items"] if one["reason"] == "GangGaveUp"]
    told = sorted((one["involvedObject"]["kind"], one["involvedObject"]["name"]) for one in events)
    assert told == [("Job", f"{gang.name}-a2"), ("Workflow", name)], "one for each object"
    assert trained.report()["outcome"] == "stopped"
    assert not living(gang)


def living(gang):
    return [pod for pod in gang.pods() if pod["status"].get("phase") in ("Pending", "Running")]


@full
def test_a_workflow_that_a_person_stops_saves_and_ends_its_gang(trained):
    gang = trained.gang
    name = trained.submit(traced(gang, delay_s=0.3))
    trained.wait_step(MIDDLE)
    trained.argo.stop(name)
    trained.ended("Failed")
    trained.until("its gang is gone", lambda: not living(gang))
    state = gang.state()
    assert state.phase == "stopped"
    assert state.reason.startswith(f"asked to stop: Workflow {gang.namespace}/{name} ")
    assert state.attempts[0].last_commit_step >= MIDDLE, "after a save"
    assert trained.report()["outcome"] == "stopped"


@full
def test_a_workflow_that_a_person_terminates_leaves_nothing_behind(trained):
    gang = trained.gang
    name = trained.submit(traced(gang, delay_s=0.3))
    trained.wait_step(MIDDLE)
    trained.argo.terminate(name)
    trained.ended("Failed")
    trained.reap()
    trained.until("its gang is gone", lambda: not living(gang))
    state = gang.state()
    assert state.phase == "stopped"
    assert state.attempts[0].last_commit_step >= MIDDLE, "after a save"


@full
@pytest.mark.alone
def test_a_gang_whose_runner_and_workflow_are_gone_is_reaped(cluster, trained):
    gang = trained.gang
    name = trained.submit(traced(gang, delay_s=0.3))
    trained.wait_step(MIDDLE)
    assert "Workflow" not in trained.reap(), "its Workflow goes on"
    assert len(living(gang)) == RANKS
    runner = trained.argo.pod_of(name, "fresh(0)")
    stop_argo(signal.SIGKILL)
    try:
        gang.kill_runner(name)  # at once: told to go, it would end the gang itself
        cluster.kubectl("delete", "workflow", name, "-n", gang.namespace, "--wait=false")
        cluster.kubectl("delete", "pod", runner, "-n", gang.namespace, "--force", "--grace-period=0", "--wait=false")
    finally:
        start_argo()
    assert len(living(gang)) == RANKS
    assert f"run {gang.name} in {gang.namespace}: Workflow {gang.namespace}/{name} is gone: ended" in trained.reap()
    assert not living(gang)
    state = gang.state()
    assert (state.phase, state.reason) == ("stopped", f"asked to stop: Workflow {gang.namespace}/{name} is gone")
    assert state.attempts[0].last_commit_step >= MIDDLE, "after a save"


@full
def test_a_second_workflow_on_the_run_is_refused_and_changes_nothing(trained, baseline):
    gang = trained.gang
    first = trained.submit(traced(gang, delay_s=0.2))
    trained.wait_step(10)
    second = trained.submit(traced(gang, delay_s=0.2))
    trained.ended("Failed")
    words = " ".join(node["message"] for node in trained.argo.whole_nodes(second) if node.get("message"))
    assert f"belongs to Workflow {gang.namespace}/{first}, not to Workflow {gang.namespace}/{second}" in words
    trained.name = first
    trained.ended("Succeeded")
    same_training(trained, baseline, attempts=1)


@full
@pytest.mark.alone
def test_a_recovery_goes_through_while_argo_is_down(cluster, trained, baseline):
    gang = trained.gang
    trained.submit(traced(gang))
    trained.wait_step(MIDDLE)
    sick = used_node(gang)
    stop_argo(signal.SIGKILL)
    try:
        with cluster.condition(sick, XID):
            trained.wait_step(1, attempt=2)
            assert trained.node("fresh")["phase"] == "Running", "Argo knows nothing of it"
    finally:
        start_argo()
    trained.ended("Succeeded")
    assert ("resume", "Succeeded") in trained.steps()
    assert "attempt 2 goes on from step " in trained.node("fresh(0)")["message"]
    same_training(trained, baseline, attempts=2)


@full
def test_a_runner_pod_that_is_lost_is_followed(cluster, trained, baseline):
    gang = trained.gang
    name = trained.submit(traced(gang))
    trained.wait_step(10)
    runner = trained.argo.pod_of(name, "fresh(0)")
    cluster.kubectl("delete", "pod", runner, "-n", gang.namespace, "--force", "--grace-period=0", "--wait=false")
    trained.wait_step(MIDDLE)
    gang.kill_pod(gang.pods()[1])
    trained.ended("Succeeded")
    assert trained.node("fresh(1)")["phase"] == "Failed", "it handed over"
    assert "attempt 2 goes on from step " in trained.node("fresh(1)")["message"]
    same_training(trained, baseline, attempts=2)
