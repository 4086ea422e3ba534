"""Gangs of real processes that are evicted: a small script on the public client, under ``rerail run``.

What the ranks do is steered by files in their folder: ``evaluate`` holds them in an evaluation, ``fail`` lets saves
fail, ``slow`` makes each upload take as many seconds as it says.
"""

import importlib.util
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rerail.plugins.checkpoint.open import open_run
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.evict.local import LocalPods
from rerail.plugins.evict.preevict import PreEvict, live_gang
from rerail.plugins.gang.ledger import newest_entry
from rerail.plugins.gang.local import LocalBackend
from rerail.plugins.trainer import processes
from rerail.policies.errors import NotFoundError
from rerail.policies.eviction import EvictionBounds
from rerail.policies.supervisor.state import RunState

RUN = "run"
DEADLINE_S = 60.0
GRACE_S = 1.5
POLICY = f"""\
poll_s: 0.05
settle_s: 0.1
hold_s: 10
backoff_s: 0.05
end_grace_s: {GRACE_S}
end_grace_untrusted_s: 0.5
"""

TRAINER = r"""
import os, pathlib, sys, time
from rerail.plugins.checkpoint.posix import PosixStore
from rerail.plugins.trainer import Checkpointer, Every, KeyValueClient, KeyValueGroup, KeyValueServer
folder, total, pace_s, every = pathlib.Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
attempt, rank, world = (int(os.environ[n]) for n in ("RERAIL_ATTEMPT", "RANK", "WORLD_SIZE"))
upload = PosixStore.upload

def slowly(self, key, buffers, *, size):
    slow, fail = folder / "slow", folder / "fail"
    if fail.exists():
        raise OSError("the test lets saves fail")
    if slow.exists():
        time.sleep(float(slow.read_text()))
    return upload(self, key, buffers, size=size)

PosixStore.upload = slowly
port = int(os.environ["MASTER_PORT"])
server = KeyValueServer(port=port) if rank == 0 else None
store = KeyValueClient("127.0.0.1", port, timeout_s=60)
why = "it only counts"
with KeyValueGroup(store, rank=rank, world_size=world) as group:
    state = {"count": 0}
    ckpt = Checkpointer.from_env(
        group=group, shared={"model": state}, every=Every(steps=every), total_steps=total,
        absent={part: why for part in ("optimizer", "scheduler", "epoch", "rng", "scaler", "data", "user")},
        save_deadline_s=30.0,
    )
    step = ckpt.restore()
    assert state["count"] == step, (state, step)
    with (folder / f"steps.{attempt}.{rank}").open("a", buffering=1) as log:
        while step < total:
            agreed = max(int(one) for one in group.all_gather(str(int(ckpt.wish())).encode()))
            time.sleep(pace_s)
            step += 1
            state["count"] = step
            log.write(f"{step}\n")
            ckpt.step_done(step, agreed=agreed)
            if (folder / "evaluate").exists():
                with ckpt.phase("evaluation"):
                    (folder / f"evaluating.{attempt}.{rank}").touch()
                    while (folder / "evaluate").exists():
                        time.sleep(0.01)
    ckpt.finish(step)
if server:
    server.close()
"""


def wait_for(what: Callable[[], Any], *, within_s: float = DEADLINE_S, told: Callable[[], str] = str) -> Any:
    """Wait for a condition; the deadline only bounds a failing test."""
    end = time.monotonic() + within_s
    while not (found := what()):
        assert time.monotonic() < end, f"it did not come in time\n{told()}"
        time.sleep(0.01)
    return found


@dataclass
class Training:
    """One run on this machine, and everything that was started for it."""

    root: Path
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    supervisors: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def store(self) -> str:
        return f"file://{self.root / 'store'}"

    @property
    def folder(self) -> Path:
        return self.root / "trainer"

    @property
    def run(self) -> RunStore:
        return open_run(RUN, store=self.store)

    def start(self, *, total: int = 100_000, pace_s: float = 0.01, every: int = 50, nproc: int = 2) -> None:
        """Start ``rerail run``; again for the same run."""
        self.folder.mkdir(exist_ok=True)
        (self.root / "store").mkdir(exist_ok=True)
        (self.folder / "train.py").write_text(TRAINER)
        (self.root / "policy.yaml").write_text(POLICY)
        again = bool(self.supervisors)
        script = [str(self.folder / "train.py"), str(self.folder), str(total), str(pace_s), str(every)]
        policy = () if again else ("--policy", str(self.root / "policy.yaml"))
        with (self.root / f"run{len(self.supervisors)}.err").open("wb") as err:
            self.supervisors.append(
                subprocess.Popen(
                    [
                        *(sys.executable, "-m", "rerail.plugins.cli.main", "run", "--nproc", str(nproc)),
                        *("--run", RUN, "--store", self.store, *policy, "--", sys.executable, *script),
                    ],
                    env={name: value for name, value in os.environ.items() if not name.startswith("RERAIL_")}
                    | {"TEST_WORLD": self.mark},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=err,
                    start_new_session=True,
                )
            )

    def said(self) -> str:
        """What the supervisors told people, and the launches."""
        files = [*sorted(self.root.glob("run*.err")), *sorted(self.root.glob("store/.local/run/**/launch.log"))]
        return "\n".join(path.read_text(errors="replace") for path in files)

    def state(self) -> RunState | None:
        try:
            entry = newest_entry(self.run)
        except NotFoundError:
            return None
        return entry.state if entry else None

    def steps(self, attempt: int, rank: int = 0) -> list[int]:
        """Steps that a rank made in an attempt."""
        path = self.folder / f"steps.{attempt}.{rank}"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def trains(self, attempt: int) -> None:
        """Wait until an attempt makes steps, and its supervisor knows."""

        def so() -> bool:
            state = self.state()
            return state is not None and (state.attempt, state.phase) == (attempt, "running") and self.known(attempt)

        wait_for(lambda: self.steps(attempt) and so(), told=self.said)

    def known(self, attempt: int) -> bool:
        state = self.state()
        return state is not None and any(one.n == attempt and one.first_step_at_s for one in state.attempts)

    def evaluates(self, attempt: int) -> None:
        """Hold the ranks in an evaluation."""
        (self.folder / "evaluate").touch()
        wait_for(lambda: all((self.folder / f"evaluating.{attempt}.{rank}").exists() for rank in range(2)))

    def backend(self) -> LocalBackend:
        return LocalBackend(RUN, self.root / "store/.local" / RUN / "pods", (), {})

    def pre_evict(self, *, deadline_s: float = 30.0, **more: Any) -> PreEvict:
        run = self.run
        target = live_gang(run)
        return PreEvict(
            run,
            target,
            LocalPods(self.backend(), target.gang, GRACE_S),
            deadline_s,
            more.pop("reason", "a test"),
            EvictionBounds(deadline_s=deadline_s),
            **{"poll_s": 0.02, "takeover_s": 20.0, **more},
        )

    def left(self) -> list[processes.Stat]:
        """Every living process of this run."""
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
                processes.send_exactly(stat.pid, stat.started, 9)
            time.sleep(0.01)
        for process in self.supervisors:
            process.wait()


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    one = Training(tmp_path)
    yield one
    one.end()


def load(name: str) -> Any:
    """A module of the fake API server's, loaded once."""
    known = f"rerail_test_{name}"
    if known not in sys.modules:
        path = Path(__file__).parents[1] / "kube" / "support" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(known, path)
        assert spec
        assert spec.loader
        sys.modules[known] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[known])
    return sys.modules[known]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The small API server; KUBECONFIG leads to it."""
    api, stop = load("fake_api").serve()
    path = tmp_path / "kubeconfig"
    path.write_text(load("fake_api").kubeconfig(api.url))
    monkeypatch.setenv("KUBECONFIG", str(path))
    with ExitStack() as held:
        held.callback(stop)
        yield api


@pytest.fixture(name="wait_for")
def _wait_for() -> Callable[..., Any]:
    return wait_for


@pytest.fixture(name="as_json")
def _as_json() -> Callable[[str], Any]:
    return json.loads
