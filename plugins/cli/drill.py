"""``rerail drill``: break a real gang of processes on purpose, and judge whether training goes on as promised."""

import shutil
import sys
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rerail.plugins.cli.output import Output, OutputOption, emit
from rerail.policies.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from rerail.plugins.drill.runner import Setting
    from rerail.plugins.drill.scenario import Scenario
    from rerail.plugins.report.document import Report


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
            typer.Option(help="Keep everything below DIR/<drill>: store, kernel logs, logs, report.", metavar="DIR"),
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
        reports = _run(chosen, folder.resolve(), Setting(seed=seed), output)
        if output is not Output.TABLE:
            documents = [report.document() for report in reports]
            emit(documents if name == "all" else documents[0], output)
        if any(report.verdict != "pass" for report in reports):
            sys.exit(1)


def _empty(place: Path) -> Path:
    """Clear what an earlier drill left; a folder that is not a drill's is never touched."""
    if not place.exists() or not any(place.iterdir()):
        return place
    if not (place / "store").is_dir() or not (place / "trace").is_dir():
        raise UsageError(f"{place} is not empty and was not left by a drill; give --keep another folder")
    shutil.rmtree(place)
    return place


def _run(chosen: "list[Scenario]", folder: Path, setting: "Setting", output: Output) -> "list[Report]":
    from rich.console import Console

    from rerail.plugins.cli.live import Live
    from rerail.plugins.drill.runner import run_baseline, run_drill
    from rerail.plugins.drill.scenario import STEPS
    from rerail.plugins.drill.world import Folders, newest_step
    from rerail.plugins.report.timeline import timeline_table

    live = Live()
    told = replace(setting, on_event=live.event)
    baseline = None
    reports = []
    for scenario in chosen:
        place = _empty(folder / scenario.name)
        live.say(f"drill {scenario.name}: {scenario.hypothesis}")
        with live.following(scenario.name, STEPS, partial(newest_step, Folders(place).trace)):
            if baseline is None and scenario.finishes:
                baseline = run_baseline(Folders(place).baseline, told)
            report = run_drill(scenario, place, told, baseline=baseline)
        reports.append(report)
        if output is Output.TABLE:
            console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
            console.print(timeline_table(report))
            console.print(f"{report.verdict}: {report.reason}", markup=False)
            console.print(f"report.html  {report.report_html}\nreport.json  {report.report_json}", soft_wrap=True)
    return reports
