"""A trace of node faults: how it is read, what it says, and its statistics. All times in seconds from its beginning.

The form is that of stepfun-ai/InfiniteHBD-Trace: a list of ``{node_id, event_time (days), event_type, fault_type}``. It
does not say which end belongs to which start. Where faults of one node overlap, the node counts as down from the first
start to the last end, and the cause of that outage is unknown: nothing finer is claimed.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from rerail.policies.documents import Value
from rerail.policies.errors import UsageError

DAY_S: Final = 86_400.0
UNKNOWN: Final = "unknown"
_BATCH_S: Final = 600.0


@dataclass(frozen=True, slots=True)
class Outage:
    """One node out of work, from the fault until it was given back.

    Attributes:
        end_s: ``math.inf`` where the trace does not tell that it came back.
        cause: Class of the fault; ``unknown`` where several overlapped or the trace does not say.
        faults: Faults in it; more than one where they overlapped.
    """

    node: str
    start_s: float
    end_s: float
    cause: str = UNKNOWN
    faults: int = 1


@dataclass(frozen=True, slots=True)
class Trace:
    """Outages of a pool of nodes.

    Attributes:
        source: Where it is from, for people.
        nodes: Every node of the pool, with or without outages.
        outages: In order of their starts; those of one node do not overlap.
        horizon_s: Length of what was watched.
    """

    source: str
    nodes: tuple[str, ...]
    outages: tuple[Outage, ...]
    horizon_s: float


@dataclass(frozen=True, slots=True)
class _Event:
    index: int
    node: str
    at_s: float
    kind: Literal["fault_start", "fault_end"]
    cause: str


def read_trace(document: Any, where: str, *, pool: int | None = None) -> Trace:
    """Read a parsed trace.

    Args:
        document: The JSON content.
        where: Its source, for messages.
        pool: Nodes that there were; a trace names only those that failed. None takes the number of those.

    Raises:
        UsageError: It is no such trace, or contradicts itself; names the event.
    """
    if not isinstance(document, list):
        raise UsageError(f"{where}: a {type(document).__name__} where a list of fault events belongs")
    if not document:
        raise UsageError(f"{where}: holds no event, so it says nothing about faults; give another trace")
    events = [_event(entry, f"{where}: event {index}", index) for index, entry in enumerate(document)]
    events.sort(key=lambda event: event.at_s)  # stable: of one moment, the order of the file counts
    named = sorted({event.node for event in events})
    size = len(named) if pool is None else pool
    if size < len(named):
        raise UsageError(
            f"{where}: names {len(named)} nodes, more than the pool of {size}; leave --pool out or raise it"
        )
    others = (f"(never failed) {number}" for number in range(size - len(named)))
    horizon_s = events[-1].at_s
    if horizon_s <= 0:
        raise UsageError(f"{where}: all events are at time 0, so it covers no time; event_time is in days")
    return Trace(where, (*named, *others), tuple(_outages(events, where)), horizon_s)


def _event(entry: Any, where: str, index: int) -> _Event:
    if not isinstance(entry, Mapping):
        raise UsageError(f"{where}: {entry!r:.60} is no object with node_id, event_time and event_type")
    node, kind, days = entry.get("node_id"), entry.get("event_type"), entry.get("event_time")
    if not isinstance(node, str) or not node:
        raise UsageError(f"{where}: node_id {node!r} is no name")
    if kind not in ("fault_start", "fault_end"):
        raise UsageError(f"{where}: event_type {kind!r:.60} is neither fault_start nor fault_end")
    if isinstance(days, bool) or not isinstance(days, int | float):
        raise UsageError(f"{where}: event_time {days!r:.60} is no number of days")
    if not 0 <= days < 1e6:  # NaN compares false  # noqa: PLR2004
        raise UsageError(f"{where}: event_time {days!r:.60} is no time from 0 to a million days")
    fault = entry.get("fault_type")
    cause = fault.get("Class") if isinstance(fault, Mapping) else None
    return _Event(index, node, days * DAY_S, kind, cause if isinstance(cause, str) and cause else UNKNOWN)


def _outages(events: Sequence[_Event], where: str) -> list[Outage]:
    down: dict[str, list[_Event]] = {}
    ended: dict[str, int] = {}
    found: list[Outage] = []
    for event in events:
        if event.kind == "fault_start":
            down.setdefault(event.node, []).append(event)
            continue
        if event.node not in down:
            raise UsageError(
                f"{where}: event {event.index} ends a fault of node {event.node!r} that never began; the trace is "
                "cut or out of order"
            )
        ended[event.node] = ended.get(event.node, 0) + 1
        if ended[event.node] == len(down[event.node]):
            found.append(_outage(down.pop(event.node), event.at_s))
            del ended[event.node]
    found += [_outage(starts, math.inf) for starts in down.values()]
    return sorted(found, key=lambda outage: (outage.start_s, outage.node))


def _outage(starts: Sequence[_Event], end_s: float) -> Outage:
    cause = starts[0].cause if len(starts) == 1 else UNKNOWN
    return Outage(starts[0].node, starts[0].at_s, end_s, cause, len(starts))


class TraceFacts(Value):
    """A trace in numbers.

    Attributes:
        outages: Times that a node went out of work; overlapping faults of one node are one of them.
        overlapping: Outages in which faults overlapped, so that cause and inner ends are unknown.
        open_at_end: Outages whose end the trace does not tell; these nodes never come back.
        per_1000_node_days: Outages per 1000 days of a node at work.
        spread_per_node: Variance over mean of the number of outages per node; 1 where they fall by chance.
        again_within_1d: Share of the nodes given back that failed again within a day; likewise 7 and 30 days.
        in_batches: Share of outages within 10 minutes of another node's.
        repair_h_p50: Median time to be given back, hours; likewise p90.
        down_p50: Nodes out of work at once, over time; likewise p99.
    """

    source: str
    nodes: int
    days: float
    outages: int
    overlapping: int
    open_at_end: int
    per_1000_node_days: float
    spread_per_node: float
    again_within_1d: float
    again_within_7d: float
    again_within_30d: float
    in_batches: float
    repair_h_p50: float
    repair_h_p90: float
    down_p50: int
    down_p99: int


def facts(trace: Trace) -> TraceFacts:
    """The statistics of a trace."""
    outages = trace.outages
    counts = dict.fromkeys(trace.nodes, 0)
    for outage in outages:
        counts[outage.node] += 1
    mean = len(outages) / len(counts)
    variance = sum((count - mean) ** 2 for count in counts.values()) / len(counts)
    repairs = sorted(outage.end_s - outage.start_s for outage in outages if not math.isinf(outage.end_s))
    down_s = sum(min(outage.end_s, trace.horizon_s) - outage.start_s for outage in outages)
    again = _again(trace)
    starts = [outage.start_s for outage in outages]
    batched = sum(
        1 for at_s in starts if bisect_right(starts, at_s + _BATCH_S) - bisect_left(starts, at_s - _BATCH_S) > 1
    )
    return TraceFacts(
        source=trace.source,
        nodes=len(trace.nodes),
        days=round(trace.horizon_s / DAY_S, 2),
        outages=len(outages),
        overlapping=sum(1 for outage in outages if outage.faults > 1),
        open_at_end=len(outages) - len(repairs),
        per_1000_node_days=round(1000 * DAY_S / node_mtbf_s(trace, down_s=down_s), 3) if outages else 0.0,
        spread_per_node=round(variance / mean, 2) if mean else 0.0,
        again_within_1d=_share(again, DAY_S),
        again_within_7d=_share(again, 7 * DAY_S),
        again_within_30d=_share(again, 30 * DAY_S),
        in_batches=round(batched / len(outages), 3) if outages else 0.0,
        repair_h_p50=_at(repairs, 0.5),
        repair_h_p90=_at(repairs, 0.9),
        down_p50=_down_at_once(trace, 0.5),
        down_p99=_down_at_once(trace, 0.99),
    )


def node_mtbf_s(trace: Trace, *, down_s: float | None = None) -> float:
    """Mean time that one node works between two outages, seconds; infinite without outages."""
    if not trace.outages:
        return math.inf
    if down_s is None:
        down_s = sum(min(outage.end_s, trace.horizon_s) - outage.start_s for outage in trace.outages)
    return (len(trace.nodes) * trace.horizon_s - down_s) / len(trace.outages)


def _again(trace: Trace) -> list[float]:
    """For every return to work, the time until the same node's next outage; infinite where there is none."""
    back: dict[str, float] = {}
    gaps: list[float] = []
    for outage in trace.outages:
        if outage.node in back:
            gaps.append(outage.start_s - back[outage.node])
        back[outage.node] = outage.end_s
    return [*gaps, *(math.inf for end_s in back.values() if not math.isinf(end_s))]


def _share(gaps: Sequence[float], within_s: float) -> float:
    return round(sum(1 for gap in gaps if gap <= within_s) / len(gaps), 3) if gaps else 0.0


def _at(ordered: Sequence[float], share: float) -> float:
    return round(ordered[max(0, math.ceil(share * len(ordered)) - 1)] / 3600, 2) if ordered else 0.0


def _down_at_once(trace: Trace, share: float) -> int:
    """Nodes out of work at once that are not exceeded for ``share`` of the time."""
    changes = sorted(
        change for outage in trace.outages for change in ((outage.start_s, 1), (min(outage.end_s, trace.horizon_s), -1))
    )
    spent: dict[int, float] = {}
    now_s, down = 0.0, 0
    for at_s, step in [*changes, (trace.horizon_s, 0)]:
        spent[down] = spent.get(down, 0.0) + at_s - now_s
        now_s, down = at_s, down + step
    total = 0.0
    for count in sorted(spent):
        total += spent[count]
        if total >= share * trace.horizon_s:
            return count
    return max(spent)
