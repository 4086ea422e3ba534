"""From objects of the cluster to the facts that ``policies.volcano_verdict`` judges. No requests are made here."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from rerail.plugins.volcano.base import moment
from rerail.plugins.volcano.job import VolcanoJob
from rerail.plugins.volcano.podgroup import PodGroup
from rerail.policies.volcano_verdict import GangFacts, PodFacts

Obj = Mapping[str, Any]

RETRY_LIMIT_WORDS: Final = "retry limit reached"
"""What the controller's event says when it gives a job up after ``--max-requeue-num`` tries."""


def pod_facts(pod: Obj, *, now: datetime, ready_nodes: Collection[str] | None = None) -> PodFacts:
    """What counts about a pod.

    Args:
        pod: As the API server has it.
        now: The time, in the cluster's own clock as well as it is known.
        ready_nodes: Names of all ready nodes; None where nobody may look.
    """
    metadata, status = pod.get("metadata") or {}, pod.get("status") or {}
    node = (pod.get("spec") or {}).get("nodeName")
    conditions = [one for one in status.get("conditions") or [] if one.get("status") == "True"]
    disruption = next((one.get("reason") or "" for one in conditions if one.get("type") == "DisruptionTarget"), None)
    # The API server writes the end of the grace period here, not the time of the request.
    due = moment(metadata.get("deletionTimestamp"))
    ended = _first_failure(status)
    return PodFacts(
        name=str(metadata.get("name") or ""),
        phase=str(status.get("phase") or "Pending"),
        ready=any(one.get("type") == "Ready" for one in conditions),
        node=node,
        node_ready=None if ready_nodes is None or node is None else node in ready_nodes,
        overdue_s=None if due is None else (now - due).total_seconds(),
        exit_code=ended.get("exitCode"),
        container_reason=ended.get("reason"),
        pod_reason=status.get("reason"),
        conditions=frozenset(str(one.get("type")) for one in conditions),
        disruption=disruption,
        ended_s=_epoch_s(ended.get("finishedAt")),
    )


def gang_facts(
    job: VolcanoJob | None,
    *,
    name: str,
    now: datetime,
    pods: Sequence[Obj] = (),
    group: PodGroup | None = None,
    queue_state: str | None = None,
    ready_nodes: Collection[str] | None = None,
    events: Sequence[Obj] = (),
    final_commit: bool | None = None,
) -> GangFacts:
    """What counts about a gang; ``job`` None is a job that is gone."""
    facts = tuple(pod_facts(pod, now=now, ready_nodes=ready_nodes) for pod in pods)
    if job is None:
        return GangFacts(name=name, found=False, pods=facts, final_commit=final_commit)
    condition = group.unschedulable if group is not None else None
    placed = group is not None and group.phase in ("Running", "Completed")
    return GangFacts(
        name=name,
        phase=str(job.phase),
        deleting=job.deleting,
        min_available=job.spec.min_available or 0,
        retry_count=job.status.retry_count,
        max_retry=job.spec.max_retry,
        pods=facts,
        group_phase=str(group.phase) if group is not None else None,
        unschedulable=None if condition is None or placed else condition.reason or "Unschedulable",
        message="" if condition is None else condition.message or "",
        queue=job.spec.queue,
        queue_state=queue_state,
        gave_up=any(RETRY_LIMIT_WORDS in str(event.get("message") or "") for event in events),
        final_commit=final_commit,
    )


def owned_by(pod: Obj, uid: str) -> bool:
    """Whether a pod belongs to the object with this uid."""
    return any(one.get("uid") == uid for one in (pod.get("metadata") or {}).get("ownerReferences") or [])


def _first_failure(status: Obj) -> dict[str, Any]:
    """How the container that failed first ended; empty where none did."""
    ended: list[dict[str, Any]] = [
        one["state"]["terminated"]
        for one in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
        if (one.get("state") or {}).get("terminated")
    ]
    failed = [one for one in ended if one.get("exitCode") != 0]
    if failed:
        return min(failed, key=lambda one: str(one.get("finishedAt") or "9"))
    return ended[0] if ended and status.get("phase") == "Succeeded" else {}


def _epoch_s(timestamp: str | None) -> float | None:
    at = moment(timestamp)
    return None if at is None else at.timestamp()
