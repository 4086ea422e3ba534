"""The scheduler: a session each second on what is known, and then what it decided, done."""

import copy
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rerail.plugins.kube.api import KubeApi
from rerail.plugins.kube.errors import Call
from rerail.plugins.kube.resources import NODES, PODS, PRIORITY_CLASSES
from rerail.plugins.volcano import PodGroup, Queue
from rerail.policies.errors import ConflictError, NotFoundError, RerailError
from rig.standin import outcome, refusals
from rig.standin.actions import play
from rig.standin.conf import Conf, NotPlayedError, read
from rig.standin.model import ENDED_NOW, Gang, Task
from rig.standin.objects import SCHEDULER, Obj, group_of, leaving, name_of, namespace_of, phase_of, uid_of
from rig.standin.session import Session, open_session
from rig.standin.store import Store
from rig.standin.teller import Teller, log

BIND_TIMEOUT_S = 10.0


class Scheduler:
    """Schedules.

    Args:
        api: The API server.
        store: What is known.
        teller: For Events.
        path: The configuration, read again whenever it changes.

    Raises:
        NotPlayedError: The configuration asks for more than is played.
    """

    def __init__(self, api: KubeApi, store: Store, teller: Teller, path: Path) -> None:
        self._api = api
        self._store = store
        self._teller = teller
        self._path = path
        self._text = path.read_text()
        self._conf: Conf = read(path)
        self._bound: dict[str, str] = {}
        self._evicted: set[str] = set()

    def session(self) -> None:
        """One session, and its effects."""
        self._reload()
        known = {uid_of(pod) for pod in self._store.all(PODS)}
        self._evicted &= known
        self._bound = {uid: node for uid, node in self._bound.items() if uid in known}
        pods = [
            self._as_decided(pod) for pod in self._store.all(PODS) if phase_of(pod) not in ENDED_NOW or group_of(pod)
        ]
        session = open_session(
            str(uuid.uuid4()),
            groups=self._store.all(PodGroup.RESOURCE),
            nodes=self._store.all(NODES),
            queues=self._store.all(Queue.RESOURCE),
            pods=pods,
            priorities={name_of(one): int(one["value"]) for one in self._store.all(PRIORITY_CLASSES)},
        )
        play(session, self._conf)
        for task in session.bindings:
            self._try(partial(self._bind, task))
        for task, action in session.evictions:
            self._try(partial(self._evict, session, task, action))
        for gang in session.gangs.values():
            self._try(partial(self._write, session, gang))

    def _reload(self) -> None:
        text = self._path.read_text()
        if text == self._text:
            return
        self._text = text
        try:
            self._conf = read(self._path)
        except NotPlayedError as error:
            words = refusals.words([str(error)])
            log(f"{self._path}: {words}; the last configuration stays")
            queue = self._store.get(Queue.RESOURCE, "", "default")
            if queue is not None:
                self._teller.tell(queue, refusals.REASON, words, warning=True)

    def _as_decided(self, pod: Obj) -> Obj:
        """A pod as our own last writes left it, where the watch has not told them yet."""
        uid = uid_of(pod)
        if pod["spec"].get("nodeName") or leaving(pod):
            self._bound.pop(uid, None)
        if uid in self._bound:
            pod = {**pod, "spec": {**pod["spec"], "nodeName": self._bound[uid]}}
        if uid in self._evicted and not leaving(pod):
            pod = {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": "now"}}
        return pod

    def _try(self, effect: Callable[[], None]) -> None:
        try:
            effect()
        except (ConflictError, NotFoundError):
            return
        except RerailError as error:
            log(f"left to the next session: {error}")

    def _bind(self, task: Task) -> None:
        name, place = task.name, namespace_of(task.pod)
        target = {"apiVersion": "v1", "kind": "Node", "name": task.node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "uid": task.uid}, "target": target}
        self._api.connection.transport.send(
            Call("create", PODS, place, name, "binding"),
            "POST",
            PODS.path(place, name, "binding"),
            query={},
            body=body,
            timeout_s=BIND_TIMEOUT_S,
        )
        self._bound[task.uid] = task.node
        log(f"bound {place}/{name} to {task.node}")

    def _evict(self, session: Session, task: Task, action: str) -> None:
        name, place = task.name, namespace_of(task.pod)
        self._teller.tell(task.pod, "Evict", outcome.eviction_words(action), warning=True)
        marks = outcome.eviction_marks(task, action)
        if marks is None:
            return
        patch = {"status": {"conditions": marks}}
        self._api.patch(PODS, name, patch, namespace=place, kind="strategic", subresource="status")
        self._api.delete(PODS, name, namespace=place, uid=task.uid)
        self._evicted.add(task.uid)
        self._teller.tell(session.gangs[task.group].content, "Evict", action)

    def _write(self, session: Session, gang: Gang) -> None:
        status = outcome.group_status(session, gang)
        if status is not None:
            body = {**copy.deepcopy(gang.content), "status": status}
            written = self._api.replace(PodGroup.RESOURCE, body, namespace=namespace_of(gang.content), strict=False)
            self._store.put(PodGroup.RESOURCE, written)
            self._tell_of(gang, status)
        for task in gang.tasks:
            condition = outcome.pod_condition(session, gang, task)
            if condition is not None and task.pod["spec"].get("schedulerName") == SCHEDULER:
                self._wait(session, task, condition)

    def _wait(self, session: Session, task: Task, condition: Obj) -> None:
        status: Obj = {"conditions": [condition]}
        if task.uid in session.nominated:
            status["nominatedNodeName"] = task.node
        patch = {"status": status}
        place = namespace_of(task.pod)
        written = self._api.patch(PODS, task.name, patch, namespace=place, kind="strategic", subresource="status")
        self._store.put(PODS, written)

    def _tell_of(self, gang: Gang, status: Obj) -> None:
        for condition in status["conditions"]:
            before = (gang.content.get("status") or {}).get("conditions") or []
            if condition not in before:
                short = condition["type"] == "Unschedulable"
                self._teller.tell(
                    gang.content, condition["type"], condition["message"] or condition["reason"], warning=short
                )
