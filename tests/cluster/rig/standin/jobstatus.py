"""What the job controller writes down: phases with their times, counts of pods, and what a gang needs at least."""

from rerail.plugins.volcano import VolcanoJob
from rerail.plugins.volcano.job import JobCondition, TaskState
from rig.standin.objects import ENDED, Obj, annotations_of, now_text, phase_of, requests_of


def asks(before: Obj | None, job: Obj) -> bool:
    """Whether a change of a job is one to act on; the status is the controller's own, but for the phase."""
    return before is None or before["spec"] != job["spec"] or _stage(before) != _stage(job)


def _stage(job: Obj) -> object:
    return ((job.get("status") or {}).get("state") or {}).get("phase")


def moved(job: VolcanoJob) -> None:
    state = job.status.state
    state.last_transition_time = now_text()
    others = [one for one in job.status.conditions if one.status != state.phase]
    newest = JobCondition(status=str(state.phase), last_transition_time=state.last_transition_time)
    job.status.conditions = [*others, newest]


def count(job: VolcanoJob, pods: list[Obj], terminating: int) -> None:
    status = job.status
    tasks: dict[str, dict[str, int]] = {}
    for pod in pods:
        of_task = tasks.setdefault(annotations_of(pod)["volcano.sh/task-spec"], {})
        phase = phase_of(pod) or "Pending"
        of_task[phase] = of_task.get(phase, 0) + 1
    status.task_status_count = {task: TaskState(phase=phases) for task, phases in tasks.items()}
    totals = {word: sum(phases.get(word, 0) for phases in tasks.values()) for word in ("Pending", "Running", *ENDED)}
    status.pending, status.running = totals["Pending"], totals["Running"]
    status.succeeded, status.failed = totals["Succeeded"], totals["Failed"]
    status.terminating = terminating


def plain(status: Obj) -> Obj:
    """A status without its zeros, which may be written or left out."""
    return {key: value for key, value in status.items() if value}


def least(job: VolcanoJob) -> dict[str, str]:
    """What the gang needs together: its smallest size, task by task."""
    needed: dict[str, float] = {"pods": float(job.spec.min_available or 0)}
    left = job.spec.min_available or 0
    for task in job.spec.tasks:
        count = min(left, task.replicas)
        left -= count
        for resource, value in requests_of(task.template.get("spec") or {}, limits=False).items():
            needed[resource] = needed.get(resource, 0.0) + value * count
    return {
        resource: f"{value:.0f}" if value == int(value) else f"{value * 1000:.0f}m"
        for resource, value in needed.items()
    }
