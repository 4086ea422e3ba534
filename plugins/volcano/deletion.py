"""Deletion with proof: the object is gone, and so is every pod of it."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from rerail.plugins.kube.api import KubeApi, Obj, Propagation
from rerail.plugins.kube.resources import PODS
from rerail.plugins.volcano.base import VolcanoObject
from rerail.plugins.volcano.facts import owned_by, pod_facts
from rerail.plugins.volcano.job import JOB_NAME_LABEL, JOB_NAMESPACE_LABEL, VolcanoJob
from rerail.plugins.volcano.waiting import Target
from rerail.policies.errors import ConflictError, DeadlineError, NotFoundError, NotInstalledError

POLL_S: Final = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Pauses between looks; the last one repeats."""


@dataclass(frozen=True, slots=True)
class Gone:
    """The proof.

    Attributes:
        name: What was deleted.
        uid: Its identity; empty where it was gone already and none was given.
        waited_s: Seconds until both were seen: the object is not found, and no pod is left.
        was_there: Whether it existed when the deletion began.
    """

    name: str
    uid: str
    waited_s: float
    was_there: bool


def delete_and_prove(
    api: KubeApi,
    kind: type[VolcanoObject],
    name: str,
    *,
    namespace: str | None,
    uid: str | None,
    timeout_s: float,
    propagation: Propagation,
    now: Callable[[], datetime],
) -> Gone:
    """Delete exactly one object, and wait until nothing of it is left.

    Args:
        api: The API server.
        kind: The object's model.
        name: Its name.
        namespace: Its namespace.
        uid: Only this very object; where none is given, the one that has the name now.
        timeout_s: Seconds to wait at most.
        propagation: Foreground keeps the object until its pods are gone; Background lets it go first.
        now: The cluster's wall clock.

    Raises:
        ConflictError: Another object has the name (``uid``).
        DeadlineError: Something is left; names the pods, their nodes and for how long they are overdue.
    """
    place = api.place(kind.RESOURCE, namespace)
    target = Target(kind.RESOURCE.full_name, name, place)
    begun = api.clock()
    found = _read(api, kind, name, namespace)
    was_there = found is not None
    if found is not None and uid is not None and found.uid != uid:
        raise ConflictError(f"cannot delete {target}: it has uid {found.uid}; {uid}, which was meant, is gone")
    known = uid or (found.uid if found is not None else "")
    if found is not None:
        try:
            api.delete(kind.RESOURCE, name, namespace=namespace, propagation=propagation, uid=known)
        except NotFoundError:
            pass
        except ConflictError:
            # Somebody replaced it between the two requests: ours is gone.
            pass
    looks = 0
    while True:
        there = _read(api, kind, name, namespace)
        there = there if there is not None and there.uid == known else None
        pods = _pods(api, name, place, known) if issubclass(kind, VolcanoJob) and place else ()
        waited_s = api.clock() - begun
        if there is None and not pods:
            return Gone(name=name, uid=known, waited_s=waited_s, was_there=was_there)
        if waited_s >= timeout_s:
            raise DeadlineError(_left(target, there, pods, timeout_s, now()))
        api.sleep(min(POLL_S[min(looks, len(POLL_S) - 1)], max(0.0, timeout_s - waited_s)))
        looks += 1


def _read(api: KubeApi, kind: type[VolcanoObject], name: str, namespace: str | None) -> VolcanoObject | None:
    try:
        return kind.from_dict(api.get(kind.RESOURCE, name, namespace=namespace))
    except NotInstalledError:
        raise
    except NotFoundError:
        return None


def _pods(api: KubeApi, name: str, namespace: str, uid: str) -> tuple[Obj, ...]:
    """Pods that carry the job's labels; those that belong to another job of its name do not count."""
    labels = {JOB_NAME_LABEL: name, JOB_NAMESPACE_LABEL: namespace}
    found = api.list(PODS, namespace=namespace, labels=labels).items
    return tuple(pod for pod in found if not uid or owned_by(pod, uid) or not _owners(pod))


def _owners(pod: Obj) -> list[Obj]:
    return list((pod.get("metadata") or {}).get("ownerReferences") or [])


def _left(target: Target, there: VolcanoObject | None, pods: tuple[Obj, ...], timeout_s: float, now: datetime) -> str:
    parts = []
    for pod in pods[:8]:
        facts = pod_facts(pod, now=now)
        if facts.overdue_s is None:
            due = "not asked to go"
        elif facts.overdue_s < 0:
            due = f"{-facts.overdue_s:.0f} s of its grace period left"
        else:
            due = f"overdue for {facts.overdue_s:.0f} s"
        parts.append(f"{facts.name} on node {facts.node} ({facts.phase}, {due})")
    if len(pods) > len(parts):
        parts.append(f"and {len(pods) - len(parts)} more")
    held = ""
    if there is not None and not pods:
        names = ", ".join(there.metadata.finalizers) or "none"
        held = f"; the object itself is held by finalizers: {names}"
    return (
        f"{target} is not gone after {timeout_s:g} s: {len(pods)} pods are left"
        + (f": {'; '.join(parts)}" if parts else "")
        + held
        + ". A pod that is overdue sits on a node that does not answer: make sure that the node is off, then delete "
        "the pod with grace period 0"
    )
