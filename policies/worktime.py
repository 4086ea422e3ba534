"""When a run really trained: the times of its attempts put in order, and which of their steps were kept.

Only two kinds of clock meet here: the supervisor's wall clock (attempts, incidents) and the nodes' (snapshots, first
signs). Where they disagree a duration is cut off at zero, never negative.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from rerail.policies.documents import Value
from rerail.policies.supervisor.state import AttemptRecord, RunState

CommitState = Literal["good", "suspect", "bad", "off-chain"]


class CommitFact(Value):
    """A commit as the report shows it.

    Attributes:
        at_s: When the last rank's snapshot was taken, by that rank's node; None where the manifest is gone.
        state: ``off-chain``: written, but no later attempt goes back to it and it counts for nothing.
        why: Why it is not good.
        size_bytes: Bytes of all files that its manifest names.
        save_s: How long the save took, where the writer said so.
    """

    attempt: int
    step: int
    at_s: float | None
    reason: str
    state: CommitState = "good"
    why: str = ""
    size_bytes: int = 0
    save_s: float | None = None
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """One attempt with its times put in order: opened <= started <= loaded <= begin <= end.

    Attributes:
        begin: First step; None if the attempt made none.
        end: Training ended: at the fault, or at the last snapshot after it, or with the attempt.
        held_until: The GPUs were the run's until then.
        reached: Newest step that the attempt is known to have finished.
        faulted: An incident ended it.
        commits: Step to time of snapshot.
    """

    record: AttemptRecord
    opened: float
    started: float
    loaded: float
    begin: float | None
    end: float
    held_until: float
    from_step: int
    reached: int
    faulted: bool
    commits: Mapping[int, float]

    @property
    def seconds(self) -> float:
        """Time in which the attempt trained."""
        return 0.0 if self.begin is None else self.end - self.begin

    def seconds_after(self, step: float) -> float:
        """Training time of this attempt that went into steps after ``step``."""
        if self.begin is None:
            return 0.0
        if step in self.commits:
            return self.end - clamp(self.commits[int(step)], self.begin, self.end)
        if step >= self.reached:
            return 0.0
        return self.seconds * min(1.0, (self.reached - step) / max(1, self.reached - self.from_step))


def clamp(value: float, low: float, high: float) -> float:
    """``value``, or the bound that it is beyond."""
    return max(low, min(value, high))


def put_in_order(
    state: RunState, commits: Sequence[CommitFact], faults: Mapping[str, float], begun: float, until: float
) -> list[Work]:
    """All attempts in order of their numbers.

    Args:
        state: The run.
        commits: Its commits; a snapshot taken after a fault says that the gang worked on until then.
        faults: Incident id to the time of the fault's first effect.
        begun: Submission; nothing is earlier.
        until: The end, or the present; nothing is later.
    """
    records = sorted(state.attempts, key=lambda record: record.n)
    fault_of = {incident.attempt: faults[incident.id] for incident in reversed(state.incidents)}
    seen = {incident.attempt: incident.lost_from_step or 0 for incident in state.incidents}
    works: list[Work] = []
    floor = begun
    for index, record in enumerate(records):
        after = records[index + 1] if index + 1 < len(records) else None
        opened = clamp(record.opened_at_s, floor, until)
        next_opened = clamp(after.opened_at_s, opened, until) if after else until
        ended = clamp(record.ended_at_s if record.ended_at_s is not None else next_opened, opened, until)
        in_place = after is not None and after.how == "in-place"
        limit = min(ended, next_opened)
        own = [commit for commit in commits if commit.attempt == record.n]
        at = {commit.step: commit.at_s for commit in own if commit.at_s is not None}
        final = [
            at[commit.step] + (commit.save_s or 0.0) for commit in own if commit.reason == "final" and commit.step in at
        ]
        work_end = limit
        if record.n in fault_of:
            # A gang that saves before it leaves works on until that snapshot.
            work_end = max([fault_of[record.n], *at.values()])
        elif final:
            work_end = max(final)
        started = clamp(record.started_at_s if record.started_at_s is not None else opened, opened, limit)
        loaded = clamp(record.loaded_at_s if record.loaded_at_s is not None else started, started, limit)
        begin = None if record.first_step_at_s is None else clamp(record.first_step_at_s, loaded, limit)
        from_step = record.started_from_step or 0
        steps = [from_step, record.last_step or 0, record.last_commit_step or 0, seen.get(record.n, 0)]
        steps += [commit.step for commit in own]
        works.append(
            Work(
                record=record,
                opened=opened,
                started=started,
                loaded=loaded,
                begin=begin,
                end=clamp(work_end, loaded if begin is None else begin, limit),
                held_until=next_opened if in_place else ended,
                from_step=from_step,
                reached=max(steps),
                faulted=record.n in fault_of,
                commits=at,
            )
        )
        floor = opened
    return works


def went_on(works: Sequence[Work], attempt: int) -> Work | None:
    """The first attempt after ``attempt`` whose start was written."""
    later = [work for work in works if work.record.n > attempt and work.record.started_from_step is not None]
    return later[0] if later else None


def kept_to(work: Work, works: Sequence[Work], last: float = math.inf) -> float:
    """Steps of ``work`` up to this one were kept by the attempts after it (up to attempt ``last``)."""
    later = (other for other in works if work.record.n < other.record.n <= last)
    return min((other.from_step for other in later if other.record.started_from_step is not None), default=math.inf)


def lost_seconds(work: Work, works: Sequence[Work]) -> float:
    """Seconds of work that a later attempt did not build on."""
    return work.seconds_after(kept_to(work, works))


def lost_steps(works: Sequence[Work]) -> int:
    """Finished steps that the attempts after them did not have, and ran again."""
    ran = [work for work in works if work.record.started_from_step is not None]
    return sum(max(0, work.reached - after.from_step) for work, after in pairwise(ran))
