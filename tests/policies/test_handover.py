"""When a step hands over, and what follows one that did not succeed: every phase, and whole runs of the machine."""

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail.policies.documents import ChainLink, CommitRef, Heartbeat, Rendezvous, Start
from rerail.policies.faults import FaultSignal
from rerail.policies.handover import (
    LastRun,
    StepExit,
    assess,
    gang_of_step,
    may_reopen,
    outcome,
    told,
)
from rerail.policies.owners import WorkflowRef
from rerail.policies.recovery import DRILL_POLICY
from rerail.policies.supervisor.advance import advance, begin
from rerail.policies.supervisor.observations import CommitView, GangView, NodeView, Now, Observations, PodView
from rerail.policies.supervisor.state import AttemptRecord, GangSpec, Phase, RunState

PHASES = get_args(Phase)
ME = WorkflowRef(namespace="team", name="w", uid="u1").owner
OTHER = WorkflowRef(namespace="team", name="v", uid="u2").owner
NODES = tuple(NodeView(name=name, slots=2, free=2) for name in "abcd")


def state(phase="running", gang="r-a1", attempt=1, reason="", **more):
    spec = GangSpec(name=gang, world_size=2, pods=()) if gang else None
    return RunState(run="r", world_size=2, phase=phase, attempt=attempt, gang=spec, reason=reason, **more)


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("gang", ["", "r-a1", "r-a2"])
@pytest.mark.parametrize("phase", PHASES)
def test_a_step_ends_with_its_run_or_when_another_gang_runs_and_nothing_is_owed(phase, gang, settled):
    found = outcome(gang, state(phase, "r-a2", attempt=2), settled=settled)
    if phase in ("done", "stopped"):
        assert found == phase
    else:
        assert (found == "next") == (phase == "running" and gang == "r-a1" and settled)
        assert found in (None, "next")


@pytest.mark.parametrize("phase", PHASES)
def test_the_gang_of_a_step_is_the_one_that_it_finds_but_for_a_run_that_tries_again(phase):
    assert gang_of_step(state(phase)) == "r-a1"
    assert gang_of_step(state(phase), reopened=True) == ""
    assert gang_of_step(state(phase, gang="")) == ""
    assert gang_of_step(None) == ""


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("reason", ["asked to stop: Workflow team/w is being stopped", "the budget is used up"])
@pytest.mark.parametrize("taken_over", [True, False])
@pytest.mark.parametrize("gave_up", [True, False])
def test_only_a_person_lets_a_stopped_run_try_again(phase, reason, taken_over, gave_up):
    may = may_reopen(state(phase, reason=reason), taken_over=taken_over, gave_up=gave_up)
    assert may == (phase == "stopped" and (taken_over or gave_up or reason.startswith("asked")))


def test_the_ledger_alone_decides_after_a_step_that_handed_over_or_was_lost():
    for code in ("", "-1", "0", "10", "11", "64", "137", "143"):
        for phase in PHASES:
            found = assess("r", state(phase, reason="because"), owner=ME, asked=ME, last=LastRun(exit_code=code))
            wanted = {"done": "done", "stopped": "give-up"}.get(phase, "again")
            assert found.decision == wanted, (code, phase)
            assert found.attempt == (2 if phase in ("ending", "waiting") else 1)
        found = assess("r", None, owner=ME, asked=ME, last=LastRun(exit_code=code))
        assert (found.decision, found.attempt) == ("again", 1)


def test_what_is_wrong_with_the_parameters_the_rights_or_the_store_is_not_tried_again_for_ever():
    for code in ("1", "2", "3", "4", "5"):
        last = LastRun(exit_code=code, message=f"main: Error (exit code {code}): Refused: no right")
        for phase in PHASES:
            found = assess("r", state(phase, reason="because"), owner=ME, asked=ME, last=last)
            assert found.decision == ("done" if phase == "done" else "give-up")
            assert found.words == {"done": told(state("done")), "stopped": "because"}.get(phase, last.message)
        assert assess("r", None, owner="", asked=ME, last=last, trouble="no run").words == last.message
    assert "exit code 9" in assess("r", None, owner=ME, asked=ME, last=LastRun(exit_code="9")).words


def test_a_run_that_cannot_be_read_or_is_anothers_is_given_up_with_the_reason():
    found = assess("r", None, owner="", asked=ME, trouble="the store does not answer")
    assert (found.decision, found.words) == ("give-up", "the store does not answer")
    for phase in PHASES:
        found = assess("r", state(phase), owner=OTHER, asked=ME)
        assert found.decision == ("done" if phase == "done" else "give-up")
        if phase != "done":
            assert "belongs to Workflow team/v, not to Workflow team/w" in found.words


def test_exit_codes_are_those_of_the_templates():
    assert {code.name: int(code) for code in StepExit} == {"DONE": 0, "NEXT": 10, "STOPPED": 11, "LEFT": 143}


# Whole runs of the machine: what the steps would have seen.


def start(now, from_step):
    load = CommitRef(attempt=now.attempt - 1, step=from_step, digest="sha256:" + "0" * 64) if from_step else None
    chain = (ChainLink(attempt=now.attempt - 1, step=from_step),) if from_step else ()
    return Start(
        writer="w" * 8,
        run="r",
        attempt=now.attempt,
        how=now.next_how,
        gang=now.gang.name,
        world_size=4,
        rendezvous=Rendezvous(id="r", host="127.0.0.1", port=1),
        load=load,
        chain=chain,
    )


def seen(now, phase="running", **more):
    pods = tuple(PodView(name=pod.name, node=pod.node, phase=phase) for pod in now.gang.pods) if now.gang else ()
    gang = GangView(name=now.gang.name, pods=pods) if now.gang else None
    return Observations.model_validate({"nodes": NODES, "gang": gang, **more})


def xid(node, at_s):
    return FaultSignal(source="kernlog", node=node, codes=("xid:79",), first_seen_s=at_s, raw_ref=str(at_s))


def machine(faults, policy=DRILL_POLICY):
    """Every state of a run that loses a node's GPU at each fault, and then ends well."""
    clock = 1000.0
    decision = begin("r", 4, nodes=NODES, now=Now(wall_s=clock, phase_s=0.0), owner=ME)
    yield decision.state
    at, left, since = decision.state, list(faults), clock
    for _ in range(200):
        clock += 1.0
        more = {}
        if at.phase == "opening":
            more["start"] = start(at, 0 if at.attempt == 1 else 40)
        elif at.phase == "running" and left:
            beat = Heartbeat(
                writer="w" * 8, run="r", attempt=at.attempt, step=45 + at.attempt, phase="training", at_s=clock,
                first_step=41, first_step_at_s=clock,
            )  # fmt: skip
            more["heartbeat"] = beat
            more["commit"] = CommitView(attempt=at.attempt, step=40 + at.attempt, reason="periodic")
            kind = left.pop(0)
            node = at.gang.pods[0].node
            if kind == "xid":
                found = FaultSignal(
                    source="kernlog", node=node, codes=("xid:79",), first_seen_s=clock, raw_ref=str(clock)
                )
                more["signals"] = (found,)
            elif kind == "lost":
                more["gang"] = seen(at, "gone").gang
        elif at.phase == "running":
            more["commit"] = CommitView(attempt=at.attempt, step=100, reason="final")
            more["gang"] = seen(at, "succeeded").gang
        elif at.phase == "ending":
            more["gang"] = seen(at, "gone").gang
        decision = advance(at, seen(at, **more), policy, Now(wall_s=clock, phase_s=clock - since))
        if decision is not None:
            since = clock if decision.state.phase_number != at.phase_number else since
            at = decision.state
            yield at
        if at.phase in ("done", "stopped"):
            return
    raise AssertionError(at)


@given(st.lists(st.sampled_from(["xid", "lost", "quiet"]), max_size=3), st.sets(st.integers(0, 60), max_size=4))
def test_steps_follow_one_another_to_the_end_whatever_is_lost(faults, lost):
    """Runners lost at any decision, and steps that hand over: the last one sees the end, and no gang is skipped."""
    step, gang, gangs, nodes_of_dag, missed = None, "", [], 0, 0
    for number, now in enumerate(machine(faults)):
        if step is None or number in lost:  # a new runner adopts
            missed += outcome(gang, now, settled=True) == "next"  # lost in the moment of leaving: its node goes on
            step, gang = number, gang_of_step(now)
        gang = gang or (now.gang.name if now.gang else "")
        if now.gang and now.gang.name not in gangs:
            gangs.append(now.gang.name)
        found = outcome(gang, now, settled=True)
        if found == "next":
            nodes_of_dag += 1
            assert assess("r", now, owner=ME, asked=ME).decision == "again"
            step, gang = number, gang_of_step(now)
            assert outcome(gang, now, settled=True) is None, "the next step has a gang of its own"
    assert found in ("done", "stopped")
    assert nodes_of_dag + missed == len(gangs) - 1, "each gang but the last was handed over once"
    assert assess("r", now, owner=ME, asked=ME).decision == ("done" if found == "done" else "give-up")


def test_the_words_say_what_ended_where_and_from_where_it_goes_on():
    states = list(machine(["xid"]))
    handed = next(one for one in states if outcome("r-a1", one, settled=True) == "next")
    words = told(handed)
    assert words.startswith("XID 79 on a ended attempt 1 at step 46; attempt 2 goes on from step 40 on ")
    assert told(states[-1]).startswith("done at step 100 in 2 attempts; XID 79 on a ended attempt 1")
    scheduled = handed.model_copy(
        update={"attempts": (handed.attempts[0], handed.attempts[1].model_copy(update={"nodes": ()}))}
    )
    assert told(scheduled).endswith("from step 40, away from a")
    fresh = handed.attempts[1].model_copy(update={"started_from_step": 0, "how": "in-place"})
    assert told(handed.model_copy(update={"attempts": (handed.attempts[0], fresh)})).endswith(
        "attempt 2 begins anew in the same pods, since there was no checkpoint"
    )
    opening = handed.attempts[1].model_copy(update={"started_from_step": None})
    assert told(handed.model_copy(update={"attempts": (handed.attempts[0], opening)})).endswith(
        "; attempt 2 is being opened"
    )


def tried(n, gang, how, *, ended="", from_step=0, last_step=None):
    """The record of an attempt."""
    return AttemptRecord(
        n=n, gang=gang, nodes=(), how=how, opened_at_s=0.0, started_from_step=from_step, last_step=last_step,
        end_cause=ended,
    )  # fmt: skip


def test_each_attempt_in_the_same_pods_is_named_in_the_words_of_its_gang():
    """A node of a DAG is one gang: what happened within it stands nowhere else in the DAG."""
    first = tried(1, "r-a1", "fresh", ended="app-error", last_step=44)
    second = tried(2, "r-a1", "in-place", ended="hang", from_step=40, last_step=61)
    third = tried(3, "r-a1", "in-place", from_step=60)
    in_place = "app-error ended attempt 1 at step 44, and attempt 2 went on from step 40 in the same pods"

    over = third.model_copy(update={"end_cause": "done", "last_step": 100})
    assert told(state("done", attempt=3, attempts=(first, second, over))) == (
        f"done at step 100 in 3 attempts; {in_place}; "
        "hang ended attempt 2 at step 61, and attempt 3 went on from step 60 in the same pods"
    )
    assert told(state(attempt=3, attempts=(first, second, third))) == (
        f"{in_place}; hang ended attempt 2 at step 61; attempt 3 goes on from step 60 in the same pods"
    )
    moved = tried(3, "r-a3", "new-gang", from_step=60)
    assert told(state(gang="r-a3", attempt=3, attempts=(first, second, moved))) == (
        f"{in_place}; hang ended attempt 2 at step 61; attempt 3 goes on from step 60"
    )
    assert told(state("waiting", attempt=2, reason="no room", attempts=(first, second))) == (
        f"{in_place}; hang ended attempt 2 at step 61; the next attempt waits: no room"
    )
    assert told(state("stopped", attempt=2, reason="the budget is used up", attempts=(first, second))) == (
        f"the budget is used up; {in_place}; hang ended attempt 2 at step 61"
    )
    ended = moved.model_copy(update={"end_cause": "pod-lost", "last_step": 77})
    fourth = tried(4, "r-a4", "new-gang", from_step=70)
    assert told(state(gang="r-a4", attempt=4, attempts=(first, second, ended, fourth))) == (
        "pod-lost ended attempt 3 at step 77; attempt 4 goes on from step 70"
    ), "what was told by an earlier node is not told again"
    anew = second.model_copy(update={"end_cause": "", "started_from_step": 0})
    done = anew.model_copy(update={"end_cause": "done", "last_step": 100})
    assert told(state("done", attempt=2, attempts=(first, done))).endswith("and attempt 2 began anew in the same pods")


def test_words_of_a_run_with_many_attempts_fit_into_a_nodes_message():
    ends = [
        tried(n, "r-a1", "in-place" if n > 1 else "fresh", ended="app-error", from_step=10 * n, last_step=10 * n + 5)
        for n in range(1, 80)
    ]
    last = tried(80, "r-a1", "in-place", ended="done", from_step=800, last_step=900)
    words = told(state("done", attempt=80, attempts=(*ends, last)))
    assert words.startswith("done at step 900 in 80 attempts; 67 earlier attempts; app-error ended attempt 68 ")
    assert words.endswith("and attempt 80 went on from step 800 in the same pods")
    assert len(words) < 2048


@pytest.mark.parametrize("phase", PHASES)
def test_every_phase_has_words(phase):
    assert told(state(phase, reason="no room"))
    assert told(state(phase, gang="", reason="no room"))
