"""ACK's node repair with approval: the label ``alibabacloud.com/node-needrepair`` goes from Inquiring to Approved.

ACK taints the node ``alibabacloud.com/node-needrepair=Unschedulable:NoSchedule`` five minutes after the fault. In a
node pool that asks before it repairs, it then sets the label to ``Inquiring`` and waits, without a limit that its
manual names. With ``Approved`` it drains what is left (30 minutes at most, and it goes on where that fails), reboots or
sends for repair, checks, and takes the taint off. So only training gangs are ours to move. A person may answer before
us, by ``Approved`` or by deleting the label: then this request is over.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rerail.plugins.evict.slots.ports import Obj, SlotOptions, options_of
from rerail.plugins.kube.api import KubeApi
from rerail.plugins.kube.cache import Cache
from rerail.plugins.kube.resources import NODES, ResourceType
from rerail.plugins.kube.watch import Change
from rerail.policies.drains import Ask, DrainNote, Telling
from rerail.policies.errors import ConflictError, NotFoundError

NAME: Final = "ack"
LABEL: Final = "alibabacloud.com/node-needrepair"
ASKS: Final = "Inquiring"
APPROVED: Final = "Approved"
NOTE: Final = "rerail.dev/drain-for-ack"


class AckOptions(SlotOptions):
    """Options of the slot; none of its own."""


@dataclass(slots=True)
class AckSlot:
    """The port ``Slot`` on the label of nodes."""

    options: AckOptions
    name: str = NAME
    _api: KubeApi = field(init=False)
    _cache: Cache[Obj] = field(init=False)
    _left: dict[str, None] = field(default_factory=dict)

    @property
    def deadline_s(self) -> float:
        """As the port says."""
        return self.options.deadline_s

    @property
    def rights(self) -> Mapping[ResourceType, tuple[str, ...]]:
        """As the port says."""
        return {NODES: ("get", "list", "watch", "patch")}

    def objects(self, namespace: str) -> tuple[Obj, ...]:
        """None."""
        del namespace
        return ()

    def start(self, api: KubeApi) -> None:
        """Begin to watch."""
        self._api = api
        labels = {LABEL: ASKS}
        self._cache = Cache(api, NODES, keep=lambda node: node, labels=labels, on_change=self._changed)
        self._cache.start()

    def stop(self) -> None:
        """End it."""
        self._cache.stop()

    def asks(self) -> tuple[Ask, ...]:
        """Every node that is inquired about, by name."""
        nodes = self._cache.values()
        self._clean()
        return tuple(ask_of(node) for node in sorted(nodes, key=lambda one: str(one["metadata"]["name"])))

    def keep(self, ask: Ask, note: DrainNote) -> None:
        """Annotate the node."""
        self._patch(self._node(ask), {"annotations": {NOTE: note.text()}})

    def tell(self, ask: Ask, telling: Telling) -> None:
        """Approve; otherwise say on the node why not. One patch, and only of the node that still asks."""
        node = self._node(ask)
        if ask.note is None or (node["metadata"].get("labels") or {}).get(LABEL) != ASKS:
            raise ConflictError(f"node {ask.node!r} is not inquired about any more (label {LABEL})")
        note = ask.note.model_copy(update={"told": telling})
        changed: dict[str, Any] = {"annotations": {NOTE: note.text()}}
        if telling.done:
            changed["labels"] = {LABEL: APPROVED}
        self._patch(node, changed)

    def _node(self, ask: Ask) -> Obj:
        known = self._cache.get(ask.node)
        return known if known is not None else self._api.get(NODES, ask.node)

    def _patch(self, node: Obj, changed: dict[str, Any]) -> None:
        metadata = node["metadata"]
        body = {"metadata": {"resourceVersion": metadata["resourceVersion"], "uid": metadata["uid"], **changed}}
        self._cache.take(self._api.patch(NODES, str(metadata["name"]), body, kind="merge", repeatable=True))

    def _changed(self, change: Change, node: Obj) -> None:
        if change == "deleted":
            self._left[str(node["metadata"]["name"])] = None

    def _clean(self) -> None:
        """Take our note off nodes that somebody else answered for: the next inquiry is another one."""
        for name in list(self._left):
            try:
                node = self._api.get(NODES, name)
                labels = node["metadata"].get("labels") or {}
                note = DrainNote.of((node["metadata"].get("annotations") or {}).get(NOTE))
                if labels.get(LABEL) != ASKS and note is not None and not _is_done(note):
                    self._patch(node, {"annotations": {NOTE: None}})
            except NotFoundError:
                pass
            except ConflictError:
                continue
            self._left.pop(name, None)


def make(given: Mapping[str, str]) -> AckSlot:
    """The slot, from ``--set ack.NAME=VALUE``.

    Raises:
        UsageError: An option is not known or cannot be used.
    """
    return AckSlot(options_of(AckOptions, NAME, given))


def ask_of(node: Obj) -> Ask:
    """A request as its node says it.

    A note of an inquiry that was approved, or of another boot, belongs to an earlier one.
    """
    metadata = node["metadata"]
    boot_id = str(((node.get("status") or {}).get("nodeInfo") or {}).get("bootID") or "")
    note = DrainNote.of((metadata.get("annotations") or {}).get(NOTE))
    if note is not None and (_is_done(note) or note.boot_id != boot_id):
        note = None
    return Ask(
        id=f"{metadata['name']}#{metadata['uid']}",
        node=str(metadata["name"]),
        why=f"ACK asks to repair it ({', '.join(_faults(node)) or 'no condition says why'})",
        note=note,
        told=None if note is None else note.told,
    )


def _is_done(note: DrainNote) -> bool:
    return note.told is not None and note.told.done


def _faults(node: Obj) -> list[str]:
    """ACK's own conditions: True is a fault."""
    conditions = [one for one in (node.get("status") or {}).get("conditions") or () if one.get("status") == "True"]
    return [str(one["type"]) for one in conditions if str(one.get("type")).startswith("Nvidia")]
