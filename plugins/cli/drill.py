"""``rerail drill``: break a real gang of processes on purpose, and judge whether training goes on as promised."""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated

import typer

from rerail.plugins.cli.output import Output, OutputOption, emit
from rerail.policies.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from rerail.plugins.drill.runner import Setting
    from rerail.plugins.drill.scenario import Scenario
    from rerail.plugins.report.document import Report


_MARKER = ".rerail-drill"


def register(app: typer.Typer) -> None:
    """Add ``rerail drill`` to the app."""

    @app.command()
    def drill(
        name: Annotated[str, typer.Argument(help="A drill, or 'all'.", metavar="NAME")] = "",
        *,
        listing: Annotated[bool, typer.Option("--list", help="Show the drills and what each one claims.")] = False,
        seed: Annotated[int, typer.Option(help="Seed of parameters, order of samples and dropout.", min=0)] = 1,
        keep: Annotated[
            Path | None,
            typer.Option(help="Keep everything below DIR/DRILL: store, kernel logs, logs, report.", metavar="DIR"),
        ] = None,
        output: OutputOption = Output.TABLE,
    ) -> None:
        """Run a fault drill on real processes and signals, and compare with an uninterrupted run of the same seed.

        Exits with 0 when the drill's claim held, with 1 when it did not.
        """
        from rerail.plugins.drill.runner import Setting
        from rerail.plugins.drill.scenarios import SCENARIOS

        if listing:
            emit([{"drill": each.name, "claim": each.hypothesis} for each in SCENARIOS.values()], output)
            return
        if not name:
            raise UsageError(f"name a drill ({', '.join(SCENARIOS)}), or 'all'; --list explains them")
        if name != "all" and name not in SCENARIOS:
            raise NotFoundError(f"there is no drill {name!r}; known: {', '.join(SCENARIOS)}, or 'all'")
        folder = keep or Path(tempfile.mkdtemp(prefix="rerail-drill-"))
        chosen = list(SCENARIOS.values()) if name == "all" else [SCENARIOS[name]]
        with _ended_orderly():
            reports = _run(chosen, folder.resolve(), Setting(seed=seed), output)
        if output is Output.TABLE and name == "all":
            emit(_summary(reports), output)
        elif output is not Output.TABLE:
            documents = [report.document() for report in reports]
            emit(documents if name == "all" else documents[0], output)
        if any(report.verdict != "pass" for report in reports):
            sys.exit(1)


def _emptied(place: Path) -> Path:
    """Clear what an earlier drill left; a folder that is not a drill's is never touched."""
    marker = place / _MARKER
    if place.exists() and any(place.iterdir()):
        if not marker.is_file():
            raise UsageError(f"{place} is not empty and was not left by a drill; give --keep another folder")
        shutil.rmtree(place)
    place.mkdir(parents=True, exist_ok=True)
    marker.write_text("made by rerail drill, which deletes this folder when it runs again\n", encoding="utf-8")
    return place


def _run(chosen: "list[Scenario]", folder: Path, setting: "Setting", output: Output) -> "list[Report]":
    from rerail.plugins.cli.live import Live
    from rerail.plugins.drill.runner import run_baseline, run_drill
    from rerail.plugins.drill.scenario import STEPS
    from rerail.plugins.drill.world import Folders, newest_step

    live = Live()
    told = replace(setting, on_event=live.event)
    baseline, beside = None, folder
    reports = []
    for scenario in chosen:
        folders = Folders(_emptied(folder / scenario.name))
        if scenario.finishes and baseline is None:
            beside = folders.baseline
            with live.following("uninterrupted run", STEPS, partial(newest_step, Folders(beside).trace)):
                baseline = run_baseline(beside, told)
        elif scenario.finishes:
            folders.baseline.symlink_to(os.path.relpath(beside, folders.root))
        live.say(f"drill {scenario.name}: {scenario.hypothesis}")
        with live.following(scenario.name, STEPS, partial(newest_step, folders.trace)):
            report = run_drill(scenario, folders.root, told, baseline=baseline)
        reports.append(report)
        if output is Output.TABLE:
            _show(report)
    return reports


def _show(report: "Report") -> None:
    from rich.console import Console

    from rerail.plugins.report.timeline import timeline_table

    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    console.print(timeline_table(report))
    console.print(f"{report.verdict}: {report.reason}", markup=False)
    console.print(f"report.html  {report.report_html}\nreport.json  {report.report_json}", soft_wrap=True)


def _summary(reports: "list[Report]") -> list[dict[str, object]]:
    return [
        {
            "drill": report.scenario,
            "verdict": report.verdict,
            "identical": report.identical,
            "attempts": len(report.attempts),
            "lost steps": report.lost_steps,
            "MTTR s": None if report.mttr_s is None else round(report.mttr_s, 1),
            "took s": round(report.elapsed_s, 1),
        }
        for report in reports
    ]


@contextmanager
def _ended_orderly() -> Iterator[None]:
    """SIGTERM and SIGHUP end a drill as Ctrl-C does: with everything that it started."""

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
