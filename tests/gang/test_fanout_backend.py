"""The backend of gangs whose pods Argo makes, on the fake API server; a test plays Argo."""

import pytest

from rerail.policies.volcano_verdict import GHOST_AFTER_S

TEAM = "team"
GANG = "run-a1"


@pytest.fixture
def rig(make_rig):
    rig = make_rig("fanout")
    rig.backend.owner = "workflow/team/w1/u1"
    return rig


def rank(rig, number, phase="Running", *, node="n1", gang=GANG, **status):
    """A pod of Argo's: its name says nothing, and two containers stand in it."""
    name = f"w1-rank-{number}77"
    known = {one["metadata"]["name"]: one for one in rig.api.find("pods")}
    labels = {"rerail.dev/run": "run", "rerail.dev/gang": gang, "rerail.dev/pod": f"{gang}-{number}"}
    one = known.get(name) or {"metadata": {"name": name, "namespace": TEAM, "labels": labels}}
    one["spec"] = {"nodeName": node} if node else {}
    ready = [{"type": "Ready", "status": "True"}] if phase == "Running" else []
    one["status"] = {"phase": phase, "conditions": ready, **status}
    rig.api.put("pods", one)


def beside(container, code=None, message=""):
    state = {"running": {}} if code is None else {"terminated": {"exitCode": code, "message": message}}
    return {"name": container, "state": state}


def run_ranks(rig):
    rig.submit()
    rig.group("Running")
    for number in (0, 1):
        rank(rig, number, node=f"n{number + 1}")
    rig.until(lambda: [pod.phase for pod in rig.view().pods] == ["running"] * 2)


def pods(rig):
    return {one["metadata"]["labels"]["rerail.dev/pod"]: one for one in rig.api.find("pods")}


def test_only_group_and_service_are_made_and_the_group_goes_with_its_workflow(rig, make_rig):
    rig.submit()
    make_rig("fanout").backend.submit(rig.spec)
    (group,), (service,) = rig.api.find("podgroups"), rig.api.find("services")
    assert rig.api.find("pods") == []
    owner = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": "w1", "uid": "u1"}
    assert group["metadata"]["ownerReferences"] == [owner]
    assert group["spec"]["minMember"] == 2
    assert service["metadata"]["ownerReferences"][0]["uid"] == group["metadata"]["uid"]
    assert [one["kind"] for one in rig.backend.render(rig.spec)] == ["PodGroup", "Service"]


def test_pods_that_argo_has_not_made_yet_are_still_to_come(rig):
    rig.submit()
    rig.group("Inqueue")
    seen = rig.view()
    assert (seen.pods, seen.absent, seen.stuck) == ((), False, None)
    assert seen.waits, "for which the policy has a bound"
    assert not rig.backend.has_pods(GANG)
    rank(rig, 0)
    rig.until(lambda: rig.backend.has_pods(GANG))
    assert [pod.name for pod in rig.view().pods] == [f"{GANG}-0"]
    assert rig.view().waits
    rank(rig, 1)
    rig.group("Running")
    rig.until(lambda: not rig.view().waits)


def test_a_rank_is_known_by_its_own_name_and_judged_by_its_own_container(rig):
    run_ranks(rig)
    said = '{"exit_code": 85, "step": 7}'
    ended = [beside("wait", 143), beside("main", 85, said)]
    rank(rig, 1, node="n2", containerStatuses=ended)
    rig.until(lambda: rig.view().pods[1].phase == "failed")
    first, second = rig.view().pods
    assert (first.name, first.phase, first.node) == (f"{GANG}-0", "running", "n1")
    assert (second.name, second.exit_code, second.farewell, second.node) == (f"{GANG}-1", 85, True, "n2")
    rank(rig, 0, containerStatuses=[beside("wait", 143), beside("main", 137)])
    rig.until(lambda: rig.view().pods[0].phase == "failed")
    assert (rig.view().pods[0].exit_code, rig.view().pods[0].farewell) == (137, False)


def test_ranks_that_are_done_are_done_whatever_argo_s_container_makes_of_it(rig):
    run_ranks(rig)
    rank(rig, 0, "Failed", containerStatuses=[beside("main", 0, '{"exit_code": 0}'), beside("wait", 1)])
    rank(rig, 1, "Running", node="n2", containerStatuses=[beside("main", 0), beside("wait")])
    rig.until(lambda: [pod.phase for pod in rig.view().pods] == ["succeeded"] * 2)
    assert [pod.exit_code for pod in rig.view().pods] == [0, 0]


def test_a_rank_that_is_made_again_is_another_one(rig):
    run_ranks(rig)
    rig.api.remove("pods", TEAM, "w1-rank-177")
    rig.until(lambda: rig.view().pods[1].phase == "gone")
    rank(rig, 1, "Pending", node=None)
    rig.until(lambda: len(rig.pods()) == 2)
    assert [pod.phase for pod in rig.view().pods] == ["running", "gone"]


def test_the_end_of_a_gang_is_one_deadline_for_its_placed_pods(rig):
    run_ranks(rig)
    for _ in range(3):
        assert not rig.backend.end(GANG, 10.0)
        rig.until(lambda: all("deletionTimestamp" in pod["metadata"] for pod in rig.pods()))
    assert rig.deadlines() == [10]
    for number in (0, 1):
        rig.api.remove("pods", TEAM, f"w1-rank-{number}77")
    rig.until(lambda: rig.backend.end(GANG, 10.0))
    rig.until(lambda: rig.backend.gangs("run") == ())
    assert rig.api.find("podgroups") == []


def test_a_pod_that_was_never_placed_fails_since_argo_would_make_a_deleted_one_again(rig):
    rig.submit()
    rank(rig, 0)
    rank(rig, 1, "Pending", node=None)
    rig.until(lambda: len(rig.pods()) == 2)
    rig.backend.end(GANG, 10.0)
    found = pods(rig)
    assert found[f"{GANG}-1"]["status"]["phase"] == "Failed"
    assert found[f"{GANG}-1"]["status"]["message"].startswith("its gang ended")
    assert "deletionTimestamp" not in found[f"{GANG}-1"]["metadata"]
    assert "deletionTimestamp" in found[f"{GANG}-0"]["metadata"]


def test_a_pod_that_is_placed_meanwhile_is_not_failed_but_deleted(rig):
    rig.submit()
    rank(rig, 0, "Pending", node=None)
    rig.until(rig.pods)
    before = rig.pods()
    rank(rig, 0, node="n1")
    rig.until(lambda: rig.pods() != before)
    rig.backend._fail(before[0])
    assert pods(rig)[f"{GANG}-0"]["status"]["phase"] == "Running"
    rig.backend.end(GANG, 10.0)
    assert "deletionTimestamp" in pods(rig)[f"{GANG}-0"]["metadata"]


def test_pods_that_come_after_their_gang_was_ended_are_ended_too(rig):
    rig.submit()
    assert rig.backend.end(GANG, 1.0)
    rig.until(lambda: rig.backend.gangs("run") == ())
    rank(rig, 0, "Pending", node=None)
    rig.until(lambda: rig.backend.gangs("run") == (GANG,))
    rig.backend.end(GANG, 1.0)
    rig.until(lambda: rig.backend.gangs("run") == ())


def test_a_ghost_is_forgotten_in_the_end_since_argo_waits_for_it(rig):
    run_ranks(rig)
    rig.ready["n2"] = False
    rig.backend.end(GANG, 5.0)
    rig.api.remove("pods", TEAM, "w1-rank-077")
    rig.until(lambda: rig.backend.end(GANG, 5.0))
    assert list(pods(rig)) == [f"{GANG}-1"], "not at once: its node may be back"
    rig.until(lambda: rig.backend.gangs("run") == ())  # until its watch has the group's end, the gang is told for that
    late = rig.stamp(-GHOST_AFTER_S - 10)
    rig.api.change("pods", TEAM, "w1-rank-177", lambda pod: pod["metadata"].update(deletionTimestamp=late))
    rig.until(lambda: rig.backend.gangs("run") == (GANG,))
    rig.backend.end(GANG, 5.0)
    assert pods(rig) == {}
    rig.until(lambda: rig.backend.gangs("run") == ())


def test_nobody_asks_for_pods_that_argo_creates(rig):
    rig.api.deny("create", "pods")
    assert rig.backend.problems(rig.spec) == ()
    rig.api.deny("create", "services")
    assert [problem.severity for problem in rig.backend.problems(rig.spec)] == ["error"]
