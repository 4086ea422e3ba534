"""The timeline: attempts by node over wall time, faults, checkpoints, lost work and the phases of each recovery."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from rerail.plugins.report.document import AttemptRow, CheckpointRow, IncidentRow, Report
from rerail.plugins.report.svg import CHAR_PX, SHAPES, WIDTHS_PX, Place, hatched, tag, text, width_class
from rerail.plugins.report.words import PHASES, code, fault, seconds

_LANES = 8
_VISIBLE = 0.02
_DENSE = 60
_MARKS = 400
_LABELS = 48
_BAR_PX = 22
_LANE_PX = 48
_NICE_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
_TICKS = 8

KIND_OF_PHASE = {
    "detect": "see",
    "decide": "see b",
    "save": "leave",
    "end": "leave b",
    "start": "return",
    "load": "return b",
    "first_step": "return",
}


@dataclass(frozen=True, slots=True)
class Scale:
    """Time to horizontal position."""

    until_s: float

    def share(self, moment_s: float) -> float:
        """Position in 0..1."""
        return 0.0 if self.until_s <= 0 else max(0.0, min(1.0, moment_s / self.until_s))

    def x(self, moment_s: float) -> str:
        """Position as a percentage."""
        return f"{100 * self.share(moment_s):.3f}%"

    def width(self, begin_s: float, end_s: float) -> str:
        """Width of a span as a percentage."""
        return f"{100 * max(0.0, self.share(end_s) - self.share(begin_s)):.3f}%"


def timeline(report: Report) -> Markup:
    """Attempts by node over time, with faults, checkpoints, lost work and the phases of each recovery."""
    scale = Scale(max(report.elapsed_s, 0.001))
    names: list[str] = []
    parts: list[str] = []
    y = 8.0
    if report.incidents:
        y = 44.0
    top = y
    for name, bars in _lanes(report):
        names.append(text(name, x=0, y=y + 11, class_="lane"))
        parts += [_attempt(row, scale, y + 18, whole=first) for row, first in bars]
        y += _LANE_PX
    y += 2
    if report.checkpoints:
        names.append(text("Checkpoints", x=0, y=y + 11, class_="lane"))
        parts += _checkpoints(report.checkpoints, scale, y + 28)
        y += 58
    recoveries = _visible_recoveries(report, scale)
    if recoveries:
        names.append(text("Recovery", x=0, y=y + 11, class_="lane"))
        for item in recoveries:
            parts += _recovery(item, scale, y + 18)
        if len(recoveries) == 1:
            parts.append(_recovery_note(recoveries[0], scale, y + 18))
        y += _LANE_PX
    lines, flags = _faults(report.incidents, scale, top, y)
    parts = [*_axis(scale, top, y), *lines, *parts, *names, *flags]
    height = y + 26
    held = f"{len(report.attempts)} attempts and {len(report.incidents)} incidents"
    summary = f"Timeline of {held} over {seconds(scale.until_s)}"
    return Markup(  # noqa: S704 (every text that goes in is escaped by tag and text)
        tag(
            "svg",
            "".join(parts),
            role="img",
            aria_label=summary,
            width="100%",
            height=f"{height:.0f}",
            class_="timeline",
        )
    )


def _lanes(report: Report) -> list[tuple[str, list[tuple[AttemptRow, bool]]]]:
    """Lane name to its attempts; the flag says that the full label belongs there."""
    nodes = tuple(dict.fromkeys(node for row in report.attempts for node in row.nodes))
    if not nodes or len(nodes) > _LANES:
        name = f"Gang of {report.world_size} ranks" + (f" on {len(nodes)} nodes" if nodes else "")
        return [(name, [(row, True) for row in report.attempts])]
    return [
        (
            node + (" \N{MIDDLE DOT} quarantined" if node in report.quarantined else ""),
            [(row, node == row.nodes[0]) for row in report.attempts if node in row.nodes],
        )
        for node in sorted(nodes)
    ]


def _attempt(row: AttemptRow, scale: Scale, y: float, *, whole: bool) -> str:
    end = row.ended_s if row.ended_s is not None else scale.until_s
    steps = f"step {row.started_from_step} \N{RIGHTWARDS ARROW} {row.last_step}"
    tip = f"attempt {row.n} ({row.how}), {steps}, {seconds(row.opened_s)} to {seconds(end)}. {row.end_cause}"
    box: Place = {"y": y, "height": _BAR_PX}
    parts = [tag("rect", class_="hold", x=scale.x(row.opened_s), width=scale.width(row.opened_s, end), rx=3, **box)]
    begin, trained = row.first_step_s, row.trained_until_s
    if begin is not None and trained is not None:
        lost = _lost_from(row)
        kept = trained if lost is None else lost
        parts.append(tag("rect", class_="train", x=scale.x(begin), width=scale.width(begin, kept), **box))
        if lost is not None:
            span: Place = {"x": scale.x(lost), "width": scale.width(lost, trained)}
            title = f"lost: steps {row.lost_from_step} to {row.last_step} of attempt {row.n} are run again"
            parts.append(hatched({**span, **box}, title))
        name = f"Attempt {row.n} \N{MIDDLE DOT} {steps}" if whole else f"Attempt {row.n}"
        room = scale.share(kept) - scale.share(begin)
        for words in (name, f"{row.n}"):
            fits = width_class(words, room)
            if fits:
                parts.append(text(words, class_=f"on-bar {fits}", x=scale.x(begin), dx=7, y=y + 15))
                break
    return tag("g", "".join(parts), title=tip)


def _lost_from(row: AttemptRow) -> float | None:
    """When the first step that was lost began; reckoned from the step where the commit's own time is not known."""
    begin, trained = row.first_step_s, row.trained_until_s
    if row.lost_from_step is None or row.last_step is None or begin is None or trained is None:
        return None
    if row.lost_from_s is not None:
        return min(max(row.lost_from_s, begin), trained)
    whole = max(1, row.last_step - (row.started_from_step or 0))
    return trained - (trained - begin) * min(1.0, (row.last_step - row.lost_from_step) / whole)


def _shape(mark: CheckpointRow) -> str:
    return "final" if mark.reason == "final" and mark.state == "good" else mark.state


def _checkpoints(marks: Sequence[CheckpointRow], scale: Scale, y: float) -> list[str]:
    dense = {"transform": "scale(.55)"} if len(marks) > _DENSE else {}
    shown = sorted(marks[-_MARKS:], key=lambda mark: (mark.state == "good", mark.reason == "periodic"))
    drawn, labels = [], []
    placed: list[tuple[float, float]] = []
    for mark in shown:
        tip = f"step {mark.step} of attempt {mark.attempt} ({mark.reason}), {seconds(mark.at)}: {mark.state}"
        tip += f", {mark.why}" if mark.why else ""
        # A nested svg carries the percentage, since a transform knows only pixels.
        small = dense if _shape(mark) == "good" else {}
        inner = tag("g", SHAPES[_shape(mark)], title=tip, class_=f"ck {mark.state}", **small)
        drawn.append(tag("svg", inner, x=scale.x(mark.at), y=y, overflow="visible", width=1, height=1))
        words = str(mark.step)
        fits = _place(words, scale.share(mark.at), placed) if len(placed) < _LABELS else None
        if fits:
            labels.append(text(words, class_=f"ck-step {fits}", x=scale.x(mark.at), y=y + 19, text_anchor="middle"))
    return [*reversed(drawn), *labels]  # what is special lies on top


def _place(words: str, at: float, placed: list[tuple[float, float]]) -> str | None:
    """Class of the smallest container in which a centred label touches none that was placed before."""
    half = (len(words) * CHAR_PX + 6) / 2
    need = max(((half + other) / max(1e-9, abs(at - where)) for where, other in placed), default=0.0)
    found = next((f"w{width}" for width in WIDTHS_PX if need <= width), None)
    if found:
        placed.append((at, half))
    return found


def _visible_recoveries(report: Report, scale: Scale) -> list[IncidentRow]:
    """All recoveries, if any of them is wide enough to show its phases; the table of incidents has them anyway."""
    found = [item for item in report.incidents if item.phases_s is not None]
    widest = max((scale.share(item.mttr_s or 0.0) for item in found), default=0.0)
    return found if widest >= _VISIBLE else []


def _recovery(item: IncidentRow, scale: Scale, y: float) -> list[str]:
    assert item.phases_s is not None
    parts, at = [], item.fault_s
    for name, length in item.phases_s.items():
        if length <= 0:
            continue
        end = at + length
        again = end - item.run_again_s if name == "first_step" else end
        box: Place = {"y": y, "height": _BAR_PX}
        tip = f"{PHASES[name].lower()}: {seconds(length)} of {seconds(item.mttr_s)}"
        kind = f"phase {KIND_OF_PHASE[name]}"
        parts.append(tag("rect", title=tip, class_=kind, x=scale.x(at), width=scale.width(at, again), **box))
        if again < end:
            tip = f"lost steps are run again: {seconds(item.run_again_s)}"
            parts.append(hatched({**box, "x": scale.x(again), "width": scale.width(again, end)}, tip))
        words = PHASES[name].lower()
        fits = width_class(words, scale.share(again) - scale.share(at), pad_px=10)
        if fits:
            parts.append(text(words, class_=f"on-phase {fits}", x=scale.x(at), dx=6, y=y + 15))
        at = end
    return parts


def _recovery_note(item: IncidentRow, scale: Scale, y: float) -> str:
    """How long it took, beside the only recovery of a run, on the side where there is more room."""
    assert item.phases_s is not None
    words = f"{seconds(item.mttr_s)}, slowest: {PHASES[item.phases_s.slowest].lower()}"
    left, right = scale.share(item.fault_s), 1 - scale.share(item.recovered_s or 0.0)
    fits = width_class(words, max(left, right), pad_px=20)
    if fits is None:
        return ""
    if right >= left:
        return text(words, class_=f"after {fits}", x=scale.x(item.recovered_s or 0.0), dx=10, y=y + 15)
    return text(words, class_=f"after {fits}", x=scale.x(item.fault_s), dx=-10, y=y + 15, text_anchor="end")


def _faults(items: Sequence[IncidentRow], scale: Scale, top: float, bottom: float) -> tuple[list[str], list[str]]:
    lines, flags = [], []
    placed: list[tuple[float, float]] = []
    for item in items:
        x, share = scale.x(item.fault_s), scale.share(item.fault_s)
        lines.append(tag("line", class_="fault-line", x1=x, x2=x, y1=top - 8, y2=bottom))
        arrow = tag(
            "path",
            title=f"{fault(item)} on {item.node}" if item.node else fault(item),
            d="M-6-8H6L0 2Z",
            class_="fault",
        )
        flags.append(tag("svg", arrow, x=x, y=top - 10, overflow="visible", width=1, height=1))
        words = code(item.codes[0]) if item.codes else fault(item)
        fits = _place(words, share, placed)
        if fits:
            anchor, shift = ("end", 6) if share > 0.85 else ("start", -6) if share < 0.15 else ("middle", 0)  # noqa: PLR2004
            flags.append(text(words, class_=f"fault-name {fits}", x=x, dx=shift, y=top - 25, text_anchor=anchor))
    return lines, flags


def _axis(scale: Scale, top: float, bottom: float) -> list[str]:
    step = next((nice for nice in _NICE_S if scale.until_s / nice <= _TICKS), scale.until_s / _TICKS)
    parts = [tag("line", class_="axis", x1="0%", x2="100%", y1=bottom, y2=bottom)]
    for index in range(int(scale.until_s / step) + 1):
        moment = index * step
        x = scale.x(moment)
        anchor = "start" if index == 0 else "end" if scale.share(moment) > 0.97 else "middle"  # noqa: PLR2004
        minor = " w480" if index % 2 else ""
        if index:
            parts.append(tag("line", class_="grid", x1=x, x2=x, y1=top - 4, y2=bottom))
        parts.append(text(_clock(moment, step), class_=f"tick{minor}", x=x, y=bottom + 17, text_anchor=anchor))
    return parts


def _clock(moment_s: float, step_s: float) -> str:
    if step_s < 1:
        return f"{moment_s:.1f} s"
    if step_s < 60:  # noqa: PLR2004
        return f"{moment_s:.0f} s"
    hours, minutes = divmod(round(moment_s) // 60, 60)
    return f"{minutes} min" if step_s < 3600 and not hours else f"{hours} h" + (f" {minutes:02d}" if minutes else "")  # noqa: PLR2004


def legend(report: Report) -> list[tuple[str, str]]:
    """Kind of sample and label, for what the timeline really shows."""
    rows = [("train", "training"), ("hold", "gang held, not training")]
    if any(row.lost_from_step is not None for row in report.attempts):
        rows.append(("lost", "lost work, run again"))
    if report.incidents:
        rows.append(("fault", "fault"))
    if _visible_recoveries(report, Scale(report.elapsed_s)):
        rows += [
            ("see", "detect, decide"),
            ("leave", "save, end the gang"),
            ("return", "start, load, first step"),
        ]
    names = {
        "good": "checkpoint",
        "final": "final checkpoint",
        "suspect": "suspect",
        "bad": "damaged",
        "off-chain": "not built upon",
    }
    shown = {_shape(mark) for mark in report.checkpoints}
    return rows + [(kind, label) for kind, label in names.items() if kind in shown]
