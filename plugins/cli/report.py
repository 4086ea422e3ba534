"""``rerail report RUN``: the report of a run, written as a page and as a document."""

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from rerail.plugins.cli.locate import ControlOption, NamespaceOption, RunArgument, StoreOption, locate
from rerail.plugins.cli.output import Output, OutputOption, emit
from rerail.policies.errors import NotFoundError
from rerail.policies.recovery import RecoveryPolicy


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("report")(report)


def report(
    run: RunArgument,
    *,
    store: StoreOption = None,
    control: ControlOption = None,
    namespace: NamespaceOption = None,
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Write report.html and report.json here. [default: neither]")
    ] = None,
    prometheus: Annotated[
        bool, typer.Option("--prometheus", help="Show all metrics as Prometheus text instead.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the report of a run, at any time: a timeline, or the whole document; with --dir also as a page.

    Exit codes: 0 written, 2 bad input, 3 the store does not answer, 4 there is no such run, or nothing to report yet.
    """
    from rerail.plugins.gang.ledger import newest_entry
    from rerail.plugins.report import build_report, placed, read_facts, write

    with ExitStack() as held:
        found = locate(run, store, control, namespace, held)
        entry = newest_entry(found.run)
        if entry is None:
            raise NotFoundError(f"nothing to report: no supervisor has begun run {found.run.run!r} yet")
        policy = RecoveryPolicy.from_mapping(dict(found.doc.policy), f"run.json of run {found.run.run!r}")
        made = build_report(entry.state, read_facts(found.run), policy)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        made = placed(made, folder.resolve())
        write(made, folder.resolve())
    if prometheus:
        from rerail.plugins.report.prometheus import exposition

        sys.stdout.write(exposition(made))
    elif output is not Output.TABLE:
        emit(made.document(), output)
    else:
        _show(made)


def _show(made: object) -> None:
    from rich.console import Console

    from rerail.plugins.report import Report
    from rerail.plugins.report.timeline import timeline_table
    from rerail.plugins.report.words import headline

    assert isinstance(made, Report)
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    console.print(timeline_table(made))
    console.print(headline(made), markup=False)
    if made.report_html:
        console.print(f"report.html  {made.report_html}\nreport.json  {made.report_json}", soft_wrap=True)
