"""What a drill may touch: the folders of one run, its processes, its kernel logs and its store.

Faults are real: signals to real processes, lines in real files, bytes changed in the real store. Processes are found by
the run's own environment, never by name, so a drill can only hit what it started.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rerail.plugins.checkpoint.commit import read_manifest
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.drill.relay import Relays
from rerail.plugins.gang.ledger import newest_entry
from rerail.plugins.nodes.local import LocalNodes
from rerail.policies import keys
from rerail.policies.errors import RerailError, SaveFailedError
from rerail.policies.manifest import Manifest
from rerail.policies.supervisor.state import RunState

_LOOK_EVERY_S = 0.01
_TAIL_BYTES = 8192

PCI = ("0000:3b:00", "0000:86:00")
"""Addresses of the GPUs of every node, by slot."""


class DrillTimeoutError(SaveFailedError):
    """What a drill waited for did not happen; the drill fails and says what it was."""

    headline = "Drill timed out"


@dataclass(frozen=True)
class Folders:
    """The layout below ``--keep DIR/<scenario>``."""

    root: Path

    @property
    def store(self) -> Path:
        """Checkpoints and control documents."""
        return self.root / "store"

    @property
    def control(self) -> Path:
        """Control documents, where a drill keeps them apart from the checkpoints."""
        return self.root / "control"

    @property
    def nodes(self) -> Path:
        """One folder per local node, with its kernel log."""
        return self.root / "nodes"

    @property
    def logs(self) -> Path:
        """``<attempt>/<rank>.log``."""
        return self.root / "logs"

    @property
    def trace(self) -> Path:
        """What every rank did in every step, bit for bit."""
        return self.root / "trace"

    @property
    def pods(self) -> Path:
        """The local backend's own state."""
        return self.root / "pods"

    @property
    def baseline(self) -> Path:
        """The uninterrupted run of the same seed, in the same layout."""
        return self.root / "baseline"


def trace_lines(folder: Path, attempt: int, rank: int) -> Iterator[dict[str, object]]:
    """The whole lines of one rank's trace of one attempt; a line cut off by a kill is no line."""
    path = folder / f"trace-a{attempt}-r{rank}.jsonl"
    if not path.exists():
        return
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True):
        if line.endswith("\n"):
            yield json.loads(line)


def newest_step(trace: Path, *, rank: int = 0) -> int:
    """The newest step that ``rank`` finished in any attempt; 0 before the first."""
    return max((_last_step(path) for path in trace.glob(f"trace-a*-r{rank}.jsonl")), default=0)


def _last_step(path: Path) -> int:
    """The step of the last whole line; only the file's end is read, since this is asked many times a second."""
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _TAIL_BYTES))
        lines = file.read().rsplit(b"\n", maxsplit=2)
    return int(json.loads(lines[-2])["step"]) if len(lines) > 1 else 0


@dataclass
class World:
    """One running drill, as the injector sees it.

    Attributes:
        nodes: The nodes, to look at, to release and to cordon.
        relays: Between the nodes, where the drill asked for them.
        faults: Wall-clock times, epoch seconds, at which a fault took effect, in order.
        notes: What was done to the world, in words for the report.
        within_s: Bound of every wait.
        over: Set when the run has ended, so that an injector that still waits gives up.
        failed: Why the fault could not be injected, or the run not driven; the drill fails with it.
    """

    run: RunStore
    folders: Folders
    nodes: LocalNodes
    relays: Relays
    within_s: float = 90.0
    faults: list[float] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    failed: str | None = None

    def wait_for(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait until ``condition`` holds.

        Raises:
            DrillTimeoutError: It did not within ``within_s``, or the run ended first.
        """
        deadline_s = time.monotonic() + self.within_s
        while not condition():
            if self.over.is_set():
                raise DrillTimeoutError(f"the run ended before {what}")
            if time.monotonic() > deadline_s:
                raise DrillTimeoutError(f"waited {self.within_s:g} s for {what}")
            time.sleep(_LOOK_EVERY_S)

    def last_step(self, *, rank: int = 0) -> int:
        """The newest step that ``rank`` finished in any attempt."""
        return newest_step(self.folders.trace, rank=rank)

    def wait_step(self, step: int) -> None:
        """Wait until rank 0 finished ``step``."""
        self.wait_for(f"step {step}", lambda: self.last_step() >= step)

    def wait_commit(self, step: int) -> Manifest:
        """Wait for the first commit at ``step`` or later and return it."""
        found: list[keys.CommitKey] = []

        def there() -> bool:
            found[:] = [commit for commit in self.commits() if commit.step is not None and commit.step >= step]
            return bool(found)

        self.wait_for(f"a commit at step {step} or later", there)
        oldest = min(found, key=lambda commit: (commit.attempt, commit.step or 0))
        return read_manifest(self.run, oldest.attempt, oldest.step or 0)

    def commits(self) -> list[keys.CommitKey]:
        """All manifests by their keys, newest first."""
        entries = self.run.control.page(keys.COMMITS).entries
        parsed = (keys.parse_commit(entry.key) for entry in entries)
        return [commit for commit in parsed if commit is not None and commit.kind == "manifest"]

    def fault(self, note: str) -> None:
        """Write down that a fault took effect now."""
        self.faults.append(time.time())
        self.notes.append(note)

    def processes(self, **wanted: str) -> dict[int, dict[str, str]]:
        """This run's processes whose environment has all of ``wanted``: that environment by process id."""
        pairs = {**wanted, "RERAIL_RUN": self.run.run, "RERAIL_STORE": self.folders.store.as_uri()}
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                text = (entry / "environ").read_bytes().decode(errors="replace")
            except OSError:
                continue  # it ended, or it is somebody else's
            environment = dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)
            if pairs.items() <= environment.items():
                found[int(entry.name)] = environment
        return found

    def kill_rank(self, rank: int, *, note: str) -> None:
        """SIGKILL the process of ``rank``, and say so."""
        self._signal(self.processes(RANK=str(rank)), signal.SIGKILL)
        self.fault(note)

    def kill(self, pid: int, *, note: str) -> None:
        """SIGKILL one process that was found before, and say so."""
        self._signal((pid,), signal.SIGKILL)
        self.fault(note)

    def kill_node(self, node: str, *, note: str) -> None:
        """SIGKILL every process of ``node``: launch and ranks, without a farewell."""
        self._signal(self.processes(RERAIL_NODE=node), signal.SIGKILL)
        self.fault(note)

    def terminate_gang(self, *, note: str) -> None:
        """SIGTERM to every launch of the run, as an eviction does."""
        launches = [pid for pid, environment in self.processes().items() if "RANK" not in environment]
        self._signal(launches, signal.SIGTERM)
        self.fault(note)

    def _signal(self, pids: Iterable[int], number: signal.Signals) -> None:
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def kernel_lines(self, node: str, *texts: str, at_s: float | None = None, ahead_s: Sequence[float] = ()) -> None:
        """Append lines to the kernel log of ``node`` in one write, stamped as the kernel does.

        Args:
            node: Whose log.
            texts: The lines without their stamp.
            at_s: When the kernel wrote them, epoch seconds; now where it is not given.
            ahead_s: How far each line's stamp lies after that, seconds; nothing where it is not given.
        """
        now_s = time.time() if at_s is None else at_s
        lines = []
        for index, text in enumerate(texts):
            line_s = now_s + (ahead_s[index] if ahead_s else 0.0)
            stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(line_s)) + f".{int(line_s % 1 * 1e6):06d}+00:00"
            lines.append(f"{stamp} {node} kernel: {text}\n")
        with (self.folders.nodes / node / "kern.log").open("a", encoding="utf-8") as log:
            log.write("".join(lines))
        self.notes += [f"kernel log of {node}: {text}" for text in texts]

    def place_of(self, rank: int) -> tuple[str, str, int]:
        """Where ``rank`` runs: its node, its GPU's address and its process id.

        Raises:
            DrillTimeoutError: It does not come to run in time.
        """
        found: dict[int, dict[str, str]] = {}

        def there() -> bool:
            found.update(self.processes(RANK=str(rank)))
            return bool(found)

        self.wait_for(f"a process of rank {rank}", there)
        pid, environment = next(iter(found.items()))
        return environment["RERAIL_NODE"], PCI[int(environment["LOCAL_RANK"])], pid

    def newest_state(self) -> RunState | None:
        """The state after the run's newest decision; None before the first, and while it cannot be read."""
        try:
            entry = newest_entry(self.run)
        except RerailError:
            return None
        return entry.state if entry is not None else None

    def take_store_away(self, *, note: str) -> None:
        """Unmount the checkpoints, as far as a folder can be."""
        self.folders.store.rename(self.folders.root / "store-unmounted")
        self.notes.append(note)

    def bring_store_back(self) -> None:
        """Mount them again."""
        (self.folders.root / "store-unmounted").rename(self.folders.store)
        self.notes.append("the store's folder is back")

    def shard(self, manifest: Manifest, *, part: str = "model") -> Path:
        """The file of a part of a commit, in the store's folder."""
        entry = next(entry for entry in manifest.files if entry.path in manifest.parts[part].files)
        return self.folders.store / self.run.run / keys.SHARDS / entry.path

    def truncate(self, manifest: Manifest) -> None:
        """Cut a shard of a commit to half its size."""
        path = self.shard(manifest)
        os.truncate(path, path.stat().st_size // 2)
        self.notes.append(f"truncated {path.name} of step {manifest.step}")

    def flip_bit(self, manifest: Manifest) -> None:
        """Flip one bit in the middle of a shard of a commit; its size stays."""
        path = self.shard(manifest)
        with path.open("r+b") as file:
            file.seek(path.stat().st_size // 2)
            byte = file.read(1)[0]
            file.seek(-1, os.SEEK_CUR)
            file.write(bytes([byte ^ 0x10]))
        self.notes.append(f"flipped a bit of {path.name} of step {manifest.step}")
