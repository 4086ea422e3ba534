"""A run's metrics as Prometheus text, for a textfile collector. No run id in any label: cardinality stays bounded."""

from collections.abc import Iterator, Mapping

from rerail.plugins.report.document import Report
from rerail.policies.metric_table import METRICS, MetricDefinition

_UNITS = {"s": "seconds", "ratio": "ratio", "percent": "ratio", "steps": "steps", "step": "step", "count": ""}
_SUFFIXES = ("_s", "_ratio", "_steps", "_percent")
_LABELLED = ("mttr_phases_s", "nvidia_goodput")


def exposition(report: Report) -> str:
    """All metrics of a run in the text exposition format; what has no value is left out, never written as zero."""
    lines: list[str] = []
    for definition in METRICS.values():
        if definition.name in _LABELLED:
            continue
        value = getattr(report.metrics, definition.name)
        if value is not None:
            scale = 0.01 if definition.unit == "percent" else 1.0
            lines += _family(_name(definition), definition.definition, [({}, value * scale)])
    lines += _family(
        "rerail_recovery_phase_seconds",
        METRICS["mttr_phases_s"].definition,
        [({"phase": phase}, seconds) for phase, seconds in _phases(report).items()],
    )
    lines += _family(
        "rerail_badput_seconds",
        METRICS["goodput"].definition,
        [({"type": kind.lower()}, seconds) for kind, seconds in report.metrics.badput_s.items()],
    )
    lines += _family(
        "rerail_gpu_waste_seconds",
        METRICS["gpu_waste_ratio"].definition,
        [({"kind": kind}, seconds) for kind, seconds in report.metrics.gpu_waste_s.items()],
    )
    lines += _family(
        "rerail_incidents",
        "Incidents of the run by the cause that their attempt was charged to.",
        [({"cause": cause}, float(count)) for cause, count in _counts(item.cause for item in report.incidents)],
    )
    lines += _family(
        "rerail_attempts",
        "Attempts of the run by how they began.",
        [({"how": how}, float(count)) for how, count in _counts(row.how for row in report.attempts)],
    )
    lines += _family(
        "rerail_checkpoints",
        "Commits of the run by their state.",
        [({"state": state}, float(count)) for state, count in _counts(row.state for row in report.checkpoints)],
    )
    return "\n".join(lines) + "\n"


def _name(definition: MetricDefinition) -> str:
    stem = definition.name
    for suffix in _SUFFIXES:
        stem = stem.removesuffix(suffix)
    unit = _UNITS[definition.unit]
    return f"rerail_{stem}_{unit}" if unit and not stem.endswith(f"_{unit}") else f"rerail_{stem}"


def _phases(report: Report) -> Mapping[str, float]:
    return report.mttr_phases_s.model_dump() if report.mttr_phases_s else {}


def _counts(values: Iterator[str]) -> list[tuple[str, int]]:
    found: dict[str, int] = {}
    for value in values:
        found[value] = found.get(value, 0) + 1
    return sorted(found.items())


def _family(name: str, text: str, samples: list[tuple[dict[str, str], float]]) -> list[str]:
    if not samples:
        return []
    lines = [f"# HELP {name} {_escaped(text)}", f"# TYPE {name} gauge"]
    for labels, value in samples:
        inside = ",".join(f'{label}="{_escaped(word, quoted=True)}"' for label, word in labels.items())
        lines.append(f"{name}{{{inside}}} {value!r}" if inside else f"{name} {float(value)!r}")
    return lines


def _escaped(text: str, *, quoted: bool = False) -> str:
    clean = text.replace("\\", "\\\\").replace("\n", "\\n")
    return clean.replace('"', '\\"') if quoted else clean
