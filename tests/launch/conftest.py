"""Real launches on a real store: ``launches`` starts them, ``orders`` writes the seals and starts that they follow."""

import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from rerail.plugins.checkpoint.attempts import create_run, seal_attempt, start_attempt
from rerail.plugins.checkpoint.notes import read_reports
from rerail.plugins.checkpoint.open import open_run
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.trainer import processes
from rerail.policies.documents import Rendezvous, Report, RunDoc, Seal, Start

RUN = "run"
DEADLINE_S = 60.0

# A rank that says where it is, starts a helper of its own, and ends as its plan for this attempt and rank tells.
RANK = """
import json, os, pathlib, signal, subprocess, sys, time
folder = pathlib.Path(sys.argv[1])
name = os.environ["RERAIL_ATTEMPT"] + "." + os.environ["RANK"]
plan = json.loads((folder / "plan.json").read_text()).get(name, ["hang"])
def leave(number, frame):
    (folder / (name + ".term")).open("a").write("x")
    if "ignore-term" not in plan:
        sys.exit(85)
signal.signal(signal.SIGTERM, leave)
signal.signal(signal.SIGINT, leave)
helper = subprocess.Popen(["sleep", "600"])
names = [n for n in os.environ if n.startswith(("RERAIL_", "MASTER_", "OMP_", "MKL_", "LOCAL_", "PET_", "PYTHONHASH"))]
said = {n: os.environ[n] for n in (*names, "RANK", "WORLD_SIZE")} | {"pid": os.getpid(), "helper": helper.pid}
report = pathlib.Path(os.environ["RERAIL_RANK_REPORT"])
if "report" in plan:
    report.write_text(json.dumps({"step": 7, "error": "ValueError: planned"}))
temporary = folder / ("." + name)
temporary.write_text(json.dumps(said))
temporary.rename(folder / (name + ".up"))
print("rank", name, "is up", flush=True)
go = folder / (name + ".go")
while "hang" in plan and not go.exists():
    time.sleep(0.01)
code = next((int(word) for word in plan if word.lstrip("-").isdigit()), 0)
if code < 0:
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


def wait_for(what: Callable[[], object], *, within_s: float = DEADLINE_S) -> object:
    deadline = time.monotonic() + within_s
    while not (found := what()):
        assert time.monotonic() < deadline, "it did not come in time"
        time.sleep(0.01)
    return found


@dataclass
class Orders:
    """The control documents that a supervisor would write, and what launches wrote."""

    run: RunStore

    def seal(self, attempt: int, gang: str, how: str = "new-gang") -> None:
        seal_attempt(self.run, Seal(writer=secrets.token_hex(8), run=RUN, attempt=attempt, how=how, gang=gang))

    def start(self, attempt: int, gang: str, how: str = "new-gang", world_size: int = 2) -> Start:
        return start_attempt(
            self.run,
            attempt=attempt,
            how=how,
            gang=gang,
            world_size=world_size,
            rendezvous=Rendezvous(id=f"meet-{attempt}", host="127.0.0.1", port=1000 + attempt),
            writer=secrets.token_hex(8),
        )

    def open(self, attempt: int, gang: str, how: str = "new-gang", world_size: int = 2) -> Start:
        self.seal(attempt, gang, how)
        return self.start(attempt, gang, how, world_size)

    def reports(self, attempt: int) -> list[Report]:
        return [report for _, report in read_reports(self.run, attempt)]


@dataclass
class Pod:
    """One launch under test."""

    process: subprocess.Popen[bytes]
    folder: Path
    log: Path
    farewell_path: Path

    def up(self, attempt: int, rank: int) -> dict[str, str]:
        path = self.folder / f"{attempt}.{rank}.up"
        wait_for(path.exists)
        return json.loads(path.read_text())

    def go(self, attempt: int, rank: int) -> None:
        (self.folder / f"{attempt}.{rank}.go").touch()

    def code(self) -> int:
        return self.process.wait(timeout=DEADLINE_S)

    @property
    def farewell(self) -> dict[str, object]:
        return json.loads(self.farewell_path.read_text())


@dataclass
class Launches:
    """Starts launches, and ends every process that is left at the end of a test."""

    tmp_path: Path
    store: str
    pods: list[Pod] = field(default_factory=list)

    def __call__(
        self,
        *,
        plan: dict[str, list[object]] | None = None,
        gang: str = "run-a1",
        ranks: int = 2,
        command: list[str] | None = None,
        environment: dict[str, str] | None = None,
    ) -> Pod:
        number = len(self.pods)
        folder = self.tmp_path / f"pod{number}"
        folder.mkdir()
        (folder / "plan.json").write_text(json.dumps(plan or {}))
        (folder / "rank.py").write_text(RANK)
        own = {
            "PATH": os.environ["PATH"],
            "RERAIL_RUN": RUN,
            "RERAIL_STORE": self.store,
            "RERAIL_GANG": gang,
            "RERAIL_POD": f"{gang}-{number}",
            "RERAIL_NODE": "n1",
            "RERAIL_FIRST_RANK": "0",
            "RERAIL_LOCAL_RANKS": str(ranks),
            "WORLD_SIZE": str(ranks),
            "RERAIL_TERMINATION_LOG": str(folder / "farewell.json"),
            "RERAIL_HOLD_S": "60",
            "RERAIL_POLL_S": "0.05",
            "RERAIL_KILL_GRACE_S": "0.3",
            "TEST_LAUNCH": str(folder),
        }
        with (folder / "launch.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "rerail.plugins.trainer.launch", "--"]
                + (command or [sys.executable, str(folder / "rank.py"), str(folder)]),
                env=own | (environment or {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.pods.append(Pod(process, folder, folder / "launch.log", folder / "farewell.json"))
        return self.pods[-1]

    def left(self, pod: Pod) -> list[int]:
        """Every living process that came from this pod."""
        mark = f"TEST_LAUNCH={pod.folder}".encode()
        found = []
        for stat in processes.all_stats():
            try:
                if stat.state not in "ZX" and mark in Path(f"/proc/{stat.pid}/environ").read_bytes().split(b"\0"):
                    found.append(stat.pid)
            except OSError:
                continue
        return found

    def end(self) -> None:
        for pod in self.pods:
            for pid in self.left(pod):
                processes.send(pid, signal.SIGKILL)
            pod.process.wait()


@pytest.fixture
def orders(tmp_path: Path) -> Orders:
    root = tmp_path / "store"
    root.mkdir()
    run = open_run(RUN, store=f"file://{root}")
    create_run(run, RunDoc(writer=secrets.token_hex(8), run=RUN, owner="test", created_at_s=0.0, world_size=2))
    return Orders(run)


@pytest.fixture
def launches(tmp_path: Path, orders: Orders) -> Iterator[Launches]:
    made = Launches(tmp_path, orders.run.shards.url.removesuffix(f"/{RUN}"))
    yield made
    made.end()


@pytest.fixture(name="wait_for")
def _wait_for() -> Callable[..., object]:
    return wait_for
