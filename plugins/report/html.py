"""The report as one self-contained HTML page, and both twins on disk.

The page has no script and refers to nothing outside itself, so that it also shows where artifacts are served under
``default-src 'none'; style-src 'unsafe-inline'``, as Argo does.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from rerail.plugins.report import chart, svg, words
from rerail.plugins.report.document import CheckpointRow, Report
from rerail.plugins.report.prometheus import exposition
from rerail.policies.metrics import BADPUT, Spread

ROWS_AT_MOST = 120
"""Rows of one table in the page; the JSON twin has them all."""

_BADPUT_WORDS = {
    "TPU_INITIALIZATION": "Device start",
    "TRAINING_PREP": "First load and preparation",
    "PROGRAM_STARTUP": "Start and warm-up",
    "DATA_LOADING_SYNC": "Waiting for data",
    "DATA_LOADING_ASYNC": "Loading data behind training",
    "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME": "Waiting for saves",
    "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME": "Loading after a fault",
    "WASTED_PROGRESS_FROM_DISRUPTION": "Work that was lost",
    "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION": "Fault to next start",
    "CUSTOM_BADPUT_EVENTS": "Custom",
    "OTHER": "Queue, ending and the rest",
}

_BADPUT_KIND = {
    "TRAINING_PREP": "t-start",
    "PROGRAM_STARTUP": "t-start",
    "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME": "t-save",
    "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME": "t-load",
    "WASTED_PROGRESS_FROM_DISRUPTION": "lost",
    "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION": "t-recover",
}


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("rerail.plugins.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    for name in ("seconds", "size", "percent", "fault"):
        environment.filters[name] = getattr(words, name)
    environment.globals["count"] = words.count
    return environment.get_template("report.html.j2")


def render(report: Report) -> str:
    """The page."""
    state, tone = words.state_of(report)
    checkpoints = report.checkpoints[-ROWS_AT_MOST:]
    main = words.main_incident(report)
    return _template().render(
        report=report,
        state=state,
        tone=tone,
        headline=words.headline(report),
        main_id=main.id if main else "",
        phase_names=words.PHASES,
        comparison=words.comparison(report),
        begun=datetime.fromtimestamp(report.begun_at_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        hatches=svg.HATCHES,
        timeline=chart.timeline(report),
        legend=[(svg.swatch(kind), label) for kind, label in chart.legend(report)],
        waterfalls=[(item, _waterfall_rows(report, item.id)) for item in report.incidents if item.phases_s is not None],
        checkpoints=checkpoints,
        checkpoint_swatches={kind: svg.swatch(kind) for kind in svg.SHAPES},
        left_out=len(report.checkpoints) - len(checkpoints),
        saves=_saves(report.checkpoints),
        time_bar=svg.stack(_time_shares(report)),
        time_rows=_time_rows(report),
        time_empty=[name for name in BADPUT if not report.metrics.badput_s[name]],
        metric_rows=_metric_rows(report),
        nvidia=report.metrics.nvidia,
        policy=_flat(report.policy.model_dump(mode="json")),
        events=report.timeline[-ROWS_AT_MOST:],
    )


def placed(report: Report, folder: Path) -> Report:
    """The report with the paths of the files that ``write`` makes of it in ``folder``."""
    paths = {"report_html": str(folder / "report.html"), "report_json": str(folder / "report.json")}
    return report.model_copy(update=paths)


def write(report: Report, folder: Path) -> tuple[Path, Path]:
    """Write ``report.html``, ``report.json`` and ``report.prom`` into ``folder``; the documents name their own files.

    Args:
        report: What ``build_report`` made.
        folder: Created if it is not there.

    Returns:
        Paths of the HTML and of the JSON.
    """
    folder.mkdir(parents=True, exist_ok=True)
    named = placed(report, folder)
    html, twin = Path(named.report_html), Path(named.report_json)
    html.write_text(render(named), encoding="utf-8")
    twin.write_text(json.dumps(named.document(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "report.prom").write_text(exposition(named), encoding="utf-8")
    return html, twin


def _waterfall_rows(report: Report, incident: str) -> list[dict[str, Any]]:
    item = next(row for row in report.incidents if row.id == incident)
    assert item.phases_s is not None
    whole = item.mttr_s or 1.0
    rows, at = [], 0.0
    for name, length in item.phases_s.items():
        again = item.run_again_s if name == "first_step" else 0.0
        rows.append(
            {
                "name": words.PHASES[name],
                "seconds": length,
                "share": length / whole,
                "slowest": name == item.slowest_phase,
                "again_s": again,
                "bar": svg.bar(
                    at / whole,
                    (at + length) / whole,
                    f"phase {chart.KIND_OF_PHASE[name]}",
                    title=f"{words.PHASES[name]}: {words.seconds(length)}",
                    hatched_from=(at + length - again) / whole if again else None,
                ),
            }
        )
        at += length
    return rows


def _time_rows(report: Report) -> list[dict[str, Any]]:
    whole = report.metrics.elapsed_job_s or 1.0
    parts = [("t-good", "Productive training", "goodput", report.metrics.productive_s)]
    parts += [
        (_BADPUT_KIND.get(name, "t-other"), _BADPUT_WORDS[name], name, length)
        for name, length in report.metrics.badput_s.items()
    ]
    return [
        {
            "kind": kind,
            "swatch": svg.swatch(kind),
            "label": label,
            "name": name,
            "seconds": length,
            "share": length / whole,
        }
        for kind, label, name, length in parts
        if length > 0
    ]


def _time_shares(report: Report) -> list[tuple[str, float, str]]:
    return [
        (row["kind"], row["share"], f"{row['label']}: {words.seconds(row['seconds'])}, {words.percent(row['share'])}")
        for row in _time_rows(report)
    ]


def _metric_rows(report: Report) -> list[dict[str, str]]:
    found = report.metrics
    values: dict[str, str] = {}
    for row in report.definitions:
        if row.name == "mttr_phases_s":
            values[row.name] = _slowest(report)
        elif row.name == "nvidia_goodput":
            values[row.name] = words.percent(found.nvidia.get("result"))
        else:
            values[row.name] = words.measure(getattr(found, row.name), row.unit)
    spreads = {"mttd_s": found.mttd_spread_s, "mttr_s": found.mttr_spread_s}
    return [
        {
            "title": row.title,
            "name": row.name,
            "value": values[row.name],
            "spread": _spread(spreads[row.name]) if row.name in spreads else "",
            "definition": row.definition,
            "source": row.source,
        }
        for row in report.definitions
    ]


def _slowest(report: Report) -> str:
    phases = report.mttr_phases_s
    return words.NOTHING if phases is None else f"slowest: {words.PHASES[phases.slowest].lower()}"


def _spread(spread: Spread) -> str:
    if spread.count <= 1:
        return ""
    shown = [f"{name} {words.seconds(getattr(spread, name))}" for name in ("p50", "p90", "max")]
    return f"{', '.join(shown)} over {spread.count}, {spread.unrecovered} without recovery"


def _saves(checkpoints: Sequence[CheckpointRow]) -> str:
    times = sorted(mark.save_s for mark in checkpoints if mark.save_s is not None)
    sizes = [mark.size_bytes for mark in checkpoints if mark.at_s is not None]
    if not sizes:
        return "No checkpoint stands."
    said = f"{words.count(len(sizes), 'checkpoint')}, {words.size(sum(sizes))} in all"
    return said + (f"; median save {words.seconds(times[len(times) // 2])}." if times else ".")


def _flat(values: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    flat: list[tuple[str, Any]] = []
    for name, value in values.items():
        flat += _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else [(prefix + name, value)]
    return flat
