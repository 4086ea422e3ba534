"""From the newest state of a run and its commits to the numbers of the report. Pure; all times are epoch seconds."""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Final

from pydantic import Field

from rerail.policies.documents import Value
from rerail.policies.supervisor.state import Incident, RunState
from rerail.policies.worktime import (
    CommitFact,
    Work,
    clamp,
    kept_to,
    lost_seconds,
    lost_steps,
    put_in_order,
    went_on,
)

BADPUT: Final = (
    "TPU_INITIALIZATION",
    "TRAINING_PREP",
    "PROGRAM_STARTUP",
    "DATA_LOADING_SYNC",
    "DATA_LOADING_ASYNC",
    "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME",
    "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME",
    "WASTED_PROGRESS_FROM_DISRUPTION",
    "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    "CUSTOM_BADPUT_EVENTS",
    "OTHER",
)
"""Google's names, all of them; those that a gang's outside cannot see (device start, data loading) stay 0."""


class Phases(Value):
    """Seconds of each phase of one recovery; they add up to its whole."""

    detect: float = Field(ge=0)
    decide: float = Field(ge=0)
    save: float = Field(ge=0)
    end: float = Field(ge=0)
    start: float = Field(ge=0)
    load: float = Field(ge=0)
    first_step: float = Field(ge=0)

    def items(self) -> list[tuple[str, float]]:
        """Name and seconds, in order."""
        return [(name, getattr(self, name)) for name in type(self).model_fields]

    @property
    def slowest(self) -> str:
        """The phase in which recovery lost most of its time."""
        return max(self.items(), key=lambda item: item[1])[0]


class IncidentMetrics(Value):
    """One incident in numbers.

    Attributes:
        fault_at_s: The fault's first effect: as injected where a drill knows, else its first sign, else its detection.
        recover_s: Until the first step that the run had not made before; None while (or because) there is none.
        run_again_s: The end of ``recover_s``, in which lost steps were run again; part of phase ``first_step``.
            Where only the first step after the load was seen it is reckoned from the attempt's median step time.
        rpo_steps: Finished steps that the next attempt (or, without one, the newest good commit) does not have.
    """

    id: str
    attempt: int
    fault_at_s: float
    detect_s: float
    recover_s: float | None
    phases: Phases | None
    run_again_s: float
    rpo_steps: int
    rpo_s: float


class Spread(Value):
    """Order statistics over all incidents (nearest rank). None: that rank falls on an incident without recovery."""

    count: int
    unrecovered: int
    p50: float | None
    p90: float | None
    max: float | None


class Metrics(Value):
    """All numbers of a run; ``METRICS`` defines them.

    Attributes:
        elapsed_job_s: Since submission. ``elapsed_run_s`` is the part of it in which the run held GPUs.
        gpu_waste_s: GPU-seconds by kind: rollback, recovery, saving.
        badput_s: Seconds by Google's bucket; with ``productive_s`` they add up to ``elapsed_job_s``.
        nvidia: The fields of NVIDIA's GoodputMeasurement under their names.
    """

    mttd_s: float | None
    mttr_s: float | None
    mttr_phases_s: Phases | None
    rpo_steps: int | None
    rpo_s: float | None
    lost_steps: int
    gpu_waste_ratio: float | None
    gpu_waste_s: dict[str, float]
    gpu_held_s: float
    ettr_run: float | None
    ettr_job: float | None
    elapsed_run_s: float
    elapsed_job_s: float
    productive_s: float
    restarts: int
    resumed_from_step: int | None
    saving_overhead_percent: float | None
    goodput: float | None
    badput_s: dict[str, float]
    nvidia: dict[str, float]
    unrecovered: int
    mttd_spread_s: Spread
    mttr_spread_s: Spread
    incidents: tuple[IncidentMetrics, ...]


def measure(
    state: RunState,
    commits: Sequence[CommitFact] = (),
    *,
    created_at_s: float | None = None,
    until_s: float | None = None,
    fault_at_s: Mapping[str, float] | None = None,
) -> Metrics:
    """Compute every metric of a run.

    Args:
        state: The newest ledger entry's state.
        commits: All commits of the run that still stand.
        created_at_s: When the run was submitted; None takes the first attempt's opening.
        until_s: The present, for a run that goes on; None takes the newest time that the state holds.
        fault_at_s: Incident id to the time at which its fault was injected, where that is known.
    """
    until = state.finished_at_s or max(_newest(state, commits), until_s or 0.0)
    begun = min([until, *([created_at_s] if created_at_s else []), *(record.opened_at_s for record in state.attempts)])
    faults = {incident.id: _fault(incident, fault_at_s or {}) for incident in state.incidents}
    works = put_in_order(state, commits, faults, begun, until)
    incidents = tuple(_incident(item, faults[item.id], works, commits) for item in state.incidents)
    lost_s = [lost_seconds(work, works) for work in works]
    saving_s = [min(work.record.saving_s, work.seconds - lost) for work, lost in zip(works, lost_s, strict=True)]
    productive = sum(work.seconds for work in works) - sum(lost_s) - sum(saving_s)
    queue = _queue(works, begun, until)
    job, run = until - begun, until - begun - queue
    waste = _waste(works, lost_s, saving_s, state.world_size)
    held = state.world_size * sum(work.held_until - work.opened for work in works)
    badput = _badput(works, sum(lost_s), sum(saving_s), begun, until)
    recovered = [item for item in incidents if item.recover_s is not None]
    worst = max(recovered, key=lambda item: item.recover_s or 0.0, default=None)
    resumed = [work for work in works if work.record.how != "fresh" and work.record.started_from_step is not None]
    return Metrics(
        mttd_s=max((item.detect_s for item in incidents), default=None),
        mttr_s=worst.recover_s if worst else None,
        mttr_phases_s=worst.phases if worst else None,
        rpo_steps=max((item.rpo_steps for item in incidents), default=None),
        rpo_s=max((item.rpo_s for item in incidents), default=None),
        lost_steps=lost_steps(works),
        gpu_waste_ratio=_ratio(sum(waste.values()), held),
        gpu_waste_s=waste,
        gpu_held_s=held,
        ettr_run=_ratio(productive, run),
        ettr_job=_ratio(productive, job),
        elapsed_run_s=run,
        elapsed_job_s=job,
        productive_s=productive,
        restarts=max(0, len(works) - 1),
        resumed_from_step=resumed[-1].from_step if resumed else None,
        saving_overhead_percent=None if run <= 0 else 100.0 * min(1.0, sum(saving_s) / run),
        goodput=_ratio(productive, job),
        badput_s=badput,
        nvidia=_nvidia(works, badput, job, len(incidents)),
        unrecovered=len(incidents) - len(recovered),
        mttd_spread_s=_spread([item.detect_s for item in incidents]),
        mttr_spread_s=_spread([item.recover_s for item in incidents]),
        incidents=incidents,
    )


def _ratio(part: float, whole: float) -> float | None:
    return None if whole <= 0 else clamp(part / whole, 0.0, 1.0)


def _newest(state: RunState, commits: Sequence[CommitFact]) -> float:
    times = [commit.at_s for commit in commits if commit.at_s is not None]
    for record in state.attempts:
        times += [record.opened_at_s, record.ended_at_s or 0.0, record.first_step_at_s or 0.0]
    for incident in state.incidents:
        times += [incident.decided_at_s, incident.recovered_at_s or 0.0]
    return max(times, default=0.0)


def _fault(incident: Incident, injected: Mapping[str, float]) -> float:
    sign = incident.first_sign_s if incident.first_sign_s is not None else incident.detected_at_s
    return min(injected.get(incident.id, sign), incident.detected_at_s)


def _new_step_at(item: Incident, works: Sequence[Work]) -> float | None:
    """When the run made its first step beyond all that it had made before the incident."""
    after = went_on(works, item.attempt)
    if after is None:
        return None
    said = item.recovered_at_s
    if said is not None and after.begin is not None and said > after.begin:
        return said  # the supervisor saw the new step itself, not only the first one after the load
    top = max((work.reached for work in works if work.record.n <= item.attempt), default=0)
    for work in works:
        if work.record.n > item.attempt and work.begin is not None and work.reached > top:
            one = work.record.step_time_s
            if one is None:
                one = work.seconds / max(1, work.reached - work.from_step)
            return min(work.end, work.begin + one * max(0, top - work.from_step))
    return said if after is works[-1] and after.record.ended_at_s is None else None


def _incident(item: Incident, fault: float, works: Sequence[Work], commits: Sequence[CommitFact]) -> IncidentMetrics:
    after = went_on(works, item.attempt)
    before = [work for work in works if work.record.n <= item.attempt]
    ended = before[-1] if before else None
    kept = after.from_step if after else _newest_good(item.attempt, ended, commits)
    rpo_s = sum(
        max(0.0, work.seconds_after(kept) - work.seconds_after(kept_to(work, works, item.attempt))) for work in before
    )
    new_step = _new_step_at(item, works)
    recovered = None if new_step is None else max(new_step, item.detected_at_s)
    again = 0.0
    if recovered is not None and after is not None and after.begin is not None:
        again = max(0.0, recovered - max(after.begin, fault))
    phases = None if recovered is None else _phases(item, fault, recovered)
    return IncidentMetrics(
        id=item.id,
        attempt=item.attempt,
        fault_at_s=fault,
        detect_s=item.detected_at_s - fault,
        recover_s=None if recovered is None else recovered - fault,
        phases=phases,
        run_again_s=min(again, phases.first_step) if phases else 0.0,
        rpo_steps=max(0, ended.reached - kept) if ended else 0,
        rpo_s=rpo_s,
    )


def _newest_good(attempt: int, ended: Work | None, commits: Sequence[CommitFact]) -> int:
    good = [commit.step for commit in commits if commit.state == "good" and commit.attempt <= attempt]
    if good or ended is None:
        return max(good, default=0)
    return max(ended.from_step, ended.record.last_commit_step or 0)


def _phases(item: Incident, fault: float, recovered: float) -> Phases:
    reached: list[float | None] = [
        item.detected_at_s,
        item.decided_at_s,
        item.saved_at_s,
        item.ended_at_s,
        item.started_at_s,
        item.loaded_at_s,
    ]
    marks = [fault]
    for mark in reached:
        marks.append(marks[-1] if mark is None else mark)  # a phase that did not happen takes no time
    marks.append(recovered)
    for index in range(len(marks) - 2, -1, -1):
        # New pods may start while old ones end: what a later phase did not wait for is not on the path.
        marks[index] = max(fault, min(marks[index], marks[index + 1]))
    spans = [later - earlier for earlier, later in pairwise(marks)]
    return Phases(**dict(zip(Phases.model_fields, spans, strict=True)))


def _queue(works: Sequence[Work], begun: float, until: float) -> float:
    """Seconds in which the run held no GPUs."""
    queue, held = 0.0, begun
    for work in works:
        queue += max(0.0, work.opened - held)
        held = max(held, work.held_until)
    return queue + max(0.0, until - held)


def _waste(
    works: Sequence[Work], lost_s: Sequence[float], saving_s: Sequence[float], world_size: int
) -> dict[str, float]:
    recovery = 0.0
    for index, work in enumerate(works):
        if index:
            recovery += (work.end if work.begin is None else work.begin) - work.opened
        if work.faulted:
            recovery += work.held_until - work.end
    return {
        "rollback": world_size * sum(lost_s),
        "recovery": world_size * recovery,
        "saving": world_size * sum(saving_s),
    }


def _badput(works: Sequence[Work], lost_s: float, saving_s: float, begun: float, until: float) -> dict[str, float]:
    buckets = dict.fromkeys(BADPUT, 0.0)
    at = begun
    for index, work in enumerate(works):
        buckets["INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION" if index else "OTHER"] += work.opened - at
        buckets["INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION" if index else "PROGRAM_STARTUP"] += work.started - work.opened
        buckets["UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME" if index else "TRAINING_PREP"] += work.loaded - work.started
        if work.begin is not None:
            buckets["PROGRAM_STARTUP"] += work.begin - work.loaded
        at = work.end if work.begin is not None else work.loaded
    gave_up = bool(works) and works[-1].faulted
    buckets["INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION" if gave_up else "OTHER"] += until - at
    buckets["WASTED_PROGRESS_FROM_DISRUPTION"] = lost_s
    buckets["UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"] = saving_s
    return buckets


def _nvidia(works: Sequence[Work], badput: Mapping[str, float], elapsed: float, interruptions: int) -> dict[str, float]:
    lost, save = badput["WASTED_PROGRESS_FROM_DISRUPTION"], badput["UNPRODUCTIVE_CHECKPOINT_SAVE_TIME"]
    move = badput["INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION"]
    warm_up = sum(work.begin - work.loaded for work in works[1:] if work.begin is not None)
    resume = badput["UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME"] + warm_up
    fields = {
        "trainingTimeSec": elapsed,
        "lostWorkTimeSec": lost,
        "rescheduleTimeSec": move,
        "resumeTimeSec": resume,
        "checkpointSaveTimeSec": save,
        "interruptionCount": float(interruptions),
        "currentStep": float(works[-1].reached) if works else 0.0,
        "highestStep": float(max((work.reached for work in works), default=0)),
    }
    result = _ratio(elapsed - lost - resume - move - save, elapsed - move)
    if result is not None:
        fields["result"] = result
    times = [work.record.step_time_s for work in works if work.record.step_time_s is not None]
    if times:
        fields["avgStepTimeSec"] = sum(times) / len(times)
    return fields


def _spread(values: Sequence[float | None]) -> Spread:
    ranked = sorted(math.inf if value is None else value for value in values)

    def rank(share: float) -> float | None:
        if not ranked:
            return None
        value = ranked[max(0, math.ceil(share * len(ranked)) - 1)]
        return None if math.isinf(value) else value

    return Spread(count=len(ranked), unrecovered=values.count(None), p50=rank(0.5), p90=rank(0.9), max=rank(1.0))
