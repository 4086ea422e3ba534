"""Gangs of real processes: a backend on a fresh store, and a tiny trainer that commits as the training client does.

rig           a backend of a cluster, vcjobs and PodGroups in turn, on the fake API server: support/cluster_rig.py
vcjob         the same, vcjobs only
make_rig      factory: make_rig(kind) -> Rig on ``cluster_api``
"""

import importlib.util
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rerail.plugins.checkpoint.attempts import create_run
from rerail.plugins.checkpoint.open import open_run
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.gang.local import LocalBackend
from rerail.plugins.trainer import processes
from rerail.policies.documents import RunDoc
from rerail.policies.supervisor.state import GangSpec, PodSpec

RUN = "run"
DEADLINE_S = 90.0

# Trains by counting. Rank 0 commits the count, like the training client would, every few steps and at the end; the
# others wait for its file. Ends as `plan.json` says for "<attempt>.<rank>": [step, exit code or -signal].
TRAINER = r"""
import json, os, pathlib, secrets, signal, sys, time
folder, total, pace_s = pathlib.Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
attempt, rank, world = (int(os.environ[n]) for n in ("RERAIL_ATTEMPT", "RANK", "WORLD_SIZE"))
stop = []
signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
(folder / f"up.{attempt}.{rank}.{os.getpid()}").touch()
plan = json.loads((folder / "plan.json").read_text())
def publish(name, value):
    own = folder / f".{name}.{os.getpid()}"
    own.write_text(str(value))
    own.rename(folder / name)

if rank == 0:
    from rerail.plugins.checkpoint.commit import Blob, commit, write_part
    from rerail.plugins.checkpoint.notes import beat, certificate_ref, create_certificate
    from rerail.plugins.checkpoint.open import open_run
    from rerail.plugins.checkpoint.resolve import read_start
    from rerail.policies.documents import Certificate, Heartbeat
    from rerail.policies.manifest import PARTS, Layout, Snapshot
    run = open_run(os.environ["RERAIL_RUN"], store=os.environ["RERAIL_STORE"])
    start = read_start(run, attempt)
    first = start.load.step if start.load else 0
    certificate = Certificate(
        writer=start.writer, run=run.run, attempt=attempt, loaded=start.load, ok=True, exact=True, ranks=())
    create_certificate(run, certificate)
    publish(f"first.{attempt}", first)
while not (folder / f"first.{attempt}").exists():
    time.sleep(0.01)
step = first = int((folder / f"first.{attempt}").read_text())

def save(reason):
    save_id = secrets.token_hex(8)
    write_part(run, attempt=attempt, step=step, save_id=save_id, rank=0,
        blobs=[Blob("count.bin", "model", 8, (step.to_bytes(8, "big"),))], values={"step": step},
        absent={part: "it only counts" for part in PARTS if part not in ("model", "step")},
        snapshot=Snapshot(rank=0, at_s=time.time(), node=os.environ["RERAIL_NODE"]), state_digest=None,
        writer=start.writer)
    commit(run, attempt=attempt, step=step, save_id=save_id, world_size=1, reason=reason,
        layout=Layout(world_size=world), certificate=certificate_ref(certificate), writer=start.writer,
        deadline_s=5.0)

def together(step):
    # Like a collective: nobody is more than a step ahead, and a dead rank leaves the others waiting.
    publish(f"step.{attempt}.{rank}", step)
    while not stop:
        try:
            if all(int((folder / f"step.{attempt}.{other}").read_text()) >= step for other in range(world)):
                return
        except FileNotFoundError:
            pass
        time.sleep(0.005)

report = pathlib.Path(os.environ["RERAIL_RANK_REPORT"])
while step < total:
    ends = plan.get(f"{attempt}.{rank}")
    if ends and step >= ends[0]:
        if ends[1] < 0:
            os.kill(os.getpid(), -ends[1])
        if ends[1] == 0:
            time.sleep(600)
        report.write_text(json.dumps({"step": step, "error": ends[2] if len(ends) > 2 else "ValueError: planned"}))
        sys.exit(ends[1])
    if stop:
        if rank == 0 and step > first:
            save("signal")
        sys.exit(85)
    time.sleep(pace_s)
    step += 1
    if rank == 0:
        now = time.time()
        beat(run, Heartbeat(writer=start.writer, run=run.run, attempt=attempt, step=step, phase="training", at_s=now,
            step_time_s=pace_s, started_from_step=first, first_step=first + 1, first_step_at_s=now, loaded_at_s=now))
        if step % 5 == 0 and step < total:
            save("periodic")
    together(step)
if rank == 0:
    save("final")
"""


def wait_for(what: Callable[[], object], *, within_s: float = DEADLINE_S) -> object:
    deadline = time.monotonic() + within_s
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not come in time"
        time.sleep(0.01)
    return found


@dataclass
class World:
    """One run's folders on this machine, and everything that was started in them."""

    root: Path
    mark: str = field(default_factory=lambda: secrets.token_hex(8))

    def __post_init__(self) -> None:
        self.trainer.mkdir(parents=True)
        (self.root / "store").mkdir()
        (self.trainer / "train.py").write_text(TRAINER)
        self.plan({})

    @property
    def trainer(self) -> Path:
        return self.root / "trainer"

    @property
    def store(self) -> str:
        return f"file://{self.root / 'store'}"

    @property
    def run(self) -> RunStore:
        return open_run(RUN, store=self.store)

    def create(self, world_size: int = 2) -> None:
        doc = RunDoc(writer=secrets.token_hex(8), run=RUN, owner="test", created_at_s=0.0, world_size=world_size)
        create_run(self.run, doc)

    def plan(self, ends: dict[str, list[object]]) -> None:
        (self.trainer / "plan.json").write_text(json.dumps(ends))

    def command(self, *, total: int = 20, pace_s: float = 0.02) -> list[str]:
        return [sys.executable, str(self.trainer / "train.py"), str(self.trainer), str(total), str(pace_s)]

    def environment(self) -> dict[str, str]:
        return {
            **{name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ},
            "RERAIL_STORE": self.store,
            "RERAIL_HOLD_S": "60",
            "RERAIL_POLL_S": "0.05",
            "RERAIL_KILL_GRACE_S": "0.2",
            "TEST_WORLD": self.mark,
        }

    def backend(self, command: list[str] | None = None) -> LocalBackend:
        return LocalBackend(
            RUN,
            self.root / "pods",
            command or self.command(),
            self.environment(),
            log_dir=self.root / "logs",
        )

    def supervise(
        self, *more: str, command: list[str] | None = None, policy: dict[str, object] | None = None, name: str = "a"
    ) -> subprocess.Popen[bytes]:
        """A supervisor in a process of its own; its words go to ``<name>.out``."""
        with (self.root / f"{name}.out").open("wb") as out:
            return subprocess.Popen(
                [
                    *(sys.executable, str(Path(__file__).with_name("supervise.py")), str(self.root), *more),
                    *("--command", json.dumps(command or self.command())),
                    *("--environment", json.dumps(self.environment())),
                    *("--policy", json.dumps(policy or {})),
                ],
                env=os.environ | {"TEST_WORLD": self.mark},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
            )

    def said(self, name: str = "a") -> str:
        return (self.root / f"{name}.out").read_text()

    def decisions(self) -> list[str]:
        """Names of the ledger's entries."""
        folder = self.root / "store" / RUN / "ledger"
        return sorted(path.name for path in folder.glob("*.json")) if folder.is_dir() else []

    def ups(self) -> list[str]:
        """``<attempt>.<rank>`` of every rank process that ever came up."""
        return sorted(path.name.removeprefix("up.").rpartition(".")[0] for path in self.trainer.glob("up.*"))

    def left(self) -> list[processes.Stat]:
        """Every living process of this world."""
        mark = f"TEST_WORLD={self.mark}".encode()
        found = []
        for stat in processes.all_stats():
            try:
                if stat.state not in "ZX" and mark in Path(f"/proc/{stat.pid}/environ").read_bytes().split(b"\0"):
                    found.append(stat)
            except OSError:
                continue
        return found

    def end(self) -> None:
        while left := self.left():
            for stat in left:
                processes.send_exactly(stat.pid, stat.started, signal.SIGCONT)
                processes.send_exactly(stat.pid, stat.started, signal.SIGKILL)
            time.sleep(0.01)


def gang_of(name: str, *nodes: str, ranks: int = 1) -> GangSpec:
    pods = tuple(
        PodSpec(name=f"{name}-{at}", node=node, first_rank=at * ranks, ranks=ranks) for at, node in enumerate(nodes)
    )
    return GangSpec(name=name, world_size=len(nodes) * ranks, pods=pods)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.end()


@pytest.fixture
def make_world(tmp_path: Path) -> Iterator[Callable[[], World]]:
    made: list[World] = []

    def make() -> World:
        made.append(World(tmp_path / f"world{len(made)}"))
        return made[-1]

    yield make
    for one in made:
        one.end()


@pytest.fixture(name="wait_for")
def _wait_for() -> Callable[..., object]:
    return wait_for


@pytest.fixture(name="gang_of")
def _gang_of() -> Callable[..., GangSpec]:
    return gang_of


def _cluster_rig() -> ModuleType:
    name = "rerail_test_cluster_rig"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name("support") / "cluster_rig.py")
        assert spec
        assert spec.loader
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture
def cluster_api() -> Iterator[Any]:
    api, stop = _cluster_rig().load().serve()
    api.put("queues", {"metadata": {"name": "training"}, "spec": {}, "status": {"state": "Open"}})
    yield api
    stop()


@pytest.fixture
def make_rig(cluster_api: Any, tmp_path: Path) -> Iterator[Callable[[str], Any]]:
    with ExitStack() as held:
        yield lambda kind: held.enter_context(_cluster_rig().rigged(kind, cluster_api, tmp_path))


@pytest.fixture(params=["vcjob", "podgroup"])
def rig(request: pytest.FixtureRequest, make_rig: Callable[[str], Any]) -> Any:
    return make_rig(request.param)


@pytest.fixture
def vcjob(make_rig: Callable[[str], Any]) -> Any:
    return make_rig("vcjob")
