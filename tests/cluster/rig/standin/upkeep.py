"""The smaller controllers: queues open, plain pods get a group, finished jobs go; other kinds are refused."""

import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final

from rerail.plugins.kube.api import ALL_NAMESPACES, KubeApi
from rerail.plugins.kube.resources import PODS, ResourceType
from rerail.plugins.volcano import Command, PodGroup, Queue, VolcanoJob
from rerail.plugins.volcano.base import moment
from rerail.plugins.volcano.job import GROUP_ANNOTATION
from rerail.policies.errors import AlreadyExistsError, NotFoundError
from rig.standin import refusals
from rig.standin.objects import (
    PREEMPTABLE,
    QUEUE_ANNOTATION,
    SCHEDULER,
    Obj,
    annotations_of,
    controller_of,
    leaving,
    name_of,
    namespace_of,
    requests_of,
    uid_of,
)
from rig.standin.store import Store
from rig.standin.teller import Teller

OTHERS: Final = tuple(
    ResourceType(group, "v1alpha1", plural, kind, namespaced=namespaced, product="Volcano")
    for group, plural, kind, namespaced in (
        ("flow.volcano.sh", "jobflows", "JobFlow", True),
        ("batch.volcano.sh", "cronjobs", "CronJob", True),
        ("topology.volcano.sh", "hypernodes", "HyperNode", False),
    )
)
"""Kinds of Volcano's that nobody plays here."""
OTHERS_EVERY_S: Final = 10.0
FIRST_QUEUES: Final = {"root": False, "default": True}
"""The queues that the scheduler makes, and whether others may take from them."""


class Upkeep:
    """Looks over everything, again and again."""

    def __init__(self, api: KubeApi, store: Store, teller: Teller) -> None:
        self._api = api
        self._store = store
        self._teller = teller
        self._others_at = 0.0

    def look(self) -> None:
        self._queues()
        for pod in self._store.all(PODS):
            if self._lonely(pod):
                self._give_group(pod)
        for content in self._store.all(VolcanoJob.RESOURCE):
            self._expire(VolcanoJob.from_dict(content))
        if time.monotonic() >= self._others_at:
            self._others_at = time.monotonic() + OTHERS_EVERY_S
            self._refuse_others()

    def _queues(self) -> None:
        for name, reclaimable in FIRST_QUEUES.items():
            if self._store.get(Queue.RESOURCE, "", name) is None:
                spec = {"weight": 1, "reclaimable": reclaimable}
                body = {"apiVersion": Queue.RESOURCE.api_version, "kind": "Queue", "metadata": {"name": name}}
                try:
                    self._api.create(Queue.RESOURCE, {**body, "spec": spec})
                except AlreadyExistsError:
                    continue
        for queue in self._store.all(Queue.RESOURCE):
            if not (queue.get("status") or {}).get("state") and not leaving(queue):
                self._set_state(name_of(queue), "Open")
        self._queue_orders()

    def _queue_orders(self) -> None:
        """Queues are opened and closed by Commands; a queue whose groups still run is Closing before it is Closed."""
        for command in self._store.all(Command.RESOURCE):
            target, action = command.get("target") or {}, str(command.get("action"))
            if target.get("kind") != "Queue" or action not in ("OpenQueue", "CloseQueue"):
                continue
            with suppress(NotFoundError):
                self._api.delete(Command.RESOURCE, name_of(command), namespace=namespace_of(command))
                self._set_state(str(target["name"]), "Open" if action == "OpenQueue" else "Closing")
        for queue in self._store.all(Queue.RESOURCE):
            groups = (one for one in self._store.all(PodGroup.RESOURCE) if one["spec"].get("queue") == name_of(queue))
            if (queue.get("status") or {}).get("state") == "Closing" and not any(groups):
                self._set_state(name_of(queue), "Closed")

    def _set_state(self, queue: str, state: str) -> None:
        status = {"status": {"state": state}}
        with suppress(NotFoundError):
            self._store.put(Queue.RESOURCE, self._api.patch(Queue.RESOURCE, queue, status, subresource="status"))

    @staticmethod
    def _lonely(pod: Obj) -> bool:
        ours = (pod.get("spec") or {}).get("schedulerName") == SCHEDULER
        return ours and GROUP_ANNOTATION not in annotations_of(pod) and not leaving(pod)

    def _give_group(self, pod: Obj) -> None:
        """Make a group of one for a pod, or for all pods of its owner; the pod's annotation then names it."""
        owner = controller_of(pod)
        own = {"apiVersion": "v1", "kind": "Pod", "name": name_of(pod), "uid": uid_of(pod), "controller": True}
        name = f"podgroup-{owner['uid'] if owner else uid_of(pod)}"
        needed = {resource: f"{value * 1000:.0f}m" for resource, value in requests_of(pod["spec"]).items()}
        spec = {"minMember": 1, "minResources": needed, "priorityClassName": pod["spec"].get("priorityClassName")}
        kept = {PREEMPTABLE: annotations_of(pod)[PREEMPTABLE]} if PREEMPTABLE in annotations_of(pod) else {}
        metadata = {"name": name, "namespace": namespace_of(pod), "annotations": kept}
        metadata["ownerReferences"] = pod["metadata"].get("ownerReferences") or [own]
        queue = annotations_of(pod).get(QUEUE_ANNOTATION, "default")
        body = {"apiVersion": PodGroup.RESOURCE.api_version, "kind": "PodGroup", "metadata": metadata}
        kept_spec = {key: value for key, value in {**spec, "queue": queue}.items() if value is not None}
        with suppress(AlreadyExistsError):
            self._api.create(PodGroup.RESOURCE, {**body, "spec": kept_spec}, strict=False)
        mark = {"metadata": {"annotations": {GROUP_ANNOTATION: name}}}
        try:
            written = self._api.patch(PODS, name_of(pod), mark, namespace=namespace_of(pod))
        except NotFoundError:
            return
        self._store.put(PODS, written)

    def _expire(self, job: VolcanoJob) -> None:
        after_s, ended = job.spec.ttl_seconds_after_finished, moment(job.status.state.last_transition_time)
        if after_s is None or ended is None or not job.finished or job.deleting:
            return
        if (datetime.now(UTC) - ended).total_seconds() >= after_s:
            try:
                self._api.delete(VolcanoJob.RESOURCE, job.name, namespace=job.metadata.namespace, uid=job.uid)
            except NotFoundError:
                return

    def _refuse_others(self) -> None:
        for kind in OTHERS:
            try:
                found = self._api.list(kind, namespace=ALL_NAMESPACES if kind.namespaced else None).items
            except NotFoundError:
                continue
            for one in found:
                named = {"apiVersion": kind.api_version, "kind": kind.kind, **one}
                self._teller.tell(named, refusals.REASON, refusals.words([kind.kind]), warning=True)
