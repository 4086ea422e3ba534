"""Live progress on stderr: a bar that follows the newest step, and one line for each decision of the supervisor."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from rerail.policies.supervisor.state import LedgerEntry

_LOOK_EVERY_S = 0.2
_STYLES = {"done": "green", "stopped": "red", "ending": "yellow", "saving": "yellow", "preparing": "yellow"}


class Live:
    """What a person sees while a run goes on. Without a terminal only the lines are printed, without colour."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._began_s: dict[str, float] = {}
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeElapsedColumn(),
            console=self._console,
            transient=True,
            disable=not self._console.is_terminal,
        )

    def say(self, text: str) -> None:
        """One line for people."""
        self._console.print(escape(text), soft_wrap=True)

    def event(self, run: str, entry: LedgerEntry) -> None:
        """Show a decision, at seconds since the run's first one."""
        began_s = self._began_s.setdefault(run, entry.at_s)
        style = _STYLES.get(entry.state.phase, "default")
        self._console.print(
            f"[dim]{entry.at_s - began_s:6.2f} s  {escape(run):<20}[/dim] [{style}]{escape(entry.note)}[/{style}]",
            soft_wrap=True,
        )

    @contextmanager
    def following(self, what: str, total: int, step: Callable[[], int]) -> Iterator[None]:
        """Show a bar of ``step()`` of ``total`` while the body runs."""
        over = threading.Event()
        task = self._progress.add_task(what, total=total)

        def follow() -> None:
            while not over.wait(_LOOK_EVERY_S):
                self._progress.update(task, completed=step())

        thread = threading.Thread(target=follow, daemon=True)
        began_s = time.monotonic()
        with self._progress:
            thread.start()
            try:
                yield
            finally:
                over.set()
                thread.join()
                self._progress.remove_task(task)
        if not self._console.is_terminal:
            self.say(f"{what}: {time.monotonic() - began_s:.1f} s")
