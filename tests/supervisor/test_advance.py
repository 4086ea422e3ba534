"""The pure machine, transition by transition, in the words of the design."""

import pytest

from rerail.policies.documents import ChainLink, CommitRef, Heartbeat, RankExit, Rendezvous, Start
from rerail.policies.faults import FaultSignal
from rerail.policies.recovery import DRILL_POLICY, RecoveryPolicy
from rerail.policies.supervisor.advance import Decision, advance, begin
from rerail.policies.supervisor.effects import EndGang, MarkNode, SealAttempt, StartAttempt, SubmitGang
from rerail.policies.supervisor.observations import (
    Blocked,
    CommitView,
    GangView,
    NodeView,
    Now,
    Observations,
    PodView,
)
from rerail.policies.supervisor.reopen import reopen, taken_over
from rerail.policies.supervisor.state import LedgerEntry, RunState

NODES = (NodeView(name="a", slots=2, free=2), NodeView(name="b", slots=2, free=2), NodeView(name="c", slots=2, free=2))
POLICY = DRILL_POLICY


def now(phase_s: float = 0.0, wall_s: float = 1000.0) -> Now:
    return Now(wall_s=wall_s, phase_s=phase_s)


def pods(state: RunState, **changes: object) -> GangView:
    assert state.gang
    return GangView(
        name=state.gang.name,
        pods=tuple(
            PodView(name=pod.name, node=pod.node, phase="running").model_copy(update=changes) for pod in state.gang.pods
        ),
    )


def start(state: RunState, *, load: int | None = None) -> Start:
    assert state.gang
    ref = None if load is None else CommitRef(attempt=max(1, state.attempt - 1), step=load, digest="sha256:0")
    return Start(
        writer="w" * 8,
        run=state.run,
        attempt=state.attempt,
        how=state.next_how,
        gang=state.gang.name,
        world_size=4,
        rendezvous=Rendezvous(id="r", host="127.0.0.1", port=1),
        load=ref,
        chain=() if ref is None else (ChainLink(attempt=ref.attempt, step=ref.step),),
    )


def step(state: RunState, seen: Observations, *, at: Now | None = None, policy: RecoveryPolicy = POLICY) -> Decision:
    decision = advance(state, seen, policy, at or now())
    assert decision is not None
    return decision


@pytest.fixture
def running() -> RunState:
    opened = begin("r", 4, nodes=NODES, now=now())
    return step(opened.state, Observations(start=start(opened.state))).state


def xid(node: str = "a", code: int = 79) -> FaultSignal:
    return FaultSignal(
        source="kernlog",
        node=node,
        codes=(f"xid:{code}",),
        devices=("0000:3b:00",),
        severity="fatal",
        first_seen_s=999.0,
        raw_ref=f"{node}/kern.log:1",
    )


def beat(step_number: int = 50, phase: str = "training") -> Heartbeat:
    return Heartbeat(
        writer="w" * 8,
        run="r",
        attempt=1,
        step=step_number,
        phase=phase,
        at_s=1000.0,
        first_step=1,
        first_step_at_s=1000.0,
    )


def test_the_first_attempt_is_opened_before_its_gang_is_submitted():
    decision = begin("r", 4, nodes=NODES, now=now())
    assert [type(effect) for effect in decision.effects] == [StartAttempt, SubmitGang]
    assert decision.state.gang
    assert decision.state.gang.nodes == ("a", "b")


def test_without_room_the_run_waits_and_says_what_is_missing():
    decision = begin("r", 4, nodes=NODES[:1], now=now())
    assert decision.state.phase == "waiting"
    later = advance(decision.state, Observations(nodes=NODES[:1]), POLICY, now(POLICY.capacity_wait_s + 1))
    assert later
    assert later.state.phase == "stopped"
    assert "4 slots wanted, 2 free" in later.state.reason


def test_a_lost_gpu_marks_its_node_first_and_asks_for_no_save(running):
    seen = Observations(gang=pods(running), signals=(xid(),), heartbeat=beat(), nodes=NODES)
    decision = step(running, seen)
    assert [type(effect) for effect in decision.effects] == [MarkNode, EndGang]
    assert decision.effects[1].grace_s == POLICY.end_grace_untrusted_s
    assert decision.state.phase == "ending"
    assert decision.state.suspicions[0].since_s == 999.0 - POLICY.suspect_margin_s
    assert decision.state.attempts[-1].charged_to == "hardware"


def test_the_next_gang_avoids_the_marked_node(running):
    ending = step(running, Observations(gang=pods(running), signals=(xid(),), nodes=NODES)).state
    gone = pods(ending, phase="failed", exit_code=137)
    opened = step(ending, Observations(gang=gone, signals=(xid(),), nodes=NODES))
    assert opened.state.phase == "opening"
    assert opened.state.attempt == 2
    assert opened.state.gang
    assert opened.state.gang.nodes == ("b", "c")
    assert len(opened.state.incidents) == 1


def test_a_live_gang_is_waited_for_but_not_for_ever(running):
    ending = step(running, Observations(gang=pods(running), signals=(xid(),), nodes=NODES)).state
    seen = Observations(gang=pods(ending), signals=(xid(),), nodes=NODES)
    assert advance(ending, seen, POLICY, now(1.0)) is None
    late = now(POLICY.end_grace_s + POLICY.end_wait_s + 1)
    assert step(ending, seen, at=late).state.phase == "opening"


def app_error(rank: int = 1, at_step: int = 60, error: str = "ValueError: bad") -> RankExit:
    return RankExit(rank=rank, exit_code=1, error=error, step=at_step)


def in_place(state: RunState, end: RankExit) -> RunState:
    preparing = step(state, Observations(gang=pods(state), exits=(end,), nodes=NODES))
    assert isinstance(preparing.effects[-1], SealAttempt)
    assert preparing.state.gang
    ready = tuple(pod.name for pod in preparing.state.gang.pods)
    seen = Observations(gang=pods(state), exits=(end,), ready=ready, nodes=NODES)
    opened = step(preparing.state, seen, at=now(POLICY.settle_s + 1))
    return step(opened.state, Observations(start=start(opened.state, load=40))).state


def test_an_exception_is_answered_in_the_same_pods(running):
    again = in_place(running, app_error())
    assert again.attempt == 2
    assert again.attempts[-1].how == "in-place"
    assert again.gang == running.gang


def test_the_same_failure_tries_other_nodes_then_stops(running):
    second = in_place(running, app_error())
    ending = step(second, Observations(gang=pods(second), exits=(app_error(),), nodes=NODES))
    assert ending.state.phase == "ending"
    gone = pods(second, phase="failed", exit_code=1)
    waiting = step(ending.state, Observations(gang=gone, exits=(app_error(),), nodes=NODES)).state
    third = step(waiting, Observations(nodes=NODES), at=now(100)).state if waiting.phase == "waiting" else waiting
    assert third.gang
    assert "c" in third.gang.nodes
    third = step(third, Observations(start=start(third, load=40))).state
    ending = step(third, Observations(gang=pods(third), exits=(app_error(),), nodes=NODES))
    gone = pods(third, phase="failed", exit_code=1)
    stopped = step(ending.state, Observations(gang=gone, exits=(app_error(),), nodes=NODES)).state
    assert stopped.phase == "stopped"
    assert "ValueError: bad" in stopped.reason
    assert "step 60" in stopped.reason


def test_a_later_device_signal_joins_the_incident_and_moves_the_charge(running):
    preparing = step(running, Observations(gang=pods(running), exits=(app_error(),), nodes=NODES)).state
    seen = Observations(gang=pods(running), exits=(app_error(),), signals=(xid(),), nodes=NODES)
    decision = step(preparing, seen)
    assert decision.state.phase == "ending"
    assert len(decision.state.incidents) == 1
    assert decision.state.incidents[0].cause == "hardware"
    assert decision.state.attempts[-1].charged_to == "hardware"


def test_pods_that_are_not_ready_in_time_are_replaced(running):
    preparing = step(running, Observations(gang=pods(running), exits=(app_error(),), nodes=NODES)).state
    seen = Observations(gang=pods(running), exits=(app_error(),), nodes=NODES)
    decision = step(preparing, seen, at=now(POLICY.prepare_s + POLICY.backoff_max_s + 1))
    assert decision.state.phase == "ending"


def test_a_broken_collective_never_names_the_failure(running):
    peer = RankExit(rank=0, exit_code=1, error="ConnectionError: rank 1 is gone", step=60)
    preparing = step(running, Observations(gang=pods(running), exits=(peer,), nodes=NODES)).state
    seen = Observations(gang=pods(running), exits=(peer, app_error(rank=3)), nodes=NODES)
    decision = advance(preparing, seen, POLICY, now(POLICY.settle_s + 1))
    state = decision.state if decision else preparing
    ready = tuple(pod.name for pod in state.gang.pods)
    opened = step(preparing, seen.model_copy(update={"ready": ready}), at=now(POLICY.settle_s + 1))
    assert opened.state.attempts[-2].failure.error == "ValueError: bad"


def test_a_collective_that_our_own_restart_broke_renames_nothing(running):
    silent = Observations(gang=pods(running), nodes=NODES, heartbeat=beat(), heartbeat_age_s=POLICY.hang_after_s + 1)
    preparing = step(running, silent).state
    assert preparing.incidents[-1].class_name == "hang"
    peer = app_error(rank=0, error="ConnectionResetError: rank 1 left")
    seen = silent.model_copy(update={"exits": (peer,), "ready": tuple(pod.name for pod in preparing.gang.pods)})
    opened = step(preparing, seen, at=now(POLICY.settle_s + 1)).state
    assert opened.attempt == 2
    assert opened.incidents[-1].class_name == "hang"


def test_an_error_with_a_name_renames_a_hang(running):
    silent = Observations(gang=pods(running), nodes=NODES, heartbeat=beat(), heartbeat_age_s=POLICY.hang_after_s + 1)
    preparing = step(running, silent).state
    seen = silent.model_copy(update={"exits": (app_error(),), "ready": tuple(pod.name for pod in preparing.gang.pods)})
    opened = step(preparing, seen, at=now(POLICY.settle_s + 1)).state
    assert opened.incidents[-1].class_name == "app-error"


def test_a_preempted_gang_is_free_and_comes_back(running):
    left = pods(running, phase="failed", exit_code=85)
    ending = step(running, Observations(gang=left, heartbeat=beat(), nodes=NODES)).state
    opened = step(ending, Observations(gang=left, heartbeat=beat(), nodes=NODES)).state
    assert opened.phase == "opening"
    assert opened.attempts[0].charged_to == "preemption"


def test_silence_is_a_hang_only_beyond_the_limit(running):
    seen = Observations(gang=pods(running), heartbeat=beat(), heartbeat_age_s=POLICY.hang_after_s - 0.1, nodes=NODES)
    trained = advance(running, seen, POLICY, now())
    state = trained.state if trained else running
    assert advance(state, seen, POLICY, now()) is None
    late = seen.model_copy(update={"heartbeat_age_s": POLICY.hang_after_s + 0.1})
    assert step(state, late).state.incidents[-1].class_name == "hang"


def test_an_unreachable_store_blocks_the_resume_and_is_waited_for(running):
    ending = step(running, Observations(gang=pods(running), signals=(xid(),), nodes=NODES)).state
    opening = step(ending, Observations(gang=pods(ending, phase="failed", exit_code=1), nodes=NODES)).state
    blocked = Observations(blocked=Blocked(attempt=2, reason="s3://x does not answer", transient=True))
    waiting = step(opening, blocked)
    assert waiting.state.phase == "opening"
    assert waiting.state.reason.startswith("resume blocked")
    assert [type(effect) for effect in waiting.effects] == [StartAttempt, SubmitGang]
    assert advance(waiting.state, blocked, POLICY, now(1.0)) is None
    late = step(waiting.state, blocked, at=now(POLICY.store_wait_s + 1))
    assert late.state.phase == "stopped"


def test_a_permanent_block_stops_at_once(running):
    ending = step(running, Observations(gang=pods(running), signals=(xid(),), nodes=NODES)).state
    opening = step(ending, Observations(gang=pods(ending, phase="failed", exit_code=1), nodes=NODES)).state
    seen = Observations(blocked=Blocked(attempt=2, reason="only suspect checkpoints are left", transient=False))
    assert step(opening, seen).state.phase == "stopped"


def test_done_is_the_final_commit_and_nothing_else(running):
    ended = pods(running, phase="succeeded", exit_code=0)
    decision = step(running, Observations(gang=ended, nodes=NODES))
    assert decision.state.incidents[-1].class_name == "no-final-commit"
    final = CommitView(attempt=1, step=160, reason="final")
    assert step(running, Observations(gang=ended, commit=final, nodes=NODES)).state.phase == "done"


def test_attempts_that_commit_nothing_new_stop_the_run(running):
    state = running
    for number in range(POLICY.budgets.without_progress):
        gone = pods(state, phase="gone", exit_code=137, farewell=False)
        ending = step(state, Observations(gang=gone, nodes=(*NODES, NodeView(name="d", slots=9, free=9)))).state
        after = step(ending, Observations(gang=gone, nodes=(*NODES, NodeView(name="d", slots=9, free=9)))).state
        if after.phase == "waiting":
            after = step(after, Observations(nodes=(*NODES, NodeView(name="d", slots=9, free=9))), at=now(1000)).state
        if after.phase == "stopped":
            assert number == POLICY.budgets.without_progress - 1
            assert "committed nothing new" in after.reason
            return
        state = step(after, Observations(start=start(after))).state
    pytest.fail("the run went on without progress")


def test_finished_runs_stay_finished(running):
    ended = pods(running, phase="succeeded", exit_code=0)
    final = CommitView(attempt=1, step=160, reason="final")
    done = step(running, Observations(gang=ended, commit=final, nodes=NODES)).state
    assert advance(done, Observations(gang=ended, signals=(xid(),), nodes=NODES), POLICY, now()) is None


def test_two_sick_nodes_are_both_left_out(running):
    both = (xid("a"), xid("b"))
    nodes = (*NODES, NodeView(name="d", slots=2, free=2))
    ending = step(running, Observations(gang=pods(running), signals=both, nodes=nodes)).state
    gone = pods(ending, phase="failed", exit_code=137)
    opened = step(ending, Observations(gang=gone, signals=both, nodes=nodes))
    assert opened.state.gang
    assert opened.state.gang.nodes == ("c", "d")
    assert len(opened.state.incidents) == 1
    assert {suspicion.node for suspicion in opened.state.suspicions} == {"a", "b"}


def test_a_sick_node_that_is_not_in_use_is_marked_and_ends_nothing(running):
    decision = step(running, Observations(gang=pods(running), signals=(xid("c"),), heartbeat=beat(), nodes=NODES))
    assert decision.state.phase == "running"
    assert [type(effect) for effect in decision.effects] == [MarkNode, SubmitGang]
    assert "c" in decision.state.quarantined


def test_the_guard_holds_the_next_gang_and_is_quoted(running):
    ending = step(running, Observations(gang=pods(running), signals=(xid(),), nodes=NODES)).state
    gone = pods(ending, phase="failed", exit_code=137)
    held = step(ending, Observations(gang=gone, signals=(xid(),), nodes=NODES, hold="storm guard: 60 gangs"))
    assert held.state.phase == "waiting"
    assert "storm guard" in held.state.reason
    assert step(held.state, Observations(gang=gone, signals=(xid(),), nodes=NODES)).state.phase == "opening"


def test_a_stop_finds_a_run_that_is_done_and_ends_no_gang_at_once_that_it_cannot_see(running):
    asked = {"stop_asked": "its Workflow is over", "nodes": NODES}
    final = CommitView(attempt=1, step=160, reason="final")
    ended = pods(running, phase="succeeded", exit_code=0)
    assert step(running, Observations(gang=ended, commit=final, **asked)).state.phase == "done"
    unseen = step(running, Observations(**asked))
    assert (unseen.state.phase, unseen.effects[0].grace_s) == ("ending", POLICY.end_grace_s)
    assert advance(unseen.state, Observations(**asked), POLICY, now(POLICY.end_wait_s - 1)) is None
    assert step(unseen.state, Observations(**asked), at=now(POLICY.end_wait_s + 1)).state.phase == "stopped"


def test_who_takes_a_run_over_has_attempts_of_its_own(running):
    policy = POLICY.model_copy(update={"max_attempts": 2})

    def preempted(state: RunState) -> RunState:
        gang = pods(state, phase="failed", exit_code=143, disrupted="PreemptionByScheduler")
        ending = step(state, Observations(gang=gang, nodes=NODES), policy=policy).state
        return step(ending, Observations(gang=gang, nodes=NODES), policy=policy).state

    def started(state: RunState) -> RunState:
        return step(state, Observations(start=start(state)), policy=policy).state

    stopped = preempted(started(preempted(running)))
    assert (stopped.phase, stopped.attempt) == ("stopped", 2)
    entry = LedgerEntry(writer="w" * 8, number=9, at_s=1.0, note="stopped", state=stopped)
    waiting = reopen(taken_over(entry, "another").state, "test").state
    third = started(step(waiting, Observations(nodes=NODES), policy=policy).state)
    fourth = preempted(third)
    assert (fourth.phase, fourth.attempt) == ("opening", 4)
    last = preempted(started(fourth))
    assert last.phase == "stopped"
    assert "2 attempts were made since attempt 3" in last.reason
    running_on = taken_over(entry.model_copy(update={"state": third}), "a third").state
    assert running_on.owned_from == 3, "an attempt that runs is the new owner's first"


def test_a_stop_that_the_owner_before_asked_for_ends_the_gang_and_not_the_run(running):
    ending = step(running, Observations(gang=pods(running), nodes=NODES, stop_asked="its Workflow is over")).state
    entry = LedgerEntry(writer="w" * 8, number=9, at_s=1.0, note="ending", state=ending)
    gone = Observations(gang=pods(ending, phase="failed", exit_code=85), nodes=NODES)
    assert step(ending, gone).state.phase == "stopped"
    on = step(taken_over(entry, "another").state, gone).state
    assert (on.phase, on.attempt) == ("opening", 2)


def test_a_start_that_the_ledger_does_not_know_is_told_with_the_way_out():
    opened = begin("run", 4, nodes=NODES, now=now()).state
    stopped = step(opened, Observations(start=start(opened).model_copy(update={"gang": "run-a7"}))).state
    assert stopped.phase == "stopped"
    assert "or entries of ledger/ were removed: restore them, or begin a new run (`rerail run --from" in stopped.reason
