"""What of a run's decisions becomes an Event."""

from rerail.policies.supervisor.news import news
from rerail.policies.supervisor.state import AttemptRecord, GangSpec, Incident, RunState


def attempt(number, *, how="new-gang", **more):
    return AttemptRecord(n=number, gang=f"r-a{number}", nodes=("b",), how=how, opened_at_s=0.0, **more)


def incident(number=1, **more):
    return Incident(
        id=f"r-a{number}",
        attempt=number,
        class_name="gpu_lost",
        scope="device",
        action="reset",
        cause="hardware",
        node="a",
        evidence=("xid 79 on 0000:3b:00",),
        detected_at_s=100.0,
        decided_at_s=100.0,
        **more,
    )


def state(phase="running", number=1, incidents=(), attempts=None, **more):
    return RunState(
        run="r",
        world_size=1,
        phase=phase,
        attempt=number,
        gang=GangSpec(name=f"r-a{number}", world_size=1, pods=()),
        attempts=attempts or tuple(attempt(one) for one in range(1, number + 1)),
        incidents=incidents,
        **more,
    )


def told(before, after):
    return [(one.reason, one.incident, one.gang, one.node, one.warning) for one in news(before, after)]


def test_a_fault_is_told_once_with_its_node():
    before, after = state(), state("ending", incidents=(incident(),))
    assert told(before, after) == [("GangFaulted", "r-a1", "r-a1", "a", True)]
    assert news(before, after)[0].text == (
        "incident r-a1: gpu_lost (device) on a in attempt 1 of run r: xid 79 on 0000:3b:00"
    )
    better = incident().model_copy(update={"class_name": "gpu_memory_ecc"})
    assert told(after, state("ending", incidents=(better,))) == []


def test_the_next_attempt_and_the_first_new_step_are_told_with_the_same_incident():
    opening = state("opening", 2, (incident(),))
    started = (attempt(1), attempt(2, started_from_step=60))
    running = state("running", 2, (incident(),), started)
    assert told(opening, running) == [("GangResumed", "r-a1", "r-a2", "", False)]
    assert "goes on from step 60 in a new gang on b" in news(opening, running)[0].text
    over = state("running", 2, (incident(recovered_at_s=112.0, lost_steps=3),), started)
    assert told(running, over) == [("GangRecovered", "r-a1", "r-a2", "", False)]
    assert "12 s after the fault was seen, 3 steps were made again" in news(running, over)[0].text
    assert told(over, over) == []
    assert told(state("opening"), state()) == [], "a first attempt is no news"


def test_the_end_is_a_warning_unless_somebody_asked_for_it():
    before = state("ending", incidents=(incident(),))
    gave_up = state("stopped", incidents=(incident(),), reason="3 attempts committed nothing new")
    assert told(before, gave_up) == [("GangGaveUp", "r-a1", "r-a1", "", True)]
    assert news(before, gave_up)[0].text == "incident r-a1: run r stopped: 3 attempts committed nothing new"
    asked = state("stopped", reason="asked to stop: by a person")
    assert told(state("ending"), asked) == [("GangStopped", "r", "r-a1", "", False)]
    assert told(before, state("done", incidents=(incident(),))) == []


def test_who_has_just_begun_to_look_tells_an_incident_that_is_being_answered():
    incidents = (incident(1, recovered_at_s=1.0), incident(2))
    assert told(None, state("ending", 2, incidents)) == [("GangFaulted", "r-a2", "r-a2", "a", True)]
    assert told(None, state("running", 2, incidents)) == []
    assert told(None, state()) == []
