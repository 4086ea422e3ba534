"""The owner of drains: all requests of all slots, one drain per node, and what each healer is told about it."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Self

from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.evict.cluster import grace_of, is_leaving, may_run, name_of
from rerail.plugins.evict.drain import Drain, Drained, GangDrained, belongs_here
from rerail.plugins.evict.find import Place
from rerail.plugins.evict.preevict import TAKEOVER_S
from rerail.plugins.evict.rights import EVICTIONS
from rerail.plugins.evict.slots.ports import Slot
from rerail.plugins.gang.ports import Clock
from rerail.plugins.kube.api import ALL_NAMESPACES, KubeApi
from rerail.plugins.kube.resources import NODES, PODS, ResourceType
from rerail.plugins.nodes.marks import taints
from rerail.policies.drains import Ask, LastDrain, NodeLook, Order, PodThere, Telling, begin, next_step
from rerail.policies.errors import ConflictError, NotFoundError, NotInstalledError, RerailError
from rerail.policies.eviction import REFUSED_FOR_S
from rerail.policies.workloads.attempt import GANG_LABEL

Obj = dict[str, Any]

SAVE_WITHIN_S: Final = 900.0
TICK_S: Final = 1.0
MOST_DRAINS: Final = 32
"""Drains at once; more wait. The healers bound how many nodes they take, and every drain its own time."""

RIGHTS: Final[Mapping[ResourceType, tuple[str, ...]]] = {
    NODES: ("get",),
    PODS: ("list", "watch"),
    EVICTIONS: ("create",),
}
"""The least that any slot needs, in every namespace with gangs."""

_KEEPS_OFF: Final = ("NoSchedule", "NoExecute")


@dataclass(slots=True)
class _Under:
    """A drain of a node, running or over.

    Attributes:
        words: What became of each gang and pod that was to leave, since somebody first asked for the node.
        unsaved: Gangs of them that left without a commit, or did not leave.
    """

    order: Order
    ended_at_s: float | None = None
    words: dict[str, str] = field(default_factory=dict)
    unsaved: set[str] = field(default_factory=set)


@dataclass(slots=True)
class DrainOwner:
    """Looks at all requests again and again; use it in a ``with`` statement.

    Attributes:
        slots: Where requests come from.
        open_store: Opens the stores of a gang's run.
        save_within_s: The most that a gang's commit is waited for, within a slot's deadline.
        log: Takes one line, from any thread.
    """

    api: KubeApi
    slots: Sequence[Slot]
    open_store: Callable[[Place], RunStore]
    save_within_s: float = SAVE_WITHIN_S
    takeover_s: float = TAKEOVER_S
    refused_for_s: float = REFUSED_FOR_S
    clock: Clock = field(default_factory=Clock)
    log: Callable[[str], None] = lambda _line: None
    _nodes: dict[str, tuple[_Under, ...]] = field(default_factory=dict)
    _wanted: dict[str, frozenset[str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _said: dict[str, str] = field(default_factory=dict)
    _leaving: dict[str, dict[str, float]] = field(default_factory=dict)

    def __enter__(self) -> Self:
        for slot in self.slots:
            slot.start(self.api)
        return self

    def __exit__(self, *_: object) -> None:
        for slot in self.slots:
            slot.stop()

    def serve(self, stop: threading.Event) -> None:
        """Pass after pass until ``stop``. Drains under way are left: ranks that were asked leave all the same."""
        while not stop.wait(TICK_S):
            self.advance()

    def advance(self) -> None:
        """One pass: keep notes, begin drains, tell healers."""
        standing: dict[str, list[tuple[Slot, Ask]]] = {}
        for slot in self.slots:
            for ask in self._asks(slot):
                standing.setdefault(ask.node, []).append((slot, ask))
        for node in self._nodes.keys() - standing.keys():
            if all(one.ended_at_s is not None for one in self._nodes[node]):
                del self._nodes[node]  # the next request for it is another matter
        for node in self._leaving.keys() - standing.keys():
            del self._leaving[node]
        for node, asked in standing.items():
            if not all(_is_done(ask) for _, ask in asked):
                self._tried(node, partial(self._advance, node, asked))

    def busy(self) -> bool:
        """Whether a drain runs."""
        return any(one.ended_at_s is None for drains in self._nodes.values() for one in drains)

    def _asks(self, slot: Slot) -> tuple[Ask, ...]:
        found: list[tuple[Ask, ...]] = []
        self._tried(slot.name, lambda: found.append(slot.asks()))
        if not found:
            return ()  # no answer withdraws nothing
        self._wanted[slot.name] = frozenset(ask.node for ask in found[0])
        return found[0]

    def _tried(self, about: str, what: Callable[[], object]) -> None:
        """What fails is said once, and tried again in the next pass: nothing is decided without an answer."""
        try:
            what()
        except RerailError as error:
            if isinstance(error, (ConflictError, NotFoundError)) and not isinstance(error, NotInstalledError):
                return  # it changed or went: the watch tells
            if self._said.get(about) != str(error):
                self._said[about] = str(error)
                self.log(f"{about}: {error}; trying again")
        else:
            self._said.pop(about, None)

    def _advance(self, node: str, asked: Sequence[tuple[Slot, Ask]]) -> None:
        look, boot_id = self._look(node)
        noted: dict[str, tuple[Slot, Ask]] = {}
        for slot, ask in asked:
            key = f"{slot.name}:{ask.id}"
            known = ask
            if ask.note is None and not _is_done(ask):
                note = begin(look.now_s, slot.deadline_s, boot_id=boot_id)
                slot.keep(ask, note)
                known = ask.model_copy(update={"note": note})
                self.log(f"{slot.name}: node {node} is to be emptied within {slot.deadline_s:g} s: {ask.why}")
            noted[key] = (slot, known.model_copy(update={"id": key}))
        step = next_step([ask for _, ask in noted.values()], look, save_within_s=self.save_within_s)
        if step.drain is not None:
            why = "; ".join(dict.fromkeys(f"{slot.name}: {ask.why}" for slot, ask in noted.values()))
            self._begin(node, step.drain, why)
        for key, telling in step.tell.items():
            slot, ask = noted[key]
            own = ask.model_copy(update={"id": key.removeprefix(f"{slot.name}:")})
            self._tried(f"{slot.name} {node}", partial(self._tell, slot, own, telling))

    def _tell(self, slot: Slot, ask: Ask, telling: Telling) -> None:
        slot.tell(ask, telling)
        self.log(f"{slot.name}: node {ask.node}: {telling.reason}: {telling.message}")

    def _look(self, node: str) -> tuple[NodeLook, str]:
        now_s = self.clock.wall_s()
        try:
            found = self.api.get(NODES, node)
        except NotFoundError:
            return NodeLook(now_s=now_s, exists=False), ""
        pods = self.api.list(PODS, namespace=ALL_NAMESPACES, fields=f"spec.nodeName={node}").items
        boot_id = str(((found.get("status") or {}).get("nodeInfo") or {}).get("bootID") or "")
        there = self._there(node, [pod for pod in pods if may_run(pod) and not belongs_here(pod)], now_s)
        return NodeLook(
            now_s=now_s, fenced=is_fenced(found), pods=there, last=self._last(self._nodes.get(node, ()))
        ), boot_id

    def _there(self, node: str, pods: Sequence[Obj], now_s: float) -> tuple[PodThere, ...]:
        """The pods as the decision sees them. A grace counts from when it was seen, by our clock and no other's."""
        seen_s = self._leaving.get(node, {})
        leaving = {str(pod["metadata"]["uid"]): pod for pod in pods if is_leaving(pod)}
        self._leaving[node] = {uid: seen_s.get(uid, now_s) for uid in leaving}
        ends_s = {uid: self._leaving[node][uid] + _grace_s(pod) for uid, pod in leaving.items()}
        return tuple(
            PodThere(
                name=name_of(pod),
                training=GANG_LABEL in (pod["metadata"].get("labels") or {}),
                deleted_at_s=ends_s.get(str(pod["metadata"]["uid"])),
            )
            for pod in pods
        )

    def _last(self, drains: Sequence[_Under]) -> LastDrain | None:
        """All drains of a node as one: a second one runs where somebody waits less long."""
        if not drains:
            return None
        with self._lock:
            running = [one for one in drains if one.ended_at_s is None]
            ends = [one.ended_at_s for one in drains if one.ended_at_s is not None]
            newest = drains[-1]
            return LastDrain(
                pods=newest.order.pods,
                deadline_at_s=min(one.order.deadline_at_s for one in running or drains),
                ended_at_s=None if running else max(ends),
                words=tuple(newest.words.values()),
                saved=not newest.unsaved,
            )

    def _begin(self, node: str, order: Order, why: str) -> None:
        running = sum(one.ended_at_s is None for drains in self._nodes.values() for one in drains)
        if running >= MOST_DRAINS:
            self.log(f"node {node} waits: {running} drains run")
            return
        before = self._nodes.get(node, ())
        under = _Under(order)
        for one in before[-1:]:
            under.words |= one.words
            under.unsaved |= one.unsaved
        self._nodes[node] = (*(one for one in before if one.ended_at_s is None), under)
        chosen = frozenset(order.pods)
        drain = Drain(
            self.api,
            node,
            order.within_s,
            self.open_store,
            force=True,
            cordon=False,
            chosen=lambda pod: name_of(pod) in chosen,
            regardless=order.regardless,
            reason=f"node {node} is to be repaired ({why})"[:300],
            wanted=lambda: any(node in nodes for nodes in self._wanted.values()),
            takeover_s=self.takeover_s,
            refused_for_s=self.refused_for_s,
            clock=self.clock,
            log=lambda line: self.log(f"node {node}: {line}"),
        )
        threading.Thread(target=self._drain, args=(drain, under), name=f"rerail-drain-{node}", daemon=True).start()

    def _drain(self, drain: Drain, under: _Under) -> None:
        words = {"": "the drain broke, see the log"}
        unsaved: set[str] = set()
        try:
            drained = drain.perform()
            words = words_of(drained)
            unsaved = {_gang(one) for one in drained.gangs if not _is_saved(one)}
        except RerailError as error:
            words = {"": str(error)}
        finally:
            with self._lock:
                under.words.pop("", None)
                under.words |= words
                under.unsaved = (under.unsaved - words.keys()) | unsaved
                under.ended_at_s = self.clock.wall_s()


def words_of(drained: Drained) -> dict[str, str]:
    """What became of each gang, and of pods that stay, for people."""
    return {_gang(one): _of_gang(one) for one in drained.gangs} | {
        stay.pod: f"{stay.pod}: {stay.why}" for stay in drained.stays
    }


def _gang(one: GangDrained) -> str:
    return f"gang {one.namespace}/{one.gang}"


def _is_saved(one: GangDrained) -> bool:
    return one.eviction.outcome == "committed" if one.eviction else not one.error


def _of_gang(one: GangDrained) -> str:
    if one.eviction is None:
        return f"{_gang(one)}: {one.error or 'its pods were of an older attempt'}"
    if one.eviction.outcome == "committed":
        why = f" ({one.eviction.why})" if one.eviction.left else ""
        return f"{_gang(one)} saved step {one.eviction.step} and left{why}"
    return f"{_gang(one)} goes on from step {one.eviction.step}: {one.eviction.why}"


def _is_done(ask: Ask) -> bool:
    return ask.told is not None and ask.told.done


def is_fenced(node: Obj) -> bool:
    """Whether the healer, or anybody, keeps new work off the node."""
    if (node.get("spec") or {}).get("unschedulable"):
        return True
    return any(taint.get("effect") in _KEEPS_OFF for taint in taints(node))


def _grace_s(pod: Obj) -> float:
    given = pod["metadata"].get("deletionGracePeriodSeconds")
    return grace_of((pod,)) if given is None else float(given)
