"""Gangs that a scheduler places: what the platform says about their pods, nodes and objects."""

import pytest

from rerail.policies.documents import Heartbeat, RankExit, Rendezvous, Start
from rerail.policies.faults import FaultSignal
from rerail.policies.recovery import DRILL_POLICY
from rerail.policies.supervisor.advance import Decision, advance, begin
from rerail.policies.supervisor.observations import GangView, NodeView, Now, Observations, PodView, StuckView
from rerail.policies.supervisor.state import PodShape, RunState

POLICY = DRILL_POLICY.model_copy(update={"node_lost_after_s": 4.0})
NODES = tuple(NodeView(name=name, slots=2, free=0) for name in "abc")
LAYOUT = tuple(PodShape(suffix=f"worker-{index}", first_rank=index, ranks=1) for index in range(4))
WHERE = ("a", "a", "b", "b")


def now(phase_s: float = 0.0) -> Now:
    return Now(wall_s=1000.0, phase_s=phase_s)


def view(state: RunState, *changes: dict[str, object], **gang: object) -> GangView:
    """The gang's pods as they run; ``changes`` alter the first ones."""
    assert state.gang
    pods = [
        PodView(name=pod.name, node=where, phase="running", node_ready=True)
        for pod, where in zip(state.gang.pods, WHERE, strict=True)
    ]
    for number, change in enumerate(changes):
        pods[number] = pods[number].model_copy(update=change)
    return GangView(name=state.gang.name, pods=tuple(pods), **gang)


def step(state: RunState, *, phase_s: float = 0.0, **seen: object) -> Decision:
    decision = advance(state, Observations.model_validate({"nodes": NODES, **seen}), POLICY, now(phase_s))
    assert decision is not None
    return decision


def beat(**changes: object) -> Heartbeat:
    known = {"writer": "w" * 8, "run": "r", "attempt": 1, "step": 50, "phase": "training", "at_s": 1.0, "first_step": 1}
    return Heartbeat.model_validate(known | changes)


@pytest.fixture
def submitted() -> RunState:
    opened = begin("r", 4, nodes=NODES, now=now(), layout=LAYOUT).state
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
    return step(opened, start=start).state


@pytest.fixture
def running(submitted) -> RunState:
    return step(submitted, gang=view(submitted)).state


def test_slots_in_use_are_room_and_the_scheduler_chooses(submitted):
    assert [pod.name for pod in submitted.gang.pods] == [f"r-a1-worker-{index}" for index in range(4)]
    assert submitted.gang.nodes == ()


def test_too_few_healthy_nodes_are_waited_for_and_nothing_is_submitted():
    nodes = (NODES[0], NODES[1].model_copy(update={"usable": False}))
    decision = begin("r", 4, nodes=nodes, now=now(), layout=LAYOUT)
    assert decision.state.phase == "waiting"
    assert not decision.effects


def test_the_nodes_that_the_scheduler_chose_are_written_down(running):
    assert running.gang.nodes == ("a", "b")
    assert running.attempts[-1].nodes == ("a", "b")


def test_a_fault_elsewhere_ends_no_gang_that_is_not_placed_yet(submitted):
    fault = FaultSignal(source="condition", node="x", codes=("xid:79",), first_seen_s=999.0, raw_ref="x")
    decision = step(submitted, gang=GangView(name="r-a1", waits="Pending"), signals=(fault,))
    assert decision.state.phase == "running"
    assert list(decision.state.quarantined) == ["x"]


def test_broken_ranks_get_the_time_of_a_commit_and_those_that_save_their_full_grace(running):
    gone = {"phase": "gone", "farewell": False}
    broken = step(running, gang=view(running, gone), heartbeat=beat(save_s=1.5))
    assert broken.effects[-1].grace_s == 3.0
    leaving = step(running, gang=view(running, gone | {"disrupted": "PreemptionByScheduler"}))
    assert leaving.effects[-1].grace_s == POLICY.end_grace_s


def test_while_it_waits_for_its_scheduler_silence_is_no_hang(submitted):
    waits = GangView(name="r-a1", waits="0 of 4 running, group Pending")
    decision = step(submitted, gang=waits, heartbeat_age_s=1000.0)
    assert decision.state.phase == "running"
    assert "group Pending" in decision.state.reason
    seen = Observations(gang=waits, heartbeat_age_s=1000.0, nodes=NODES)
    assert advance(decision.state, seen, POLICY, now()) is None


def test_it_does_not_wait_for_its_scheduler_for_ever(submitted):
    waits = GangView(name="r-a1", waits="queue 'q' Closed")
    ending = step(submitted, gang=waits, waits_s=POLICY.capacity_wait_s + 1).state
    stopped = step(ending, gang=GangView(name="r-a1")).state
    assert stopped.phase == "stopped"
    assert "queue 'q' Closed" in stopped.reason


def test_a_preempted_rank_that_could_not_save_is_no_failure_of_its_own(running):
    told = {"disrupted": "PreemptionByScheduler"}
    ended = RankExit(rank=1, exit_code=143)
    decision = step(running, gang=view(running, told, told, told, told), exits=(ended,))
    assert decision.state.phase == "ending"
    assert decision.state.incidents[-1].class_name == "preemption"
    assert decision.state.incidents[-1].cause == "preemption"


def test_pods_that_the_platform_takes_away_are_not_used_again(running):
    raised = RankExit(rank=1, exit_code=1, error="ValueError: bad", step=50)
    assert step(running, gang=view(running), exits=(raised,)).state.phase == "preparing"
    leaving = view(running, {"disrupted": "deleted"})
    assert step(running, gang=leaving, exits=(raised,)).state.phase == "ending"


def test_a_pod_that_was_killed_is_the_cause_and_not_those_deleted_because_of_it(running):
    killed = {"phase": "failed", "exit_code": 137, "farewell": False}
    others = {"phase": "gone", "farewell": False, "disrupted": "deleted"}
    decision = step(running, gang=view(running, others, killed, others, others))
    incident = decision.state.incidents[-1]
    assert (incident.class_name, incident.cause) == ("pod-lost", "infrastructure")
    assert "r-a1-worker-1" in incident.evidence[0]
    assert not decision.state.quarantined


def test_a_killed_pod_explains_the_broken_collectives_of_the_others(running):
    broken = RankExit(rank=0, exit_code=1, error="ConnectionResetError: rank 1 left", step=50)
    preparing = step(running, gang=view(running), exits=(broken,)).state
    assert preparing.phase == "preparing"
    killed = {"phase": "failed", "exit_code": 137, "farewell": False}
    decision = step(preparing, gang=view(preparing, {}, killed), exits=(broken,))
    assert decision.state.phase == "ending"
    assert decision.state.incidents[-1].class_name == "pod-lost"


def test_losing_every_pod_of_a_node_that_reports_is_no_loss_of_the_node(running):
    gone = {"phase": "gone", "farewell": False}
    assert not step(running, gang=view(running, gone, gone)).state.quarantined
    silent = gone | {"node_ready": False}
    assert list(step(running, gang=view(running, silent, silent)).state.quarantined) == ["a"]


def test_a_node_that_does_not_report_is_lost_only_once_its_ranks_are_silent(running):
    silent = view(running, {"node_ready": False}, {"node_ready": False})
    seen = Observations(gang=silent, heartbeat=beat(), heartbeat_age_s=1.0, nodes=NODES)
    known = advance(running, seen, POLICY, now())
    assert known is None or not known.state.incidents
    decision = step(running, gang=silent, heartbeat=beat(), heartbeat_age_s=POLICY.node_lost_after_s + 1)
    assert decision.state.incidents[-1].class_name == "node-lost"
    assert list(decision.state.quarantined) == ["a"]


def test_a_gang_out_of_memory_without_a_word_never_runs_in_the_same_pods(running):
    killed = {"phase": "failed", "exit_code": 137, "farewell": False, "reason": "OOMKilled"}
    decision = step(running, gang=view(running, killed))
    assert decision.state.phase == "ending"
    assert decision.state.incidents[-1].class_name == "oom"


def test_a_deleted_job_is_followed_by_a_fresh_gang(running):
    decision = step(running, gang=GangView(name="r-a1", absent=True))
    assert decision.state.incidents[-1].class_name == "gang-deleted"
    opened = step(decision.state, gang=GangView(name="r-a1", absent=True)).state
    assert opened.gang.name == "r-a2"


def test_a_job_that_is_just_being_created_is_not_deleted(submitted):
    seen = Observations(gang=GangView(name="r-a1", absent=True), heartbeat_age_s=0.5, nodes=NODES)
    assert advance(submitted, seen, POLICY, now()) is None


@pytest.mark.parametrize(
    ("code", "phase"), [("S1", "ending"), ("S2", "ending"), ("S4", "ending"), ("S5", "ending"), ("S6", "saving")]
)
def test_what_does_not_move_is_ended_and_asked_to_save_where_it_can(running, code, phase):
    stuck = StuckView(code=code, why="it does not move")
    decision = step(running, gang=view(running, stuck=stuck), heartbeat=beat(), heartbeat_age_s=0.1)
    assert decision.state.phase == phase
    assert decision.state.incidents[-1].class_name == f"stuck-{code.lower()}"


def test_pods_that_never_begin_are_no_hang(running):
    waiting = {"phase": "pending", "reason": "ContainerCreating"}
    decision = step(running, gang=view(running, waiting), heartbeat_age_s=POLICY.load_within_s + 1)
    assert decision.state.incidents[-1].class_name == "not-started"
    assert decision.state.phase == "ending"


def test_an_image_that_cannot_be_pulled_stops_the_run(running):
    stuck = StuckView(code="image", why="ErrImagePull", way_out="correct the image")
    ending = step(running, gang=view(running, stuck=stuck)).state
    stopped = step(ending, gang=GangView(name="r-a1")).state
    assert stopped.phase == "stopped"
    assert "correct the image" in stopped.reason


def test_the_next_gang_gets_twice_its_longest_save_as_grace(running):
    state = running
    slow = step(state, gang=view(state, {"phase": "gone", "farewell": False}), heartbeat=beat(save_s=31.0)).state
    opened = step(slow, gang=GangView(name="r-a1")).state
    assert opened.gang.grace_s == 62.0
