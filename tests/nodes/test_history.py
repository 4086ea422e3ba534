"""Signals of conditions over time: each once, bounded, and nothing that stands is forgotten."""

import pytest

from rerail.plugins.nodes import history
from rerail.plugins.nodes.history import SignalHistory
from rerail.policies.catalog import load_conditions


@pytest.fixture
def told():
    return SignalHistory(load_conditions())


def node(name, *conditions):
    return {"metadata": {"name": name}, "status": {"conditions": list(conditions)}}


def lost(status, at=None):
    found = {"type": "GPUDeviceLost", "status": status, "reason": "x", "message": ""}
    return found if at is None else found | {"lastTransitionTime": at}


def test_a_condition_without_a_time_keeps_the_time_of_its_first_reading(told):
    told.read(node("n1", lost("True")), read_at_s=5.0)
    told.read(node("n1", lost("True")), read_at_s=9.0)
    assert [one.first_seen_s for one in told.signals()] == [5.0]


def test_only_what_was_not_told_before_is_news(told):
    assert not told.read(node("n1"), read_at_s=1.0)
    assert told.read(node("n1", lost("True", "2026-11-30T10:00:00Z")), read_at_s=5.0)
    assert not told.read(node("n1", lost("True", "2026-11-30T10:00:00Z")), read_at_s=9.0)
    assert told.read(node("n1", lost("False", "2026-11-30T10:05:00Z")), read_at_s=12.0)


def test_signals_are_told_oldest_first(told):
    told.read(node("n1", lost("True", "2026-11-30T10:00:00Z")), read_at_s=0.0)
    told.read(node("n2", lost("True", "2026-11-30T09:00:00Z")), read_at_s=0.0)
    assert [one.node for one in told.signals()] == ["n2", "n1"]


def test_a_condition_that_is_gone_takes_nothing_back(told):
    told.read(node("n1", lost("True", "2026-11-30T10:00:00Z")), read_at_s=0.0)
    told.read(node("n1"), read_at_s=0.0)
    told.read(node("n1", lost("Unknown", "2026-11-30T10:01:00Z")), read_at_s=0.0)
    assert [one.cleared for one in told.signals()] == [False]
    told.read(node("n1", lost("False", "2026-11-30T10:02:00Z")), read_at_s=0.0)
    assert [one.cleared for one in told.signals()] == [False, True]


def test_a_condition_that_flaps_for_ever_is_bounded_and_what_stands_is_kept(told, monkeypatch):
    monkeypatch.setattr(history, "MOST_SIGNALS", 10)
    told.read(node("n1", lost("True", "2026-11-30T08:00:00Z")), read_at_s=0.0)
    for minute in range(60):
        status = "True" if minute % 2 else "False"
        told.read(node("n2", lost(status, f"2026-11-30T09:{minute:02}:00Z")), read_at_s=0.0)
    kept = told.signals()
    assert len(kept) == 10
    assert kept[0].node == "n1"
    assert kept[-1].raw_ref.startswith("node/n2/condition/GPUDeviceLost@2026-11-30T09:59:00Z")
