"""From changes of pods, jobs, groups and Commands to requests, and from a request to the action that it means.

As in the real one: policies answer to changes, not to states, so that a change nobody saw is lost on them.
"""

from dataclasses import dataclass

from rerail.plugins.volcano import JobAction, JobEvent, VolcanoJob
from rerail.plugins.volcano.job import LifecyclePolicy
from rig.standin.objects import OUT_OF_SYNC, Obj, annotations_of, controller_of, namespace_of, owned_by_a_job, phase_of

INTERNAL = frozenset({JobEvent.OUT_OF_SYNC, JobEvent.COMMAND_ISSUED, JobEvent.POD_RUNNING})


@dataclass(frozen=True)
class Request:
    """What may have to be done about a job, which is named, not identified.

    Attributes:
        uid: The job that the pod belongs to; empty where no pod is the cause.
        version: The job's version that the pod was made in.
        exit_code: Of a failed pod's first container.
        action: What a Command orders.
    """

    namespace: str
    job: str
    event: str = JobEvent.OUT_OF_SYNC
    action: str = ""
    uid: str = ""
    task: str = ""
    exit_code: int = 0
    version: int = 0


def from_pod(change: str, before: Obj | None, pod: Obj, *, task_completed: bool) -> Request | None:
    """The request that a change of a pod means; None for a pod of somebody else.

    Args:
        change: added, modified or deleted.
        before: The pod before.
        pod: The pod.
        task_completed: Whether as many pods of its task as there should be have succeeded.
    """
    marks = annotations_of(pod)
    if not owned_by_a_job(pod) or "volcano.sh/job-version" not in marks:
        return None
    exit_code = 0
    event: str = JobEvent.OUT_OF_SYNC
    turned = before is None or phase_of(before) != phase_of(pod)
    if OUT_OF_SYNC in marks:
        pass
    elif change == "added":
        event = JobEvent.POD_PENDING
    elif change == "deleted":
        event = JobEvent.POD_EVICTED
    elif turned and phase_of(pod) == "Failed":
        event, exit_code = JobEvent.POD_FAILED, _exit_code(pod)
    elif turned and phase_of(pod) == "Succeeded" and task_completed:
        event = JobEvent.TASK_COMPLETED
    elif turned and phase_of(pod) == "Running":
        event = JobEvent.POD_RUNNING
    return Request(
        namespace=namespace_of(pod),
        job=marks["volcano.sh/job-name"],
        event=event,
        uid=str((controller_of(pod) or {}).get("uid")),
        task=marks["volcano.sh/task-spec"],
        exit_code=exit_code,
        version=int(marks["volcano.sh/job-version"]),
    )


def from_group(before: Obj | None, group: Obj) -> Request | None:
    """The request that a change of a PodGroup's phase means."""
    owner = controller_of(group)
    if owner is None or owner["kind"] != "Job" or before is None or phase_of(before) == phase_of(group):
        return None
    event = JobEvent.UNKNOWN if phase_of(group) == "Unknown" else ""
    return Request(namespace=namespace_of(group), job=owner["name"], event=event)


def action_of(job: VolcanoJob, request: Request) -> str:
    """What a request means for a job: an order, the first policy that fits, or to bring it into line."""
    if request.action:
        return request.action
    if request.event in INTERNAL or (request.uid and request.uid != job.uid):
        return JobAction.SYNC_JOB
    if request.version < job.status.version:
        return JobAction.SYNC_JOB
    of_task = [policy for task in job.spec.tasks if task.name == request.task for policy in task.policies]
    for policy in [*of_task, *job.spec.policies]:
        if _fits(policy, request):
            return str(policy.action)
    return JobAction.SYNC_JOB


def _fits(policy: LifecyclePolicy, request: Request) -> bool:
    events = {*policy.events, *([policy.event] if policy.event else [])}
    if request.event and request.event != JobEvent.POD_PENDING and events & {request.event, JobEvent.ANY}:
        return True
    return policy.exit_code is not None and policy.exit_code == request.exit_code


def _exit_code(pod: Obj) -> int:
    first: Obj = next(iter((pod.get("status") or {}).get("containerStatuses") or []), {})
    return int(((first.get("state") or {}).get("terminated") or {}).get("exitCode") or 0)
