"""The lock path: gangs that no action of Volcano's may take, opened after a save when somebody starves.

For the actions that do not ask the extender (``gangpreempt``, ``gangreclaim``, ``shuffle``). It asks the extender's own
book in the name of who starves, so both paths share saves, deadlines, notes and Events, and neither holds a gang that
the other one let go. What stands in the cluster is compared with what should stand in each pass, and corrected.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, NamedTuple, Self

from rerail.plugins.evict.extender import Decider
from rerail.plugins.evict.extender_gangs import OurGroup, OurPod
from rerail.plugins.kube.api import ALL_NAMESPACES, KubeApi, Obj
from rerail.plugins.kube.cache import Cache
from rerail.plugins.kube.resources import PODS, PRIORITY_CLASSES, ResourceType
from rerail.plugins.volcano.podgroup import POD_GROUPS, PodGroup
from rerail.plugins.volcano.queue import QUEUES, Queue
from rerail.policies.consent import LIVE_S, State
from rerail.policies.errors import ConflictError, NotFoundError, UsageError
from rerail.policies.starvation import (
    STARVE_S,
    Holder,
    Share,
    Waiting,
    hold_since_s,
    starving,
    to_ask,
    waits_for_room,
)
from rerail.policies.workloads.lock import LOCKED, OPEN, PREEMPTABLE
from rerail.policies.workloads.quantities import Amounts, quantity, total

LOOK_S: Final = 1.0
"""How often it is looked for somebody who starves."""


class Flip(NamedTuple):
    """A lock that stands otherwise than it should.

    Attributes:
        pods: Those whose annotation is another one.
        opens: Whether it is to be open.
        why: What allowed it; None where nobody starves any more.
        news: Whether this was not told before.
    """

    group: OurGroup
    pods: tuple[OurPod, ...]
    opens: bool
    evictor: str
    why: State | None
    news: bool


@dataclass(frozen=True, slots=True)
class _Group:
    """A PodGroup that waits for room, as it is now."""

    key: str
    queue: str
    priority_class: str
    wants: Amounts
    stamp_s: float


class _Class(NamedTuple):
    value: int
    is_default: bool


class _Let(NamedTuple):
    """Somebody may take a gang."""

    at_s: float
    evictor: str
    why: State


@dataclass(slots=True)
class Locks:
    """Looks for who starves, asks the book for them, and says which locks stand wrong; use it in a ``with`` statement.

    Attributes:
        decider: Whose book, gangs and clock are used.
        api: The API server.
        namespace: Only groups of this one starve; all by default.
        starve_s: How long a group waits for room before it starves.
    """

    decider: Decider
    api: KubeApi
    namespace: str = ALL_NAMESPACES
    starve_s: float = STARVE_S
    _groups: Cache[_Group | None] = field(init=False)
    _queues: Cache[tuple[str, Share]] = field(init=False)
    _classes: Cache[tuple[str, _Class]] = field(init=False)
    _since: dict[str, float] = field(default_factory=dict)
    _lets: dict[str, _Let] = field(default_factory=dict)
    _told: dict[str, bool] = field(default_factory=dict)
    _began_s: float = math.inf
    _looked_s: float = -math.inf
    _next_s: float = -math.inf

    def __post_init__(self) -> None:
        self._groups = Cache(self.api, POD_GROUPS, keep=_waits, namespace=self.namespace)
        self._queues = Cache(self.api, QUEUES, keep=_share)
        self._classes = Cache(self.api, PRIORITY_CLASSES, keep=_class)

    def __enter__(self) -> Self:
        self._began_s = self.decider.now()
        for cache in (self._groups, self._queues, self._classes):
            cache.start()
        return self

    def __exit__(self, *_: object) -> None:
        for cache in (self._groups, self._queues, self._classes):
            cache.stop()

    def check(self) -> None:
        """Find out whether what is known may be relied upon.

        Raises:
            RerailError: The API server does not answer, or refuses a watch.
        """
        for cache in (self._groups, self._queues, self._classes):
            cache.check()

    def look(self) -> None:
        """Ask the book for everybody who starves; does nothing where that was done just before.

        Raises:
            RerailError: As for ``check``. Locks stay as they are meanwhile.
        """
        now_s = self.decider.now()
        if now_s < self._next_s:
            return
        self._next_s = now_s + LOOK_S
        locked = {group.key: group for group in self.decider.gangs.groups() if group.locked}
        for key in self._lets.keys() - locked.keys():
            del self._lets[key]
        priorities = self._priorities()
        waiting = self._waiting(now_s, priorities) if locked else []
        holders = tuple(self._holders(locked, priorities))
        shares = dict(self._queues.values())
        hold_s = self.decider.book.hold_s
        for who in starving(waiting, now_s, starve_s=self.starve_s):
            since_s = hold_since_s(who, now_s, starve_s=self.starve_s, hold_s=hold_s, seen_since_s=self._began_s)
            starved_s = now_s - max(who.since_s + self.starve_s, self._began_s)
            for holder in to_ask(who, holders, shares, starved_s=starved_s, hold_s=hold_s):
                with self.decider.lock:
                    answer = self.decider.book.ask(who.key, holder.key, now_s, since_s=since_s, then="stay")
                self.decider.metrics.count("decisions", verb="lock", kind="consent" if answer.consent else "hold")
                if answer.consent:
                    self._lets[holder.key] = _Let(now_s, who.key, answer.state)
        self._looked_s = now_s

    def flips(self) -> tuple[Flip, ...]:
        """Locks that do not stand as they should.

        Raises:
            RerailError: As for ``check``.
        """
        now_s, looked_s = self.decider.now(), self._looked_s
        pods: dict[str, list[OurPod]] = {}
        for pod in self.decider.gangs.pods():
            pods.setdefault(pod.group, []).append(pod)
        groups = [group for group in self.decider.gangs.groups() if group.locked]
        for key in self._told.keys() - {group.key for group in groups}:
            del self._told[key]
        found = []
        for group in groups:
            let = self._lets.get(group.key)
            opens = let is not None and looked_s - let.at_s <= LIVE_S
            if not opens and now_s - self._began_s <= LIVE_S:
                continue  # what an earlier process opened may be meant to be so
            wanted = OPEN if opens else LOCKED
            wrong = tuple(
                pod for pod in pods.get(group.key, ()) if pod.alive and not pod.leaving and pod.preemptable != wanted
            )
            if not wrong and group.preemptable == wanted:
                self._told[group.key] = opens
                continue
            news = self._told.get(group.key) != opens
            found.append(
                Flip(
                    group,
                    wrong,
                    opens,
                    let.evictor if let is not None else "",
                    let.why if let is not None and opens else None,
                    news,
                )
            )
        return tuple(found)

    def perform(self, flip: Flip) -> None:
        """Write one lock: open it on the group last, and close it there first, since gang actions look there, too.

        Raises:
            RerailError: The API server does not answer, or a right is missing.
        """
        value = OPEN if flip.opens else LOCKED
        writes: list[tuple[ResourceType, str, str]] = [(PODS, pod.name, pod.uid) for pod in flip.pods]
        whole = (POD_GROUPS, flip.group.name, flip.group.uid)
        for kind, name, uid in [*writes, whole] if flip.opens else [whole, *writes]:
            body = {"metadata": {"uid": uid, "annotations": {PREEMPTABLE: value}}}
            try:
                self.api.patch(kind, name, body, namespace=flip.group.namespace, repeatable=True)
            except (NotFoundError, ConflictError):
                continue  # it went meanwhile, or is another one of that name
        self._told[flip.group.key] = flip.opens

    def _priorities(self) -> Callable[[str], int]:
        """From the name of a PriorityClass to its value; groups that name none have the default."""
        classes = dict(self._classes.values())
        default = next((one.value for one in classes.values() if one.is_default), 0)
        return lambda name: classes[name].value if name in classes else default

    def _waiting(self, now_s: float, priorities: Callable[[str], int]) -> list[Waiting]:
        """Groups that wait for room, with the time since when."""
        groups = {one.key: one for one in self._groups.values() if one is not None}
        for key in self._since.keys() - groups.keys():
            del self._since[key]
        found = []
        for key, one in groups.items():
            since_s = min(self._since.get(key, now_s), one.stamp_s)
            self._since[key] = since_s
            found.append(Waiting(key, one.queue, priorities(one.priority_class), one.wants, since_s))
        return found

    def _holders(self, locked: Mapping[str, OurGroup], priorities: Callable[[str], int]) -> Iterator[Holder]:
        """Locked gangs with a pod that holds something."""
        held: dict[str, list[Amounts]] = {}
        for pod in self.decider.gangs.pods():
            if pod.group in locked and pod.alive and pod.placed:
                held.setdefault(pod.group, []).append(pod.holds)
        for key, amounts in held.items():
            group = locked[key]
            yield Holder(key, group.queue, priorities(group.priority_class), total(amounts))


def _waits(told: Obj) -> _Group | None:
    """A PodGroup that waits for room; None for any other one."""
    group = PodGroup.from_dict(told)
    condition = group.unschedulable
    if not waits_for_room(str(group.phase), None if condition is None else condition.reason or ""):
        return None
    return _Group(
        key=f"{group.metadata.namespace}/{group.name}",
        queue=group.spec.queue or "default",
        priority_class=group.spec.priority_class_name or "",
        wants=_amounts(group.spec.min_resources),
        stamp_s=_seconds(condition.last_transition_time if condition else None),
    )


def _share(told: Obj) -> tuple[str, Share]:
    queue = Queue.from_dict(told)
    share = Share(
        weight=queue.spec.weight or 1,
        reclaimable=queue.spec.reclaimable is not False,
        deserved=_amounts(queue.spec.deserved),
        allocated=_amounts(queue.status.allocated),
    )
    return queue.name, share


def _class(told: Obj) -> tuple[str, _Class]:
    name = str((told.get("metadata") or {}).get("name") or "")
    return name, _Class(int(told.get("value") or 0), bool(told.get("globalDefault")))


def _amounts(given: Mapping[str, object]) -> Amounts:
    """Quantities as numbers; none of them where one cannot be read."""
    try:
        return {name: quantity(value, name) for name, value in given.items()}
    except UsageError:
        return {}


def _seconds(stamp: str | None) -> float:
    """Epoch seconds of a time as Kubernetes writes it; never, where it is none."""
    try:
        return datetime.fromisoformat(stamp or "").timestamp()
    except ValueError:
        return math.inf
