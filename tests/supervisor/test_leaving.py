"""Whoever takes a part of a gang away: all ranks save, all leave, by the supervisor's own request, and it is free."""

import pytest

from rerail.policies.documents import Heartbeat, Rendezvous, Start
from rerail.policies.faults.maintenance import LEAD_S, Announcement
from rerail.policies.recovery import DRILL_POLICY
from rerail.policies.supervisor.advance import Decision, advance, begin
from rerail.policies.supervisor.effects import EndGang, MarkNode, RequestSave, SubmitGang
from rerail.policies.supervisor.observations import CommitView, GangView, NodeView, Now, Observations, PodView
from rerail.policies.supervisor.state import PodShape, RunState

POLICY = DRILL_POLICY
NODES = tuple(NodeView(name=name, slots=2, free=2) for name in "abc")
LAYOUT = tuple(PodShape(suffix=f"worker-{index}", first_rank=index, ranks=1) for index in range(4))
WHERE = ("a", "a", "b", "b")
NOW_S = 1_000_000.0
SOON = Announcement(source="aks", what="VMEventScheduled")


def now(phase_s: float = 0.0) -> Now:
    return Now(wall_s=NOW_S, phase_s=phase_s)


def view(state: RunState, *changes: dict[str, object]) -> GangView:
    """The gang's pods as they run; ``changes`` alter the first ones."""
    assert state.gang
    pods = [
        PodView(name=pod.name, node=where, phase="running", node_ready=True)
        for pod, where in zip(state.gang.pods, WHERE, strict=True)
    ]
    for number, change in enumerate(changes):
        pods[number] = pods[number].model_copy(update=change)
    return GangView(name=state.gang.name, pods=tuple(pods))


def beat() -> Heartbeat:
    return Heartbeat(writer="w" * 8, run="r", attempt=1, step=50, phase="training", at_s=1.0, first_step=1)


def look(state: RunState, *, phase_s: float = 0.0, **seen: object) -> Decision | None:
    given = {"nodes": NODES, "heartbeat": beat(), **seen}
    return advance(state, Observations.model_validate(given), POLICY, now(phase_s))


def step(state: RunState, **seen: object) -> Decision:
    decision = look(state, **seen)
    assert decision is not None
    return decision


@pytest.fixture(params=[LAYOUT, ()], ids=["scheduled", "placed"])
def running(request) -> RunState:
    opened = begin("r", 4, nodes=NODES, now=now(), layout=request.param).state
    assert opened.gang
    start = Start(
        writer="w" * 8,
        run="r",
        attempt=1,
        how="fresh",
        gang="r-a1",
        world_size=4,
        rendezvous=Rendezvous(id="r", host="r-a1-worker-0.r-a1", port=1),
        load=None,
    )
    state = step(opened, start=start).state
    if not request.param:
        return state
    return step(state, gang=view(state)).state


def announced(name: str, what: Announcement | None = SOON) -> tuple[NodeView, ...]:
    return tuple(node.model_copy(update={"leaves": what if node.name == name else None}) for node in NODES)


CAUSES = [
    ("PreemptionByScheduler", "preemption"),
    ("EvictionByEvictionAPI", "evicted"),
    ("DeletionByTaintManager", "evicted"),
    ("TerminationByKubelet", "evicted"),
    ("deleted", "evicted"),
]


def leaves(running: RunState, cause: str) -> tuple[dict[str, object], str]:
    """What is seen when somebody takes a part of the gang away, and what that is called."""
    if cause == "maintenance":
        return {"gang": placed(running), "nodes": announced("b")}, "maintenance"
    return {"gang": placed(running, {"disrupted": cause})}, dict(CAUSES)[cause]


def placed(state: RunState, *changes: dict[str, object]) -> GangView:
    if state.layout:
        return view(state, *changes)
    assert state.gang
    pods = [PodView(name=pod.name, node=pod.node, phase="running") for pod in state.gang.pods]
    for number, change in enumerate(changes):
        pods[number] = pods[number].model_copy(update=change)
    return GangView(name=state.gang.name, pods=tuple(pods))


@pytest.mark.parametrize("cause", [*(one for one, _ in CAUSES), "maintenance"])
def test_all_save_and_all_leave_and_no_budget_is_used(running, cause):
    seen, name = leaves(running, cause)
    asked = step(running, **seen)
    (save,) = asked.effects
    assert isinstance(save, RequestSave)
    assert (save.then, asked.state.phase) == ("leave", "saving")
    incident = asked.state.incidents[-1]
    assert (incident.class_name, incident.cause, incident.trusted) == (name, "preemption", True)
    assert asked.state.attempts[-1].charged_to == "preemption"
    assert not asked.state.quarantined
    assert not any(isinstance(effect, MarkNode) for effect in asked.effects)

    assert look(asked.state, **seen, phase_s=1.0) is None, "it is asked once"
    commit = CommitView(attempt=1, step=51, reason="request", answers=(save.id,))
    ending = step(asked.state, **seen, commit=commit)
    assert [type(effect) for effect in ending.effects] == [EndGang]
    opened = step(ending.state, gang=GangView(name="r-a1"), commit=commit, nodes=seen.get("nodes", NODES))
    assert opened.state.attempt == 2
    assert isinstance(opened.effects[-1], SubmitGang)


def test_without_one_of_its_ranks_no_save_is_waited_for(running):
    seen, _ = leaves(running, "PreemptionByScheduler")
    asked = step(running, **seen).state
    gone = placed(running, {"disrupted": "PreemptionByScheduler", "phase": "gone", "farewell": False})
    ending = step(asked, gang=gone, phase_s=1.0)
    assert ending.state.phase == "ending"
    assert ending.state.incidents[-1].cause == "preemption"


def test_a_save_that_does_not_come_is_waited_for_a_bounded_time(running):
    seen, _ = leaves(running, "deleted")
    asked = step(running, **seen).state
    assert look(asked, **seen, phase_s=POLICY.save_within_s - 1) is None
    assert step(asked, **seen, phase_s=POLICY.save_within_s + 1).state.phase == "ending"


def test_ranks_that_are_not_heard_of_are_not_asked(running):
    seen, _ = leaves(running, "deleted")
    decision = step(running, **seen, heartbeat=None)
    assert [type(effect) for effect in decision.effects] == [EndGang]


def test_a_gang_that_is_done_is_not_asked(running):
    commit = CommitView(attempt=1, step=100, reason="final")
    for cause in ("deleted", "maintenance"):
        decision = look(running, **leaves(running, cause)[0], commit=commit)
        assert decision is None or not any(isinstance(one, RequestSave) for one in decision.effects)


def test_the_next_gang_keeps_away_from_the_node_while_it_is_announced_and_no_longer(running):
    nodes = announced("b")
    asked = step(running, gang=placed(running), nodes=nodes).state
    ending = step(asked, gang=GangView(name="r-a1"), nodes=nodes).state
    assert ending.phase == "ending"
    opened = step(ending, gang=GangView(name="r-a1"), nodes=nodes).state
    assert opened.gang.excluded_nodes == ("b",)
    assert "b" not in opened.gang.nodes
    later = step(ending, gang=GangView(name="r-a1")).state
    assert later.gang.excluded_nodes == ()


def test_without_room_elsewhere_it_waits_and_says_for_what(running):
    two = announced("b")[:2]
    asked = step(running, gang=placed(running), nodes=two).state
    ending = step(asked, gang=GangView(name="r-a1"), nodes=two).state
    waiting = step(ending, gang=GangView(name="r-a1"), nodes=two)
    assert waiting.state.phase == "waiting"
    assert "kept away from b" in waiting.state.reason
    over = announced("")[:2]
    assert step(waiting.state, gang=GangView(name="r-a1"), nodes=over).state.attempt == 2


@pytest.mark.parametrize(("at_s", "goes"), [(NOW_S + LEAD_S + 60, False), (NOW_S + LEAD_S - 60, True), (None, True)])
def test_a_maintenance_that_is_far_away_moves_nobody(running, at_s, goes):
    nodes = announced("b", SOON.model_copy(update={"at_s": at_s}))
    decision = look(running, gang=placed(running), nodes=nodes)
    assert (decision is not None and decision.state.phase == "saving") is goes


def test_a_node_that_the_gang_does_not_use_may_go(running):
    decision = look(running, gang=placed(running), nodes=announced("c"))
    assert decision is None or decision.state.phase == "running"
