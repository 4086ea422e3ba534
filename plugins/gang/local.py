"""Gangs of plain processes on this machine. A pod is one ``rerail-launch`` in a session of its own.

State lies on disk, one folder per pod, so that pods outlive a supervisor and the next one adopts them:

    <state>/<gang>/<pod>/spec.json      what the pod is; created by whoever submits first
                         claim.json     the process that is the pod: it claims this itself, so a pod never starts twice,
                                        whoever submitted it and wherever that one was stopped
                         ending.json    when SIGTERM was sent
                         evicted        it was asked to go by an evictor, not by the run's supervisor
                         farewell.json  the pod's termination log
                         swept          nothing of the pod is left
"""

import json
import os
import secrets
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rerail.plugins.trainer import farewell, processes
from rerail.policies.documents import Rendezvous, Value
from rerail.policies.supervisor.observations import GangView, PodView
from rerail.policies.supervisor.state import GangSpec, PodSpec

_NO_WORD = 128 + signal.SIGKILL
_EVICTED = "EvictionOnRequest"


class _PodFile(Value):
    run: str
    gang: str
    pod: PodSpec
    world_size: int


@dataclass(frozen=True, slots=True)
class _Pod:
    folder: Path
    file: _PodFile

    @property
    def claim(self) -> Path:
        return self.folder / "claim.json"

    @property
    def farewell(self) -> Path:
        return self.folder / "farewell.json"

    @property
    def ending(self) -> Path:
        return self.folder / "ending.json"

    @property
    def evicted(self) -> Path:
        return self.folder / "evicted"

    @property
    def swept(self) -> Path:
        return self.folder / "swept"


@dataclass(slots=True)
class LocalBackend:
    """Pods as local processes. Any number of these may work on one ``state`` folder at once.

    Attributes:
        run: The run's name.
        state: Folder of this run's pods; not in the store, since processes are this machine's.
        command: What each rank runs.
        environment: Environment of every pod; ``RERAIL_STORE`` and the like belong in here.
        log_dir: Folder of the ranks' logs, ``<log_dir>/<attempt>/<rank>.log``.
        host: Address at which ranks meet.
        pod_environment: Further environment of one pod, for what differs from node to node.
    """

    run: str
    state: Path
    command: Sequence[str]
    environment: Mapping[str, str]
    log_dir: Path | None = None
    host: str = "127.0.0.1"
    pod_environment: Callable[[PodSpec], Mapping[str, str]] = lambda _pod: {}
    clock: Callable[[], float] = time.monotonic
    _children: dict[Path, int] = field(default_factory=dict)

    def view(self, gang: str) -> GangView:
        """All pods of ``gang``, each as its process and its farewell show it."""
        self._collect()
        return GangView(name=gang, pods=tuple(self._view(pod) for pod in self._pods(gang)))

    def gangs(self, run: str) -> tuple[str, ...]:
        """Gangs with a pod that is not known to be gone to its last process."""
        if not self.state.is_dir():
            return ()
        names = sorted(path.name for path in self.state.iterdir() if path.is_dir())
        return tuple(
            name for name in names if any(pod.file.run == run and not pod.swept.exists() for pod in self._pods(name))
        )

    def submit(self, gang: GangSpec) -> None:
        """Start the pods that nobody claimed yet."""
        self._collect()
        for spec in gang.pods:
            folder = self.state / gang.name / spec.name
            folder.mkdir(parents=True, exist_ok=True)
            content = _PodFile(run=self.run, gang=gang.name, pod=spec, world_size=gang.world_size)
            farewell.create_whole(folder / "spec.json", content.model_dump_json())
            pod = _Pod(folder, content)
            if not pod.claim.exists() and folder not in self._children:
                self._children[folder] = self._spawn(pod)

    def end(self, gang: str, grace_s: float) -> bool:
        """Go on ending ``gang``; see the port."""
        left = [pod for pod in self._pods(gang) if not self._end(pod, grace_s)]
        return not left

    def evict(self, gang: str, grace_s: float) -> bool:
        """Go on ending ``gang`` as a cluster's eviction would: whoever judges its end sees that it was taken away.

        Returns:
            Whether nothing of the gang is left.
        """
        for pod in self._pods(gang):
            if self._view(pod).phase in ("pending", "running"):
                farewell.create_whole(pod.evicted, "")
        return self.end(gang, grace_s)

    def rendezvous(self, gang: GangSpec) -> Rendezvous:
        """A free port of this machine, free a moment ago, and a fresh id."""
        del gang
        with socket.socket() as probe:
            probe.bind((self.host, 0))
            return Rendezvous(id=secrets.token_hex(8), host=self.host, port=probe.getsockname()[1])

    def used(self) -> dict[str, int]:
        """Slots in use on each node by pods that live, of all gangs."""
        taken: Counter[str] = Counter()
        for gang in self.state.iterdir() if self.state.is_dir() else ():
            for pod in self._pods(gang.name):
                if not pod.swept.exists() and self._view(pod).phase in ("pending", "running"):
                    taken[pod.file.pod.node] += pod.file.pod.ranks
        return dict(taken)

    def processes_on(self, node: str) -> list[processes.Stat]:
        """Every process of the run's pods on ``node``, ranks included, as a lost node would take them along."""
        folders = [pod.folder for gang in self.gangs(self.run) for pod in self._pods(gang) if pod.file.pod.node == node]
        return [found for folder in folders for found in _processes_of(folder)]

    def _pods(self, gang: str) -> Iterator[_Pod]:
        folder = self.state / gang
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            content = _load(path / "spec.json")
            if content is not None:
                yield _Pod(path, _PodFile.model_validate(content))

    def _spawn(self, pod: _Pod) -> int:
        spec = pod.file.pod
        environment = dict(self.environment) | {
            "RERAIL_RUN": self.run,
            "RERAIL_GANG": pod.file.gang,
            "RERAIL_POD": spec.name,
            "RERAIL_NODE": spec.node,
            "RERAIL_FIRST_RANK": str(spec.first_rank),
            "RERAIL_LOCAL_RANKS": str(spec.ranks),
            "RERAIL_TERMINATION_LOG": str(pod.farewell),
            "RERAIL_CLAIM": str(pod.claim),
            "RERAIL_POD_DIR": str(pod.folder),
            "WORLD_SIZE": str(pod.file.world_size),
        }
        environment |= self.pod_environment(pod.file.pod)
        if self.log_dir is not None:
            environment["RERAIL_LOG_DIR"] = str(self.log_dir)
        # Not Popen: the pod is meant to outlive this object and this process.
        write = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        return os.posix_spawn(
            sys.executable,
            [sys.executable, "-m", "rerail.plugins.trainer.launch", "--", *self.command],
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, pod.folder / "launch.log", write, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
            setsid=True,
        )

    def _collect(self) -> None:
        """Reap own children; one that ended before it claimed its pod is recorded as the pod, and dead."""
        for folder, pid in list(self._children.items()):
            try:
                ended, _ = os.waitpid(pid, os.WNOHANG)
            except ChildProcessError:
                ended = pid
            if ended:
                farewell.claim_for(folder / "claim.json", pid, -1)
                del self._children[folder]

    def _view(self, pod: _Pod) -> PodView:
        name, node = pod.file.pod.name, pod.file.pod.node
        disrupted = _EVICTED if pod.evicted.exists() else ""
        claim = _load(pod.claim)
        if claim is None:
            return PodView(name=name, node=node, phase="pending")
        if _lives(claim):
            return PodView(name=name, node=node, phase="running", disrupted=disrupted)
        said = _load(pod.farewell)
        code = said.get("exit_code") if said else None
        if not isinstance(code, int):
            lost = PodView(name=name, node=node, phase="gone", exit_code=_NO_WORD, farewell=False)
            return lost.model_copy(update={"disrupted": disrupted})
        return PodView(
            name=name, node=node, phase="failed" if code else "succeeded", exit_code=code, disrupted=disrupted
        )

    def _end(self, pod: _Pod, grace_s: float) -> bool:
        if pod.swept.exists():
            return True
        claim = _load(pod.claim)
        if claim is None:
            # Nobody is the pod yet, and now nobody can become it.
            farewell.claim_for(pod.claim, 0, -1)
            claim = _load(pod.claim) or {}
        if _lives(claim):
            pid, started = int(claim["pid"]), int(claim["started"])
            if farewell.create_whole(pod.ending, json.dumps({"at_s": self.clock(), "boot": farewell.boot_id()})):
                processes.send_exactly(pid, started, signal.SIGTERM)
            ending = _load(pod.ending) or {}
            if self.clock() - float(ending.get("at_s", 0.0)) < grace_s:
                return False
            processes.send_exactly(pid, started, signal.SIGKILL)
            self._collect()
            if _lives(claim):
                return False
        left = list(_processes_of(pod.folder))
        for found in left:
            processes.send_exactly(found.pid, found.started, signal.SIGKILL)
        if left:
            return False
        farewell.create_whole(pod.swept, "")
        return True


def _lives(claim: Mapping[str, Any]) -> bool:
    return claim.get("boot") == farewell.boot_id() and processes.is_running(int(claim["pid"]), int(claim["started"]))


def _processes_of(folder: Path) -> Iterator[processes.Stat]:
    """Processes that were started with this pod's folder in their environment, and all that they started."""
    mark = f"RERAIL_POD_DIR={folder}".encode()
    for found in processes.all_stats():
        if found.pid == os.getpid() or found.state in ("Z", "X"):
            continue
        with suppress(OSError):
            if mark in Path(f"/proc/{found.pid}/environ").read_bytes().split(b"\0"):
                yield found


def _load(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None
