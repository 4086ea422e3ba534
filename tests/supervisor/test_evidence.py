"""Kernel lines and ends of processes together: what has a name, what is one incident, what comes back."""

import pytest

from rerail.policies.documents import RankExit
from rerail.policies.faults import FaultSignal
from rerail.policies.offenders import Offence
from rerail.policies.recovery import DRILL_POLICY
from rerail.policies.supervisor.advance import advance, begin
from rerail.policies.supervisor.budgets import why_stop
from rerail.policies.supervisor.judge import judge
from rerail.policies.supervisor.observations import GangView, NodeView, Now, Observations, PodView
from rerail.policies.supervisor.placement import still_excluded
from rerail.policies.supervisor.state import AttemptRecord, Failure, Incident, RunState

GPUS = ("0000:3b:00", "0000:86:00")
NODES = tuple(NodeView(name=name, slots=2, free=2) for name in "abc")
NOW_S = 1000.0


@pytest.fixture
def running() -> RunState:
    state = begin("r", 4, nodes=NODES, now=Now(wall_s=900.0, phase_s=0.0)).state
    return state.model_copy(update={"phase": "running"})


def signal(*codes: str, node: str = "a", gpu: int = 0, at_s: float = NOW_S - 1, line: int = 1) -> FaultSignal:
    return FaultSignal(
        source="kernlog",
        node=node,
        devices=() if codes[0].startswith("name:") else (GPUS[gpu],),
        codes=codes,
        first_seen_s=at_s,
        raw_ref=f"{node}/kern.log:{line}",
    )


def seen(state: RunState, *signals: FaultSignal, exits: tuple[RankExit, ...] = (), nodes=NODES) -> Observations:
    assert state.gang
    pods = tuple(PodView(name=pod.name, node=pod.node, phase="running") for pod in state.gang.pods)
    return Observations(gang=GangView(name=state.gang.name, pods=pods), signals=signals, exits=exits, nodes=nodes)


KILLED = RankExit(rank=1, exit_code=137, step=50)
RAISED = RankExit(rank=1, exit_code=1, error="RuntimeError: CUDA error: unspecified launch failure", step=50)
FOLLOWER = RankExit(rank=3, exit_code=1, error="ConnectionError: rank 3 lost the group", step=50)


def judged(state: RunState, what: Observations):
    return judge(state, what, DRILL_POLICY, now_s=NOW_S)


def test_a_fault_of_process_scope_alone_ends_nothing(running):
    assert judged(running, seen(running, signal("xid:94"))) is None


def test_a_contained_error_names_the_end_and_accuses_no_node(running):
    found = judged(running, seen(running, signal("xid:94", gpu=1), exits=(FOLLOWER, KILLED)))
    assert (found.class_name, found.codes, found.device) == ("gpu_memory_ecc", ("xid:94",), GPUS[1])
    assert (found.next, found.cause, found.sure, found.exclude) == ("in-place", "hardware", True, False)
    assert found.failure is None


@pytest.mark.parametrize("code", ["xid:13", "xid:31", "xid:43"])
def test_the_application_s_own_fault_keeps_the_failure_that_is_counted(running, code):
    found = judged(running, seen(running, signal(code), exits=(RAISED,)))
    assert (found.codes, found.cause, found.next) == ((code,), "application", "in-place")
    assert found.failure == Failure(error=RAISED.error, step=50, nodes=("a", "b"))


@pytest.mark.parametrize(
    "other",
    [signal("xid:94", node="b"), signal("xid:94", at_s=NOW_S - 3600), signal("xid:45")],
    ids=["of another node", "of an hour ago", "teardown"],
)
def test_what_explains_nothing_names_nothing(running, other):
    found = judged(running, seen(running, other, exits=(KILLED,)))
    assert (found.class_name, found.sure) == ("killed", False)


def test_out_of_memory_is_never_tried_in_place(running):
    found = judged(running, seen(running, signal("name:oom_kill"), exits=(KILLED,)))
    assert (found.class_name, found.next, found.cause) == ("oom", "new-gang", "application")
    assert found.failure == Failure(error="OOMKilled", step=50, nodes=("a", "b"))
    decision = advance(running, seen(running, signal("name:oom_kill"), exits=(KILLED,)), DRILL_POLICY, _now())
    assert decision
    assert decision.state.phase == "ending"


@pytest.mark.parametrize(
    ("steps", "stops"), [((50,), False), ((50, 70), False), ((50, 50), True), ((None, None), False)]
)
def test_out_of_memory_twice_at_one_step_stops(running, steps, stops):
    records = tuple(
        AttemptRecord(
            n=number,
            gang="g",
            nodes=("a", "b"),
            how="new-gang",
            opened_at_s=0.0,
            last_commit_step=1,
            charged_to="application",
            failure=Failure(error="OOMKilled", step=step, nodes=("a", "b")),
        )
        for number, step in enumerate(steps, 1)
    )
    why = why_stop(running.model_copy(update={"attempts": records}), DRILL_POLICY, now_s=NOW_S)
    assert bool(why) is stops
    if why:
        assert "out of memory at the same step 50 in 2 attempts" in why
        assert "smaller batch" in why


def _now(phase_s: float = 0.0) -> Now:
    return Now(wall_s=NOW_S, phase_s=phase_s)


def test_reports_that_come_one_by_one_make_one_incident_of_the_widest_scope(running):
    first = advance(running, seen(running, signal("xid:48")), DRILL_POLICY, _now())
    assert first
    assert first.state.incidents[0].scope == "device"
    state = first.state
    later = (signal("xid:48"), signal("xid:63", line=2), signal("xid:48", gpu=1, line=3))
    gone = seen(state, *later).model_copy(update={"gang": GangView(name="r-a1", pods=())})
    second = advance(state, gone, DRILL_POLICY, _now())
    assert second
    (incident,) = second.state.incidents
    assert (incident.scope, incident.codes) == ("node", ("xid:48", "xid:63"))
    assert len(incident.signals) == 3
    assert second.state.quarantined.keys() == {"a"}


def offence(number: int, device: str = GPUS[0]) -> Offence:
    return Offence(incident=f"r-a{number}", device=device, reason="gpu_memory_ecc", at_s=NOW_S - 10)


@pytest.mark.parametrize(
    ("before", "action"),
    [(0, "reset_gpu"), (1, "reboot_node"), (2, "replace_node")],
)
def test_a_fault_that_came_back_is_cured_more_strongly(running, before, action):
    noted = tuple(offence(90 + number) for number in range(before))
    nodes = (NODES[0].model_copy(update={"offences": noted}), *NODES[1:])
    found = judged(running, seen(running, signal("xid:48"), nodes=nodes))
    assert found.action == action
    assert any("failed before" in text for text in found.evidence) is bool(before)
    other = judged(running, seen(running, signal("xid:48", gpu=1), nodes=nodes))
    assert other.action == "reset_gpu"


def released(name: str = "a", *, usable: bool = True, incidents: tuple[int, ...] = (1,)) -> tuple[NodeView, ...]:
    view = NodeView(
        name=name,
        slots=2,
        free=2,
        usable=usable,
        offences=tuple(offence(number) for number in incidents),
        released_at_s=NOW_S,
    )
    return tuple(view if node.name == name else node for node in NODES)


def test_a_released_node_is_used_again_and_no_other(running):
    incident = Incident(
        id="r-a1",
        attempt=1,
        class_name="gpu_memory_ecc",
        scope="device",
        action="reset_gpu",
        cause="hardware",
        node="a",
        detected_at_s=NOW_S,
        decided_at_s=NOW_S,
    )
    state = running.model_copy(update={"quarantined": {"a": "why", "b": "why"}, "incidents": (incident,)})
    assert still_excluded(state, released()).keys() == {"b"}
    assert still_excluded(state, released(usable=False)).keys() == {"a", "b"}
    assert still_excluded(state, released(incidents=())).keys() == {"a", "b"}, "the mark is not written yet"
    assert still_excluded(state, None).keys() == {"a", "b"}


def test_what_was_reported_before_the_release_is_over(running):
    old, new = signal("xid:48", at_s=NOW_S - 5), signal("xid:48", at_s=NOW_S + 5, line=2)
    assert judged(running, seen(running, old, nodes=released())) is None
    assert judged(running, seen(running, old, new, nodes=released())) is not None
