"""Which save interval and how many spares follow from the replays. The interval is the production cadence's own."""

from collections.abc import Callable
from typing import Final

from rerail.policies.cadence import Every, YoungDaly, young_s
from rerail.policies.documents import Value
from rerail.policies.simulate.bench import Bench
from rerail.policies.simulate.goodput import save_times_s
from rerail.policies.simulate.trace import DAY_S

_GRID: Final = 24
_WIDEST: Final = 16.0
_NEVER: Final = 2.0  # an interval of two traces: no save happens
_FIXED_S: Final = {"30 min": 1800.0, "1 h": 3600.0, "3 h": 10_800.0}


class SparesPoint(Value):
    """One size of the spare pool: what the job achieves, and what of that each node paid for achieves."""

    spares: int
    ettr_job: float
    useful_share: float


class IntervalPoint(Value):
    """One interval between the beginnings of two saves, under all rules with the advised spares.

    Attributes:
        interval_s: None without saves.
        expected_ettr: The formula's ``ettr_run``; None outside of its regime.
    """

    interval: str
    interval_s: float | None
    ettr_run: float
    ettr_job: float
    expected_ettr: float | None


class Advice(Value):
    """What follows.

    Attributes:
        interval_s: Seconds between the beginnings of two saves.
        intervals: What others would have brought; the last one is the best that trying found.
        why: In words.
    """

    interval_s: float
    spares: int
    intervals: tuple[IntervalPoint, ...]
    spares_tried: tuple[SparesPoint, ...]
    why: tuple[str, ...]


def advise(bench: Bench, *, tell: Callable[[str], None]) -> Advice:
    """Advise for the question at hand, whatever interval and spares it asks about.

    Args:
        bench: The question and its trace.
        tell: Is told what is being done, for people.
    """
    points = _spares(bench, tell)
    best = max(points, key=lambda point: (point.useful_share, -point.spares))
    bare = next(point for point in points if point.spares == 0)
    found = bench.tally(bench.rules(), best.spares)
    mtbf_s = found.mtbf_s if found.interruptions else bench.trace.horizon_s
    interval_s = save_times_s(YoungDaly(mtbf_s=mtbf_s), bench.costs)[1]
    intervals = _intervals(bench, best.spares, interval_s, young_s(bench.costs.save_s, mtbf_s))
    tried, advised = intervals[-1], next(point for point in intervals if point.interval == "advised")
    rate = f"an interruption every {words(mtbf_s)}" if found.interruptions else "no interruption at all"
    nodes, restart_s = bench.asked.nodes, bench.costs.restart_s
    daly = f"interval {words(interval_s)}: Daly's for saves of {words(bench.costs.save_s)} and {rate}"
    near = (
        f"ETTR {advised.ettr_job:.4f} with it, {tried.ettr_job:.4f} with the best fixed one that was tried "
        f"({words(tried.interval_s or 0.0)}); an interruption costs about {words(interval_s / 2 + restart_s)}"
    )
    held = (
        f"{best.spares} spares: {nodes} + {best.spares} nodes train {best.useful_share:.1%} of the time that is paid "
        f"for, without spares {bare.useful_share:.1%}; more spares idle more than they save"
    )
    return Advice(
        interval_s=round(interval_s, 1),
        spares=best.spares,
        intervals=intervals,
        spares_tried=points,
        why=(daly, near, held),
    )


def words(seconds: float) -> str:
    """A duration as people say it."""
    for unit, size in (("d", DAY_S), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def _sizes(most: int) -> list[int]:
    """0, 1, 2, 3, 4, 6, 8, 12, 16, 24 ... up to ``most``."""
    sizes, size = [0, 1, 2, 3], 4
    while size < most:
        sizes += [size, size * 3 // 2]
        size *= 2
    return [*(size for size in sizes if size < most), most]


def _spares(bench: Bench, tell: Callable[[str], None]) -> tuple[SparesPoint, ...]:
    """Sizes of the spare pool, upwards while more could pay, and then around the best: what each brought."""
    points: dict[int, SparesPoint] = {}

    def share(size: int) -> float:
        if size not in points:
            tell(f"spares: trying {size}")
            found = bench.tally(bench.rules(), size)
            points[size] = SparesPoint(
                spares=size,
                ettr_job=round(found.ettr_job, 4),
                useful_share=round(bench.useful_share(found, size), 4),
            )
        return points[size].useful_share

    best, sizes = 0, _sizes(bench.most_spares)
    for size in sizes:
        if bench.asked.nodes <= share(best) * (bench.asked.nodes + size):
            break  # even if that many spares made it train all the time, each node would train less
        if share(size) > share(best):
            best = size
    at = sizes.index(best)
    for other in sizes[max(0, at - 1) : at + 2]:
        share((best + other) // 2)
    return tuple(points[size] for size in sorted(points))


def _intervals(bench: Bench, spares: int, advised_s: float, young: float) -> tuple[IntervalPoint, ...]:
    grid = [advised_s * _WIDEST ** (step / _GRID) for step in range(-_GRID, _GRID + 1)]
    points = [_interval(bench, spares, "no saves", None)]
    points += [_interval(bench, spares, name, seconds) for name, seconds in _FIXED_S.items()]
    if bench.asked.interval_s is not None:
        points.append(_interval(bench, spares, "asked", bench.asked.interval_s))
    points.append(_interval(bench, spares, "Young", young))
    points.append(_interval(bench, spares, "advised", advised_s))
    tried = (_interval(bench, spares, "best tried", seconds) for seconds in grid)
    return (*points, max(tried, key=lambda point: point.ettr_job))


def _interval(bench: Bench, spares: int, name: str, seconds: float | None) -> IntervalPoint:
    """What one interval brings; one that leaves no time to train beside the saves is lengthened until it does."""
    used_s = _NEVER * bench.trace.horizon_s if seconds is None else max(seconds, 1.01 * bench.costs.save_s)
    found = bench.tally(bench.rules(), spares, Every(seconds=used_s))
    return IntervalPoint(
        interval=name,
        interval_s=None if seconds is None else round(used_s, 1),
        ettr_run=round(found.ettr_run, 4),
        ettr_job=round(found.ettr_job, 4),
        expected_ettr=bench.expected(found, used_s),
    )
