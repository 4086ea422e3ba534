"""What is no evidence, and how far back evidence reaches: what the simulation found."""

import pytest

from rerail.policies.documents import Heartbeat, RankExit, Rendezvous, Start
from rerail.policies.faults import FaultSignal
from rerail.policies.recovery import DRILL_POLICY
from rerail.policies.supervisor.advance import advance, begin
from rerail.policies.supervisor.observations import CommitView, GangView, NodeView, Now, Observations, PodView
from rerail.policies.supervisor.state import RunState

NODES = tuple(NodeView(name=name, slots=2, free=2) for name in "abcd")
POLICY = DRILL_POLICY
KILLED = {"phase": "gone", "exit_code": 137, "farewell": False}


def start(state: RunState) -> Start:
    assert state.gang
    return Start(
        writer="w" * 8,
        run=state.run,
        attempt=state.attempt,
        how=state.next_how,
        gang=state.gang.name,
        world_size=4,
        rendezvous=Rendezvous(id="r", host="127.0.0.1", port=1),
        load=None,
    )


def gang(state: RunState, **changes: object) -> GangView:
    assert state.gang
    pods = (PodView(name=pod.name, node=pod.node, phase="running") for pod in state.gang.pods)
    return GangView(name=state.gang.name, pods=tuple(pod.model_copy(update=changes) for pod in pods))


def xid(node: str, at_s: float = 999.0) -> FaultSignal:
    return FaultSignal(source="kernlog", node=node, codes=("xid:79",), first_seen_s=at_s, raw_ref=f"{node}:{at_s}")


def after(state: RunState, *, phase_s: float = 0.0, wall_s: float = 1000.0, **seen: object) -> RunState:
    observed = Observations.model_validate({"nodes": NODES, **seen})
    decision = advance(state, observed, POLICY, Now(wall_s=wall_s, phase_s=phase_s))
    assert decision is not None
    return decision.state


@pytest.fixture
def running() -> RunState:
    opened = begin("r", 4, nodes=NODES, now=Now(wall_s=900.0, phase_s=0.0)).state
    return after(opened, start=start(opened))


@pytest.fixture
def hung(running) -> RunState:
    """A gang that stopped stepping and is being ended, not restarted in place."""
    policy = POLICY.model_copy(update={"in_place": False})
    beat = Heartbeat(writer="w" * 8, run="r", attempt=1, step=5, phase="training", at_s=1.0, first_step=1)
    seen = Observations(gang=gang(running), heartbeat=beat, heartbeat_age_s=100.0, nodes=NODES)
    decision = advance(running, seen, policy, Now(wall_s=1000.0, phase_s=0.0))
    assert decision is not None
    assert decision.state.phase == "ending"
    return decision.state


@pytest.mark.parametrize(
    ("pods", "exits"),
    [
        (KILLED, ()),
        ({"phase": "failed", "exit_code": 86}, (RankExit(rank=0, exit_code=86),)),
        ({"phase": "failed", "exit_code": 143}, (RankExit(rank=0, exit_code=143),)),
        ({"phase": "failed", "exit_code": 1}, (RankExit(rank=1, exit_code=1, error="ConnectionError: peer"),)),
    ],
    ids=["killed", "left", "terminated", "peers"],
)
def test_how_a_gang_ends_that_we_end_is_no_evidence(hung, pods, exits):
    ended = after(hung, gang=gang(hung, **pods), exits=exits)
    assert ended.phase == "opening"
    assert ended.incidents[-1].class_name == "hang"
    assert ended.attempts[0].charged_to == "unknown"
    assert not ended.quarantined


def test_an_error_with_a_name_still_speaks_while_the_gang_ends(hung):
    exits = (RankExit(rank=1, exit_code=1, error="ValueError: bad batch", step=5),)
    ended = after(hung, gang=gang(hung, phase="failed", exit_code=1), exits=exits)
    assert ended.incidents[-1].class_name == "app-error"
    assert ended.attempts[0].charged_to == "application"


def test_a_late_line_makes_the_commits_of_every_attempt_on_the_node_suspect(hung):
    second = after(hung, gang=gang(hung, **KILLED))
    second = after(second, start=start(second))
    assert set(second.gang.nodes) == {"a", "b"}
    ending = after(second, gang=gang(second), signals=(xid("a"),))
    assert {(one.attempt, one.node) for one in ending.suspicions} == {(1, "a"), (2, "a")}


def test_a_line_about_a_node_that_was_left_already_is_suspicion_too(running):
    ending = after(running, gang=gang(running), signals=(xid("a"),))
    second = after(ending, gang=gang(ending, phase="failed", exit_code=1), signals=(xid("a"),))
    second = after(second, start=start(second))
    known = after(second, gang=gang(second), signals=(xid("a"), xid("b", 998.0)))
    assert (1, "b") in {(one.attempt, one.node) for one in known.suspicions}


def test_a_line_that_comes_while_the_run_waits_keeps_it_off_the_node(hung):
    none_free = tuple(node.model_copy(update={"free": 0}) for node in NODES)
    waiting = after(hung, gang=gang(hung, **KILLED), nodes=none_free)
    assert waiting.phase == "waiting"
    known = after(waiting, signals=(xid("a"),), nodes=none_free)
    assert "a" in known.quarantined
    assert [(one.attempt, one.node) for one in known.suspicions] == [(1, "a")]
    assert "a" not in after(known, signals=(xid("a"),)).gang.nodes


def test_a_node_whose_clock_is_ahead_loses_no_good_commit(running):
    ending = after(running, gang=gang(running), signals=(xid("a", 1060.0),), wall_s=1000.0)
    assert ending.suspicions[0].since_s == 1060.0 - POLICY.suspect_margin_s


def test_a_second_sick_node_is_kept_away_from_while_the_gang_ends(running):
    ending = after(running, gang=gang(running), signals=(xid("a"),))
    opened = after(ending, gang=gang(ending, phase="failed", exit_code=1), signals=(xid("a"), xid("b")))
    assert set(opened.gang.nodes) == {"c", "d"}


def test_an_attempt_that_nobody_can_start_stops_the_run_in_the_end():
    opened = begin("r", 4, nodes=NODES, now=Now(wall_s=900.0, phase_s=0.0)).state
    stopped = after(opened, phase_s=POLICY.store_wait_s + 1)
    assert stopped.phase == "stopped"
    assert "store_wait_s" in stopped.reason


def test_a_gang_of_which_no_pod_is_ever_seen_is_given_up(running):
    nothing = GangView(name=running.gang.name)
    assert after(running, gang=nothing, heartbeat_age_s=POLICY.load_within_s + 1).phase == "ending"


def test_an_attempt_that_loaded_the_final_commit_has_nothing_to_do(hung):
    """A gang that was taken for dead committed the end of the run: the next one loads it, and commits nothing."""
    second = after(hung, gang=gang(hung, **KILLED))
    second = after(second, start=start(second))
    final = CommitView(attempt=1, step=160, reason="final")
    assert after(second, gang=gang(second, phase="succeeded", exit_code=0), commit=final).phase == "done"
