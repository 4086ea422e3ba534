"""When a periodic save is due: by steps, by time, or by the interval that loses the least time.

Formulas: Young (1974), tau = sqrt(2 d M); Daly (2006), tau = sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + (d / 2M) / 9) - d for
d < 2M, else M. d is the time that one save takes away from training, M the mean time between failures of the whole
job. The time that a restart takes scales the total loss but does not move the optimum. Near it the loss is flat.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from rerail.policies.errors import UsageError


def young_s(cost_s: float, mtbf_s: float) -> float:
    """Young's interval between saves.

    Args:
        cost_s: Training time that one save takes away.
        mtbf_s: Mean time between failures of the whole job.
    """
    return math.sqrt(2 * cost_s * mtbf_s)


def daly_s(cost_s: float, mtbf_s: float) -> float:
    """Daly's interval between saves (work between two saves, without the save itself).

    Args:
        cost_s: Training time that one save takes away.
        mtbf_s: Mean time between failures of the whole job.
    """
    if cost_s >= 2 * mtbf_s:
        return mtbf_s
    ratio = cost_s / (2 * mtbf_s)
    return young_s(cost_s, mtbf_s) * (1 + math.sqrt(ratio) / 3 + ratio / 9) - cost_s


class Moment(NamedTuple):
    """What is known at the end of a step.

    Attributes:
        step: Completed optimizer steps.
        since_save_s: Seconds since the newest save was begun, or since training began.
        cost_s: Training time that recent saves took away; None before the first save.
        save_s: Time until recent saves were commits, in the background or not; None before the first.
    """

    step: int
    since_save_s: float
    cost_s: float | None = None
    save_s: float | None = None


class Cadence(Protocol):
    """A rule for periodic saves."""

    @property
    def local(self) -> bool:
        """Whether the answer rests on this process's clock, so that ranks have to agree on it."""
        ...

    def due(self, moment: Moment) -> bool:
        """Whether the state at this boundary should be saved."""
        ...


@dataclass(frozen=True, slots=True)
class Every:
    """A save every so many steps, or seconds, whichever comes first.

    Attributes:
        steps: Due when the number of completed steps is a multiple of it, so restarts do not shift the grid.
        seconds: Due when that much time went by since the last save was begun.
    """

    steps: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if self.steps is None and self.seconds is None:
            raise UsageError("Every(): give steps= or seconds=, or both")
        if self.steps is not None and self.steps < 1:
            raise UsageError(f"Every(steps={self.steps}): at least 1")
        if self.seconds is not None and not self.seconds > 0:
            raise UsageError(f"Every(seconds={self.seconds}): above 0")

    @property
    def local(self) -> bool:
        """Time is local; steps are the same on all ranks."""
        return self.seconds is not None

    def due(self, moment: Moment) -> bool:
        """Whether steps or seconds are full."""
        by_steps = self.steps is not None and moment.step > 0 and moment.step % self.steps == 0
        return by_steps or (self.seconds is not None and moment.since_save_s >= self.seconds)


@dataclass(frozen=True, slots=True)
class YoungDaly:
    """A save at the interval that loses the least time, from the measured cost of saving.

    Attributes:
        mtbf_s: Mean time between failures of the whole job (of one device, divided by their number).
        floor_s: Never more often than this.
        ceiling_s: Never less often than this: work that nobody wants to lose whatever the rate says.
        first_s: When the first save is due, before any cost is known.
    """

    mtbf_s: float
    floor_s: float = 1.0
    ceiling_s: float = 4 * 3600.0
    first_s: float = 60.0

    def __post_init__(self) -> None:
        if not self.mtbf_s > 0:
            raise UsageError(f"YoungDaly(mtbf_s={self.mtbf_s}): above 0")
        if not 0 < self.floor_s <= self.ceiling_s:
            raise UsageError(f"YoungDaly(floor_s={self.floor_s}, ceiling_s={self.ceiling_s}): 0 < floor <= ceiling")

    @property
    def local(self) -> bool:
        """Measured times are local."""
        return True

    def interval_s(self, moment: Moment) -> float:
        """Seconds between saves as known now.

        Never shorter than one save takes to become a commit: the next could not begin.
        """
        if moment.cost_s is None:
            wanted = self.first_s
        else:
            wanted = max(daly_s(moment.cost_s, self.mtbf_s), moment.save_s or 0.0)
        return min(max(wanted, self.floor_s), self.ceiling_s)

    def due(self, moment: Moment) -> bool:
        """Whether the interval is over."""
        return moment.since_save_s >= self.interval_s(moment)
