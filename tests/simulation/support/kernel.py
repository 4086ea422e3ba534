"""Virtual time: a heap of events, and actors that may be stopped inside an operation while the others go on."""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field


class Killed(BaseException):
    """SIGKILL: nothing may catch it but the event that ran the actor."""


class Later(BaseException):
    """A blocking wait was reached: the same call is made again at a later event."""


@dataclass
class Kernel:
    """The clock and everything that is still to happen. Nested ``pause`` calls let others run inside an operation."""

    t: float = 0.0
    depth: int = 0
    events: int = 0
    _heap: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    _count: itertools.count = field(default_factory=itertools.count)

    def after(self, delay_s: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.t + max(0.0, delay_s), next(self._count), happen))

    def run(self, until_s: float, over: Callable[[], bool] = lambda: False) -> None:
        while self._heap and self._heap[0][0] <= until_s and not over():
            at_s, _, happen = heapq.heappop(self._heap)
            self.t = max(self.t, at_s)
            self.events += 1
            happen()
        if not over():
            self.t = max(self.t, until_s)

    def pause(self, duration_s: float) -> None:
        """The caller is slow, or stopped: everybody else goes on for so long."""
        self.depth += 1
        try:
            self.run(self.t + duration_s)
        finally:
            self.depth -= 1


@dataclass
class Actor:
    """Whoever touches the store or the cluster; the faults of its operations are its own.

    Attributes:
        ops: How many operations it began.
        busy: It is inside a call, perhaps stopped there.
        retaining: It carries out retention.
        dead: Its process is gone; its next boundary ends it.
        cut: The store did not answer it the last time.
    """

    name: str
    ops: int = 0
    busy: bool = False
    retaining: bool = False
    dead: bool = False
    cut: bool = False
