"""The training of examples/01 as a Volcano gang: each fault ends in the same training, elsewhere or in place."""

import pytest
from rig import machines, network
from rig.training import BEFORE, MIDDLE, Gang, finished, traced


def test_a_killed_pod_moves_the_gang(gang, baseline):
    gang.start(traced(gang))
    gang.wait_step(MIDDLE)
    gang.kill_pod(gang.pods()[1])
    report = finished(gang, baseline)

    assert report.attempts[1].how == "new-gang"
    assert report.attempts[1].started_from_step >= BEFORE
    assert report.incidents[0].class_ == "pod-lost"
    assert (
        gang.cluster.read("vcjob", f"{gang.name}-a1", "-n", gang.namespace)["status"]["state"]["phase"] == "Terminated"
    )


def test_a_rank_that_raises_is_restarted_in_its_pods(gang, baseline):
    gang.start(traced(gang, environment={"RERAIL_DRILL_RAISE": f"step={MIDDLE},rank=1,attempt=1"}))
    gang.wait("the second attempt", lambda state: state.attempt == 2 and state.phase == "running")
    pods = {pod["metadata"]["name"] for pod in gang.pods()}
    report = finished(gang, baseline)

    assert report.attempts[1].how == "in-place"
    assert pods == {f"{gang.name}-a1-worker-{index}" for index in range(4)}
    assert report.incidents[0].class_ == "app-error"


def test_without_in_place_the_same_error_moves_the_gang(gang, baseline):
    raising = {"RERAIL_DRILL_RAISE": f"step={MIDDLE},rank=1,attempt=1"}
    gang.start(traced(gang, environment=raising), policy={"in_place": False})
    report = finished(gang, baseline)

    assert report.attempts[1].how == "new-gang"


def used_node(gang: Gang) -> str:
    """A node that the gang is on; the other one has room for all of it."""
    return str(gang.pods()[-1]["spec"]["nodeName"])


@pytest.mark.alone
def test_a_lost_node_is_left_behind(cluster, gang, baseline):
    gang.start(traced(gang))
    gang.wait_step(MIDDLE)
    lost = cluster.node(used_node(gang))
    try:
        network.cut(lost)
        machines.stop(lost)
        report = finished(gang, baseline)
    finally:
        network.mend(lost)
        machines.start_again(lost)

    assert report.incidents[0].class_ == "node-lost"
    assert lost.name not in report.attempts[1].nodes


@pytest.mark.alone
def test_a_node_condition_moves_the_gang_and_marks_the_node(cluster, gang, baseline):
    gang.start(traced(gang))
    gang.wait_step(MIDDLE)
    sick = used_node(gang)
    condition = {
        "type": "NvidiaXID79Error",
        "status": "True",
        "reason": "XID79",
        "message": "GPU 0000:3b:00.0 has fallen off the bus",
    }
    with cluster.condition(sick, condition):
        report = finished(gang, baseline)
        taints = cluster.read("node", sick)["spec"].get("taints", [])
        assert ("rerail.dev/quarantined", "NoSchedule") in {(taint["key"], taint["effect"]) for taint in taints}
    assert report.incidents[0].codes == ("xid:79",)
    assert sick not in report.attempts[1].nodes


@pytest.mark.alone
def test_a_drained_node_is_left_after_a_save(cluster, gang, baseline):
    gang.start(traced(gang))
    gang.wait_step(MIDDLE)
    drained = used_node(gang)
    try:
        cluster.kubectl(
            "drain", drained, "--force", "--ignore-daemonsets", f"--pod-selector=rerail.dev/run={gang.name}"
        )
        report = finished(gang, baseline)
    finally:
        cluster.kubectl("uncordon", drained)

    assert drained not in report.attempts[1].nodes
    assert report.lost_steps == 0
    assert report.incidents[0].cause == "preemption"


def test_a_supervisor_that_dies_before_the_gang_runs_is_followed(gang, baseline):
    gang.start(traced(gang))
    gang.wait("a decision", lambda state: state.attempt == 1)
    gang.kill_supervisor()
    gang.start()
    finished(gang, baseline, attempts=1)


def test_a_fault_while_nobody_supervises_is_found_by_the_next(gang, baseline):
    gang.start(traced(gang))
    gang.wait_step(MIDDLE)
    gang.kill_supervisor()
    gang.kill_pod(gang.pods()[1])
    gang.start()
    finished(gang, baseline)


def test_a_supervisor_that_dies_in_the_recovery_is_followed(gang, baseline):
    gang.start(traced(gang))
    gang.wait_step(MIDDLE)
    gang.kill_pod(gang.pods()[1])
    gang.wait("the fault is decided on", lambda state: bool(state.incidents))
    gang.kill_supervisor()
    gang.start()
    finished(gang, baseline)


def test_two_supervisors_are_one(gang, baseline):
    gang.start(traced(gang))
    gang.wait_step(10)
    gang.start()
    gang.wait_step(MIDDLE)
    gang.kill_pod(gang.pods()[2])
    report = finished(gang, baseline)
    gang.supervisors[0].wait(timeout=30)

    assert len(report.incidents) == 1
