"""Rerail's gangs as two watches have them: which pod is of which gang, and where that gang's store is."""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Self

from rerail.plugins.kube.api import ALL_NAMESPACES, KubeApi, Obj
from rerail.plugins.kube.cache import Cache
from rerail.plugins.kube.resources import PODS
from rerail.plugins.kube.watch import Change
from rerail.plugins.volcano.podgroup import POD_GROUPS
from rerail.policies.errors import UsageError
from rerail.policies.workloads.attempt import GANG_LABEL, RUN_LABEL
from rerail.policies.workloads.lock import LOCK_ANNOTATION, PREEMPTABLE
from rerail.policies.workloads.quantities import Amounts, pod_requests

ASKED_ANNOTATION: Final = "rerail.dev/asked-to-leave-at"
"""On a PodGroup: who wants the gang away since when, as JSON. Restarts of the extender move no deadline by it."""

CHECKPOINT_ANNOTATION: Final = "volcano.sh/last-checkpoint-time"
"""On a PodGroup: when its newest commit was taken, RFC 3339; the key that volcano #5998 proposed."""

_INDEX_S: Final = 0.5
GROUP_ANNOTATION: Final = "scheduling.k8s.io/group-name"


@dataclass(frozen=True, slots=True)
class OurPod:
    """What counts about one of our pods.

    Attributes:
        group: Its PodGroup, ``namespace/name``; empty before Volcano gave it one.
        alive: Whether it may hold processes.
        placed: Whether it has a node.
        leaving: Whether it was asked to go.
        preemptable: What its annotation of the lock says; empty without one.
        holds: What it asks for, by resource; nothing where that cannot be read.
        holds_ranks: Whether it names a store, as only pods with ranks do.
    """

    name: str
    uid: str
    group: str
    gang: str
    run: str
    store: str
    control: str
    alive: bool
    placed: bool
    leaving: bool
    preemptable: str
    holds: Amounts

    @property
    def holds_ranks(self) -> bool:
        """Whether it names a store, as only pods with ranks do."""
        return bool(self.store)


@dataclass(frozen=True, slots=True)
class OurGroup:
    """What counts about the PodGroup of one of our gangs.

    Attributes:
        locked: Whether the gang has the preemption lock, open or not.
        preemptable: What its annotation of the lock says; empty without one.
    """

    namespace: str
    name: str
    uid: str
    gang: str
    run: str
    noted: str
    checkpoint: str
    queue: str
    priority_class: str
    locked: bool
    preemptable: str

    @property
    def key(self) -> str:
        """Its name in the whole cluster, as Volcano writes it."""
        return f"{self.namespace}/{self.name}"


@dataclass(slots=True)
class OurGangs:
    """Every gang of ours in a cluster, or in one namespace; use it in a ``with`` statement.

    Attributes:
        api: The API server.
        namespace: Only of this one; all by default.
        on_note: Told a PodGroup's key and what its annotation holds, when it is seen first.
        on_gone: Told the key of a PodGroup that went.
    """

    api: KubeApi
    namespace: str = ALL_NAMESPACES
    on_note: Callable[[str, object], object] = lambda _group, _note: None
    on_gone: Callable[[str], object] = lambda _group: None
    _with_ranks: tuple[float, dict[str, OurPod]] = (-math.inf, {})
    _pods: Cache[OurPod] = field(init=False)
    _groups: Cache[OurGroup] = field(init=False)

    def __post_init__(self) -> None:
        self._pods = Cache(self.api, PODS, keep=pod_of, namespace=self.namespace, labels=RUN_LABEL)
        self._groups = Cache(
            self.api, POD_GROUPS, keep=group_of, namespace=self.namespace, labels=RUN_LABEL, on_change=self._changed
        )

    def __enter__(self) -> Self:
        self._groups.start()
        self._pods.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._pods.stop()
        self._groups.stop()

    def check(self) -> None:
        """Find out whether what is known may be relied upon.

        Raises:
            RerailError: The API server does not answer, or refuses a watch.
        """
        self._groups.check()
        self._pods.check()

    def gang_of(self, evictee: Mapping[str, Any]) -> str | None:
        """The gang (by its PodGroup) that a pod of a scheduler's question belongs to; None where it is none of ours.

        What is known of the pod decides; a pod that is too new to be known is believed what its labels say.
        """
        pod = evictee.get("Pod") or {}
        metadata = pod.get("metadata") or {}
        known = self._pods.get(str(metadata.get("name") or ""), str(metadata.get("namespace") or ""))
        group = str(evictee.get("Job") or "")
        if known is not None and known.uid == metadata.get("uid"):
            return known.group or group
        return group if (metadata.get("labels") or {}).get(RUN_LABEL) else None

    def group(self, key: str) -> OurGroup | None:
        """The PodGroup, if it is there now."""
        namespace, _, name = key.partition("/")
        return self._groups.get(name, namespace)

    def groups(self) -> tuple[OurGroup, ...]:
        """All of them.

        Raises:
            RerailError: As for ``check``.
        """
        return self._groups.values()

    def pods(self) -> tuple[OurPod, ...]:
        """All of them.

        Raises:
            RerailError: As for ``check``.
        """
        return self._pods.values()

    def ranks_of(self, key: str) -> OurPod | None:
        """A living pod with ranks of the gang, which says where its store is.

        Raises:
            RerailError: As for ``check``.
        """
        now_s = self.api.clock()
        if now_s - self._with_ranks[0] > _INDEX_S:  # for all gangs at once: each is looked for several times a second
            self._with_ranks = now_s, {pod.group: pod for pod in self._pods.values() if pod.holds_ranks and pod.alive}
        return self._with_ranks[1].get(key)

    def _changed(self, change: Change, one: Obj) -> None:
        group = group_of(one)
        if change == "deleted":
            self.on_gone(group.key)
        elif change == "added" and group.noted:  # later ones are of our own making
            try:
                note = json.loads(group.noted)
            except (ValueError, RecursionError):
                return
            self.on_note(group.key, note)


def pod_of(pod: Obj) -> OurPod:
    """What counts about a pod."""
    metadata, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    group = annotations.get(GROUP_ANNOTATION) or ""
    variables = _variables(pod)
    return OurPod(
        name=str(metadata.get("name") or ""),
        uid=str(metadata.get("uid") or ""),
        group=f"{metadata.get('namespace') or ''}/{group}" if group else "",
        gang=str(labels.get(GANG_LABEL) or ""),
        run=str(labels.get(RUN_LABEL) or ""),
        store=variables.get("RERAIL_STORE", ""),
        control=variables.get("RERAIL_CONTROL", ""),
        alive=(pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed"),
        placed=bool(spec.get("nodeName")),
        leaving=bool(metadata.get("deletionTimestamp")),
        preemptable=str(annotations.get(PREEMPTABLE) or ""),
        holds=_asked(spec),
    )


def _asked(spec: Obj) -> Amounts:
    try:
        return pod_requests(spec, "pod")
    except UsageError:
        return {}


def _variables(pod: Obj) -> dict[str, str]:
    """The variables of the container that holds ranks, as far as they are written out."""
    for container in (pod.get("spec") or {}).get("containers") or []:
        found = {one["name"]: str(one["value"]) for one in container.get("env") or [] if one.get("value")}
        if "RERAIL_RUN" in found and "RERAIL_STORE" in found:
            return found
    return {}


def group_of(one: Obj) -> OurGroup:
    """What counts about a PodGroup."""
    metadata = one.get("metadata") or {}
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    spec = one.get("spec") or {}
    return OurGroup(
        namespace=str(metadata.get("namespace") or ""),
        name=str(metadata.get("name") or ""),
        uid=str(metadata.get("uid") or ""),
        gang=str(labels.get(GANG_LABEL) or ""),
        run=str(labels.get(RUN_LABEL) or ""),
        noted=str(annotations.get(ASKED_ANNOTATION) or ""),
        checkpoint=str(annotations.get(CHECKPOINT_ANNOTATION) or ""),
        queue=str(spec.get("queue") or "default"),
        priority_class=str(spec.get("priorityClassName") or ""),
        locked=annotations.get(LOCK_ANNOTATION) == "true",
        preemptable=str(annotations.get(PREEMPTABLE) or ""),
    )
