"""SIGTERM as a wish: save at the next boundary together with all ranks, then leave."""

import atexit
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

_Handler = Callable[[int, FrameType | None], object]


class TermSignal:
    """Remembers that SIGTERM came, instead of dying in the middle of a step.

    A handler that was installed before is still called. Outside the main thread Python allows no handler; then nothing
    is installed and SIGTERM keeps its meaning.

    Attributes:
        seen_s: Monotonic time of the first SIGTERM, None before.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.seen_s: float | None = None
        self._clock = clock
        self._before: _Handler | int | None = None
        self._installed = False

    def install(self) -> None:
        """Take over SIGTERM, once."""
        if self._installed or threading.current_thread() is not threading.main_thread():
            return
        self._before = signal.signal(signal.SIGTERM, self._on_signal)
        self._installed = True

    def restore(self) -> None:
        """Give SIGTERM back to whoever had it."""
        if self._installed and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._before or signal.SIG_DFL)
            self._installed = False

    def disregard(self) -> None:
        """The process leaves by itself: one more SIGTERM must not take its exit code away, to the very end."""
        if self._installed and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _nothing)  # not SIG_IGN yet, which child processes would inherit
            atexit.register(signal.signal, signal.SIGTERM, signal.SIG_IGN)
            self._installed = False

    @property
    def pending(self) -> bool:
        """Whether SIGTERM came."""
        return self.seen_s is not None

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.seen_s is None:
            self.seen_s = self._clock()
        if callable(self._before):
            self._before(number, frame)


def _nothing(_number: int, _frame: FrameType | None) -> None:
    return
