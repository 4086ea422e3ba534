"""Vcjob and PodGroup backends on a fake API server: what is seen of a gang, and what is remembered."""

import time
import uuid
from typing import Any

import pytest

TEAM = "team"
GANG = "run-a1"


# What is seen.


def test_a_gang_that_is_not_placed_tells_what_it_waits_for(rig):
    rig.submit()
    unschedulable = {
        "type": "Unschedulable",
        "status": "True",
        "reason": "NotEnoughResources",
        "message": "2/0 tasks in gang unschedulable: 2 Insufficient nvidia.com/gpu",
        "lastTransitionTime": rig.stamp(0),
    }
    rig.group("Pending", conditions=[unschedulable])
    rig.phase("Pending")
    rig.until(lambda: "Insufficient nvidia.com/gpu" in rig.view().waits)
    rig.api.change("queues", "", "training", lambda one: one.update(status={"state": "Closed"}))
    rig.clock.at_s += 6.0
    rig.until(lambda: "queue 'training' Closed" in rig.view().waits)
    rig.clock.at_s += 6.0
    assert "its queue takes no jobs" in rig.view().waits
    assert rig.view().stuck is None, "it waits with a bound of its own"


def test_a_queue_that_nobody_may_look_at_or_that_does_not_answer_is_not_told(rig):
    rig.api.deny("get", "queues")
    rig.submit()
    assert "queue" not in rig.view().waits
    rig.api.denied.clear()
    rig.api.fail("GET", "/queues/", 500, times=9)
    rig.clock.at_s += 6.0
    assert rig.view().waits
    assert "queue" not in rig.view().waits


def test_phases_exit_codes_and_last_words(rig):
    rig.run()
    said = '{"exit_code": 85, "signal": null, "error": "", "step": 7}'
    rig.pod(rig.names[0], "Failed", containerStatuses=[rig.ended(85, message=said)])
    rig.pod(rig.names[1], "Failed", containerStatuses=[rig.ended(137, reason="OOMKilled")])
    first, second = (rig.wait_phase(0, "failed"), rig.wait_phase(1, "failed"))
    assert (first.exit_code, first.farewell, first.node) == (85, True, "n1")
    assert (second.exit_code, second.farewell, second.reason) == (137, False, "OOMKilled")


def test_why_a_pod_is_taken_away_is_remembered_when_it_is_gone(rig):
    rig.run()
    target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    rig.pod(rig.names[1], conditions=[target])
    rig.until(lambda: rig.view().pods[1].disrupted == "PreemptionByScheduler")
    rig.api.remove("pods", TEAM, rig.names[1])
    gone = rig.wait_phase(1, "gone")
    assert (gone.disrupted, gone.node, gone.farewell) == ("PreemptionByScheduler", "n2", False)


def test_how_a_pod_went_is_known_though_it_went_between_two_looks(rig):
    rig.run()
    said = '{"exit_code": 85, "step": 7}'
    target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    rig.pod(rig.names[0], "Failed", containerStatuses=[rig.ended(85, message=said)], conditions=[target])
    rig.api.remove("pods", TEAM, rig.names[0])
    rig.api.change("pods", TEAM, rig.names[1], lambda one: one["metadata"].update(deletionTimestamp=rig.stamp(30)))
    rig.api.remove("pods", TEAM, rig.names[1])
    rig.until(lambda: not rig.pods())
    first, second = rig.view().pods
    assert (first.phase, first.exit_code, first.farewell) == ("failed", 85, True)
    assert first.disrupted == "PreemptionByScheduler"
    assert (second.phase, second.disrupted, second.node) == ("gone", "deleted", "n2")


def test_a_pod_that_is_deleted_says_so_and_is_not_taken_for_one_to_come(rig):
    rig.run()
    rig.api.change("pods", TEAM, rig.names[0], lambda one: one["metadata"].update(deletionTimestamp=rig.stamp(30)))
    rig.until(lambda: rig.view().pods[0].disrupted == "deleted")
    rig.api.remove("pods", TEAM, rig.names[0])
    rig.wait_phase(0, "gone")


def test_a_pod_that_comes_back_under_its_name_is_another_one(rig):
    rig.run()
    rig.api.change("pods", TEAM, rig.names[0], lambda one: one["metadata"].update(uid=str(uuid.uuid4())))
    rig.wait_phase(0, "gone")
    assert rig.view().pods[1].phase == "running"


def test_what_a_pod_said_stays_when_another_takes_its_name(rig):
    rig.run()
    rig.pod(rig.names[0], "Failed", containerStatuses=[rig.ended(87, message='{"exit_code": 87}')])
    rig.wait_phase(0, "failed")
    rig.api.remove("pods", TEAM, rig.names[0])
    rig.pod(rig.names[0])
    rig.until(lambda: len(rig.pods()) == 2)
    seen = rig.view().pods[0]
    assert (seen.phase, seen.exit_code, seen.farewell) == ("failed", 87, True)


def test_pods_of_a_job_that_is_over_are_gone_though_nobody_saw_them(vcjob):
    vcjob.submit()
    vcjob.phase("Terminated")
    vcjob.until(lambda: [pod.phase for pod in vcjob.view().pods] == ["gone", "gone"])


@pytest.mark.parametrize("phase", ["Aborting", "Aborted"])
def test_a_job_that_a_person_suspended_has_no_pods_any_more(vcjob, phase):
    vcjob.run()
    vcjob.phase(phase)
    for name in vcjob.names:
        vcjob.api.remove("pods", TEAM, name)
    vcjob.until(lambda: [pod.phase for pod in vcjob.view().pods] == ["gone", "gone"])
    assert not vcjob.view().waits


def test_a_deleted_gang_is_absent_once_its_pods_are_gone(rig):
    rig.run()
    for one in rig.api.find(rig.plural):
        rig.api.remove(rig.plural, TEAM, one["metadata"]["name"])
    rig.until(lambda: not rig.object_seen())
    assert not rig.view().absent
    for name in rig.names:
        rig.api.remove("pods", TEAM, name)
    rig.until(lambda: rig.view().absent)


@pytest.mark.parametrize(
    ("reason", "patience_s"), [("ErrImagePull", 60.0), ("ImagePullBackOff", 60.0), ("InvalidImageName", 5.0)]
)
@pytest.mark.parametrize("which", ["containerStatuses", "initContainerStatuses"])
def test_an_image_that_cannot_be_had_is_told_when_waiting_does_not_help(rig, reason, patience_s, which):
    rig.submit()
    waiting = [{"name": "main", "state": {"waiting": {"reason": reason, "message": "no such image"}}}]
    for name in rig.names:
        rig.pod(name, "Pending", **{which: waiting})
    rig.until(lambda: len(rig.view().pods) == 2 and rig.view().pods[0].node)
    rig.clock.at_s += patience_s - 0.5
    assert rig.view().stuck is None
    rig.clock.at_s += 0.5
    stuck = rig.view().stuck
    assert stuck.code == "image"
    assert f"{reason}: no such image" in stuck.why
    assert "correct the image" in stuck.way_out

    for name in rig.names:
        rig.pod(name)
    rig.until(lambda: rig.view().stuck is None)
    for name in rig.names:
        rig.pod(name, "Pending", **{which: waiting})
    rig.until(lambda: rig.view().pods[0].phase == "pending")
    assert rig.view().stuck is None, "it counts anew"


def short_of_a_rank(rig: Any) -> None:
    rig.group("Unknown")
    rig.pod(rig.names[1], "Pending", node="")


def dead_rank(rig: Any) -> None:
    rig.pod(rig.names[1], "Failed", containerStatuses=[rig.ended(1)])


def admitted_only(rig: Any) -> None:
    rig.phase("Pending")
    rig.group("Inqueue")
    for name in rig.names:
        rig.pod(name, "Pending", node="")


def marked(rig: Any) -> None:
    target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    rig.pod(rig.names[1], conditions=[target])


@pytest.mark.parametrize(
    ("code", "play", "timer_s"),
    [("S1", short_of_a_rank, 30.0), ("S2", dead_rank, 10.0), ("S5", admitted_only, 600.0), ("S6", marked, 120.0)],
)
def test_what_does_not_move_is_told_after_its_timer(rig, code, play, timer_s):
    if code == "S5":
        rig.submit()
    else:
        rig.run()
    play(rig)
    rig.until(lambda: rig.view() and (GANG, code) in rig.backend.watch._since)
    rig.clock.at_s += timer_s - 1.0
    assert rig.view().stuck is None
    rig.clock.at_s += 1.0
    stuck = rig.view().stuck
    assert stuck.code == code
    assert stuck.way_out
    if code in ("S2", "S6"):
        assert stuck.pods == (rig.names[1],)


def test_a_supervisor_that_waits_is_woken_by_a_change_of_its_gang(rig):
    def dozed(within_s):
        began = time.monotonic()
        rig.backend.watch.doze(within_s)
        return time.monotonic() - began

    rig.run()
    rig.until(lambda: dozed(0.3) >= 0.3)  # what came before is over
    rig.pod(rig.names[1], "Failed")
    assert dozed(20.0) < 10.0
    assert rig.view().pods[1].phase == "failed"
