"""Properties of the pure machine, on inputs that no world would come up with."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rerail.policies.documents import ChainLink, CommitRef, Heartbeat, RankExit, Rendezvous, Start
from rerail.policies.faults import FaultSignal
from rerail.policies.recovery import DRILL_POLICY, Budgets, RecoveryPolicy
from rerail.policies.supervisor.advance import advance, begin
from rerail.policies.supervisor.budgets import backoff_s, why_stop
from rerail.policies.supervisor.observations import (
    Blocked,
    CommitView,
    GangView,
    NodeView,
    Now,
    Observations,
    PodView,
)
from rerail.policies.supervisor.placement import place
from rerail.policies.supervisor.state import AttemptRecord, Failure, RunState

NAMES = ("a", "b", "c", "d", "e")
CODES = (0, 1, 85, 86, 87, 88, 93, 126, 137, 139, 143)
POLICY = DRILL_POLICY
EXAMPLES = settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))

nodes = st.lists(
    st.builds(NodeView, name=st.sampled_from(NAMES), slots=st.just(4), free=st.integers(0, 4), usable=st.booleans()),
    max_size=5,
    unique_by=lambda node: node.name,
).map(tuple)
some_names = st.frozensets(st.sampled_from(NAMES))


@EXAMPLES
@given(nodes, st.integers(1, 12), some_names, some_names)
def test_placement_is_all_or_nothing_and_uses_nothing_it_must_not(nodes, world_size, excluded, avoid):
    room = {node.name: node.free for node in nodes if node.usable and node.name not in excluded}
    gang = place("r-a1", world_size, nodes, excluded=excluded, avoid=avoid)
    assert (gang is None) == (sum(room.values()) < world_size)
    if gang is None:
        return
    assert all(pod.ranks <= room[pod.node] for pod in gang.pods)
    assert len(set(gang.nodes)) == len(gang.pods)
    ranks = [rank for pod in gang.pods for rank in range(pod.first_rank, pod.first_rank + pod.ranks)]
    assert ranks == list(range(world_size))
    wanted = sum(free for name, free in room.items() if name not in avoid)
    assert wanted < world_size or not set(gang.nodes) & avoid


causes = st.sampled_from(["application", "hardware", "infrastructure", "unknown", "preemption", "damage"])
failures = st.builds(Failure, error=st.sampled_from(["E", "F", "hang"]), step=st.integers(1, 2), nodes=st.just(("a",)))
records = st.lists(st.tuples(causes, st.none() | failures, st.integers(0, 3)), min_size=1, max_size=9)


def state_of(ends: list) -> RunState:
    attempts = tuple(
        AttemptRecord(
            n=number,
            gang=f"r-a{number}",
            nodes=("a",),
            how="fresh",
            opened_at_s=0.0,
            ended_at_s=1.0,
            charged_to=cause,
            failure=failure,
            started_from_step=1,
            last_commit_step=commit,
        )
        for number, (cause, failure, commit) in enumerate(ends, start=1)
    )
    return RunState(run="r", world_size=2, phase="waiting", attempt=len(attempts), attempts=attempts)


@EXAMPLES
@given(records)
def test_another_charge_to_the_same_cause_lets_no_stopped_run_go_on(ends):
    cause, failure, _ = ends[-1]
    if why_stop(state_of(ends), POLICY, now_s=2.0) is not None:
        assert why_stop(state_of([*ends, (cause, failure, 0)]), POLICY, now_s=2.0) is not None


@EXAMPLES
@given(records, st.integers(1, 4))
def test_a_larger_budget_stops_no_run_that_went_on(ends, more):
    small = Budgets(application=1, hardware=1, infrastructure=1, unknown=1, without_progress=2, identical=2)
    large = Budgets.model_validate({name: getattr(small, name) + more for name in Budgets.model_fields})
    state = state_of(ends)
    if why_stop(state, POLICY.model_copy(update={"budgets": small}), now_s=2.0) is None:
        assert why_stop(state, POLICY.model_copy(update={"budgets": large}), now_s=2.0) is None


@EXAMPLES
@given(records)
def test_the_back_off_grows_with_each_attempt_without_progress_up_to_its_bound(ends):
    before = backoff_s(state_of(ends), POLICY)
    after = backoff_s(state_of([*ends, ("unknown", None, 0)]), POLICY)
    assert 0 <= before <= POLICY.backoff_max_s
    assert after <= POLICY.backoff_max_s
    assert ends[-1][0] in ("preemption", "damage") or after >= before


pod_phases = st.sampled_from(["pending", "running", "succeeded", "failed", "gone"])
views = st.lists(
    st.tuples(
        pod_phases, st.none() | st.sampled_from(CODES), st.booleans(), st.sampled_from(["", "OOMKilled", "Evicted"])
    ),
    max_size=3,
)
signals = st.lists(
    st.builds(
        FaultSignal,
        source=st.just("kernlog"),
        node=st.sampled_from(NAMES),
        codes=st.sampled_from(["xid:79", "xid:48", "xid:31", "xid:94", "xid:45", "xid:154"]).map(lambda code: (code,)),
        devices=st.just(("0000:3b:00",)),
        first_seen_s=st.floats(0, 2000),
        raw_ref=st.integers(0, 50).map(str),
        cleared=st.booleans(),
    ),
    max_size=3,
).map(tuple)
exits = st.lists(
    st.builds(
        RankExit,
        rank=st.integers(0, 3),
        exit_code=st.sampled_from(CODES),
        error=st.sampled_from(["", "ValueError: x", "ConnectionError: y"]),
        step=st.none() | st.integers(0, 30),
    ),
    max_size=3,
    unique_by=lambda end: end.rank,
).map(tuple)
passes = st.fixed_dictionaries(
    {
        "pods": st.none() | views,
        "start": st.sampled_from(["none", "own", "own", "foreign"]),
        "load": st.none() | st.integers(1, 30),
        "blocked": st.sampled_from(["no", "no", "transient", "for good"]),
        "exits": exits,
        "ready": st.booleans(),
        "beat": st.none() | st.tuples(st.integers(0, 30), st.none() | st.integers(1, 30)),
        "age_s": st.floats(0, 60),
        "commit": st.none() | st.tuples(st.integers(0, 30), st.sampled_from(["periodic", "final"]), st.booleans()),
        "signals": signals,
        "nodes": st.none() | nodes,
        "stop": st.sampled_from(["", "", "", "", "a person"]),
        "hold": st.sampled_from(["", "", "", "guard"]),
        "phase_s": st.floats(0, 60),
        "wall_s": st.floats(0, 3000),
    }
)


def seen_of(state: RunState, drawn: dict) -> Observations:
    gang = None
    if drawn["pods"] is not None and state.gang is not None:
        shapes = drawn["pods"]
        gang = GangView(
            name=state.gang.name,
            pods=tuple(
                PodView(name=pod.name, node=pod.node, phase=phase, exit_code=code, farewell=farewell, reason=reason)
                for pod, (phase, code, farewell, reason) in zip(state.gang.pods, shapes, strict=False)
            ),
        )
    start = None
    if drawn["start"] != "none" and state.gang is not None:
        load = drawn["load"] if state.attempt > 1 else None
        ref = None if load is None else CommitRef(attempt=state.attempt - 1, step=load, digest="sha256:0")
        start = Start(
            writer="w" * 8,
            run="r",
            attempt=state.attempt,
            how=state.next_how,
            gang=state.gang.name if drawn["start"] == "own" else "somebody-a9",
            world_size=2,
            rendezvous=Rendezvous(id="r", host="h", port=1),
            load=ref,
            chain=() if ref is None else (ChainLink(attempt=ref.attempt, step=ref.step),),
        )
    beat = None
    if drawn["beat"] is not None:
        step, first = drawn["beat"]
        beat = Heartbeat(
            writer="w" * 8,
            run="r",
            attempt=state.attempt,
            step=step,
            phase="training",
            at_s=1.0,
            first_step=first,
            first_step_at_s=None if first is None else 1.0,
        )
    commit = None
    if drawn["commit"] is not None:
        step, reason, answers = drawn["commit"]
        commit = CommitView(
            attempt=state.attempt, step=step, reason=reason, answers=(state.save_request,) if answers else ()
        )
    blocked = None
    if drawn["blocked"] != "no":
        blocked = Blocked(attempt=state.attempt, reason="why", transient=drawn["blocked"] == "transient")
    return Observations(
        gang=gang,
        start=start,
        blocked=blocked,
        exits=drawn["exits"],
        ready=tuple(pod.name for pod in state.gang.pods) if drawn["ready"] and state.gang else (),
        heartbeat=beat,
        heartbeat_age_s=drawn["age_s"],
        commit=commit,
        signals=drawn["signals"],
        nodes=drawn["nodes"],
        stop_asked=drawn["stop"],
        hold=drawn["hold"],
    )


def walk(first_nodes: tuple[NodeView, ...], sequence: list[dict], policy: RecoveryPolicy) -> RunState:
    """Take the machine through a sequence of passes, holding what must hold at each."""
    state = begin("r", 2, nodes=first_nodes, now=Now(wall_s=0.0, phase_s=0.0)).state
    for drawn in sequence:
        now = Now(wall_s=drawn["wall_s"], phase_s=drawn["phase_s"])
        seen = seen_of(state, drawn)
        decision = advance(state, seen, policy, now)
        assert decision == advance(state, seen, policy, now)
        if state.phase in ("done", "stopped"):
            assert decision is None
        if decision is None:
            continue
        after = decision.state
        assert after.attempt in (state.attempt, state.attempt + 1)
        assert after.phase == state.phase or after.phase_number > state.phase_number, "a new phase keeps the old timer"
        assert after.phase != "stopped" or after.reason
        assert [record.n for record in after.attempts] == list(range(1, len(after.attempts) + 1))
        ids = [incident.id for incident in after.incidents]
        assert len(ids) == len(set(ids))
        assert set(state.seen_signals) <= set(after.seen_signals)
        assert set(state.quarantined) <= set(after.quarantined)
        assert set(state.suspicions) <= set(after.suspicions)
        if after.attempt > state.attempt and after.next_how != "in-place":
            assert after.gang
            assert not set(after.gang.nodes) & set(after.quarantined)
        state = after
    return state


@EXAMPLES
@given(nodes, st.lists(passes, max_size=14))
def test_the_machine_never_raises_and_keeps_what_it_knows(first_nodes, sequence):
    walk(first_nodes, sequence, POLICY)


SILENT = {
    "pods": [("running", None, True, "")] * 3,
    "start": "none",
    "load": None,
    "blocked": "no",
    "exits": (),
    "ready": False,
    "beat": None,
    "age_s": 1e9,
    "commit": None,
    "signals": (),
    "nodes": (),
    "stop": "",
    "hold": "",
    "phase_s": 1e9,
    "wall_s": 4000.0,
}


@EXAMPLES
@given(nodes, st.lists(passes, max_size=10), st.none() | st.just(SILENT["pods"]))
def test_every_wait_has_a_bound(first_nodes, sequence, pods):
    """Nothing answers any more: every phase is left after its bound, until the run has stopped."""
    state = walk(first_nodes, sequence, POLICY)
    for _ in range(12):
        if state.phase in ("done", "stopped"):
            return
        silent = {**SILENT, "pods": SILENT["pods"] if state.phase == "running" else pods}
        now = Now(wall_s=4000.0, phase_s=1e9)
        decision = advance(state, seen_of(state, silent), POLICY, now)
        assert decision is not None, f"phase {state.phase} waits for ever"
        state = decision.state
    raise AssertionError(f"phase {state.phase} goes on for ever")
