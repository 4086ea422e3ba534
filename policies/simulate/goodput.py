"""From the stretches of a replay to the time that trained: saves, lost work, restarts; and what formulas expect.

A gang trains after its restart cost. Saves begin as the production cadence says, counted from the beginning of the one
before, and stop training while they last. A fault loses the work since the newest save that was finished.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rerail.policies.cadence import Every, Moment, YoungDaly
from rerail.policies.errors import UsageError
from rerail.policies.simulate.replay import Replay, Stretch

REGIME: Final = 0.2
"""The formula leaves out what is lost more than once; up to this share of loss per interruption it errs below 5 %."""


@dataclass(frozen=True, slots=True)
class Costs:
    """What recovery costs.

    Attributes:
        save_s: Training time that one save takes away.
        restart_s: From a fault, or the first placement, to the first step: detect, decide, end, start, load.
    """

    save_s: float
    restart_s: float

    def __post_init__(self) -> None:
        for what, seconds in (("a save", self.save_s), ("a restart", self.restart_s)):
            if not 0 < seconds < math.inf:
                raise UsageError(f"{what} costs {seconds:g} s; give a time above 0 and below infinity")


@dataclass(frozen=True, slots=True)
class Tally:
    """Where the time of replays went; the parts add up to ``elapsed_s``. Tallies of several replays can be added.

    Attributes:
        productive_s: Work that was kept.
        lost_s: Work that a fault undid, half-finished saves included.
    """

    elapsed_s: float
    productive_s: float
    saving_s: float
    lost_s: float
    restarting_s: float
    waited_s: float
    interruptions: int

    @property
    def ettr_job(self) -> float:
        """Productive share of all time; this is also the goodput, as the report defines it."""
        return self.productive_s / self.elapsed_s

    @property
    def ettr_run(self) -> float:
        """Productive share of the time in which the job held nodes; 0 if it never did."""
        held_s = self.elapsed_s - self.waited_s
        return self.productive_s / held_s if held_s > 0 else 0.0

    @property
    def mtbf_s(self) -> float:
        """Mean time that nodes were held between interruptions; infinite without any."""
        return (self.elapsed_s - self.waited_s) / self.interruptions if self.interruptions else math.inf


def together(tallies: Iterable[Tally]) -> Tally:
    """The sum of several tallies, at least one."""
    found = list(tallies)
    return Tally(
        elapsed_s=math.fsum(one.elapsed_s for one in found),
        productive_s=math.fsum(one.productive_s for one in found),
        saving_s=math.fsum(one.saving_s for one in found),
        lost_s=math.fsum(one.lost_s for one in found),
        restarting_s=math.fsum(one.restarting_s for one in found),
        waited_s=math.fsum(one.waited_s for one in found),
        interruptions=sum(one.interruptions for one in found),
    )


def tally(seen: Replay, cadence: Every | YoungDaly, costs: Costs) -> Tally:
    """Account for a replay with periodic saves.

    Raises:
        UsageError: The cadence counts steps, or saves more often than a save takes.
    """
    first_s, then_s = save_times_s(cadence, costs)
    productive: list[float] = []
    saving: list[float] = []
    lost: list[float] = []
    restarting: list[float] = []
    for stretch in seen.stretches:
        held_s = stretch.end_s - stretch.start_s
        restart_s = min(costs.restart_s, held_s)
        restarting.append(restart_s)
        window_s = held_s - restart_s
        saves = 0 if window_s < first_s + costs.save_s else 1 + math.floor((window_s - first_s - costs.save_s) / then_s)
        committed_s = 0.0 if not saves else first_s + (saves - 1) * (then_s - costs.save_s)
        saving_s = saves * costs.save_s
        if not stretch.interrupted:  # the save that is under way at the end of the trace is none of the work
            saving_s += _under_way_s(window_s, saves, first_s, then_s)
            committed_s = window_s - saving_s
        productive.append(committed_s)
        saving.append(saving_s)
        lost.append(window_s - committed_s - saving_s)
    return Tally(
        elapsed_s=seen.horizon_s,
        productive_s=math.fsum(productive),
        saving_s=math.fsum(saving),
        lost_s=math.fsum(lost),
        restarting_s=math.fsum(restarting),
        waited_s=seen.waited_s,
        interruptions=seen.interruptions,
    )


def _under_way_s(window_s: float, saves: int, first_s: float, then_s: float) -> float:
    """Seconds of the save that began and did not finish within ``window_s``."""
    return max(0.0, window_s - (first_s + saves * then_s))


def tally_saved_in_time(seen: Replay, costs: Costs) -> Tally:
    """Account for a replay of somebody who knows each fault: one save that ends just before it, and no other."""
    saving_s = lost_s = restarting_s = productive_s = 0.0
    for stretch in seen.stretches:
        parts = _saved_in_time(stretch, costs)
        restarting_s += parts[0]
        saving_s += parts[1]
        lost_s += parts[2]
        productive_s += kept_s(stretch, costs)
    return Tally(
        elapsed_s=seen.horizon_s,
        productive_s=productive_s,
        saving_s=saving_s,
        lost_s=lost_s,
        restarting_s=restarting_s,
        waited_s=seen.waited_s,
        interruptions=seen.interruptions,
    )


def kept_s(stretch: Stretch, costs: Costs) -> float:
    """Work of a stretch that is kept with one save just in time; nothing beats it."""
    save_s = costs.save_s if stretch.interrupted else 0.0
    return max(0.0, stretch.end_s - stretch.start_s - costs.restart_s - save_s)


def _saved_in_time(stretch: Stretch, costs: Costs) -> tuple[float, float, float]:
    """Seconds of restarting, saving and lost work."""
    held_s = stretch.end_s - stretch.start_s
    restart_s = min(costs.restart_s, held_s)
    window_s = held_s - restart_s
    if not stretch.interrupted:
        return restart_s, 0.0, 0.0
    return (restart_s, costs.save_s, 0.0) if window_s >= costs.save_s else (restart_s, 0.0, window_s)


def save_times_s(cadence: Every | YoungDaly, costs: Costs) -> tuple[float, float]:
    """When the first save of an attempt is begun, and each further one after the beginning of the one before.

    Raises:
        UsageError: The cadence counts steps, or saves more often than a save takes.
    """
    if isinstance(cadence, YoungDaly):
        before = Moment(step=0, since_save_s=0.0)
        after = Moment(step=0, since_save_s=0.0, cost_s=costs.save_s, save_s=costs.save_s)
        return cadence.interval_s(before), max(cadence.interval_s(after), costs.save_s)
    if cadence.seconds is None:
        raise UsageError(f"{cadence} counts steps, and a replay knows none; give an interval in time")
    if cadence.seconds <= costs.save_s:
        raise UsageError(
            f"an interval of {cadence.seconds:g} s leaves no time to train beside saves of {costs.save_s:g} s; "
            "give a longer one"
        )
    return cadence.seconds, cadence.seconds


def expected_ettr(mtbf_s: float, interval_s: float, costs: Costs) -> float | None:
    """E[ETTR] of a job whose faults are independent: (1 - (R + t / 2) / M) / (1 + d / t).

    After Kokolis et al. (2024), Revisiting Reliability in Large-Scale Machine Learning Research Clusters.

    Args:
        mtbf_s: M, mean time between interruptions of the whole job.
        interval_s: t, work between two saves.
        costs: d and R.

    Returns:
        None where the loss per interruption is so large that the formula does not hold (``REGIME``).
    """
    loss = (costs.restart_s + interval_s / 2) / mtbf_s
    return None if loss > REGIME else (1 - loss) / (1 + costs.save_s / interval_s)


def exact_ettr(mtbf_s: float, interval_s: float, costs: Costs) -> float:
    """The same without the approximation, after Daly (2006): t / (M exp(R / M) (exp((t + d) / M) - 1)).

    Args:
        mtbf_s: M.
        interval_s: t, work between two saves.
        costs: d and R.
    """
    again = math.expm1((interval_s + costs.save_s) / mtbf_s)
    return interval_s / (mtbf_s * math.exp(costs.restart_s / mtbf_s) * again)
