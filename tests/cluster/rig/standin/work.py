"""Requests in line: the same one waits once, and one that failed comes again, later each time."""

import threading
import time
from typing import Final, Generic, TypeVar

T = TypeVar("T")

FIRST_PAUSE_S: Final = 0.005
LONGEST_PAUSE_S: Final = 1000.0


class WorkQueue(Generic[T]):
    def __init__(self) -> None:
        self._line: dict[T, None] = {}
        self._later: dict[T, float] = {}
        self._failures: dict[T, int] = {}
        self._changed = threading.Condition()

    def add(self, one: T) -> None:
        with self._changed:
            self._line[one] = None
            self._changed.notify()

    def failed(self, one: T) -> None:
        """Put it in line again after a pause, which doubles with each failure."""
        with self._changed:
            count = self._failures.get(one, 0)
            self._failures[one] = count + 1
            self._later[one] = time.monotonic() + min(FIRST_PAUSE_S * 2.0**count, LONGEST_PAUSE_S)
            self._changed.notify()

    def failures(self, one: T) -> int:
        with self._changed:
            return self._failures.get(one, 0)

    def forget(self, one: T) -> None:
        with self._changed:
            self._failures.pop(one, None)

    def next(self, patience_s: float) -> T | None:
        """The next one, or None where none comes in time."""
        end = time.monotonic() + patience_s
        with self._changed:
            while True:
                now = time.monotonic()
                for one in [one for one, at in self._later.items() if at <= now]:
                    del self._later[one]
                    self._line[one] = None
                if self._line:
                    one = next(iter(self._line))
                    del self._line[one]
                    return one
                if now >= end:
                    return None
                self._changed.wait(min([end, *self._later.values()]) - now)
