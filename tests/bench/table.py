"""What was measured, into results.json and into the README between two marks."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"


def merge(old: Mapping[str, Any], taken: Iterable[tuple[Any, Any]], *, date: str, machine: str) -> dict[str, Any]:
    """Old rows, with those replaced that were taken now: pairs of a ``Result`` and its ``Goal``."""
    rows: dict[str, Any] = dict(old.get("measures", {}))
    for result, goal in taken:
        rows[result.name] = {
            "ratio": _short(result.ratio.median),
            "spread": [_short(result.ratio.p5), _short(result.ratio.p95)],
            "goal": goal.goal,
            "met": goal.met(result.ratio.median),
            "pairs": result.pairs,
            "unit": result.unit,
            "ours": _short(result.ours),
            "yardstick": None if result.yardstick is None else _short(result.yardstick),
            "arms": {name: [_short(value), _short(ratio)] for name, (value, ratio) in result.arms.items()},
            "note": result.note,
            "date": date,
            "machine": machine,
        }
    return {"measures": rows}


def _short(value: float) -> float:
    return float(f"{value:.4g}") if abs(value) < 1e4 else float(round(value))


def table(results: Mapping[str, Any], goals: Mapping[str, Any], *, optional: Iterable[str] = ()) -> str:
    """The README's tables as Markdown."""
    rows: dict[str, Any] = results["measures"]
    hidden = set(optional)
    lines = [
        "| measure | ours | held against | ratio: median (p5-p95) | goal | |",
        "|---|---|---|---|---|---|",
    ]
    for name, goal in goals.items():
        row = rows.get(name)
        if row is not None:
            lines.append(_row(row, goal))
        elif name not in hidden:
            lines.append(f"| {goal.what} | | {goal.against} | | {_goal(goal)} | not measured yet |")
    beside = _beside(rows, goals)
    notes = [f"- {goals[name].what}: {row['note']}." for name, row in rows.items() if name in goals and row["note"]]
    return "\n".join(
        [*lines, "", *beside, *(["What to know about single rows:", "", *notes] if notes else []), *_where(rows)]
    )


def _row(row: Mapping[str, Any], goal: Any) -> str:
    absolute = row["yardstick"] is None
    low, high = row["spread"]
    ratio = "" if absolute and low == high else f"{_number(row['ratio'])} ({_number(low)}-{_number(high)})"
    against = goal.against if absolute else f"{goal.against}: {_value(row['yardstick'], row['unit'])}"
    verdict = {True: "met", False: "**missed**", None: ""}[row["met"]]
    return f"| {goal.what} | {_value(row['ours'], row['unit'])} | {against} | {ratio} | {_goal(goal)} | {verdict} |"


def _beside(rows: Mapping[str, Any], goals: Mapping[str, Any]) -> list[str]:
    """Other contenders of the same rounds."""
    lines = []
    for name, row in rows.items():
        if name not in goals or not row["arms"]:
            continue
        told = "; ".join(
            f"{arm} {_value(value, row['unit'])} ({_number(ratio)}x)" for arm, (value, ratio) in row["arms"].items()
        )
        lines.append(f"| {goals[name].what} | {told} |")
    if not lines:
        return []
    return [
        "Others in the same rounds, with their ratio to the same yardstick:",
        "",
        "| measure | |",
        "|---|---|",
        *lines,
        "",
    ]


def _where(rows: Mapping[str, Any]) -> list[str]:
    """Machines and dates, newest first, each with how many rows are from there."""
    places: dict[tuple[str, str], int] = {}
    for row in rows.values():
        place = (row["date"], row["machine"])
        places[place] = places.get(place, 0) + 1
    told = [f"{count} rows of {date}: {machine}." for (date, machine), count in sorted(places.items(), reverse=True)]
    return ["", *told] if told else []


def _goal(goal: Any) -> str:
    if goal.goal is None:
        return ""
    return f"{'<=' if goal.better == 'lower' else '>='} {_number(goal.goal)}"


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.2f}".rstrip("0").rstrip(".") if value == int(value) else f"{value:.2f}"


def _value(value: float, unit: str) -> str:
    if unit != "s":
        return f"{_number(value)} {unit}"
    if value >= 1:
        return f"{value:.2f} s"
    return f"{value * 1e3:.0f} ms" if value >= 0.01 else f"{value * 1e3:.1f} ms"


def read_results(path: Path) -> dict[str, Any]:
    """results.json as it stands; without one, no measures."""
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"measures": {}}
    return found


def write_results(path: Path, results: Mapping[str, Any]) -> None:
    """Write results.json."""
    path.write_text(json.dumps(results, indent=1) + "\n")


def write_between_marks(path: Path, text: str) -> None:
    """Put ``text`` between the marks of a file.

    Raises:
        ValueError: The marks are not there, once each and in order.
    """
    whole = path.read_text()
    if whole.count(BEGIN) != 1 or whole.count(END) != 1 or whole.index(END) < whole.index(BEGIN):
        raise ValueError(f"{path} needs the marks {BEGIN} and {END}, once each and in this order")
    before, _, rest = whole.partition(BEGIN)
    after = rest.partition(END)[2]
    path.write_text(f"{before}{BEGIN}\n\n{text.strip()}\n\n{END}{after}")
