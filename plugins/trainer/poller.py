"""Rank 0's look outside: requests, newer seals, deadlines, the heartbeat. In a thread of its own, never in training."""

import logging
import threading
import time
from collections.abc import Callable

from rerail.plugins.checkpoint.attempts import newest_opening
from rerail.plugins.checkpoint.notes import beat, read_requests
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.trainer.progress import Progress
from rerail.plugins.trainer.requests import RequestBook
from rerail.plugins.trainer.signals import TermSignal
from rerail.policies.errors import RerailError

log = logging.getLogger("rerail.trainer")


class Poller:
    """Looks every ``poll_s``; what it cannot see it counts and looks for again.

    Attributes:
        superseded: The newer attempt whose seal was seen, None before.
        failures: Looks that failed (an unreachable store is no reason to stop training).
    """

    def __init__(
        self,
        run: RunStore,
        *,
        attempt: int,
        book: RequestBook,
        progress: Progress,
        signal: TermSignal,
        grace_s: float | None,
        poll_s: float,
        new_id: Callable[[], str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.superseded: int | None = None
        self.failures = 0
        self._run = run
        self._attempt = attempt
        self._book = book
        self._progress = progress
        self._signal = signal
        self._grace_s = grace_s
        self._poll_s = poll_s
        self._new_id = new_id
        self._clock = clock
        self._after = ""
        self._grace_missed = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="rerail-poller", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Stop looking; does not wait for a look that hangs."""
        self._stop.set()

    def _loop(self) -> None:
        while not self._stop.is_set():
            for look in (self._look_at_requests, self._look_at_seals, self._beat):
                try:
                    look()
                except (RerailError, OSError) as error:
                    self.failures += 1
                    log.debug("rerail: %s: %s", look.__name__, error)
            self.expire()
            self._stop.wait(self._poll_s)
        # A last heartbeat: the end of the run, or of this process, is worth knowing.
        try:
            self._beat()
        except (RerailError, OSError):
            self.failures += 1

    def _look_at_requests(self) -> None:
        for key, request in read_requests(self._run, self._attempt, after=self._after):
            self._after = key
            if self._book.see(request.id, within_s=request.within_s, then=request.then, now_s=self._clock()):
                log.warning(
                    "rerail: asked to save within %g s and %s (%s)", request.within_s, request.then, request.reason
                )

    def _look_at_seals(self) -> None:
        sealed = newest_opening(self._run).sealed
        if sealed is not None and sealed > self._attempt and self.superseded is None:
            self.superseded = sealed
            log.warning("rerail: attempt %d is being opened; this gang, of attempt %d, leaves", sealed, self._attempt)

    def _beat(self) -> None:
        beat(self._run, self._progress.heartbeat(run=self._run.run, attempt=self._attempt, writer=self._new_id()))

    def expire(self) -> None:
        """Record deadlines that passed, with the phase that training was in."""
        phase, now = self._progress.phase, self._clock()
        missed = False
        for miss in self._book.expire(phase=phase, now_s=now):
            missed = True
            log.warning("rerail: request %s missed after %.1f s: the ranks were in %s", miss.id, miss.waited_s, phase)
        seen = self._signal.seen_s
        if seen is not None and self._grace_s is not None and now - seen >= self._grace_s and not self._grace_missed:
            self._grace_missed = missed = True
            self._book.note_miss(phase)
            log.warning("rerail: the grace period of %g s after SIGTERM passed in %s", self._grace_s, phase)
        if missed:
            self._progress.note(missed=dict(self._book.missed))
