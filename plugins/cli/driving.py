"""Driving one run from a terminal: progress for people, signals, the document at the end, and its exit code."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import typer

from rerail.plugins.cli.output import Output, emit
from rerail.plugins.gang.executor import Supervisor
from rerail.policies.supervisor.state import LedgerEntry, RunState

VERDICT_FAIL = 1
BLOCKED = 3
INTERRUPTED = 130
_STYLES = {"done": "bold green", "stopped": "bold red", "ending": "yellow", "preparing": "yellow", "saving": "yellow"}


class Progress:
    """Live progress for people, on stderr."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False, soft_wrap=True)
        self._began_s: float | None = None

    def entry(self, entry: LedgerEntry) -> None:
        """One decision."""
        from rich.markup import escape

        self._began_s = self._began_s if self._began_s is not None else entry.at_s
        style = _STYLES.get(entry.state.phase, "cyan")
        at_s = entry.at_s - self._began_s
        self._console.print(f"[dim]{at_s:8.1f} s[/] [{style}]{entry.state.phase:<9}[/] {escape(entry.note)}")

    def line(self, text: str) -> None:
        """One line of anything else."""
        from rich.markup import escape

        self._console.print(f"[dim]{escape(text)}[/]")


@contextmanager
def signals(supervisor: Supervisor, progress: Progress) -> Iterator[list[int]]:
    """Ctrl-C asks the run to stop, a second one or SIGTERM leaves the gang to a successor."""
    left: list[int] = []
    asked: list[int] = []

    def interrupt(number: int, _frame: FrameType | None) -> None:
        if asked:
            left.append(number)
            return
        asked.append(number)
        supervisor.ask_stop("interrupted by a person")

    def leave(number: int, _frame: FrameType | None) -> None:
        left.append(number)

    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, interrupt),
        signal.SIGTERM: signal.signal(signal.SIGTERM, leave),
    }
    try:
        yield left
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if asked:
            progress.line("asked to stop: the ranks were asked to save and leave")


def attempt_rows(state: RunState) -> list[dict[str, Any]]:
    """The run's attempts, for a document."""
    return [
        {
            "n": record.n,
            "gang": record.gang,
            "nodes": list(record.nodes),
            "how": record.how,
            "started_from_step": record.started_from_step,
            "last_step": record.last_step,
            "last_commit_step": record.last_commit_step,
            "end_cause": record.end_cause,
            "exit_codes": record.exit_codes,
        }
        for record in state.attempts
    ]


def incident_rows(state: RunState) -> list[dict[str, Any]]:
    """The run's incidents, for a document."""
    return [
        {
            "id": incident.id,
            "class": incident.class_name,
            "scope": incident.scope,
            "node": incident.node,
            "action": incident.action,
        }
        for incident in state.incidents
    ]


def document(state: RunState, address: str, *, left_running: bool, **more: object) -> dict[str, Any]:
    """What is known of the run at the end, for stdout."""
    return {
        "run": state.run,
        "store": address,
        "phase": state.phase,
        "reason": state.reason,
        "left_running": left_running,
        "attempts": attempt_rows(state),
        "incidents": incident_rows(state),
        **more,
    }


def drive(
    supervisor: Supervisor, progress: Progress, output: Output, *, address: str, again: str, **more: object
) -> None:
    """Drive the run to its end, write the document, and leave with the exit code of its outcome.

    Args:
        supervisor: Of the run.
        progress: Where people look.
        output: Form of the document.
        address: Of the store.
        again: The command that continues the run.
        more: Further fields of the document.

    Raises:
        RefusedError: Another owner took the run over meanwhile; its gang goes on.
        typer.Exit: The run did not end well, or was left to a successor.
    """
    with signals(supervisor, progress) as left:
        last = supervisor.drive(until=lambda: bool(left))
    emit(document(last, address, left_running=bool(left), **more), output)
    supervisor.refuse_anothers(last)
    if left:
        progress.line(f"the gang goes on; continue with: {again}")
        raise typer.Exit(INTERRUPTED)
    if last.phase != "done":
        raise typer.Exit(BLOCKED if last.reason.startswith("resume blocked") else VERDICT_FAIL)
