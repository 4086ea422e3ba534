"""The timeline as a table for the terminal. Imported by commands only when they print one: it needs rich."""

from typing import Final

from rich.table import Table
from rich.text import Text

from rerail.plugins.report.document import Event, EventKind, Report

_STYLES: Final[dict[EventKind, tuple[str, str]]] = {
    "attempt": ("\N{BLACK RIGHT-POINTING POINTER}", "bold"),
    "fault": ("\N{BLACK DOWN-POINTING TRIANGLE}", "bold red"),
    "detect": ("!", "yellow"),
    "decide": ("!", "yellow"),
    "save": ("s", "magenta"),
    "end": ("x", "magenta"),
    "start": ("\N{RIGHTWARDS ARROW}", "blue"),
    "load": ("\N{RIGHTWARDS ARROW}", "blue"),
    "step": ("\N{RIGHTWARDS ARROW}", "bold green"),
    "commit": ("\N{BLACK CIRCLE}", "green"),
    "done": ("=", "bold"),
    "note": ("\N{MIDDLE DOT}", "dim"),
}


def timeline_table(report: Report, *, notes: bool = False) -> Table:
    """The report's timeline, one event a line.

    Args:
        report: What ``build_report`` made.
        notes: Also the ledger's own notes, which say in the supervisor's words what the other lines say.
    """
    table = Table(
        title=f"Timeline of {report.run}", title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0)
    )
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("attempt", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("event", overflow="fold")
    for event in report.timeline:
        if event.kind != "note" or notes:
            table.add_row(*_cells(event))
    return table


def _cells(event: Event) -> tuple[Text, Text, Text, Text]:
    sign, style = _STYLES[event.kind]
    attempt = "" if event.attempt is None else str(event.attempt)
    return Text(f"{event.t_s:.2f} s", "dim"), Text(attempt, "dim"), Text(sign, style), Text(event.text, style)
