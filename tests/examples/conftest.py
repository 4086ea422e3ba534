"""What tests of the examples share: free ports, and gangs of real processes that end with the test."""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@pytest.fixture(scope="session", autouse=True)
def _one_blas_thread() -> None:
    """For what runs in this process: numpy is loaded already, so its variables come too late."""
    for library in (Path(np.__file__).parent.parent / "numpy.libs").glob("*openblas*"):
        for name in ("scipy_openblas_set_num_threads64_", "openblas_set_num_threads64_", "openblas_set_num_threads"):
            function = getattr(ctypes.CDLL(str(library)), name, None)
            if function is not None:
                function(1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _until(
    condition: Callable[[], bool], what: str, output: Callable[[], str] = str, *, deadline_s: float = 60.0
) -> None:
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"not within {deadline_s} s: {what}\n{output()}"
        time.sleep(0.005)


@pytest.fixture
def free_port() -> Callable[[], int]:
    return _free_port


@pytest.fixture
def until() -> Callable[..., None]:
    return _until


@dataclass
class Gang:
    """Real processes of one attempt, by rank."""

    processes: list[subprocess.Popen[bytes]]
    logs: list[Path]

    def wait(self, deadline_s: float = 90.0) -> list[int]:
        """Exit codes by rank; AssertionError with what was printed when one does not end."""
        until = time.monotonic() + deadline_s
        for process in self.processes:
            try:
                process.wait(max(0.01, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"rank did not end in {deadline_s} s:\n{self.output()}") from None
        return [process.returncode for process in self.processes]

    def output(self) -> str:
        return "\n".join(f"--- {log.name}\n{log.read_text()}" for log in self.logs)

    def kill(self, *ranks: int) -> None:
        for rank in ranks or range(len(self.processes)):
            process = self.processes[rank]
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        for rank in ranks or range(len(self.processes)):
            self.processes[rank].wait()


@dataclass
class Gangs:
    """Starts gangs, and ends what is left of them."""

    folder: Path
    started: list[Gang] = field(default_factory=list)

    port = staticmethod(_free_port)
    until = staticmethod(_until)

    def start(
        self,
        *options: str,
        world_size: int = 4,
        module: str = "rerail.examples.local_gang.train",
        env: Mapping[str, str] | None = None,
        code: Sequence[str] | None = None,
    ) -> Gang:
        """Start one process per rank: ``module`` with ``options``, or the Python ``code`` of each rank."""
        shared = {
            **os.environ,
            **ONE_THREAD,
            "WORLD_SIZE": str(world_size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self.port()),
            **(env or {}),
        }
        gang = Gang([], [])
        self.started.append(gang)
        for rank in range(world_size):
            log = self.folder / f"gang-{len(self.started)}-rank-{rank}.log"
            what = ["-c", code[rank]] if code else ["-m", module, *options]
            with log.open("wb") as sink:
                process = subprocess.Popen(
                    [sys.executable, *what],
                    env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                    stdin=subprocess.DEVNULL,
                    stdout=sink,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            gang.processes.append(process)
            gang.logs.append(log)
        return gang

    def end(self) -> None:
        for gang in self.started:
            gang.kill()


@pytest.fixture
def gangs(tmp_path: Path) -> Iterator[Gangs]:
    found = Gangs(tmp_path)
    yield found
    found.end()


@pytest.fixture(scope="module")
def module_gangs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gangs]:
    found = Gangs(tmp_path_factory.mktemp("logs"))
    yield found
    found.end()
