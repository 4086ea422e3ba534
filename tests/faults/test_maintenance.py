"""Announcements that a node will be taken away: conditions, labels with times, and taints."""

import pytest

from rerail.policies.catalog import load_announcements, load_conditions
from rerail.policies.errors import UsageError
from rerail.policies.faults.maintenance import announcements_from_text, read_announcement

ROWS = load_announcements()


def node(labels=None, taints=(), **conditions):
    told = [{"type": name, "status": status, "reason": "R", "message": "m"} for name, status in conditions.items()]
    return {"metadata": {"labels": labels or {}}, "spec": {"taints": list(taints)}, "status": {"conditions": told}}


def read(*args, **more):
    return read_announcement(node(*args, **more), ROWS)


def test_a_node_as_any_other_announces_nothing():
    assert (
        read({"kubernetes.io/os": "linux"}, [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}], Ready="True") is None
    )
    assert read_announcement({}, ROWS) is None


def test_every_row_is_read():
    for row in ROWS:
        given = {
            "labels": {row.label: "x"} if row.label else {},
            "taints": [{"key": row.taint, "effect": "NoSchedule"}] if row.taint else [],
        }
        found = read(**given, **({row.condition: row.when} if row.condition else {}))
        assert found is not None
        assert (found.source, found.at_s) == (row.source, None)
        assert (row.label or row.taint or row.condition) in found.what
        other = {"True": "False", "False": "True"}
        if row.condition:
            assert read(**{row.condition: other[row.when]}) is None
            assert read(**{row.condition: "Unknown"}) is None


@pytest.mark.parametrize(
    ("value", "at_s"),
    [
        ("1733083200", 1733083200.0),
        ("2024-12-01T20.00.00Z", 1733083200.0),
        ("2024-12-01T20-00-00", 1733083200.0),
        ("planned", None),
        ("2024-13-01T20.00.00Z", None),
        ("99", None),
    ],
)
def test_a_label_may_say_when(value, at_s):
    assert read({"rerail.dev/maintenance": value}).at_s == at_s


def test_the_earliest_counts_and_soon_is_earlier_than_any_time():
    when = {"cloud.google.com/scheduled-maintenance-time": "1733083200"}
    assert read(when).at_s == 1733083200.0
    assert read(when, VMEventScheduled="True").source == "aks"


def test_what_announces_is_no_fault_as_well():
    table = load_conditions()
    assert not [row.condition for row in ROWS if row.condition and table.find(row.condition)]


@pytest.mark.parametrize(
    "row",
    [
        "{source: x}",
        "{source: x, label: a, taint: b}",
        "{source: x, condition: A}",
        "{source: x, label: a, when: 'True'}",
    ],
)
def test_a_row_that_says_too_little_or_too_much_is_refused(row):
    with pytest.raises(UsageError, match=r"mine\.yaml"):
        announcements_from_text(f"format: 1\nprovenance: x\nannouncements: [{row}]\n", "mine.yaml")
