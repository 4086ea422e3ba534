"""A trace is read or refused, never guessed at; the made-up one has the statistics of the real one."""

import json
import math
import random
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerail.policies.errors import UsageError
from rerail.policies.simulate.synthetic import synthetic_trace
from rerail.policies.simulate.trace import DAY_S, Outage, Trace, facts, node_mtbf_s, read_trace


def start(node: str, days: float, cause: str = "GPU") -> dict:
    return {"node_id": node, "event_time": days, "event_type": "fault_start", "fault_type": {"Class": cause}}


def end(node: str, days: float, cause: str = "GPU") -> dict:
    return start(node, days, cause) | {"event_type": "fault_end"}


def test_a_trace_is_read_with_the_nodes_that_never_failed():
    trace = read_trace([start("n1", 1), start("n2", 1.5, "Fan"), end("n1", 2), end("n2", 4)], "t", pool=3)
    assert trace.outages == (
        Outage("n1", DAY_S, 2 * DAY_S, "GPU"),
        Outage("n2", 1.5 * DAY_S, 4 * DAY_S, "Fan"),
    )
    assert trace.horizon_s == 4 * DAY_S
    assert len(trace.nodes) == 3
    assert node_mtbf_s(trace) == (12 - 3.5) * DAY_S / 2


def test_overlapping_faults_of_a_node_are_one_outage_of_unknown_cause():
    trace = read_trace(
        [start("n1", 1), start("n1", 2, "CPU"), end("n1", 3), end("n1", 5, "CPU"), start("n1", 6), end("n1", 7)], "t"
    )
    assert trace.outages == (
        Outage("n1", DAY_S, 5 * DAY_S, "unknown", 2),
        Outage("n1", 6 * DAY_S, 7 * DAY_S, "GPU"),
    )
    assert facts(trace).overlapping == 1


def test_a_fault_that_ends_and_one_that_begins_at_the_same_moment_do_not_overlap():
    trace = read_trace([start("n1", 1), end("n1", 2), start("n1", 2), end("n1", 2), start("n1", 3)], "t")
    assert [(one.start_s / DAY_S, one.end_s / DAY_S) for one in trace.outages] == [(1, 2), (2, 2), (3, math.inf)]
    assert facts(trace).open_at_end == 1


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({}, "a dict where a list"),
        (None, "a NoneType where a list"),
        ("[]", "a str where a list"),
        ([], "holds no event"),
        ([[]], r"event 0: \[\] is no object"),
        ([{}], "node_id None is no name"),
        ([start("", 1)], "node_id '' is no name"),
        ([start("n1", 1) | {"node_id": 7}], "node_id 7"),
        ([start("n1", 1) | {"event_type": "boom"}], "event_type 'boom'"),
        ([start("n1", 1) | {"event_type": ["fault_end"]}], "event_type"),
        ([start("n1", -1)], "event_time -1"),
        ([start("n1", math.nan)], "event_time nan"),
        ([start("n1", math.inf)], "event_time inf"),
        ([start("n1", 10**400)], "event_time 1000"),
        ([start("n1", days=True)], "event_time True"),
        ([start("n1", 1) | {"event_time": "1"}], "event_time '1'"),
        ([start("n1", 0)], "covers no time"),
        ([end("n1", 1)], "event 0 ends a fault of node 'n1' that never began"),
        ([start("n1", 1), end("n1", 2), end("n1", 3)], "event 2 ends a fault"),
        ([start("n1", 1), end("n2", 2)], "node 'n2' that never began"),
        ([start("n1", 2), end("n1", 1)], "never began"),
    ],
)
def test_what_is_no_trace_is_refused_by_name(document, says):
    with pytest.raises(UsageError, match=says):
        read_trace(document, "t")


def test_a_pool_smaller_than_the_named_nodes_is_refused():
    with pytest.raises(UsageError, match="names 2 nodes, more than the pool of 1"):
        read_trace([start("n1", 1), start("n2", 1)], "t", pool=1)


events = st.lists(
    st.fixed_dictionaries(
        {"node_id": st.sampled_from("abc"), "event_type": st.sampled_from(["fault_start", "fault_end"])},
        optional={
            "event_time": st.one_of(st.integers(-1, 5), st.floats(), st.none()),
            "fault_type": st.one_of(st.none(), st.just({"Class": "GPU"}), st.just([])),
        },
    )
)


@settings(deadline=None)
@given(events | st.recursive(st.none() | st.text() | st.integers(), st.lists))
def test_any_json_is_read_into_outages_that_do_not_overlap_or_refused(document):
    try:
        trace = read_trace(document, "t", pool=9)
    except UsageError:
        return
    assert sum(one.faults for one in trace.outages) == sum(one["event_type"] == "fault_start" for one in document)
    for node in trace.nodes:
        own = [one for one in trace.outages if one.node == node]
        assert all(one.start_s <= one.end_s for one in own)
        assert all(one.end_s <= after.start_s for one, after in pairwise(own))
    facts(trace)


def test_the_real_trace_is_read_whole(real_trace):
    found = facts(real_trace)
    # Of 584 faults three of one node overlap: they are one outage, and what happened in it stays unknown.
    assert (found.outages, found.overlapping, found.open_at_end) == (582, 1, 0)
    assert (found.again_within_1d, found.in_batches, found.down_p50, found.down_p99) == (0.223, 0.27, 7, 31)
    assert (found.repair_h_p50, found.repair_h_p90) == (20.39, 312.18)


def test_the_made_up_trace_has_the_statistics_of_the_real_one():
    # The real one's numbers stand here, so that the test needs no file: mean of 20 seeds within a fifth of them.
    real = {
        "outages": 582,
        "per_1000_node_days": 4.27,
        "spread_per_node": 2.56,
        "again_within_1d": 0.223,
        "again_within_7d": 0.311,
        "again_within_30d": 0.426,
        "in_batches": 0.27,
        "repair_h_p50": 20.4,
        "repair_h_p90": 312.2,
    }
    made = [facts(synthetic_trace(random.Random(seed))) for seed in range(20)]
    for name, value in real.items():
        mean = sum(getattr(one, name) for one in made) / len(made)
        assert mean == pytest.approx(value, rel=0.2), name


def test_the_same_seed_makes_the_same_trace():
    assert synthetic_trace(random.Random(3)) == synthetic_trace(random.Random(3))
    assert synthetic_trace(random.Random(3)) != synthetic_trace(random.Random(4))


@pytest.mark.parametrize(("nodes", "days"), [(0, 9.0), (-1, 9.0), (3, 0.0), (3, -1.0), (3, math.nan), (3, math.inf)])
def test_a_made_up_trace_of_nothing_is_refused(nodes, days):
    with pytest.raises(UsageError):
        synthetic_trace(random.Random(1), nodes=nodes, days=days)


def test_a_quiet_trace_has_facts_too():
    found = facts(Trace("t", ("a",), (), DAY_S))
    assert (found.outages, found.per_1000_node_days, found.down_p99) == (0, 0.0, 0)
    assert json.loads(found.model_dump_json())["repair_h_p50"] == 0.0
