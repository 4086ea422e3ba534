"""A made-up trace with the statistics of a real one, for those who have none of their own.

The model has the four traits by which real faults differ from independent ones (numbers from the 400 nodes and 349 days
of stepfun-ai/InfiniteHBD-Trace):

- some nodes are worse than others: a gamma-distributed rate per node;
- a node that was given back fails again soon: a third of the repairs are followed by a fault of the same kind;
- faults come in batches: one cause takes several nodes within minutes, and they come back together;
- repairs take from minutes to months, with a median of 20 hours.
"""

import math
from bisect import bisect_right
from collections.abc import MutableSequence
from typing import Any, Final, Protocol

from rerail.policies.documents import Value
from rerail.policies.errors import UsageError
from rerail.policies.simulate.trace import DAY_S, Outage, Trace

_HOUR_S: Final = 3600.0
_REPAIR_H: Final = (
    (0.0, 0.05),
    (0.1, 0.23),
    (0.25, 2.1),
    (0.5, 20.4),
    (0.75, 76.0),
    (0.9, 312.0),
    (0.95, 740.0),
    (0.99, 2042.0),
    (1.0, 3000.0),
)
_RETURN_D: Final = ((0.0, 0.002), (0.62, 1.0), (0.82, 7.0), (1.0, 30.0))
_BATCH_S: Final = 500.0


class Randomness(Protocol):
    """The part of ``random.Random`` that is used."""

    def random(self) -> float:
        """A number from 0 to below 1."""
        ...

    def expovariate(self, lambd: float) -> float:
        """An exponential time with the mean ``1 / lambd``."""
        ...

    def gammavariate(self, alpha: float, beta: float) -> float:
        """A gamma-distributed number with the mean ``alpha * beta``."""
        ...

    def randrange(self, start: int, /) -> int:
        """A whole number from 0 to below ``start``."""
        ...

    def shuffle(self, x: MutableSequence[Any], /) -> None:
        """Put in random order."""
        ...


class FaultModel(Value):
    """Parameters of the generator; the defaults give the statistics of the InfiniteHBD trace.

    Attributes:
        first_faults_per_node_day: Rate of faults that no earlier one led to.
        shape: Of the gamma distribution of this rate over nodes; the smaller, the more some nodes stand out.
        returning: Share of repairs after which the fault comes back within 30 days.
        batch: Share of first faults that take further nodes within minutes.
        batch_more: Mean number of these further nodes.
    """

    first_faults_per_node_day: float = 0.00194
    shape: float = 1.4
    returning: float = 0.355
    batch: float = 0.15
    batch_more: float = 2.8


def synthetic_trace(
    chance: Randomness, *, nodes: int = 400, days: float = 349.0, model: FaultModel | None = None
) -> Trace:
    """Make a trace.

    Args:
        chance: Where chance comes from; the same seed gives the same trace.
        nodes: Size of the pool.
        days: Length.
        model: Rates.

    Raises:
        UsageError: The pool is empty or the time is none.
    """
    if nodes < 1:
        raise UsageError(f"a pool of {nodes} nodes cannot fail; give at least 1")
    if not 0 < days < math.inf:
        raise UsageError(f"a trace of {days:g} days covers no time; give more than 0")
    rules = model or FaultModel()
    horizon_s = days * DAY_S
    names = tuple(f"node-{number:05d}" for number in range(nodes))
    faults: list[tuple[float, int, float]] = []
    for number in range(nodes):
        rate = rules.first_faults_per_node_day / DAY_S * chance.gammavariate(rules.shape, 1 / rules.shape)
        at_s = chance.expovariate(rate) if rate > 0 else math.inf
        while at_s < horizon_s:
            repair = chance.random()
            faults.append((at_s, number, repair))
            if chance.random() < rules.batch:
                faults += _batch(chance, at_s, nodes, repair, rules)
            at_s += chance.expovariate(rate)
    outages: list[Outage] = []
    by_node: dict[int, list[tuple[float, float]]] = {}
    for at_s, number, repair in sorted(faults):
        by_node.setdefault(number, []).append((at_s, repair))
    for number, first in by_node.items():
        outages += _of_node(chance, names[number], first, horizon_s, rules)
    return Trace("synthetic", names, tuple(sorted(outages, key=lambda one: (one.start_s, one.node))), horizon_s)


def independent_trace(chance: Randomness, *, nodes: int, days: float, per_node_day: float, repair_s: float) -> Trace:
    """A trace in which all is independent: exponential times between faults, one repair time. For formulas' regime."""
    horizon_s = days * DAY_S
    names = tuple(f"node-{number:05d}" for number in range(nodes))
    outages: list[Outage] = []
    for name in names:
        at_s = chance.expovariate(per_node_day / DAY_S)
        while at_s < horizon_s:
            outages.append(Outage(name, at_s, at_s + repair_s, "fault"))
            at_s += repair_s + chance.expovariate(per_node_day / DAY_S)
    return Trace("independent faults", names, tuple(sorted(outages, key=lambda one: one.start_s)), horizon_s)


def _batch(
    chance: Randomness, at_s: float, nodes: int, repair: float, rules: FaultModel
) -> list[tuple[float, int, float]]:
    more = 1
    while chance.random() > 1 / rules.batch_more:
        more += 1
    return [(at_s + chance.random() * _BATCH_S, chance.randrange(nodes), repair) for _ in range(more)]


def _of_node(
    chance: Randomness, node: str, first: list[tuple[float, float]], horizon_s: float, rules: FaultModel
) -> list[Outage]:
    """The outages of one node: first faults while it works, each perhaps with faults that come back after it."""
    found: list[Outage] = []
    pending = first[::-1]
    while pending:
        at_s, repair = pending.pop()
        if at_s >= horizon_s or (found and at_s <= found[-1].end_s):
            continue  # it is down already, or nobody watches any more
        end_s = at_s + _HOUR_S * _between(_REPAIR_H, repair)
        found.append(Outage(node, at_s, end_s if end_s < horizon_s else math.inf, "fault"))
        if chance.random() < rules.returning:
            pending.append((end_s + DAY_S * _between(_RETURN_D, chance.random()), chance.random()))
            pending.sort(reverse=True)
    return found


def _between(points: tuple[tuple[float, float], ...], share: float) -> float:
    """The quantile at ``share`` of a distribution given by some of them, geometric between neighbours."""
    after = min(bisect_right(points, (share, math.inf)), len(points) - 1)
    (low, below), (high, above) = points[after - 1], points[after]
    return float(below * (above / below) ** ((share - low) / (high - low)))
