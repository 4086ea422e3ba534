"""Which pods a taint keeps off, and what a pod holds of a node: the scheduler's own rules."""

from decimal import Decimal

import pytest

from rerail.plugins.nodes.fit import held, quantity, slots, tolerates, why_not_usable

TAINT = {"key": "pool", "value": "gpu", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        ({"key": "pool", "operator": "Equal", "value": "gpu", "effect": "NoSchedule"}, True),
        ({"key": "pool", "value": "gpu"}, True),
        ({"key": "pool", "value": "cpu"}, False),
        ({"key": "pool"}, False),
        ({"key": "pool", "operator": "Exists"}, True),
        ({"key": "pool", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"operator": "Exists"}, True),
        ({"operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"operator": "Equal", "value": "gpu"}, False),
        ({"key": "pool", "operator": "Gt", "value": "1"}, False),
    ],
)
def test_tolerations_match_as_the_scheduler_has_it(toleration, expected):
    assert tolerates([{"key": "x", "operator": "Exists"}, toleration], TAINT) is expected


def node(*taints, **spec):
    ready = {"type": "Ready", "status": "True"}
    return {"metadata": {"name": "n"}, "spec": {"taints": list(taints), **spec}, "status": {"conditions": [ready]}}


@pytest.mark.parametrize(
    ("given", "tolerations", "why"),
    [
        (node(), [], ""),
        (node(TAINT), [], "pool: gpu"),
        (node({**TAINT, "effect": "NoExecute"}), [], "pool: gpu"),
        (node({**TAINT, "effect": "PreferNoSchedule"}), [], ""),
        (node({"key": "bare", "effect": "NoSchedule"}), [], "bare"),
        (node(unschedulable=True), [], "unschedulable"),
        (
            node({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}, unschedulable=True),
            [],
            "unschedulable",
        ),
        (node(TAINT, unschedulable=True), [], "unschedulable; pool: gpu"),
        (node(TAINT, unschedulable=True), [{"operator": "Exists"}], ""),
        ({"metadata": {"name": "n"}}, [], "not Ready (its kubelet never reported)"),
    ],
)
def test_why_a_node_is_not_usable(given, tolerations, why):
    assert why_not_usable(given, tolerations) == why


def test_a_node_that_is_being_deleted_is_not_usable():
    given = node()
    given["metadata"]["deletionTimestamp"] = "2026-11-30T10:00:00Z"
    assert why_not_usable(given, []) == "being deleted"


@pytest.mark.parametrize(
    ("text", "value"), [("8", 8), (8, 8), ("2k", 2000), ("1Ki", 1024), ("500m", Decimal("0.5")), ("x", 0), (None, 0)]
)
def test_quantities(text, value):
    assert quantity(text) == value


def asks(gpus, **more):
    return {"resources": {"limits": {"gpu": str(gpus)}}, **more}


@pytest.mark.parametrize(
    ("containers", "first", "total"),
    [
        ([asks(1), asks(2)], [], 3),
        ([asks(1)], [asks(4)], 4),
        ([asks(3)], [asks(2)], 3),
        ([asks(1)], [asks(1, restartPolicy="Always")], 2),
        ([asks(1)], [asks(1, restartPolicy="Always"), asks(3)], 4),
        ([asks(1)], [asks(3), asks(1, restartPolicy="Always")], 3),
        ([{}], [], 0),
    ],
)
def test_a_pod_holds_what_the_scheduler_counts(containers, first, total):
    pod = {"spec": {"nodeName": "n", "containers": containers, "initContainers": first}}
    assert held(pod, "gpu") == ("n", total)
    assert held(pod, None) == ("n", 1)


def test_pods_that_ended_or_are_nowhere_hold_nothing():
    pod = {"spec": {"nodeName": "n", "containers": [asks(1)]}, "status": {"phase": "Failed"}}
    assert held(pod, "gpu")[1] == 0
    assert held({"spec": {"containers": [asks(1)]}}, "gpu")[1] == 0


def test_more_may_be_held_than_is_left():
    given = {"status": {"allocatable": {"gpu": "2"}}}
    assert slots(given, "gpu", 1, 2, Decimal(8)) == 0
