"""Pods of a cluster that are to go: through the Eviction API, so that disruption budgets hold, and never by force."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from rerail.plugins.evict.preevict import PodsLeft
from rerail.plugins.kube.api import KubeApi
from rerail.plugins.kube.cache import Cache
from rerail.plugins.kube.errors import Call
from rerail.plugins.kube.resources import NODES, PODS
from rerail.plugins.nodes.fit import why_not_ready
from rerail.policies.errors import (
    ConflictError,
    DisruptionBudgetError,
    ForbiddenError,
    NotFoundError,
    RefusedError,
    TransientError,
)
from rerail.policies.workloads.attempt import GANG_LABEL

Obj = dict[str, Any]

_OVER: Final = ("Succeeded", "Failed")
_DEFAULT_GRACE_S: Final = 30.0


def name_of(pod: Obj) -> str:
    """Namespace and name, for people."""
    metadata = pod["metadata"]
    return f"{metadata.get('namespace', '')}/{metadata['name']}"


def may_run(pod: Obj) -> bool:
    """Whether the pod may hold processes: it was placed, and did not end."""
    return bool((pod.get("spec") or {}).get("nodeName")) and (pod.get("status") or {}).get("phase") not in _OVER


def is_leaving(pod: Obj) -> bool:
    """Whether the pod was asked to go already."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def grace_of(pods: Sequence[Obj]) -> float:
    """The longest time that one of the pods may take to end, in seconds."""
    specs = [pod.get("spec") or {} for pod in pods]
    return max((float(spec.get("terminationGracePeriodSeconds", _DEFAULT_GRACE_S)) for spec in specs), default=0.0)


def evict_all(api: KubeApi, pods: Sequence[Obj]) -> str:
    """Evict all of the pods or, where a disruption budget keeps one of them, none; may be repeated.

    Returns:
        Why not; empty once the eviction of each was accepted, or it is gone.

    Raises:
        TransientError: The API server does not answer.
        ForbiddenError: Names the right that is missing.
    """
    here = [pod for pod in pods if may_run(pod) and not is_leaving(pod)]
    for dry_run in (True, False):
        for pod in here:
            metadata = pod["metadata"]
            try:
                api.evict(metadata["name"], namespace=metadata["namespace"], uid=metadata["uid"], dry_run=dry_run)
            except (NotFoundError, ConflictError):
                continue  # it went, and what has its name now is another one
            except DisruptionBudgetError as error:
                return str(error)
    return ""


def refuse_without_rights(api: KubeApi, namespace: str) -> None:
    """Refuse before anybody is asked to leave, not at the deadline.

    Raises:
        RefusedError: Pods may not be evicted there; names the rule.
    """
    call = Call("create", PODS, namespace, subresource="eviction")
    try:
        allowed = api.may("create", PODS, namespace=namespace, subresource="eviction")
    except ForbiddenError:  # nobody tells us
        return
    if not allowed:
        raise RefusedError(f"rights are missing: {call}. Add to {call.role}:\n{call.rule}")


def dead_nodes(api: KubeApi, pods: Sequence[Obj]) -> frozenset[str]:
    """Nodes of the pods that are gone or do not report; none where nobody may look."""
    return frozenset(_dead(api, {str(pod["spec"]["nodeName"]) for pod in pods if may_run(pod)}))


def _dead(api: KubeApi, nodes: set[str]) -> Iterator[str]:
    for node in sorted(nodes):
        try:
            if why_not_ready(api.get(NODES, node)):
                yield node
        except NotFoundError:
            yield node
        except ForbiddenError:
            return


@dataclass(slots=True)
class ClusterPods:
    """The port ``GangPods`` on pods of a gang, watched; use it in a ``with`` statement."""

    api: KubeApi
    namespace: str
    gang: str
    _cache: Cache[Obj] = field(init=False)
    _dead: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        labels = {GANG_LABEL: self.gang}
        self._cache = Cache(self.api, PODS, keep=lambda one: one, namespace=self.namespace, labels=labels)

    def __enter__(self) -> Self:
        self._cache.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._cache.stop()

    def left(self) -> PodsLeft:
        """Pods that may hold processes; once they were evicted, apart those whose node does not report."""
        pods = [pod for pod in self._cache.values() if may_run(pod)]
        lost = [pod for pod in pods if is_leaving(pod) and pod["spec"]["nodeName"] in self._dead]
        return PodsLeft(
            alive=tuple(sorted(name_of(pod) for pod in pods if pod not in lost)),
            unreachable=tuple(sorted(name_of(pod) for pod in lost)),
        )

    def evict(self) -> str:
        """Evict all that is left, or none of it."""
        pods = self._cache.values()
        refusal = evict_all(self.api, pods)
        try:
            self._dead = dead_nodes(self.api, pods)
        except TransientError:
            self._dead = frozenset()
        return refusal

    def grace_s(self) -> float:
        """The longest grace period of the pods."""
        return grace_of([pod for pod in self._cache.values() if may_run(pod)])
