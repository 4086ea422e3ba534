"""The lock path on the scheduler itself: a locked gang is not taken, then it saves, is unlocked, and is taken.

Nobody asks the extender here: it only opens locks. The training does not hear SIGTERM, as in test_extender.py.
"""

import time
from typing import Any

import pytest
from rig import layout
from rig.gangs import HOLD_S, full
from rig.training import DEADLINE_S, Gang, finished
from test_eviction import other_job, own, priority, queue
from test_extender import asking, deaf_gang, events, extender

pytestmark = pytest.mark.alone

__all__ = ["extender", "own"]

KEY = "volcano.sh/preemptable"
LOCK = {"rerail.dev/preemption-lock": "true"}
STARVE_S = 2.0
SOON = 10
"""The step from which the other job is there; far from the last commit, and from the end of training."""
DELAY_S = 0.5


def stands(gang: Gang, attempt: int = 1) -> set[str]:
    """What Volcano reads of the gang's pods and of its PodGroup."""
    told = gang.cluster.read("pods,podgroups", "-n", gang.namespace, "-l", f"rerail.dev/gang={gang.name}-a{attempt}")
    return {one["metadata"]["annotations"].get(KEY, "") for one in told["items"]}


def starves(gang: Gang) -> bool:
    """Whether the other job is admitted and finds no room."""
    for one in gang.cluster.read("podgroups", "-n", gang.namespace)["items"]:
        if one["metadata"]["name"].startswith("other"):
            told = one.get("status") or {}
            unplaced = any(each["type"] == "Unschedulable" for each in told.get("conditions") or [])
            return told.get("phase") == "Inqueue" and unplaced
    return False


def locked_in(gang: Gang, own: str) -> None:
    """A locked gang on every GPU, and a more urgent job that finds no room for some sessions of the scheduler."""
    place = queue(gang.cluster, own, "one")
    low, high = priority(gang.cluster, own, "low", 10), priority(gang.cluster, own, "high", 1000)
    pod = {"priorityClassName": low}
    deaf_gang(gang, LOCK, at=SOON, delay_s=DELAY_S, queue=place, priorityClassName=low, pod=pod)
    assert stands(gang) == {"false"}
    other_job(gang.cluster, gang.namespace, queue=place, priorityClassName=high)
    gang.cluster.wait("the other job finds no room", lambda: starves(gang), DEADLINE_S)
    time.sleep(HOLD_S)
    assert not any("deletionTimestamp" in pod["metadata"] for pod in gang.pods()), "a locked gang is not taken"
    assert gang.cluster.read("vcjob", "other", "-n", gang.namespace)["status"]["state"]["phase"] == "Pending"


def taken_after_a_save(gang: Gang, baseline: Gang, server: Any) -> None:
    gang.wait("it goes on", lambda state: state.attempt == 2 and state.phase == "running")
    gang.cluster.wait("it trains", lambda: len(gang.pods()) > 0 and stands(gang, 2) == {"false"}, DEADLINE_S)
    report = finished(gang, baseline)
    first = report.incidents[0]
    assert first.cause == "preemption", first
    assert report.attempts[1].started_from_step >= SOON, "from the save that was asked for"
    assert report.lost_steps < 5.0 / DELAY_S, "what was made between the save and the eviction"
    assert gang.cluster.read("vcjob", "other", "-n", gang.namespace)["status"]["state"]["phase"] == "Completed"
    said = events(gang)
    assert {"EvictionHeld", "EvictionAfterCommit", "PreemptionUnlocked"} <= said.keys(), server.log.read_text()
    assert "after a commit" in said["PreemptionUnlocked"]["message"]
    assert "EvictionAtDeadline" not in said
    assert 'rerail_extender_unlocks_total{by="commit"} 1' in server.get("metrics")
    print(f"\nlost {report.lost_steps} steps\n{server.log.read_text()}")


@full
def test_a_locked_gang_saves_is_unlocked_and_then_gives_way(gang, baseline, own, extender):
    locked_in(gang, own)
    server = extender(hold_s=90, locks=True, starve_s=STARVE_S)
    taken_after_a_save(gang, baseline, server)


@full
def test_the_same_where_volcano_asks_nobody(cluster, gang, baseline, own, extender):
    if "real" not in cluster.volcano:
        pytest.skip("only the real Volcano has the action gangpreempt")

    def whole_gangs(conf: Any) -> None:
        conf["actions"] = "allocate, gangpreempt, backfill"

    with asking(whole_gangs):
        locked_in(gang, own)
        server = extender(hold_s=90, locks=True, starve_s=STARVE_S)
        taken_after_a_save(gang, baseline, server)
        assert "gangpreempt" in layout.SCHEDULER_CONF.read_text()


@full
def test_a_locked_gang_that_cannot_save_is_unlocked_at_the_deadline_and_that_is_said(gang, baseline, own, extender):
    """The extender does not reach its store, and so cannot ask it."""
    locked_in(gang, own)
    begun, hold_s = time.monotonic(), 10.0
    unreachable = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    server = extender(unreachable, hold_s=hold_s, locks=True, starve_s=STARVE_S)
    gang.cluster.wait("it is unlocked", lambda: "PreemptionUnlocked" in events(gang), DEADLINE_S)
    assert hold_s / 2 <= time.monotonic() - begun < hold_s + 12
    said = events(gang)["PreemptionUnlocked"]
    assert (said["type"], "the deadline, without a commit" in said["message"]) == ("Warning", True)
    finished(gang, baseline)
    assert 'rerail_extender_unlocks_total{by="deadline"} 1' in server.get("metrics")
