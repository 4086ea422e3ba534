"""A gang on a pool whose nodes fail as a trace says. What is decided, production code decides.

The gang needs so many whole nodes and holds them until one of them fails; then it is placed anew among those that are
there (``place``, ``least_welcome``), with the ledger of every node as the rules keep it (``why_not_released``). Where
there are too few, it waits. Faults of one moment are one interruption; one that hits a gang while it starts is another.
"""

import heapq
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from rerail.policies.errors import UsageError
from rerail.policies.offenders import Offence, OffenderPolicy, why_not_released
from rerail.policies.simulate.trace import DAY_S, Outage, Trace
from rerail.policies.supervisor.observations import NodeView
from rerail.policies.supervisor.placement import place
from rerail.policies.supervisor.probation import least_welcome


@dataclass(frozen=True, slots=True)
class Rules:
    """What a placement may know about the nodes' past.

    Attributes:
        probation: A node that was given back lately is used last.
        offenders: So is one with faults within the window; from ``replace_from`` on, only a person gives it back.
        person_s: How long that person takes after the repair, seconds.
        policy: Production's numbers.
    """

    probation: bool = True
    offenders: bool = True
    person_s: float = DAY_S
    policy: OffenderPolicy = field(default_factory=OffenderPolicy)


@dataclass(frozen=True, slots=True)
class Stretch:
    """One gang, from its placement to its interruption, or to the end of the trace."""

    start_s: float
    end_s: float
    interrupted: bool


@dataclass(frozen=True, slots=True)
class Replay:
    """What happened.

    Attributes:
        stretches: In order; they do not overlap.
        horizon_s: Length of the trace. What no stretch covers was waited.
    """

    stretches: tuple[Stretch, ...]
    horizon_s: float

    @property
    def interruptions(self) -> int:
        """How many gangs were lost to a fault."""
        return sum(1 for one in self.stretches if one.interrupted)

    @property
    def waited_s(self) -> float:
        """Seconds without a gang, for lack of nodes."""
        return max(0.0, self.horizon_s - math.fsum(one.end_s - one.start_s for one in self.stretches))


def replay(trace: Trace, gang_nodes: int, *, order: Sequence[str], rules: Rules) -> Replay:
    """Replay a trace.

    Args:
        trace: The faults.
        gang_nodes: Whole nodes that the gang needs.
        order: The nodes that it may use, in the order in which a placement without memory takes them.
        rules: What placements know.

    Raises:
        UsageError: ``order`` holds too few nodes, or one that the trace does not know.
    """
    if not 1 <= gang_nodes <= len(order):
        raise UsageError(f"a gang of {gang_nodes} nodes cannot be placed on {len(order)}; give 1 to {len(order)}")
    strange = set(order) - set(trace.nodes)
    if strange:
        raise UsageError(f"node {min(strange)!r} is not in trace {trace.source}")
    pool = _Pool(trace.outages, order, rules)
    stretches: list[Stretch] = []
    now_s = 0.0
    pool.pass_until(now_s)
    while now_s < trace.horizon_s:
        gang = pool.place(gang_nodes, now_s)
        until_s = pool.next_s if gang is None else pool.pass_until_hit(gang, trace.horizon_s)
        if gang is not None:
            stretches.append(Stretch(now_s, min(until_s, trace.horizon_s), until_s < trace.horizon_s))
        now_s = until_s
        pool.pass_until(min(now_s, trace.horizon_s))
    return Replay(tuple(stretches), trace.horizon_s)


class _Pool:
    """The nodes as the supervisor sees them, at a moment that moves forward."""

    def __init__(self, outages: Sequence[Outage], order: Sequence[str], rules: Rules) -> None:
        self._rules = rules
        width = len(str(len(order)))
        # Production takes nodes by name; so a node's name here is its place in the order.
        self._names = {node: f"{place:0{width}}" for place, node in enumerate(order)}
        self._views = {name: NodeView(name=name, slots=1, free=1) for name in self._names.values()}
        self._up = len(self._views)
        self._noted: dict[str, tuple[Offence, ...]] = dict.fromkeys(self._views, ())
        self._released_s: dict[str, float] = {}
        self._open: dict[str, int] = {}
        self._events: list[tuple[float, int, Literal["start", "end", "release"], str]] = []
        for number, outage in enumerate(outages):
            name = self._names.get(outage.node)
            if name is not None:
                self._events.append((outage.start_s, 2 * number, "start", name))
                if not math.isinf(outage.end_s):
                    self._events.append((outage.end_s, 2 * number + 1, "end", name))
        heapq.heapify(self._events)

    @property
    def next_s(self) -> float:
        """When something changes next; infinite where nothing does."""
        return self._events[0][0] if self._events else math.inf

    def place(self, gang_nodes: int, now_s: float) -> frozenset[str] | None:
        """A gang's nodes, by the production code; None where there are too few."""
        if self._up < gang_nodes:
            return None  # so would the production code say, only later
        nodes = tuple(self._views.values())
        avoid = least_welcome(nodes, gang_nodes, now_s=now_s, policy=self._rules.policy)
        gang = place("gang", gang_nodes, nodes, avoid=avoid)
        return None if gang is None else frozenset(gang.nodes)

    def pass_until(self, until_s: float) -> None:
        """Let everything up to and at ``until_s`` happen."""
        while self.next_s <= until_s:
            self._pass()

    def pass_until_hit(self, gang: frozenset[str], horizon_s: float) -> float:
        """Let things happen until one of the gang's nodes fails; when that is, or infinite if it does not."""
        while self.next_s < horizon_s:
            at_s, kind, name = self._pass()
            if kind == "start" and name in gang:
                return at_s
        return math.inf

    def _pass(self) -> tuple[float, str, str]:
        at_s, number, kind, name = heapq.heappop(self._events)
        if kind == "start":
            self._open[name] = number
            self._noted[name] = (*self._noted[name], Offence(incident=str(number), reason="fault", at_s=at_s))
            self._see(name, usable=False)
        elif kind == "end" and self._rules.offenders and self._only_a_person(name, at_s):
            heapq.heappush(self._events, (at_s + self._rules.person_s, number, "release", name))
        elif self._open.get(name) == number - 1:  # else it failed again while it waited for its release
            self._released_s[name] = at_s
            self._see(name, usable=True)
        return at_s, kind, name

    def _only_a_person(self, name: str, now_s: float) -> bool:
        return bool(why_not_released(self._noted[name], now_s=now_s, policy=self._rules.policy))

    def _see(self, name: str, *, usable: bool) -> None:
        self._up += usable - self._views[name].usable
        self._views[name] = NodeView(
            name=name,
            slots=1,
            free=1,
            usable=usable,
            offences=self._noted[name] if self._rules.offenders else (),
            released_at_s=self._released_s.get(name) if self._rules.probation else None,
        )
