"""The pure machine while a person holds the run: what still happens, and what does not."""

import pytest

from rerail.policies.documents import ChainLink, CommitRef, Heartbeat, RankExit, Rendezvous, Start
from rerail.policies.faults import FaultSignal
from rerail.policies.recovery import DRILL_POLICY as POLICY
from rerail.policies.supervisor.advance import begin
from rerail.policies.supervisor.effects import EndGang, MarkNode, SubmitGang
from rerail.policies.supervisor.observations import Blocked, CommitView, GangView, NodeView, Now, Observations, PodView
from rerail.policies.supervisor.pausing import advance, begin_paused

NODES = tuple(NodeView(name=name, slots=2, free=2) for name in "abc")
WHY = "the switch is being changed"
XID = FaultSignal(
    source="kernlog", node="a", codes=("xid:79",), devices=("0000:3b:00",), severity="fatal", first_seen_s=999.0
)


def now(phase_s=0.0):
    return Now(wall_s=1000.0, phase_s=phase_s)


def pods(state, **changes):
    views = [PodView(name=pod.name, node=pod.node, phase="running") for pod in state.gang.pods]
    return GangView(name=state.gang.name, pods=tuple(view.model_copy(update=changes) for view in views))


def start(state, load=None):
    ref = None if load is None else CommitRef(attempt=1, step=load, digest="sha256:0")
    return Start(
        writer="w" * 8,
        run="r",
        attempt=state.attempt,
        how=state.next_how,
        gang=state.gang.name,
        world_size=4,
        rendezvous=Rendezvous(id="r", host="127.0.0.1", port=1),
        load=ref,
        chain=() if ref is None else (ChainLink(attempt=1, step=load),),
    )


def seen(state=None, **more):
    gang = {} if state is None else {"gang": pods(state)}
    return Observations(**{"nodes": NODES, "paused": WHY, **gang, **more})


def step(state, observed, at=None):
    decision = advance(state, observed, POLICY, at or now())
    assert decision is not None
    return decision


@pytest.fixture
def running():
    opened = begin("r", 4, nodes=NODES, now=now())
    return step(opened.state, Observations(start=start(opened.state))).state


@pytest.fixture
def paused(running):
    return step(running, seen(running)).state


def test_a_pause_is_noted_once_and_the_gang_trains_on(running):
    decision = step(running, seen(running))
    assert (decision.state.phase, decision.state.paused) == ("running", WHY)
    assert decision.effects == (SubmitGang(gang="r-a1"),)
    assert advance(decision.state, seen(running), POLICY, now()) is None
    beat = Heartbeat(
        writer="w" * 8, run="r", attempt=1, step=5, phase="training", at_s=1.0, first_step=1, first_step_at_s=1.0
    )
    trains = step(decision.state, seen(running, heartbeat=beat))
    assert "trains" in trains.note, "what is no recovery goes on"
    assert trains.state.paused == WHY


def test_a_fault_is_noted_and_judged_again_when_the_run_goes_on(paused):
    noted = step(paused, seen(paused, signals=(XID,)))
    assert noted.state.phase == "running"
    assert noted.effects == (SubmitGang(gang="r-a1"),)
    assert noted.state.paused.startswith(f"{WHY}; held back: gpu_lost (node) in attempt 1 on a")
    assert noted.state.incidents == ()
    assert noted.state.quarantined == {}
    assert advance(noted.state, seen(paused, signals=(XID,)), POLICY, now()) is None, "once"
    on = step(noted.state, seen(paused, signals=(XID,), paused=""))
    assert (on.state.paused, on.note) == ("", "goes on after a pause")
    ends = step(on.state, seen(paused, signals=(XID,), paused=""))
    assert [type(effect) for effect in ends.effects] == [MarkNode, EndGang]
    assert len(ends.state.incidents) == 1


@pytest.mark.parametrize(
    "more",
    [
        {"signals": (XID.model_copy(update={"node": "c"}),)},
        {"exits": (RankExit(rank=1, exit_code=1, error="ValueError: bad", step=60),)},
        {"heartbeat_age_s": 1e6},
    ],
)
def test_no_sick_bystander_is_marked_and_nothing_restarted_in_place(paused, more):
    decision = step(paused, seen(paused, **more))
    assert decision.state.phase == "running"
    assert decision.effects == (SubmitGang(gang="r-a1"),)
    assert "held back" in decision.state.paused


def test_a_dead_gang_stays_as_it_is(paused):
    dead = pods(paused, phase="failed", exit_code=1)
    decision = step(paused, seen(gang=dead))
    assert (decision.state.phase, decision.state.attempt) == ("running", 1)


def test_what_was_ordered_before_is_finished_and_then_waited_for(running):
    ending = step(running, Observations(gang=pods(running), signals=(XID,), nodes=NODES)).state
    assert advance(ending, seen(running), POLICY, now()) is None, "it is still being ended"
    gone = pods(ending, phase="failed", exit_code=137)
    late = XID.model_copy(update={"node": "b", "raw_ref": "b:2"})
    waiting = step(ending, seen(gang=gone, signals=(XID, late)))
    assert (waiting.state.phase, waiting.state.reason) == ("waiting", f"paused: {WHY}")
    assert waiting.effects == ()
    noted = step(waiting.state, seen(gang=gone, signals=(XID, late)), now(0.5)).state
    assert noted.paused == WHY
    assert advance(noted, seen(gang=gone, signals=(late,)), POLICY, now(POLICY.capacity_wait_s + 1)) is None
    on = step(noted, seen(gang=gone, signals=(late,), paused=""), now(POLICY.capacity_wait_s + 1)).state
    assert on.phase_number == noted.phase_number + 1, "it has its whole time to wait again"
    marks = step(on, seen(gang=gone, signals=(late,), paused=""))
    assert [effect.node for effect in marks.effects] == ["b"]


def test_an_attempt_that_was_opened_starts(running):
    ending = step(running, Observations(gang=pods(running), signals=(XID,), nodes=NODES)).state
    opening = step(ending, Observations(gang=pods(ending, phase="failed", exit_code=1), nodes=NODES)).state
    assert step(opening, seen(start=start(opening, load=40))).state.phase == "running"
    blocked = Blocked(attempt=2, reason="only suspect checkpoints are left", transient=False)
    assert step(opening, seen(blocked=blocked)).state.phase == "stopped"


def test_pods_that_are_ready_in_place_wait(running):
    failed = (RankExit(rank=1, exit_code=1, error="ValueError: bad", step=60),)
    preparing = step(running, Observations(gang=pods(running), exits=failed, nodes=NODES)).state
    ready = tuple(pod.name for pod in preparing.gang.pods)
    held = seen(running, exits=failed, ready=ready)
    assert advance(preparing, held, POLICY, now(POLICY.settle_s + 1)) is None
    on = step(preparing, held.model_copy(update={"paused": ""}), now(POLICY.settle_s + 1))
    assert on.state.attempt == 2


def test_a_run_that_is_done_is_done_and_one_that_is_stopped_is_stopped(paused):
    final = CommitView(attempt=1, step=160, reason="final")
    ended = pods(paused, phase="succeeded", exit_code=0)
    assert step(paused, seen(gang=ended, commit=final)).state.phase == "done"
    stopping = step(paused, seen(paused, stop_asked="by a person"))
    assert (stopping.state.phase, type(stopping.effects[0])) == ("ending", EndGang)
    stopped = step(stopping.state, seen(gang=pods(paused, phase="failed", exit_code=85), stop_asked="by a person"))
    assert stopped.state.phase == "stopped"
    assert advance(stopped.state, seen(), POLICY, now()) is None


def test_a_run_that_is_paused_before_its_first_attempt_waits():
    first = begin_paused("r", 4, WHY, owner="me")
    assert (first.state.phase, first.state.attempts, first.effects) == ("waiting", (), ())
    assert advance(first.state, seen(), POLICY, now()) is None
    on = step(first.state, seen(paused="")).state
    assert step(on, seen(paused="")).state.phase == "opening"
