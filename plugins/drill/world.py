"""What a drill may touch: the folders of one run, its processes, its kernel logs and its store.

Faults are real: signals to real processes, lines in real files, bytes changed in the real store. Processes are found by
the run's own environment, never by name, so a drill can only hit what it started.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from rerail.plugins.checkpoint.commit import read_manifest
from rerail.plugins.checkpoint.store import RunStore
from rerail.policies import keys
from rerail.policies.errors import SaveFailedError
from rerail.policies.manifest import Manifest

_LOOK_EVERY_S = 0.01


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
    steps = [0]
    for path in trace.glob(f"trace-a*-r{rank}.jsonl"):
        attempt = int(path.name.split("-")[1].removeprefix("a"))
        steps.extend(int(str(line["step"])) for line in trace_lines(trace, attempt, rank))
    return max(steps)


@dataclass
class World:
    """One running drill, as the injector sees it.

    Attributes:
        faults: Wall-clock times, epoch seconds, at which a fault took effect, in order.
        notes: What was done to the world, in words for the report.
        within_s: Bound of every wait.
        over: Set when the run has ended, so that an injector that still waits gives up.
        failed: Why the fault could not be injected; the drill fails with it.
    """

    run: RunStore
    folders: Folders
    within_s: float = 40.0
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

    def processes(self, **wanted: str) -> list[int]:
        """Ids of this run's processes whose environment has all of ``wanted``."""
        pairs = {**wanted, "RERAIL_RUN": self.run.run, "RERAIL_STORE": self.folders.store.as_uri()}
        needles = {f"{name}={value}".encode() for name, value in pairs.items()}
        found = []
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                environment = set((entry / "environ").read_bytes().split(b"\0"))
            except OSError:
                continue  # it ended, or it is somebody else's
            if needles <= environment:
                found.append(int(entry.name))
        return found

    def kill_rank(self, rank: int, *, note: str) -> None:
        """SIGKILL the process of ``rank``, and say so."""
        self._signal(self.processes(RANK=str(rank)), signal.SIGKILL)
        self.fault(note)

    def kill_node(self, node: str, *, note: str) -> None:
        """SIGKILL every process of ``node``: launch and ranks, without a farewell."""
        self._signal(self.processes(RERAIL_NODE=node), signal.SIGKILL)
        self.fault(note)

    def terminate_gang(self, *, note: str) -> None:
        """SIGTERM to every launch of the run, as an eviction does."""
        launches = set(self.processes()) - set(self._ranks())
        self._signal(sorted(launches), signal.SIGTERM)
        self.fault(note)

    def _ranks(self) -> list[int]:
        return [pid for rank in range(64) for pid in self.processes(RANK=str(rank))] if self.processes() else []

    def _signal(self, pids: list[int], number: signal.Signals) -> None:
        for pid in pids:
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                continue

    def kernel_line(self, node: str, text: str) -> None:
        """Append a line to the kernel log of ``node``, stamped as the kernel does."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime()) + f".{int(time.time() % 1 * 1e6):06d}+00:00"
        path = self.folders.nodes / node / "kern.log"
        with path.open("a", encoding="utf-8") as log:
            log.write(f"{stamp} {node} kernel: {text}\n")
        self.notes.append(f"kernel log of {node}: {text}")

    def node_of(self, rank: int) -> str:
        """The node that ``rank`` runs on."""
        for pid in self.processes(RANK=str(rank)):
            for pair in (Path("/proc") / str(pid) / "environ").read_bytes().split(b"\0"):
                if pair.startswith(b"RERAIL_NODE="):
                    return pair.split(b"=", 1)[1].decode()
        raise DrillTimeoutError(f"no process of rank {rank} is there")

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
