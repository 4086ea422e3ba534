"""What the extender counts, as Prometheus text. No gang and no evictor in any label: cardinality stays bounded."""

from collections import Counter
from collections.abc import Iterable, Mapping
from threading import Lock
from typing import Final

_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)

_TEXTS: Final[Mapping[str, str]] = {
    "decisions": "Answers about one gang, by the scheduler's verb and the kind of answer.",
    "holds": "Evictors that were told to wait for a gang.",
    "consents": "Consents after a hold, by what ended it: commit or deadline.",
    "saves": "Gangs that were asked to save.",
    "unlocks": "Locks that were opened for somebody who starves, by what allowed it: commit or deadline.",
    "relocks": "Locks that were closed again because nobody starved any more.",
    "refused_requests": "Requests that could not be answered, by HTTP status.",
    "troubles": "What went wrong in the background, by where: store, cluster.",
}


class ExtenderMetrics:
    """Counters and one histogram; safe for several threads."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._counts: dict[str, Counter[tuple[tuple[str, str], ...]]] = {name: Counter() for name in _TEXTS}
        self._buckets = [0] * (len(_BOUNDS_S) + 1)
        self._sum_s = 0.0

    def count(self, name: str, **labels: str) -> None:
        """One more of ``name`` (a key of the table above)."""
        with self._lock:
            self._counts[name][tuple(sorted(labels.items()))] += 1

    def value(self, name: str, **labels: str) -> int:
        """How many there were."""
        with self._lock:
            return self._counts[name][tuple(sorted(labels.items()))]

    def took(self, seconds: float) -> None:
        """One request was answered after this time."""
        at = next((at for at, bound in enumerate(_BOUNDS_S) if seconds <= bound), len(_BOUNDS_S))
        with self._lock:
            self._buckets[at] += 1
            self._sum_s += seconds

    def exposition(self, gangs_held: int) -> str:
        """Everything as text.

        Args:
            gangs_held: Gangs that are held back now.
        """
        lines: list[str] = []
        with self._lock:
            for name, text in _TEXTS.items():
                metric = f"rerail_extender_{name}_total"
                lines += [f"# HELP {metric} {text}", f"# TYPE {metric} counter"]
                lines += [
                    f"{metric}{_labels(labels)} {count}" for labels, count in sorted(self._counts[name].items())
                ] or ([f"{metric} 0"] if name in ("holds", "saves") else [])
            metric = "rerail_extender_request_seconds"
            lines += [f"# HELP {metric} From the whole request to its answer.", f"# TYPE {metric} histogram"]
            total = 0
            for bound, count in zip([*map(str, _BOUNDS_S), "+Inf"], self._buckets, strict=True):
                total += count
                lines.append(f'{metric}_bucket{{le="{bound}"}} {total}')
            lines += [f"{metric}_sum {self._sum_s!r}", f"{metric}_count {total}"]
        metric = "rerail_extender_gangs_held"
        lines += [f"# HELP {metric} Gangs that are held back now.", f"# TYPE {metric} gauge", f"{metric} {gangs_held}"]
        return "\n".join(lines) + "\n"


def _labels(labels: Iterable[tuple[str, str]]) -> str:
    inside = ",".join(f'{name}="{value}"' for name, value in labels)
    return f"{{{inside}}}" if inside else ""
