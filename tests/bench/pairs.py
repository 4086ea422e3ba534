"""Arms that run in turns, and the ratios of their times, round by round.

Machines drift: other tenants, disks that fill a cache, clocks that change. Two arms of one round see about the same
machine, so the ratio is taken inside each round, and the table says the median and the p5-p95 of these ratios. The
first round is thrown away: it pays for first touches, imports and connections.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


def _nothing() -> None:
    return


@dataclass(frozen=True)
class Arm:
    """One contender.

    Attributes:
        name: How the table calls it.
        run: The work; its duration counts. It may return seconds itself, where only a part of it counts.
        before: Sets the stage, such as dropping caches; not counted.
        after: Clears up, such as syncing what was left dirty, so that the next arm does not pay; not counted.
    """

    name: str
    run: Callable[[], float | None]
    before: Callable[[], None] = _nothing
    after: Callable[[], None] = _nothing


@dataclass(frozen=True)
class Spread:
    """Median, p5 and p95."""

    median: float
    p5: float
    p95: float


@dataclass(frozen=True)
class Result:
    """One measure as it was taken.

    Attributes:
        name: As in results.json.
        ours: Median of ours, in ``unit``.
        yardstick: Median of what it is held against; None where the goal is absolute.
        ratio: What the goal is about.
        pairs: Rounds that count.
        unit: Of ``ours`` and ``yardstick``.
        arms: Others that ran in the same rounds: median and median ratio to the yardstick.
        note: What the reader has to know about this run of it; what limits it, if the goal is missed.
    """

    name: str
    ours: float
    yardstick: float | None
    ratio: Spread
    pairs: int
    unit: str
    arms: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    note: str = ""


def quantile(values: Sequence[float], q: float) -> float:
    """The q-quantile (0 to 1) of some values, linear between neighbours."""
    ordered = sorted(values)
    at = q * (len(ordered) - 1)
    low, high = math.floor(at), math.ceil(at)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def spread(values: Sequence[float]) -> Spread:
    """Median, p5 and p95 of some values."""
    return Spread(quantile(values, 0.5), quantile(values, 0.05), quantile(values, 0.95))


def ratios(above: Sequence[float], below: Sequence[float]) -> Spread:
    """Spread of the ratios, pair by pair."""
    return spread([over / under for over, under in zip(above, below, strict=True)])


def interleave(
    arms: Sequence[Arm], pairs: int, *, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Run all arms in turns, one discarded round and then ``pairs`` rounds; seconds by arm, round by round."""
    seconds: dict[str, list[float]] = {arm.name: [] for arm in arms}
    for turn in range(pairs + 1):
        for arm in arms:
            arm.before()
            begin = clock()
            said = arm.run()
            took = clock() - begin
            arm.after()
            if turn:
                seconds[arm.name].append(took if said is None else said)
    return seconds


def compare(name: str, seconds: Mapping[str, list[float]], *, ours: str, yardstick: str, note: str = "") -> Result:
    """The result of timed rounds: ours over the yardstick, and the same for all others."""
    below = seconds[yardstick]
    return Result(
        name=name,
        ours=quantile(seconds[ours], 0.5),
        yardstick=quantile(below, 0.5),
        ratio=ratios(seconds[ours], below),
        pairs=len(below),
        unit="s",
        arms={
            other: (quantile(took, 0.5), ratios(took, below).median)
            for other, took in seconds.items()
            if other not in (ours, yardstick)
        },
        note=note,
    )
