"""When periodic saves are due, from what saves were measured to cost."""

import time
from collections import deque
from collections.abc import Callable

from rerail.policies.cadence import Cadence, Moment

_RECENT_SAVES = 5


class Pacing:
    """Holds the measurements that a cadence decides by."""

    def __init__(self, every: Cadence | None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._every = every
        self._clock = clock
        self._began_s = clock()
        self._stalls: deque[float] = deque(maxlen=_RECENT_SAVES)
        self._durations: deque[float] = deque(maxlen=_RECENT_SAVES)
        self._skipped: int | None = None

    @property
    def local(self) -> bool:
        """Whether ranks have to agree, since the answer rests on this process's clock."""
        return self._every is not None and self._every.local

    def begin(self) -> None:
        """Training begins: time runs from here."""
        self._began_s = self._clock()

    def began(self) -> None:
        """A save began."""
        self._began_s = self._clock()

    def stalled(self, seconds: float) -> None:
        """A save took this much training time away."""
        self._stalls.append(seconds)

    def committed(self, seconds: float) -> None:
        """A save was a commit after this time (called from the background)."""
        self._durations.append(seconds)

    def skip(self, step: int) -> int:
        """A due save is left out; 1 the first time for a step, then 0, to be added to a count."""
        again = self._skipped == step
        self._skipped = step
        return 0 if again else 1

    def due(self, step: int) -> bool:
        """Whether a periodic save is due after ``step``."""
        if self._every is None:
            return False
        return self._every.due(
            Moment(
                step=step,
                since_save_s=self._clock() - self._began_s,
                cost_s=_mean(self._stalls),
                save_s=_mean(self._durations),
            )
        )


def _mean(values: deque[float]) -> float | None:
    known = tuple(values)
    return sum(known) / len(known) if known else None
