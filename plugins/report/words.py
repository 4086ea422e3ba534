"""Numbers and incidents in words for people; used by the HTML and by the terminal."""

from collections.abc import Sequence

from rerail.plugins.report.document import IncidentRow, Report

NOTHING = "\N{EN DASH}"

_MINUTE_S = 60.0
_HOUR_S = 3600.0
_KIB = 1024
_SMALL_S = 10.0
_READABLE_S = 100.0

PHASES = {
    "detect": "Detect",
    "decide": "Decide",
    "save": "Save",
    "end": "End the gang",
    "start": "Start the next",
    "load": "Load",
    "first_step": "First new step",
}


def seconds(value: float | None) -> str:
    """A duration with three digits or so: ``3.42 s``, ``4 min 05 s``, ``2 h 10 min``."""
    if value is None:
        return NOTHING
    if value < _SMALL_S:
        return f"{value:.2f} s"
    if value < _READABLE_S:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < _HOUR_S:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def size(value_bytes: int) -> str:
    """Bytes in binary units."""
    amount, unit = float(value_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if amount < _KIB:
            break
        amount, unit = amount / _KIB, larger
    return f"{amount:.0f} B" if unit == "B" else f"{amount:.1f} {unit}"


def percent(ratio: float | None) -> str:
    """A ratio as a percentage."""
    return NOTHING if ratio is None else f"{100 * ratio:.1f} %"


def count(number: int, thing: str) -> str:
    """``1 step``, ``2 steps``."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"


def measure(value: float | None, unit: str) -> str:
    """A metric's value in its unit, as the table of metrics names units."""
    if value is None:
        return NOTHING
    if unit == "s":
        return seconds(value)
    if unit == "ratio":
        return percent(value)
    if unit == "percent":
        return f"{value:.2f} %"
    return f"{value:g}"


def code(value: str) -> str:
    """``xid:79`` as people write it."""
    kind, _, rest = value.partition(":")
    return rest.replace("_", " ") if kind == "name" else f"{kind.upper()} {rest}"


def fault(incident: IncidentRow) -> str:
    """What happened, in a few words: the codes, or else the class."""
    if incident.codes:
        return ", ".join(code(value) for value in incident.codes[:3])
    return incident.class_.replace("_", " ").replace("-", " ")


def listed(names: Sequence[str], at_most: int = 4) -> str:
    """``a, b and c``."""
    if len(names) > at_most:
        return f"{', '.join(names[: at_most - 1])} and {len(names) - at_most + 1} more"
    return " and ".join([", ".join(names[:-1]), names[-1]]) if len(names) > 1 else "".join(names)


def state_of(report: Report) -> tuple[str, str]:
    """The word that stands largest, and its tone: ``good``, ``bad`` or ``plain``."""
    if report.verdict is not None:
        return report.verdict, "good" if report.verdict == "pass" else "bad"
    tone = {"done": "good", "stopped": "bad"}.get(report.outcome, "plain")
    return report.outcome, tone


def comparison(report: Report) -> tuple[str, str]:
    """Whether training was identical to the uninterrupted run: a word and a line below it."""
    if report.identical is None:
        return NOTHING, "not compared"
    if report.identical:
        return "yes", "bit for bit, to an uninterrupted run"
    return "no", "differs from an uninterrupted run"


def main_incident(report: Report) -> IncidentRow | None:
    """The one to tell about: the last without recovery where the run did not finish, else the slowest."""
    if not report.incidents:
        return None
    if report.outcome != "done" and report.incidents[-1].mttr_s is None:
        return report.incidents[-1]
    return max(report.incidents, key=lambda item: item.mttr_s if item.mttr_s is not None else -1.0)


def headline(report: Report) -> str:
    """The run in a sentence or three."""
    incident = main_incident(report)
    if incident is None:
        last = report.attempts[-1].last_step if report.attempts else None
        reach = "" if last is None else f" and reached step {last}"
        return f"No incident: the run needed {count(len(report.attempts), 'attempt')}{reach}."
    many = len(report.incidents) - 1
    parts = [f"{_subject(incident)} was detected after {seconds(incident.t_detect_s)}."]
    if incident.save_asked:
        parts.append("The ranks were asked to save before they left.")
    elif not incident.trusted:
        parts.append("No save was asked for: the device is not trusted.")
    parts.append(_sequel(report, incident))
    if many:
        parts.append(f"{count(many, 'more incident')} below.")
    return " ".join(part for part in parts if part)


def _subject(incident: IncidentRow) -> str:
    what = fault(incident)
    where = f" on {incident.node}" if incident.node else ""
    return what[:1].upper() + what[1:] + where


def _sequel(report: Report, incident: IncidentRow) -> str:
    after = next(
        (row for row in report.attempts if row.n > incident.attempt and row.started_from_step is not None), None
    )
    if after is None or incident.mttr_s is None:
        if report.outcome == "stopped":
            return f"The run stopped: {(report.outcome_reason or 'no reason was given').rstrip('.')}."
        return "No new step has been made since."
    place = (
        "in the same pods" if after.how == "in-place" else f"on {listed(after.nodes)}" if after.nodes else "elsewhere"
    )
    again = f", {count(incident.rpo_steps, 'step')} run again" if incident.rpo_steps else ", no step lost"
    return (
        f"Training went on from step {after.started_from_step} {place}: "
        f"first new step {seconds(incident.mttr_s)} after the fault{again}."
    )
