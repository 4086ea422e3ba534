"""The best that anybody could do on a trace, knowing every fault before it comes.

At each moment the oracle may take the nodes that stay up longest, or wait for better ones; it saves once, just before
each fault. Leaving a gang before its fault never helps: what could be started then can be started later as well. So the
best course is found exactly, backwards over the moments at which anything changes.
"""

import heapq
import math
from bisect import bisect_left
from collections.abc import Sequence

from rerail.policies.errors import UsageError
from rerail.policies.simulate.goodput import Costs, kept_s
from rerail.policies.simulate.replay import Replay, Stretch
from rerail.policies.simulate.trace import Trace


def foresee(trace: Trace, gang_nodes: int, *, order: Sequence[str], costs: Costs) -> Replay:
    """The course that keeps the most work; of equal ones, that with the fewest interruptions.

    Args:
        trace: The faults.
        gang_nodes: Whole nodes that the gang needs.
        order: The nodes that it may use.
        costs: Of a save and a restart.

    Raises:
        UsageError: ``order`` holds too few nodes.
    """
    if not 1 <= gang_nodes <= len(order):
        raise UsageError(f"a gang of {gang_nodes} nodes cannot be placed on {len(order)}; give 1 to {len(order)}")
    own = set(order)
    outages = [outage for outage in trace.outages if outage.node in own]
    moments = sorted(
        moment
        for moment in {0.0, *(outage.start_s for outage in outages), *(outage.end_s for outage in outages)}
        if moment < trace.horizon_s
    )
    ends = _ends(trace, gang_nodes, order, moments)
    moments.append(trace.horizon_s)
    best: list[tuple[float, int]] = [(0.0, 0)] * len(moments)
    run: list[Stretch | None] = [None] * len(moments)
    for index in range(len(moments) - 2, -1, -1):
        best[index] = best[index + 1]  # waiting
        end_s = ends[index]
        if end_s is None:
            continue
        stretch = Stretch(moments[index], end_s, end_s < trace.horizon_s)
        kept, fewer = best[bisect_left(moments, end_s)]
        running = (kept_s(stretch, costs) + kept, fewer - int(stretch.interrupted))
        if running > best[index]:
            best[index], run[index] = running, stretch
    return Replay(tuple(_course(moments, run)), trace.horizon_s)


def _ends(trace: Trace, gang_nodes: int, order: Sequence[str], moments: Sequence[float]) -> list[float | None]:
    """For each moment, how long the best gang of that moment lasts; None where there are too few nodes."""
    fails_s = dict.fromkeys(order, trace.horizon_s)  # when each node fails next, after the moment
    back_s = dict.fromkeys(order, -math.inf)  # since when it is up, of the time before that
    of_node: dict[str, list[tuple[float, float]]] = {node: [] for node in order}
    for outage in trace.outages:
        if outage.node in of_node:
            of_node[outage.node].append((outage.start_s, outage.end_s))
            back_s[outage.node] = outage.end_s
    found: list[float | None] = [None] * len(moments)
    for index in range(len(moments) - 1, -1, -1):
        moment = moments[index]
        for node, past in of_node.items():
            while past and past[-1][0] > moment:
                fails_s[node] = past.pop()[0]
                back_s[node] = past[-1][1] if past else -math.inf
        up = [fails_s[node] for node in order if back_s[node] <= moment]
        if len(up) >= gang_nodes:
            found[index] = min(trace.horizon_s, heapq.nlargest(gang_nodes, up)[-1])
    return found


def _course(moments: Sequence[float], run: Sequence[Stretch | None]) -> list[Stretch]:
    course: list[Stretch] = []
    index = 0
    while index < len(moments) - 1:
        stretch = run[index]
        if stretch is None:
            index += 1
            continue
        course.append(stretch)
        index = bisect_left(moments, stretch.end_s)
    return course
