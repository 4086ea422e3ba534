"""What a session leaves on the objects: phases and conditions of groups, and why pods wait."""

from typing import Any, Final

from rig.standin import refusals
from rig.standin.model import (
    ALLOCATED,
    FAILED,
    PENDING,
    PIPELINED,
    RELEASING,
    RUNNING,
    SCHEDULED,
    SUCCEEDED,
    Gang,
    Task,
)
from rig.standin.objects import Obj, now_text
from rig.standin.session import Session

TRUE: Final = "True"


def group_status(session: Session, gang: Gang) -> Obj | None:
    """The status of a group after a session; None where it stays as it is, but for times."""
    before = gang.content.get("status") or {}
    conditions = {one["type"]: one for one in before.get("conditions") or []}
    condition = _condition(session, gang)
    if condition:
        conditions[condition["type"]] = condition
    short = condition is not None and condition["type"] == "Unschedulable"
    status = {
        "phase": _phase(gang, short=short),
        "conditions": list(conditions.values()),
        "running": gang.count([RUNNING]),
        "succeeded": gang.count([SUCCEEDED]),
        "failed": gang.count([FAILED]),
    }
    return None if _lasting(status) == _lasting(before) else status


def _condition(session: Session, gang: Gang) -> Obj | None:
    refused = sorted({word for task in gang.tasks for word in refusals.of_pod(task.pod["spec"])})
    refused += refusals.of_group(gang.content["spec"])
    if refused:
        kind, reason, message = "Unschedulable", refusals.REASON, refusals.words(refused)
    elif not gang.tasks or _leaving_only(gang):
        return None
    elif gang.ready:
        kind, reason, message = "Scheduled", "tasks in gang are ready to be scheduled", ""
    else:
        kind, reason = "Unschedulable", "NotEnoughResources"
        open_tasks = gang.least - gang.count(SCHEDULED - {FAILED}) - gang.count([ALLOCATED])
        why = next(iter(gang.why.values()), "")
        message = f"{open_tasks}/{len(gang.tasks)} tasks in gang unschedulable: pod group is not ready, {_census(gang)}"
        message += f". Origin reason is {why}" if why else ""
    times = {"transitionID": session.uid, "lastTransitionTime": now_text()}
    return {"type": kind, "status": TRUE, "reason": reason, "message": message, **times}


def _census(gang: Gang) -> str:
    found = sorted({task.status for task in gang.tasks})
    return ", ".join(f"{gang.count([status])} {status}" for status in found) + f", {gang.least} minAvailable"


def _leaving_only(gang: Gang) -> bool:
    """Whether those that are missing for the gang are all still there, leaving."""
    leaving = sum(task.status == RELEASING and bool(task.node) for task in gang.tasks)
    waiting = gang.count([PENDING, PIPELINED])
    return not gang.ready and bool(leaving) and not waiting and gang.count(SCHEDULED) + leaving >= gang.least


def _phase(gang: Gang, *, short: bool) -> str:
    if short and gang.count([RUNNING]):
        return "Unknown"
    ended = gang.count([SUCCEEDED, FAILED])
    leaving = sum(task.status == RELEASING and bool(task.node) for task in gang.tasks)
    scheduled = gang.count(SCHEDULED) + leaving
    if scheduled >= gang.least:
        return "Completed" if scheduled == ended else "Running"
    return "Inqueue" if gang.phase == "Inqueue" else "Pending"


def _lasting(status: Obj) -> Obj:
    """A status without its times and zeros."""
    conditions = [
        {key: value for key, value in one.items() if value and key not in ("transitionID", "lastTransitionTime")}
        for one in status.get("conditions") or []
    ]
    return {key: value for key, value in {**status, "conditions": conditions}.items() if value}


def pod_condition(session: Session, gang: Gang, task: Task) -> Obj | None:
    """Why a pod of a group waits, as its condition; None where it does not, or says so already."""
    if task.status not in (PENDING, PIPELINED, ALLOCATED) or task in session.bindings:
        return None
    if task.status == PIPELINED:
        message = (
            f"Pod can possibly be assigned to {task.node}, once resource is released and minAvailable is satisfied"
        )
    elif task.status == ALLOCATED:
        message = f"Pod can possibly be assigned to {task.node}, once minAvailable is satisfied"
    else:
        message = gang.why.get(task.uid) or next(iter(gang.why.values()), "all nodes are unavailable")
    reason = "Schedulable" if task.status == ALLOCATED else "Unschedulable"
    wanted = {"type": "PodScheduled", "status": "False", "reason": reason, "message": message}
    return None if _has(task.pod, wanted) else {**wanted, "lastTransitionTime": now_text()}


def eviction_marks(task: Task, action: str) -> list[Obj] | None:
    """The conditions of an eviction; None where the pod bears one of them already, which the real one takes as done."""
    ready = {"type": "Ready", "status": "False", "reason": "Evict", "message": eviction_words(action)}
    message = f"{task.pod['spec'].get('schedulerName')}: preempting to accommodate a higher priority pod"
    target = {"type": "DisruptionTarget", "status": TRUE, "reason": "PreemptionByScheduler", "message": message}
    if _has(task.pod, ready) or _has(task.pod, target):
        return None
    return [{**mark, "lastTransitionTime": now_text()} for mark in (ready, target)]


def eviction_words(action: str) -> str:
    return f"Pod is evicted, because of {action}"


def _has(pod: Obj, wanted: dict[str, Any]) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(all(one.get(key) == value for key, value in wanted.items()) for one in conditions)
