"""A whole node: training gangs save first and leave as a whole, everything else leaves at once, and that is checked."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.evict.cluster import (
    ClusterPods,
    evict_all,
    grace_of,
    is_leaving,
    may_run,
    name_of,
    refuse_without_rights,
)
from rerail.plugins.evict.find import Place, places
from rerail.plugins.evict.preevict import TAKEOVER_S, Evicted, PreEvict, live_gang
from rerail.plugins.gang.ports import Clock
from rerail.plugins.kube.api import ALL_NAMESPACES, KubeApi
from rerail.plugins.kube.resources import NODES, PODS
from rerail.policies.documents import Value
from rerail.policies.errors import NotFoundError, RerailError, TransientError
from rerail.policies.eviction import REFUSED_FOR_S, EvictionBounds
from rerail.policies.liveness import FORCE_MARGIN_S
from rerail.policies.workloads.attempt import GANG_LABEL

Obj = dict[str, Any]

_ROUNDS: Final = 3
"""How often the node is looked at: a scheduler may have chosen it just before it was cordoned."""

_MIRROR: Final = "kubernetes.io/config.mirror"
_POLL_S: Final = 0.5


class Stays(Value):
    """A pod that a drain leaves where it is, and why."""

    pod: str
    why: str


class GangDrained(Value):
    """What became of one gang.

    Attributes:
        eviction: How it left; None where it could not be asked.
        error: Why not.
    """

    namespace: str
    gang: str
    eviction: Evicted | None = None
    error: str = ""


class Drained(Value):
    """What became of a node.

    Attributes:
        drained: Nothing but pods that belong to the node is left on it.
        committed: Every gang left with a commit that holds all it did.
        gangs: Each gang that had a pod there.
        evicted: Other pods that left.
        stays: Pods that are still there, and why.
        training_left: Pods of gangs that are still there.
    """

    node: str
    drained: bool
    committed: bool
    gangs: tuple[GangDrained, ...] = ()
    evicted: tuple[str, ...] = ()
    stays: tuple[Stays, ...] = ()
    training_left: tuple[str, ...] = ()


@dataclass(slots=True)
class Drain:
    """One drain of one node; uncordoning is its caller's.

    Attributes:
        open_store: Opens the stores of a gang's run.
        deadline_s: How long each gang's commit is waited for.
        force: Evict pods that no controller would make again.
        cordon: Keep new work off the node first; without it that is somebody else's, who also lets it in again.
        chosen: The pods that are to leave; a gang leaves as a whole where one of its pods is chosen.
        regardless: Evict a gang also where it cannot be asked, because of its store: SIGTERM still lets it save.
        reason: For the gangs' records.
        wanted: Whether anybody still wants it; gangs that were not evicted yet are not evicted otherwise.
        log: Takes one line, from any thread.
    """

    api: KubeApi
    node: str
    deadline_s: float
    open_store: Callable[[Place], RunStore]
    force: bool = False
    cordon: bool = True
    chosen: Callable[[Obj], bool] = lambda _pod: True
    regardless: bool = False
    reason: str = ""
    wanted: Callable[[], bool] = lambda: True
    takeover_s: float = TAKEOVER_S
    refused_for_s: float = REFUSED_FOR_S
    clock: Clock = field(default_factory=Clock)
    log: Callable[[str], None] = lambda _line: None
    _stays: dict[str, str] = field(default_factory=dict)
    _evicted: dict[str, None] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def perform(self) -> Drained:
        """Cordon, evict, and look again.

        Raises:
            NotFoundError: There is no such node.
            RerailError: The API server does not answer, or a right is missing.
        """
        if self.cordon:
            self.api.patch(NODES, self.node, {"spec": {"unschedulable": True}}, kind="merge", repeatable=True)
        gangs: dict[tuple[str, str], GangDrained] = {}
        for _ in range(_ROUNDS):
            pods = self._pods()
            new = [place for place in places(pods) if (place.namespace, place.gang) not in gangs]
            others = [pod for pod in pods if GANG_LABEL not in (pod["metadata"].get("labels") or {})]
            leaving = self._may_leave(others)
            if not new and not leaving:
                break
            with ThreadPoolExecutor(max_workers=len(new) + 1) as pool:
                rest = pool.submit(self._evict_rest, leaving)
                for place, drained in zip(new, pool.map(self._evict_gang, new), strict=True):
                    gangs[place.namespace, place.gang] = drained
                rest.result()
        return self._ended(tuple(gangs[key] for key in sorted(gangs)))

    def _pods(self) -> list[Obj]:
        listed = self.api.list(PODS, namespace=ALL_NAMESPACES, fields=f"spec.nodeName={self.node}").items
        return [pod for pod in listed if may_run(pod) and self.chosen(pod)]

    def _may_leave(self, pods: Sequence[Obj]) -> list[Obj]:
        """Pods that belong somewhere else as well as here; why the others stay is noted."""
        found = []
        for pod in pods:
            why = _why_stays(pod, force=self.force)
            if why:
                self._stays[name_of(pod)] = why
            elif name_of(pod) not in self._stays:
                found.append(pod)
        return found

    def _evict_gang(self, place: Place) -> GangDrained:
        told = ""
        try:
            return GangDrained(namespace=place.namespace, gang=place.gang, eviction=self._pre_evict(place))
        except RerailError as error:
            told = str(error)
        if self.regardless:
            try:
                with ClusterPods(self.api, place.namespace, place.gang) as pods:
                    self._evict_left_over(pods)
            except RerailError as error:
                told = f"{told}; {error}"
        return GangDrained(namespace=place.namespace, gang=place.gang, error=told)

    def _pre_evict(self, place: Place) -> Evicted | None:
        refuse_without_rights(self.api, place.namespace)
        run = self.open_store(place)
        with ClusterPods(self.api, place.namespace, place.gang) as pods:
            try:
                target = live_gang(run)
            except NotFoundError:
                target = None
            if target is None or target.gang != place.gang:
                self._evict_left_over(pods)
                return None
            return PreEvict(
                run,
                target,
                pods,
                EvictionBounds(deadline_s=self.deadline_s, refused_for_s=self.refused_for_s),
                self.reason or f"drain of node {self.node}",
                takeover_s=self.takeover_s,
                wanted=self.wanted,
                clock=self.clock,
                log=lambda line: self._say(f"{place.gang}: {line}"),
            ).perform()

    def _evict_left_over(self, pods: ClusterPods) -> None:
        """Evict pods that nobody asks: their gang is an older one, their run is over, or the store is out of reach."""
        refusal = pods.evict()
        if refusal:
            raise TransientError(refusal)
        until_s = self.clock.monotonic_s() + pods.grace_s() + FORCE_MARGIN_S
        while pods.left().alive and self.clock.monotonic_s() < until_s:
            self.clock.sleep(_POLL_S)

    def _evict_rest(self, pods: Sequence[Obj]) -> None:
        """Evict each by itself: they belong to nothing whole. What a budget keeps is tried for a bounded time."""
        until_s = self.clock.monotonic_s() + self.refused_for_s
        waiting = {name_of(pod): pod for pod in pods}
        refused: dict[str, str] = {}
        while True:
            for name, pod in list(waiting.items()):
                refusal = self._evict_one(pod)
                if not refusal:
                    del waiting[name]
                elif refused.get(name) != refusal:
                    refused[name] = refusal
                    self._say(f"{name}: {refusal}; trying again")
            if not waiting or self.clock.monotonic_s() >= until_s:
                break
            self.clock.sleep(_POLL_S)
        self._stays |= {name: refused[name] for name in waiting}
        self._wait_gone([pod for pod in pods if name_of(pod) not in waiting])

    def _evict_one(self, pod: Obj) -> str:
        try:
            return evict_all(self.api, (pod,))
        except RerailError as error:
            return str(error)

    def _wait_gone(self, pods: Sequence[Obj]) -> None:
        wait_s = grace_of(pods) + FORCE_MARGIN_S
        until_s = self.clock.monotonic_s() + wait_s
        asked = {str(pod["metadata"]["uid"]): name_of(pod) for pod in pods}
        while asked:
            there = {str(pod["metadata"]["uid"]) for pod in self._pods()}
            for uid in asked.keys() - there:
                self._evicted[asked.pop(uid)] = None
            if not asked or self.clock.monotonic_s() >= until_s:
                break
            self.clock.sleep(_POLL_S)
        self._stays |= dict.fromkeys(asked.values(), f"did not end within {wait_s:g} s of its eviction")

    def _ended(self, gangs: tuple[GangDrained, ...]) -> Drained:
        pods = self._pods()
        training = [pod for pod in pods if GANG_LABEL in (pod["metadata"].get("labels") or {})]
        there = {name_of(pod): pod for pod in pods if pod not in training}
        stays = {name: self._stays.get(name, "came while the node was drained") for name in there}
        rooted = [name for name, pod in there.items() if belongs_here(pod)]
        committed = all(one.eviction.outcome == "committed" if one.eviction else not one.error for one in gangs)
        return Drained(
            node=self.node,
            drained=not training and len(rooted) == len(there),
            committed=committed,
            gangs=gangs,
            evicted=tuple(self._evicted),
            stays=tuple(Stays(pod=name, why=stays[name]) for name in sorted(stays)),
            training_left=tuple(f"{name_of(pod)}{' (being deleted)' if is_leaving(pod) else ''}" for pod in training),
        )

    def _say(self, line: str) -> None:
        with self._lock:
            self.log(line)


def _controller(pod: Obj) -> str:
    """Kind of the object that makes the pod again; empty where none does."""
    owners = pod["metadata"].get("ownerReferences") or []
    return next((str(owner.get("kind")) for owner in owners if owner.get("controller")), "")


def belongs_here(pod: Obj) -> bool:
    """Whether a pod belongs to its node, so that it stays when the node is emptied."""
    return _controller(pod) == "DaemonSet" or _MIRROR in (pod["metadata"].get("annotations") or {})


def _why_stays(pod: Obj, *, force: bool) -> str:
    if belongs_here(pod):
        return "belongs to the node (DaemonSet, or static)"
    if not _controller(pod) and not force:
        return "no controller would make it again; --force evicts it all the same"
    return ""
