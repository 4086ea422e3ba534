"""A node that gave trouble lately is used last, whatever the order of names says."""

import pytest

from rerail.policies.offenders import Offence, OffenderPolicy, last_trouble_s
from rerail.policies.supervisor.advance import _open, begin
from rerail.policies.supervisor.observations import NodeView, Now
from rerail.policies.supervisor.placement import place
from rerail.policies.supervisor.probation import least_welcome
from rerail.policies.supervisor.state import AttemptRecord, Failure, RunState

DAY_S = 86_400.0
NOW = Now(wall_s=100 * DAY_S, phase_s=0.0)


def node(name: str, *faults: float, released: float | None = None, **more) -> NodeView:
    noted = tuple(Offence(incident=f"{name}{at}", at_s=at * DAY_S) for at in faults)
    back = None if released is None else released * DAY_S
    return NodeView(**{"name": name, "slots": 1, "free": 1, "offences": noted, "released_at_s": back, **more})


def test_trouble_counts_within_the_window_and_a_release_while_on_probation():
    policy = OffenderPolicy()
    old, new = Offence(incident="a", at_s=0.0), Offence(incident="b", at_s=50 * DAY_S)
    assert last_trouble_s([old], None, now_s=61 * DAY_S, policy=policy) is None
    assert last_trouble_s([old, new], None, now_s=61 * DAY_S, policy=policy) == 50 * DAY_S
    assert last_trouble_s([old], 55 * DAY_S, now_s=61 * DAY_S) == 55 * DAY_S
    assert last_trouble_s([], 40 * DAY_S, now_s=61 * DAY_S) is None


@pytest.mark.parametrize(
    ("size", "nodes"),
    [(1, {"c"}), (2, {"c", "d"}), (3, {"b", "c", "d"}), (4, {"a", "b", "c", "d"})],
)
def test_a_gang_takes_clean_nodes_first_and_then_those_that_were_quiet_longest(size, nodes):
    there = (node("a", 90, released=91), node("b", 80), node("c"), node("d", 70), node("e", usable=False))
    gang = place("g", size, there, avoid=least_welcome(there, size, now_s=NOW.wall_s))
    assert set(gang.nodes) == nodes
    assert set(begin("r", size, nodes=there, now=NOW).state.gang.nodes) == nodes


def test_where_all_are_needed_none_is_avoided():
    there = (node("a", 90), node("b"), node("c", 95, free=0))
    assert least_welcome(there, 9, now_s=NOW.wall_s) == frozenset()


def failed_twice_on(*names: str, quarantined: str = "") -> RunState:
    failure = Failure(error="E", step=1, nodes=names)
    ends = [
        AttemptRecord(n=n, gang=f"g{n}", nodes=names, how="fresh", opened_at_s=0.0, failure=failure) for n in (1, 2)
    ]
    away = {quarantined: "xid-79"} if quarantined else {}
    return RunState(run="r", world_size=1, phase="waiting", attempt=2, attempts=tuple(ends), quarantined=away)


def test_a_node_on_probation_goes_before_those_where_the_same_failure_came_twice():
    there = (node("a"), node("b", 99, released=99.5))
    opened = _open(failed_twice_on("a"), nodes=there, now=NOW, attempt=3, how="new-gang")
    assert opened.state.gang.nodes == ("b",)


def test_a_quarantined_node_makes_no_room_that_a_node_on_probation_could_be_spared_for():
    there = (node("a"), node("b", 98, released=98.5), node("c", 99, released=99.5))
    opened = _open(failed_twice_on("x", quarantined="a"), nodes=there, now=NOW, attempt=3, how="new-gang")
    assert opened.state.gang.nodes == ("b",)
