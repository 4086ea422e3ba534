"""How far training is, told outside: the rank's report for launch, Argo's progress file, the heartbeat's numbers."""

import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from rerail.policies.documents import Heartbeat

_RECENT_STEPS = 32
_Hook = Callable[[type[BaseException], BaseException, TracebackType | None], object]


class Progress:
    """Counts steps and times of one rank, and writes the small files about them.

    Nothing here may end training: a file that cannot be written is counted in ``failed_writes``.

    Attributes:
        step: Newest completed step.
        phase: What the process is doing: loading, warm-up, training, evaluation, saving, done.
        started_from_step: The step that was restored.
        first_step: The first step that was completed here, None before.
        loss: The newest loss, None where none was told.
        saving_s: Seconds that saves took away from training.
        save_s: The longest time from a snapshot to its commit, None before the first commit.
        failed_writes: Files that could not be written.
    """

    def __init__(
        self,
        *,
        rank: int,
        report: Path | None,
        argo: Path | None,
        total_steps: int | None,
        every_s: float = 0.02,  # the step of a killed process is known to this; half a percent of time at most
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.step = 0
        self.phase = "loading"
        self.started_from_step = 0
        self.first_step: int | None = None
        self.loss: float | None = None
        self.saving_s = 0.0
        self.save_s: float | None = None
        self.failed_writes = 0
        self._more: dict[str, Any] = {}
        self._rank = rank
        self._report = report
        self._argo = argo
        self._total_steps = total_steps
        self._every_s = every_s
        self._clock = clock
        self._wall = wall
        self._written_s = -every_s
        self._stepped_s: float | None = None
        self._step_times: deque[float] = deque(maxlen=_RECENT_STEPS)
        self._loaded_at_s: float | None = None
        self._first_step_at_s: float | None = None

    def loaded(self, step: int) -> None:
        """The state is in place; training can begin after ``step``."""
        self.step = self.started_from_step = step
        self.phase = "warm-up"
        self._loaded_at_s = self._wall()
        self._stepped_s = None
        self.write()

    def stepped(self, step: int, loss: float | None) -> None:
        """A step is complete."""
        now = self._clock()
        if self.first_step is None:
            self.first_step, self._first_step_at_s = step, self._wall()
        elif self._stepped_s is not None:
            self._step_times.append(now - self._stepped_s)
        self._stepped_s = now
        self.step, self.loss, self.phase = step, loss, "training"
        if now - self._written_s >= self._every_s or step == self.first_step:
            self.write()

    def saved(self, stall_s: float) -> None:
        """A save took this time away; it is no part of a step's time."""
        self.saving_s += stall_s
        self._stepped_s = self._clock()

    def committed(self, save_s: float) -> None:
        """A save became a commit this long after its snapshot: an eviction has to leave that much time."""
        self.save_s = max(self.save_s or 0.0, save_s)

    def note(self, **more: Any) -> None:
        """Tell launch something else at once: ``error``, ``left``, ``missed``."""
        self._more |= more
        self.write()

    @property
    def step_time_s(self) -> float | None:
        """Median seconds of recent steps."""
        from statistics import median

        return median(self._step_times) if self._step_times else None

    def heartbeat(self, *, run: str, attempt: int, writer: str) -> Heartbeat:
        """The numbers as a document."""
        return Heartbeat(
            writer=writer,
            run=run,
            attempt=attempt,
            step=self.step,
            phase=self.phase,
            at_s=self._wall(),
            step_time_s=self.step_time_s,
            started_from_step=self.started_from_step,
            first_step=self.first_step,
            first_step_at_s=self._first_step_at_s,
            loaded_at_s=self._loaded_at_s,
            saving_s=self.saving_s,
            save_s=self.save_s,
            total_steps=self._total_steps,
        )

    def write(self) -> None:
        """Write the report for launch, and Argo's file, now."""
        self._written_s = self._clock()
        if self._report is not None:
            content = {
                "rank": self._rank,
                "step": self.step,
                "phase": self.phase,
                "started_from_step": self.started_from_step,
                "first_step": self.first_step,
                "loss": self.loss,
                "error": "",
                **self._more,
            }
            self._replace(self._report, json.dumps(content))
        if self._argo is not None and self._rank == 0 and self._total_steps:
            self._replace(self._argo, f"{min(self.step, self._total_steps)}/{self._total_steps}")

    def _replace(self, path: Path, text: str) -> None:
        temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            temporary.write_text(text)
            temporary.replace(path)
        except OSError:
            self.failed_writes += 1

    def watch_exceptions(self) -> None:
        """Write ``Type: message`` of an exception that nobody catches; the hook that was there is still called."""
        before: _Hook = sys.excepthook

        def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            self.note(error=f"{kind.__name__}: {error}")
            before(kind, error, trace)

        sys.excepthook = hook
