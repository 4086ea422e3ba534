"""Fixtures of the training client's tests: runs in a folder, clients in this process, gangs of real processes."""

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np  # noqa: F401  (the environment of every client here has numpy loaded)
import pytest

from rerail.plugins.checkpoint.attempts import create_run, open_attempt
from rerail.plugins.checkpoint.posix import PosixStore
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.trainer import Checkpointer
from rerail.plugins.trainer.environment import read_environment
from rerail.policies import keys
from rerail.policies.documents import Rendezvous, RunDoc

TOY = Path(__file__).parent / "toy.py"
DEADLINE_S = 180.0


@pytest.fixture(scope="session")
def toy():
    spec = importlib.util.spec_from_file_location("rerail_tests_toy", TOY)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def until(condition, what, deadline_s=DEADLINE_S):
    """Wait for a condition; the deadline only bounds a failing test."""
    end = time.monotonic() + deadline_s
    while not (found := condition()):
        assert time.monotonic() < end, f"no {what} within {deadline_s} s"
        time.sleep(0.01)
    return found


@pytest.fixture(name="until")
def _until():
    return until


@dataclass
class Run:
    """One run in a folder of its own."""

    root: Path
    name: str = "toy"
    store: type[PosixStore] = PosixStore
    clients: list = field(default_factory=list)

    @property
    def url(self):
        return f"file://{self.root}"

    @property
    def run(self) -> RunStore:
        store = self.store(self.root).below(self.name)
        return RunStore(self.name, control=store, shards=store)

    def open(self, attempt, *, world_size=1, gang=None, layout=None):
        create_run(
            self.run, RunDoc(writer="w" * 8, run=self.name, owner="tests", created_at_s=0.0, world_size=world_size)
        )
        return open_attempt(
            self.run,
            attempt=attempt,
            how="fresh" if attempt == 1 else "new-gang",
            gang=gang or f"{self.name}-a{attempt}",
            world_size=world_size,
            rendezvous=Rendezvous(id="r", host="127.0.0.1", port=0),
            writer=os.urandom(8).hex(),
            layout=layout,
        )

    def environ(self, attempt, *, rank=0, world_size=1, **more):
        return {
            "RERAIL_RUN": self.name,
            "RERAIL_STORE": self.url,
            "RERAIL_ATTEMPT": str(attempt),
            "RERAIL_GANG": f"{self.name}-a{attempt}",
            "RERAIL_NODE": f"node{rank}",
            "RERAIL_POLL_S": "0.05",
            "RANK": str(rank),
            "WORLD_SIZE": str(world_size),
            **more,
        }

    def client(self, attempt, *, rank=0, world_size=1, environ=None, **options):
        options.setdefault("handle_signals", False)
        made = Checkpointer(
            self.run,
            read_environment(self.environ(attempt, rank=rank, world_size=world_size, **(environ or {}))),
            **options,
        )
        self.clients.append(made)
        return made

    def commits(self):
        """(attempt, step) of all manifests, oldest first."""
        found = [keys.parse_commit(entry.key) for entry in self.run.control.page(keys.COMMITS).entries]
        return sorted((one.attempt, one.step) for one in found if one.kind == "manifest")


@pytest.fixture
def run(tmp_path):
    made = Run(tmp_path / "store")
    made.root.mkdir()
    hook = sys.excepthook
    yield made
    sys.excepthook = hook
    for client in made.clients:
        client._close()
        client._background.give_up()


@pytest.fixture
def new_run(tmp_path):
    def make(name, store=PosixStore):
        root = tmp_path / name
        root.mkdir()
        return Run(root, store=store)

    return make


class ThreadGroup:
    """The process group of ranks that are threads of this process."""

    def __init__(self, rank, world_size, slots, barrier):
        self.rank, self.world_size = rank, world_size
        self._slots, self._barrier = slots, barrier

    def all_gather(self, payload):
        self._slots[self.rank] = payload
        self._barrier.wait(DEADLINE_S)
        answers = list(self._slots)
        self._barrier.wait(DEADLINE_S)
        return answers


@pytest.fixture
def ranks():
    """Run ``work(rank, group)`` once per rank, in threads; what each returned or raised, by rank."""

    def start(world_size, work):
        slots, barrier = [b""] * world_size, threading.Barrier(world_size)
        results = [None] * world_size

        def one(rank):
            try:
                results[rank] = work(rank, ThreadGroup(rank, world_size, slots, barrier))
            except BaseException as error:  # noqa: BLE001  (handed to the test)
                results[rank] = error
                if not isinstance(error, SystemExit):
                    barrier.abort()

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(world_size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE_S)
        return results

    return start


@dataclass
class Gang:
    """Ranks as real processes."""

    run: Run
    attempt: int
    folder: Path
    processes: list

    def wait(self):
        return [process.wait(DEADLINE_S) for process in self.processes]

    def log(self, rank=0):
        path = self.folder / f"log.{rank}"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def steps(self, rank=0):
        return {line["step"]: line for line in self.log(rank) if "step" in line}

    def report(self, rank=0):
        return json.loads((self.folder / f"report.{rank}").read_text())

    def stderr(self, rank=0):
        return (self.folder / f"stderr.{rank}").read_text()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def gang(tmp_path):
    """Start a gang of the toy training; ended, whatever happens, with the test."""
    started = []

    def start(run, attempt, *, world_size=1, script=TOY, **more):
        folder = tmp_path / f"{run.root.name}.{attempt}"
        folder.mkdir()
        port = str(free_port())
        processes = []
        for rank in range(world_size):
            environ = {
                **{key: value for key, value in os.environ.items() if not key.startswith(("RERAIL_", "TOY_"))},
                **run.environ(attempt, rank=rank, world_size=world_size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
                "RERAIL_RANK_REPORT": str(folder / f"report.{rank}"),
                "TOY_LOG": str(folder / f"log.{rank}"),
                "OMP_NUM_THREADS": "1",
                "OPENBLAS_NUM_THREADS": "1",
                **{key: str(value) for key, value in more.items()},
            }
            with (folder / f"stderr.{rank}").open("wb") as errors:
                process = subprocess.Popen(
                    [sys.executable, str(script)], env=environ, stderr=errors, start_new_session=True
                )
            processes.append(process)
            started.append(process)
        return Gang(run, attempt, folder, processes)

    yield start
    for process in started:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
