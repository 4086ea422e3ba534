"""Nodes that are folders: this machine, cut into pieces that can be marked and can fail one by one.

<nodes>/<name>/node.json   {"slots": 2, "unschedulable": false, "taints": {}, "annotations": {}}
               kern.log    the node's kernel log; every fault line in it becomes a signal
"""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field, ValidationError

from rerail.plugins.faults.kernlog import read_lines
from rerail.policies.documents import Value
from rerail.policies.errors import NotFoundError, RefusedError, TransientError, UsageError
from rerail.policies.faults import FaultSignal
from rerail.policies.offenders import Offence, why_not_released
from rerail.policies.supervisor.observations import NodeView

QUARANTINED = "rerail.dev/quarantined"
INCIDENT = "rerail.dev/incident"
INCIDENTS = "rerail.dev/incidents"

_LOCK_WAIT_S = 2.0


class NodeFile(Value):
    """``node.json``.

    Attributes:
        slots: Ranks that fit on the node.
        unschedulable: A person keeps new work off it.
        taints: Reason by taint; any taint keeps new work off, and none ends what runs.
        annotations: Notes; ``rerail.dev/incidents`` lists every incident that ever marked it.
        offences: The same with device and time, for the rules about faults that come back.
        released_at_s: When the quarantine was last taken off, epoch seconds.
    """

    slots: int = Field(ge=0)
    unschedulable: bool = False
    taints: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    offences: tuple[Offence, ...] = ()
    released_at_s: float | None = None


@dataclass(slots=True)
class LocalNodes:
    """All nodes below one folder. Changes are made under a lock of the node's own, and replace the file whole.

    Attributes:
        folder: Holds one folder per node.
        used: Tells how many slots of each node are taken.
    """

    folder: Path
    used: Callable[[], Mapping[str, int]] = dict
    clock: Callable[[], float] = time.monotonic
    wall_s: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    _read_to: dict[str, tuple[int, int]] = field(default_factory=dict)
    _signals: dict[str, list[FaultSignal]] = field(default_factory=dict)

    def add(self, name: str, slots: int) -> None:
        """Make a node, or leave the one that is there as it is, marks included."""
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        with self._locked(folder):
            if not (folder / "node.json").exists():
                _write(folder, NodeFile(slots=slots))

    def names(self) -> list[str]:
        """All nodes, in order."""
        if not self.folder.is_dir():
            return []
        return sorted(path.parent.name for path in self.folder.glob("*/node.json"))

    def read(self, name: str) -> NodeFile:
        """One node.

        Raises:
            NotFoundError: There is none of that name.
            UsageError: Its file cannot be read as a node.
        """
        path = self.folder / name / "node.json"
        try:
            return NodeFile.model_validate_json(path.read_bytes())
        except FileNotFoundError:
            known = ", ".join(self.names()) or "none"
            raise NotFoundError(f"node {name!r} is not in {self.folder} (known: {known})") from None
        except ValidationError as error:
            raise UsageError(f"{path}: {error.errors()[0]['msg']}; write it like {{'slots': 2}}") from None

    def update(self, name: str, change: Callable[[NodeFile], NodeFile]) -> NodeFile:
        """Change one node under its lock; returns it as it stands afterwards.

        Raises:
            TransientError: Somebody holds the lock.
            NotFoundError: There is no such node.
        """
        self.read(name)
        with self._locked(self.folder / name):
            after = change(self.read(name))
            _write(self.folder / name, after)
        return after

    def mark(self, node: str, incident: str, reason: str, *, device: str = "") -> None:
        """Taint the node for an incident, once: an incident that was released later is not marked again."""
        noted = Offence(incident=incident, device=device, reason=reason, at_s=self.wall_s())

        def taint(before: NodeFile) -> NodeFile:
            known: list[str] = json.loads(before.annotations.get(INCIDENTS, "[]"))
            if incident in known:
                return before
            return before.model_copy(
                update={
                    "taints": before.taints | {QUARANTINED: reason},
                    "annotations": before.annotations | {INCIDENT: incident, INCIDENTS: json.dumps([*known, incident])},
                    "offences": (*before.offences, noted),
                }
            )

        self.update(node, taint)

    def release(self, node: str, *, by: str = "") -> None:
        """Take the quarantine off a node; what happened to it stays noted.

        Args:
            node: The node.
            by: The person in whose name a repeat offender is released, once its device was replaced.

        Raises:
            RefusedError: A device of the node failed so often that only a person may release it.
            NotFoundError: There is no such node.
        """

        def untaint(before: NodeFile) -> NodeFile:
            now_s = self.wall_s()
            why = "" if by else why_not_released(before.offences, now_s=now_s)
            if why:
                raise RefusedError(f"node {node!r} is not released: {why}")
            kept = {key: value for key, value in before.taints.items() if key != QUARANTINED}
            notes = {key: value for key, value in before.annotations.items() if key != INCIDENT}
            return before.model_copy(update={"taints": kept, "annotations": notes, "released_at_s": now_s})

        self.update(node, untaint)

    def views(self) -> tuple[NodeView, ...]:
        """Every node with its free slots."""
        taken = self.used()
        found: list[NodeView] = []
        for name in self.names():
            node = self.read(name)
            why = "unschedulable" if node.unschedulable else "; ".join(f"{k}: {v}" for k, v in node.taints.items())
            free = max(0, node.slots - taken.get(name, 0))
            found.append(
                NodeView(
                    name=name,
                    slots=node.slots,
                    free=free,
                    usable=not why,
                    why=why,
                    offences=node.offences,
                    released_at_s=node.released_at_s,
                )
            )
        return tuple(found)

    def signals(self) -> tuple[FaultSignal, ...]:
        """Every fault in every node's kernel log so far, by node and then by place in the log."""
        for name in self.names():
            self._tail(name)
        return tuple(signal for name in sorted(self._signals) for signal in self._signals[name])

    def _tail(self, name: str) -> None:
        """Read what was added to one node's log. The file is closed in between, so nobody need close this object."""
        path = self.folder / name / "kern.log"
        try:
            with path.open("rb") as file:
                status = os.fstat(file.fileno())
                inode, start = self._read_to.get(name, (status.st_ino, 0))
                if inode != status.st_ino or status.st_size < start:
                    start = 0  # rotated or truncated; what stood in it stays known
                file.seek(start)
                data = file.read()
        except FileNotFoundError:
            return
        whole = data.rfind(b"\n") + 1
        self._read_to[name] = (status.st_ino, start + whole)
        if whole:
            found = read_lines(data[:whole], node=name, path=str(path), offset=start)
            self._signals.setdefault(name, []).extend(found)

    @contextmanager
    def _locked(self, folder: Path) -> Iterator[None]:
        handle = os.open(folder / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
        try:
            deadline = self.clock() + _LOCK_WAIT_S
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if self.clock() > deadline:
                        raise TransientError(f"{folder / 'lock'} is held by another process") from None
                    self.sleep(0.01)
                else:
                    break
            yield
        finally:
            os.close(handle)


def _write(folder: Path, node: NodeFile) -> None:
    temporary = folder / f".node.json.{os.getpid()}"
    temporary.write_text(node.model_dump_json(indent=1), encoding="utf-8")
    temporary.replace(folder / "node.json")
