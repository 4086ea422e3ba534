"""Nodes of a cluster: what fits on them, what they say about their accelerators, and Rerail's marks on them.

Looking costs no request: one watch of the nodes (and one of bound pods, where ``free`` is wanted) keeps what is known.
Each list has a selector, and is made when the watch begins, long before a fault.
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from threading import Lock
from typing import Any, Final, Self

from rerail.plugins.kube.api import ALL_NAMESPACES, KubeApi, Obj
from rerail.plugins.kube.cache import Cache
from rerail.plugins.kube.resources import NODES, PODS
from rerail.plugins.kube.watch import Change
from rerail.plugins.nodes import fit
from rerail.plugins.nodes.history import SignalHistory
from rerail.plugins.nodes.local import INCIDENTS
from rerail.plugins.nodes.marks import annotations, marked, offences_of, released, released_at_s
from rerail.policies.catalog import load_announcements, load_conditions
from rerail.policies.errors import (
    ClusterUnreachableError,
    ConflictError,
    NotFoundError,
    RefusedError,
    TransientError,
)
from rerail.policies.faults import FaultSignal
from rerail.policies.faults.conditions import ConditionTable
from rerail.policies.faults.maintenance import read_announcement
from rerail.policies.offenders import Offence, why_not_released
from rerail.policies.supervisor.observations import NodeView

LINUX: Final[Mapping[str, str]] = {"kubernetes.io/os": "linux"}
"""Part of every selector: nodes of other systems run no rank, and no list goes without a selector."""

HOSTNAME: Final = "kubernetes.io/hostname"

BOUND: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"

_TRIES: Final = 8
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 1.0
_KNOWN_NAMED: Final = 10
_UNREADABLE: Final = f"annotation {INCIDENTS} cannot be read"


@dataclass(frozen=True, slots=True)
class _Known:
    """A node as it was last told, with what does not change until it is told again.

    Attributes:
        node: The object, without what nobody here reads.
        view: As if no pod of others were there.
        ours: Whether it is a node for this run at all.
        readable: Whether its notes are.
    """

    node: Obj
    view: NodeView
    ours: bool
    readable: bool


class KubeNodes:
    """The nodes that match a selector, for the gangs of one run. ``close`` it, or use it in a ``with`` statement.

    Safe for use by several threads, and beside any number of others who mark the same nodes.

    Args:
        api: The API server.
        resource: What each pod asks for, for example ``nvidia.com/gpu``; None for pods that ask no device.
        per_pod: How many of it one pod asks for.
        ranks_per_pod: Ranks that one pod runs.
        tolerations: The pods' own, as in their spec.
        node_selector: The pods' own; nodes that do not match are not there.
        count_pods: Watch the pods of all namespaces, so that ``free`` is known; where a scheduler queues, slots do.
        table: Which conditions tell of faults; the packaged one by default.
        wall_s: Epoch seconds, for the notes on nodes.
        log: Takes one line about each thing that is not allowed or cannot be read, once.

    Attributes:
        on_signal: Called, in the watch's thread, once a node told of a fault that was not known, or took one back.
    """

    def __init__(
        self,
        api: KubeApi,
        *,
        resource: str | None = "nvidia.com/gpu",
        per_pod: int = 1,
        ranks_per_pod: int = 1,
        tolerations: Sequence[Mapping[str, Any]] = (),
        node_selector: Mapping[str, str] | None = None,
        count_pods: bool = True,
        table: ConditionTable | None = None,
        wall_s: Callable[[], float] = time.time,
        log: Callable[[str], object] = lambda _line: None,
    ) -> None:
        self._api = api
        self._resource, self._per_pod, self._ranks_per_pod = resource, per_pod, ranks_per_pod
        self._tolerations = tuple(tolerations)
        self._wall_s = wall_s
        self._log = log
        self.on_signal: Callable[[], object] = lambda: None
        self._said: set[str] = set()
        self._gone: set[str] = set()
        self._history = SignalHistory(table or load_conditions())
        self._history_lock = Lock()
        self._nodes: Cache[_Known] = Cache(
            api, NODES, keep=self._know, labels={**LINUX, **(node_selector or {})}, on_change=self._look
        )
        self._pods: Cache[tuple[str, Decimal]] | None = None
        if count_pods:
            self._pods = Cache(
                api, PODS, keep=lambda pod: fit.held(pod, resource), namespace=ALL_NAMESPACES, fields=BOUND
            )

    def start(self) -> None:
        """Begin to watch, so that the first list is made before it is waited for."""
        self._nodes.start()
        if self._pods is not None:
            self._pods.start()

    def close(self) -> None:
        """End the watches."""
        self._nodes.stop()
        if self._pods is not None:
            self._pods.stop()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def views(self) -> tuple[NodeView, ...] | None:
        """Every node for this run with its slots, by name; None where we may not look at nodes.

        A node without the resource is none for this run, nor is one of the control plane that its pods do not go to.

        Raises:
            TransientError: The API server does not answer.
        """
        try:
            nodes = self._nodes.values()
        except RefusedError as error:
            self._say("nodes", f"nodes cannot be looked at, so capacity and faults of nodes are not known: {error}")
            return None
        used = self._used()
        ours = sorted((known for known in nodes if known.ours), key=lambda known: known.view.name)
        for known in ours:
            if not known.readable:
                self._say(f"notes {known.view.name}", f"node {known.view.name}: {_UNREADABLE}, and is not counted")
        return tuple(self._beside(known, used.get(known.view.name)) for known in ours)

    def mark(self, node: str, incident: str, reason: str, *, device: str = "") -> None:
        """Taint the node for an incident and note it, in one patch, once: also an incident that was released later.

        Raises:
            TransientError: The API server does not answer, or the node changed at every try.
            NotFoundError: There is no such node.
            RefusedError: Names the right that is missing.
        """
        offence = Offence(incident=incident, device=device, reason=reason, at_s=self._wall_s())
        self._change(node, lambda found: marked(found, offence), self._node(node))

    def release(self, node: str, *, by: str = "") -> None:
        """Take the quarantine off a node; what happened to it stays noted. Taints of others stay.

        Args:
            node: The node.
            by: The person in whose name a repeat offender is released, once its device was replaced.

        Raises:
            RefusedError: A device of the node failed so often that only a person may release it, or its notes cannot
                be read; or a right is missing.
            NotFoundError: There is no such node.
            TransientError: The API server does not answer, or the node changed at every try.
        """

        def untaint(found: Obj) -> Obj:
            now_s = self._wall_s()
            history = offences_of(found)
            why = f"{_UNREADABLE}; look at it, then release the node in a person's name"
            if history is not None:
                why = why_not_released(history, now_s=now_s)
            if why and not by:
                raise RefusedError(f"node {node!r} is not released: {why}")
            return released(found, at_s=now_s, by=by)

        self._change(node, untaint, None)

    def signals(self) -> tuple[FaultSignal, ...]:
        """Every fault that conditions told of since we look, oldest first, and what took them back.

        Raises:
            TransientError: The API server does not answer.
        """
        try:
            self._nodes.check()
        except RefusedError:
            return ()
        with self._history_lock:
            return self._history.signals()

    def ready(self, node: str) -> bool | None:
        """Whether a node reports; False also where it is gone, None where nobody may look or nothing is known yet.

        A node that no longer matches the selector is not gone: what is not watched is asked for.
        """
        try:
            self._nodes.check()
            found = self._node(node)
            if found is None and node not in self._gone:
                found = self._api.get(NODES, node)
        except NotFoundError:
            self._gone.add(node)
            return False
        except (RefusedError, TransientError):
            return None
        if found is None:
            return False
        self._gone.discard(node)
        return not fit.why_not_ready(found)

    def hostnames(self, nodes: Collection[str]) -> dict[str, str]:
        """The label ``kubernetes.io/hostname`` of nodes, by name; a node that is not known is left out."""
        found = {}
        for name in nodes:
            labels = ((self._node(name) or {}).get("metadata") or {}).get("labels") or {}
            if HOSTNAME in labels:
                found[name] = str(labels[HOSTNAME])
        return found

    def _look(self, change: Change, node: Obj) -> None:
        if change != "deleted":
            with self._history_lock:
                news = self._history.read(node, read_at_s=self._wall_s())
            if news:
                self.on_signal()

    def _used(self) -> Mapping[str, Decimal]:
        """What bound pods hold of the resource, by node; nothing where we may not look."""
        used: dict[str, Decimal] = {}
        if self._pods is None:
            return used
        try:
            pods = self._pods.values()
        except RefusedError as error:
            self._say("pods", f"pods of all namespaces cannot be looked at, so every slot counts as free: {error}")
            return used
        for node, amount in pods:
            used[node] = used.get(node, Decimal(0)) + amount
        return used

    def _know(self, told: Obj) -> _Known:
        node = _slim(told)
        offences = offences_of(node)
        slots = fit.slots(node, self._resource, self._per_pod, self._ranks_per_pod)
        why = fit.why_not_usable(node, self._tolerations)
        view = NodeView(
            name=_name(node),
            slots=slots,
            free=slots,
            usable=not why,
            why=why,
            offences=offences or (),
            leaves=read_announcement(node, load_announcements()),
            released_at_s=released_at_s(node),
        )
        ours = fit.has(node, self._resource) and not fit.is_for_others(node, self._tolerations)
        return _Known(node, view, ours=ours, readable=offences is not None)

    def _beside(self, known: _Known, used: Decimal | None) -> NodeView:
        """The view of a node beside what is used there."""
        if not used:
            return known.view
        free = fit.slots(known.node, self._resource, self._per_pod, self._ranks_per_pod, used)
        return known.view.model_copy(update={"free": free})

    def _node(self, name: str) -> Obj | None:
        known = self._nodes.get(name)
        return None if known is None else known.node

    def _change(self, name: str, change: Callable[[Obj], Obj | None], found: Obj | None) -> None:
        """Patch a node for the state that was read; where it changed meanwhile, read it again and decide anew."""
        for number in range(_TRIES):
            try:
                state = found if found is not None else self._api.get(NODES, name)
                patch = change(state)
                if patch is None:
                    return
                # Twice is once: the second finds another resourceVersion, and then the incident.
                self._nodes.take(self._api.patch(NODES, name, patch, kind="merge", repeatable=True))
            except ConflictError:
                found = None
                pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0**number)
                self._api.sleep(pause_s * (0.5 + self._api.jitter() / 2))
            except NotFoundError as error:
                raise NotFoundError(f"node {name!r} is not in the cluster ({self._known()})") from error
            else:
                return
        raise ClusterUnreachableError(f"node {name!r} changed between reading and writing {_TRIES} times; try again")

    def _known(self) -> str:
        try:
            names = sorted(known.view.name for known in self._nodes.values())
        except (RefusedError, ClusterUnreachableError):
            return "its nodes cannot be listed now"
        more = f" and {len(names) - _KNOWN_NAMED} more" if len(names) > _KNOWN_NAMED else ""
        return f"known: {', '.join(names[:_KNOWN_NAMED]) or 'none'}{more}"

    def _say(self, about: str, line: str) -> None:
        if about not in self._said:
            self._said.add(about)
            self._log(line)


def _name(node: Mapping[str, Any]) -> str:
    return str((node.get("metadata") or {}).get("name") or "")


def _slim(node: Obj) -> Obj:
    """A node without what nobody here reads: the lists of images and field owners are most of it."""
    metadata = {key: value for key, value in (node.get("metadata") or {}).items() if key != "managedFields"}
    status = {key: value for key, value in (node.get("status") or {}).items() if key != "images"}
    return {**node, "metadata": {**metadata, "annotations": annotations(node)}, "status": status}
