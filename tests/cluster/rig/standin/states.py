"""The state machine of a job: what an action does in a phase, and where it leads."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rerail.plugins.volcano import JobAction, JobPhase, JobSpec
from rerail.plugins.volcano.job import JobStatus

Move = Callable[[JobSpec, JobStatus], bool]
"""Changes the phase by the counts, and says whether it did."""


@dataclass(frozen=True)
class Step:
    """What is done.

    Attributes:
        kill: Delete the pods and the group; else make what is missing and count.
        keep_ended: Leave pods that ended by themselves.
        move: What follows for the phase.
    """

    kill: bool
    move: Move
    keep_ended: bool = True


def step_of(phase: str, action: str) -> Step:
    """What an action does in a phase. Finished jobs, and whatever is on its way there, only ever clean up."""
    if phase in (JobPhase.PENDING, JobPhase.RUNNING):
        if action == JobAction.RESTART_JOB:
            return Step(kill=True, move=_restart, keep_ended=False)
        ending = _ENDING.get(action)
        if ending:
            return Step(kill=True, move=_to(ending))
        return Step(kill=False, move=_run if phase == JobPhase.PENDING else _finish)
    if phase == JobPhase.RESTARTING:
        return Step(kill=action != JobAction.SYNC_JOB, move=_restarted, keep_ended=False)
    if phase in (JobPhase.ABORTING, JobPhase.ABORTED) and action == JobAction.RESUME_JOB:
        return Step(kill=True, move=_restart)
    drained = _DRAINED.get(phase)
    return Step(kill=True, move=_drained(drained) if drained else _stay)


def _to(phase: JobPhase) -> Move:
    def move(_: JobSpec, status: JobStatus) -> bool:
        status.state.phase = phase
        return True

    return move


def _drained(phase: JobPhase) -> Move:
    def move(spec: JobSpec, status: JobStatus) -> bool:
        if status.terminating or status.pending or status.running:
            return False
        return _to(phase)(spec, status)

    return move


def _stay(_: JobSpec, __: JobStatus) -> bool:
    return False


def _restart(spec: JobSpec, status: JobStatus) -> bool:
    status.retry_count += 1
    return _to(JobPhase.RESTARTING)(spec, status)


def _restarted(spec: JobSpec, status: JobStatus) -> bool:
    if status.retry_count >= spec.max_retry:
        return _to(JobPhase.FAILED)(spec, status)
    if total(spec) - status.terminating >= status.min_available:
        return _to(JobPhase.PENDING)(spec, status)
    return False


def _run(spec: JobSpec, status: JobStatus) -> bool:
    if (spec.min_available or 0) <= status.running + status.succeeded + status.failed:
        return _to(JobPhase.RUNNING)(spec, status)
    return False


def _finish(spec: JobSpec, status: JobStatus) -> bool:
    everyone, needed = total(spec), spec.min_available or 0
    if everyone and status.succeeded + status.failed == everyone:
        good = status.succeeded >= needed and not _short_of_a_task(spec, status, needed)
        return _to(JobPhase.COMPLETED if good else JobPhase.FAILED)(spec, status)
    if everyone and status.pending > everyone - needed:
        return _to(JobPhase.PENDING)(spec, status)
    return False


def _short_of_a_task(spec: JobSpec, status: JobStatus, needed: int) -> bool:
    if needed < sum(task.replicas if task.min_available is None else task.min_available for task in spec.tasks):
        return False
    counts = {name: state.phase.get("Succeeded", 0) for name, state in status.task_status_count.items()}
    return any(counts.get(str(task.name), 0) < (task.min_available or 0) for task in spec.tasks if task.name in counts)


def total(spec: JobSpec) -> int:
    """How many pods a job should have."""
    return sum(task.replicas for task in spec.tasks)


_ENDING: Final[dict[str, JobPhase]] = {
    JobAction.ABORT_JOB: JobPhase.ABORTING,
    JobAction.COMPLETE_JOB: JobPhase.COMPLETING,
    JobAction.TERMINATE_JOB: JobPhase.TERMINATING,
}
_DRAINED: Final[dict[str, JobPhase]] = {
    JobPhase.ABORTING: JobPhase.ABORTED,
    JobPhase.COMPLETING: JobPhase.COMPLETED,
    JobPhase.TERMINATING: JobPhase.TERMINATED,
}
