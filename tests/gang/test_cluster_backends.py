"""Vcjob and PodGroup backends on a fake API server: how gangs are submitted and ended."""

import time
from contextlib import nullcontext
from dataclasses import replace

import pytest

from rerail.policies.errors import (
    ClusterUnreachableError,
    ForbiddenError,
    QuotaExceededError,
    RefusedError,
    TransientError,
)

TEAM = "team"
GANG = "run-a1"


# Submission.


def test_a_gang_is_submitted_once_however_often_it_is_asked(rig, make_rig):
    assert rig.view().absent
    rig.submit()
    second = make_rig(rig.kind).backend
    made = {plural: rig.api.find(plural) for plural in (rig.plural, "services", "pods")}
    rig.backend.submit(rig.spec)
    second.submit(rig.spec)
    assert {plural: rig.api.find(plural) for plural in made} == made
    assert len(made[rig.plural]) == 1
    labels = made[rig.plural][0]["metadata"]["labels"]
    assert (labels["rerail.dev/run"], labels["rerail.dev/gang"], labels["rerail.dev/attempt"]) == ("run", GANG, "1")
    if rig.kind == "podgroup":
        owners = [one["metadata"]["ownerReferences"][0]["uid"] for one in (*made["services"], *made["pods"])]
        assert owners == [made["podgroups"][0]["metadata"]["uid"]] * 3


def test_an_object_of_our_run_and_gang_is_adopted_though_it_was_rendered_otherwise(rig, make_rig):
    second = make_rig(rig.kind).backend
    second.priority_class = "high"
    second.submit(rig.spec)
    rig.backend.submit(rig.spec)
    (found,) = rig.api.find(rig.plural)
    assert found["spec"]["priorityClassName"] == "high"


def test_a_gang_that_comes_back_may_have_a_priority_class_of_its_own(rig):
    rig.backend.policy = rig.backend.policy.model_copy(update={"restart_priority_class": "again"})
    rig.submit()
    again = rig.spec.model_copy(update={"name": "run-a2"})
    rig.backend.submit(again)
    classes = {one["metadata"]["name"]: one["spec"].get("priorityClassName") for one in rig.api.find(rig.plural)}
    assert classes == {GANG: None, "run-a2": "again"}


def test_a_pod_that_ended_is_adopted_and_not_made_again(rig):
    rig.run()
    rig.pod(rig.names[0], "Succeeded")
    before = {one["metadata"]["uid"] for one in rig.api.find("pods")}
    rig.backend.submit(rig.spec)
    assert {one["metadata"]["uid"] for one in rig.api.find("pods")} == before


@pytest.mark.parametrize("labels", [{}, {"rerail.dev/run": "other", "rerail.dev/gang": GANG}])
def test_a_name_that_belongs_to_something_else_is_refused(rig, labels):
    rig.api.put(rig.plural, {"metadata": {"name": GANG, "namespace": TEAM, "labels": labels}, "spec": {}})
    with pytest.raises(RefusedError, match=r"'run-a1' exists.*choose another run name, or delete"):
        rig.backend.submit(rig.spec)


def test_a_name_that_is_going_away_is_waited_for(rig):
    rig.submit()
    rig.api.change(rig.plural, TEAM, GANG, lambda one: one["metadata"].update(deletionTimestamp=rig.stamp(30)))
    with pytest.raises(TransientError, match="is being deleted"):
        rig.backend.submit(rig.spec)


def test_an_object_that_goes_between_two_requests_is_tried_again(rig):
    rig.api.fail("POST", f"/{rig.plural}", 409, times=99, body=rig.refusal(409, "there", "AlreadyExists"))
    with pytest.raises((TransientError, RefusedError)) as caught:
        rig.backend.submit(rig.spec)
    assert isinstance(caught.value, TransientError), caught.value


def test_a_gang_that_a_scheduler_placed_is_never_created_again(rig):
    placed = tuple(pod.model_copy(update={"node": "n1"}) for pod in rig.spec.pods)
    rig.backend.submit(rig.spec.model_copy(update={"pods": placed}))
    assert not rig.api.find(rig.plural)
    assert rig.api.asked("POST", "/") == 0
    assert rig.view().absent


QUOTA = "forbidden: exceeded quota: small, requested: pods=1, used: pods=4, limited: pods=4"


def test_a_quota_is_waited_for_with_its_reason(rig):
    about = rig.plural if rig.kind == "vcjob" else "pods"
    for _ in range(2):
        rig.api.fail("POST", f"/{about}", 403, body=rig.refusal(403, f'{about} "x" is {QUOTA}', "Forbidden"))
        with pytest.raises(QuotaExceededError, match="exceeded quota: small"):
            rig.backend.submit(rig.spec)
        seen = rig.view()
        assert "exceeded quota: small" in seen.waits
        assert not seen.absent
    rig.submit()
    assert "quota" not in rig.view().waits
    assert len(rig.api.find(rig.plural)) == 1


def test_a_gang_that_another_supervisor_had_accepted_waits_for_nothing(rig, make_rig):
    rig.api.fail("POST", f"/{rig.plural}", 403, body=rig.refusal(403, f"x is {QUOTA}", "Forbidden"))
    with pytest.raises(QuotaExceededError):
        rig.backend.submit(rig.spec)
    make_rig(rig.kind).backend.submit(rig.spec)
    rig.run_pods()
    rig.until(lambda: [pod.phase for pod in rig.view().pods] == ["running"] * 2)
    assert not rig.view().waits
    placed = tuple(pod.model_copy(update={"node": "n1"}) for pod in rig.spec.pods)
    rig.backend.submit(rig.spec.model_copy(update={"pods": placed}))
    rig.api.remove("pods", TEAM, rig.names[0])
    rig.until(lambda: rig.view().pods[0].phase == "gone")
    assert "quota" not in rig.view().waits


DENIED = 'admission webhook "validatejob.volcano.sh" denied the request: queue `training` status is `Closed`'


@pytest.mark.parametrize("code", [400, 403])
def test_an_admission_that_refuses_now_is_waited_for_with_its_reason(rig, code):
    rig.api.fail("POST", f"/{rig.plural}", code, body=rig.refusal(code, DENIED))
    with pytest.raises(TransientError, match="status is `Closed`"):
        rig.backend.submit(rig.spec)
    assert "status is `Closed`" in rig.view().waits
    rig.submit()
    assert "Closed" not in rig.view().waits


def test_a_missing_right_is_no_reason_to_wait(rig):
    rig.api.deny("create", rig.plural)
    with pytest.raises(ForbiddenError) as caught:
        rig.backend.submit(rig.spec)
    assert caught.value.rule is not None
    assert f'resources: ["{rig.plural}"]' in caught.value.rule


def test_an_old_volcano_is_named_when_it_lacks_a_field(rig):
    assert rig.backend.problems(rig.spec) == () or all(
        one.severity == "warning" for one in rig.backend.problems(rig.spec)
    )
    message = 'PodGroup in version "v1beta1" cannot be handled: strict decoding error: unknown field "spec.new"'
    rig.api.fail("POST", f"/{rig.plural}", 400, body=rig.refusal(400, message))
    (error,) = (one for one in rig.backend.problems(rig.spec) if one.severity == "error")
    assert "too old to know the field" in str(error)
    assert "spec.new" in str(error)


def test_a_quota_is_a_warning_before_a_run_begins_for_it_may_pass(rig):
    rig.api.fail("POST", f"/{rig.plural}", 403, body=rig.refusal(403, f"x is {QUOTA}", "Forbidden"))
    told = [one for one in rig.backend.problems(rig.spec) if "exceeded quota" in str(one)]
    assert [one.severity for one in told] == ["warning"]


@pytest.mark.parametrize("plural", ["services", "pods"])
def test_what_the_server_would_refuse_of_a_group_is_known_before(make_rig, plural):
    rig = make_rig("podgroup")
    assert not [one for one in rig.backend.problems(rig.spec) if one.severity == "error"]
    words = 'violates PodSecurity "restricted:latest": runAsNonRoot'
    rig.api.fail("POST", f"/{plural}", 403, body=rig.refusal(403, f"{plural} is forbidden: {words}", "Forbidden"))
    (problem,) = rig.backend.problems(rig.spec)
    assert problem.severity == "error"
    assert "runAsNonRoot" in str(problem)
    rig.api.fail("POST", f"/{plural}", 403, body=rig.refusal(403, QUOTA, "Forbidden"))
    (problem,) = rig.backend.problems(rig.spec)
    assert problem.severity == "warning"
    assert not rig.api.find("podgroups") + rig.api.find("services") + rig.api.find("pods")


# The end.


def test_a_gang_is_ended_by_one_order_and_one_deadline(rig):
    rig.run()
    for _ in range(3):
        assert not rig.backend.end(GANG, 10.0)
        rig.until(
            lambda: all("deletionTimestamp" in pod["metadata"] for pod in rig.backend.watch.snapshot().pods[GANG])
        )
    assert rig.deadlines() == [10]
    assert rig.api.asked("POST", "/commands") == (1 if rig.kind == "vcjob" else 0)
    assert not rig.backend.end(GANG, 30.0)
    assert rig.deadlines() == [10], "a deadline is not put off"
    assert not rig.backend.end(GANG, 0.0)
    assert rig.deadlines() == [10, 1], "never 0: that frees the name and not the device"
    rig.until(lambda: all(pod["metadata"]["deletionGracePeriodSeconds"] == 1 for pod in rig.pods()))
    assert rig.backend.gangs("run") == (GANG,)

    for name in rig.names:
        rig.api.remove("pods", TEAM, name)
    rig.phase("Terminated")
    rig.until(lambda: rig.backend.end(GANG, 1.0))
    rig.until(lambda: rig.backend.gangs("run") == ())
    assert rig.deadlines() == [10, 1]
    assert len(rig.api.find("podgroups")) == (1 if rig.kind == "vcjob" else 0)


def test_the_order_is_given_again_only_where_it_moved_nothing(vcjob):
    vcjob.run()
    vcjob.backend.end(GANG, 5.0)
    (command,) = vcjob.api.find("commands")
    assert command["action"] == "TerminateJob"
    assert command["target"]["uid"] == vcjob.api.find("jobs")[0]["metadata"]["uid"]
    vcjob.api.remove("commands", TEAM, command["metadata"]["name"])
    vcjob.phase("Restarting")
    vcjob.until(lambda: vcjob.backend.watch.snapshot().jobs[GANG].phase == "Restarting")
    vcjob.clock.at_s += 9.0
    vcjob.backend.end(GANG, 5.0)
    assert not vcjob.api.find("commands")
    vcjob.clock.at_s += 1.0
    vcjob.backend.end(GANG, 5.0)
    assert len(vcjob.api.find("commands")) == 1


@pytest.mark.parametrize("phase", ["", "Pending", "Running", "Restarting"])
def test_a_job_that_has_no_pods_may_still_make_some(vcjob, phase):
    vcjob.submit()
    if phase:
        vcjob.phase(phase)
        vcjob.until(lambda: vcjob.backend.watch.snapshot().jobs[GANG].phase == phase)
    assert vcjob.backend.gangs("run") == (GANG,)
    assert not vcjob.backend.end(GANG, 5.0)
    assert vcjob.api.asked("POST", "/commands") == 1


@pytest.mark.parametrize("phase", ["Terminating", "Aborting", "Aborted", "Completing", "Completed", "Failed"])
def test_a_job_that_goes_or_is_gone_takes_no_order_and_holds_up_nothing(vcjob, phase):
    vcjob.submit()
    vcjob.phase(phase)
    vcjob.until(lambda: vcjob.backend.watch.snapshot().jobs[GANG].phase == phase)
    assert vcjob.backend.end(GANG, 5.0)
    assert vcjob.backend.gangs("run") == ()
    assert vcjob.api.asked("POST", "/commands") == 0


def test_pods_that_lie_on_a_silent_node_hold_up_nothing(rig):
    rig.run()
    rig.ready["n2"] = False
    rig.backend.end(GANG, 5.0)
    rig.api.remove("pods", TEAM, rig.names[0])
    rig.phase("Terminating")
    rig.until(lambda: rig.backend.end(GANG, 5.0))
    assert [pod.phase for pod in rig.view().pods] == ["gone", "gone"]
    rig.ready["n2"] = True
    assert not rig.backend.end(GANG, 5.0), "it reports again: its processes may live"


def test_a_live_pod_on_a_silent_node_is_not_gone_before_it_was_told_to_go(rig):
    rig.run()
    rig.ready["n2"] = False
    assert [(pod.phase, pod.node_ready) for pod in rig.view().pods] == [("running", None), ("running", False)]


def test_pods_without_their_object_are_ended_too(rig):
    rig.run()
    for one in rig.api.find(rig.plural):
        rig.api.remove(rig.plural, TEAM, one["metadata"]["name"])
    rig.until(lambda: not rig.backend.watch.snapshot().jobs and not rig.backend.end(GANG, 3.0))
    assert rig.deadlines()[-1] == 3
    assert GANG in rig.backend.gangs("run")
    for name in rig.names:
        rig.api.remove("pods", TEAM, name)
    rig.until(lambda: rig.backend.end(GANG, 3.0))


def test_a_group_without_pods_keeps_its_place_in_the_queue_and_is_ended(make_rig):
    rig = make_rig("podgroup")
    rig.submit()
    rig.until(lambda: len(rig.pods()) == 2)
    for name in rig.names:
        rig.api.remove("pods", "team", name)
    rig.until(lambda: not rig.pods())
    assert rig.backend.gangs("run") == (GANG,)
    assert rig.backend.end(GANG, 1.0)
    rig.until(lambda: rig.backend.gangs("run") == ())


def test_what_belongs_to_other_runs_is_neither_seen_nor_ended(rig):
    rig.run()
    labels = {"rerail.dev/run": "other", "rerail.dev/gang": "other-a1"}
    other = {"metadata": {"name": "other-a1-0", "namespace": TEAM, "labels": labels}, "spec": {"nodeName": "n1"}}
    rig.api.put("pods", {**other, "status": {"phase": "Running"}})
    assert rig.backend.gangs("run") == (GANG,)
    rig.backend.end(GANG, 1.0)
    found = {pod["metadata"]["name"]: pod["metadata"] for pod in rig.api.find("pods")}
    assert "deletionTimestamp" not in found["other-a1-0"]


# An API server that does not answer.


@pytest.mark.parametrize("code", [429, 500, 0])
def test_a_short_outage_is_survived_and_a_long_one_is_told_in_time(rig, code):
    api = rig.backend.watch.api
    api.patience = replace(api.patience, total_s=5.0)
    rig.api.fail("POST", f"/{rig.plural}", code, times=1)
    if code == 429:
        rig.backend.submit(rig.spec)  # surely not carried out: tried again within the call
    else:
        # Of a vcjob the client itself finds out whether it was created.
        with pytest.raises(ClusterUnreachableError) if rig.kind == "podgroup" else nullcontext():
            rig.backend.submit(rig.spec)
        rig.backend.submit(rig.spec)
    assert len(rig.api.find(rig.plural)) == 1
    api.patience = replace(api.patience, total_s=0.3)
    rig.api.fail("DELETE", "/pods", 503, times=99)
    for name in rig.names:
        rig.pod(name)
    rig.until(lambda: rig.view().pods)
    with pytest.raises(ClusterUnreachableError):
        rig.backend.end(GANG, 5.0)
    rig.api.faults.clear()
    assert not rig.backend.end(GANG, 5.0)
    assert all("deletionTimestamp" in pod["metadata"] for pod in rig.api.find("pods"))


def test_a_server_that_hangs_is_given_up(rig):
    api = rig.backend.watch.api
    api.patience = replace(api.patience, request_s=1.0)
    rig.api.hang("POST", f"/{rig.plural}", times=9)
    begun = time.monotonic()
    with pytest.raises(ClusterUnreachableError):
        rig.backend.submit(rig.spec)
    assert time.monotonic() - begun < 10.0
    api.patience = replace(api.patience, request_s=20.0)
    rig.api.faults.clear()
    rig.submit()


def test_lost_history_is_listed_again(rig):
    rig.run()
    rig.api.compact()
    rig.api.end_streams()
    rig.pod(rig.names[0], "Failed", containerStatuses=[rig.ended(1)])
    rig.wait_phase(0, "failed")


def test_without_the_right_to_watch_the_rule_is_named(cluster_api, make_rig):
    cluster_api.deny("list", "pods")
    with pytest.raises(ForbiddenError, match=r'resources: \["pods"\]'):
        make_rig("vcjob").view()
