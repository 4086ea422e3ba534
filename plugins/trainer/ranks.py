"""The rank processes of one pod: started in sessions of their own, reaped, and ended to the last descendant."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from rerail.plugins.trainer import processes
from rerail.policies.documents import RankExit, Start

# More than one BLAS or OpenMP thread changes the order of sums, and with it the last bits of every result.
_ONE_THREAD = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)
_ERROR_LIMIT = 2000


@dataclass(slots=True)
class _Rank:
    rank: int
    process: subprocess.Popen[bytes]
    report: Path
    exit_code: int | None = None


@dataclass(slots=True)
class Ranks:
    """The ranks of one attempt in this pod. One live object per launch: it reaps every child of the process.

    Attributes:
        first_rank: Lowest rank of this pod.
        count: Ranks of this pod.
        scratch: Folder for the ranks' report files.
        log_dir: ``<log_dir>/<attempt>/<rank>.log`` takes each rank's output; None inherits launch's.
    """

    command: Sequence[str]
    environment: Mapping[str, str]
    first_rank: int
    count: int
    scratch: Path
    log_dir: Path | None
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    _ranks: list[_Rank] = field(default_factory=list)

    def start(self, start: Start) -> None:
        """Start every rank of the attempt that ``start`` opens.

        Raises:
            OSError: The command cannot be executed.
        """
        self._ranks = []
        folder = self.scratch / str(start.attempt)
        folder.mkdir(parents=True, exist_ok=True)
        for local in range(self.count):
            rank = self.first_rank + local
            report = folder / f"{rank}.json"
            report.unlink(missing_ok=True)
            with self._log(start.attempt, rank) as log:
                self._ranks.append(_Rank(rank, self._spawn(start, rank, local, report, log), report))

    def _log(self, attempt: int, rank: int) -> IO[bytes]:
        if self.log_dir is None:
            return os.fdopen(os.dup(1), "wb")
        folder = self.log_dir / str(attempt)
        folder.mkdir(parents=True, exist_ok=True)
        return (folder / f"{rank}.log").open("ab")

    def _spawn(self, start: Start, rank: int, local: int, report: Path, log: IO[bytes]) -> subprocess.Popen[bytes]:
        # A node that sees rank 0 under another address than the others (NAT, a relay) is told so by its pod.
        host = self.environment.get("RERAIL_MASTER_ADDR") or start.rendezvous.host
        environment = dict.fromkeys(_ONE_THREAD, "1") | {"PYTHONHASHSEED": "0"} | dict(self.environment)
        environment |= {
            "RANK": str(rank),
            "LOCAL_RANK": str(local),
            "LOCAL_WORLD_SIZE": str(self.count),
            "WORLD_SIZE": str(start.world_size),
            "MASTER_ADDR": host,
            "MASTER_PORT": str(start.rendezvous.port),
            # Where the command is torchrun: an agent of one process for each rank, which restarts nothing by itself.
            "PET_NNODES": str(start.world_size),
            "PET_NODE_RANK": str(rank),
            "PET_MASTER_ADDR": host,
            "PET_MASTER_PORT": str(start.rendezvous.port),
            "PET_MAX_RESTARTS": "0",
            "RERAIL_RENDEZVOUS": start.rendezvous.id,
            "RERAIL_ATTEMPT": str(start.attempt),
            "RERAIL_GANG": start.gang,
            "RERAIL_RANK_REPORT": str(report),
        }
        parent = os.getpid()
        return subprocess.Popen(
            self.command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT if self.log_dir is not None else None,
            start_new_session=True,
            # Launch has one thread, and the two calls made here are safe between fork and exec.
            preexec_fn=lambda: processes.die_with(parent),  # noqa: PLW1509
        )

    @property
    def running(self) -> tuple[int, ...]:
        """Ranks whose process has not been reaped yet."""
        return tuple(rank.rank for rank in self._ranks if rank.exit_code is None)

    @property
    def codes(self) -> dict[int, int]:
        """Exit codes of the ranks that ended, by rank."""
        return {rank.rank: rank.exit_code for rank in self._ranks if rank.exit_code is not None}

    def reap(self) -> tuple[RankExit, ...]:
        """Collect every child that ended, adopted orphans too; returns the ranks among them, in order of their end."""
        ended: list[RankExit] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            for rank in self._ranks:
                if rank.process.pid == pid and rank.exit_code is None:
                    rank.exit_code = processes.shell_code(status)
                    # Popen must not look for a child that is reaped already.
                    rank.process.returncode = rank.exit_code
                    self._end_session(pid)
                    ended.append(_with_report(rank))
        return tuple(ended)

    def forward(self, number: int) -> None:
        """Send a signal to every rank's own process; what it started is its own to care for."""
        for rank in self._ranks:
            if rank.exit_code is None:
                processes.send(rank.process.pid, number)

    def kill(self, *, within_s: float = 30.0) -> bool:
        """SIGKILL every rank with all of its descendants and reap them.

        Returns:
            Whether all are gone; false when the kernel holds one (state D) for longer than ``within_s``.
        """
        deadline = self.clock() + within_s
        while True:
            below = processes.descendants(os.getpid())
            for found in below:
                processes.send(found.pid, signal.SIGKILL)
            self.reap()
            if not below and not self.running:
                return True
            if self.clock() > deadline:
                return False
            self.sleep(0.002)

    @staticmethod
    def _end_session(session: int) -> None:
        # Helpers of a dead rank (data loaders) would go on using its devices.
        for found in processes.descendants(os.getpid()):
            if found.session == session:
                processes.send(found.pid, signal.SIGKILL)


def _with_report(rank: _Rank) -> RankExit:
    """The exit together with what the training client left in the rank's report file, if it did."""
    assert rank.exit_code is not None
    try:
        said = json.loads(rank.report.read_bytes())
    except (OSError, ValueError):
        said = {}
    said = said if isinstance(said, dict) else {}
    error, step = said.get("error"), said.get("step")
    return RankExit(
        rank=rank.rank,
        exit_code=rank.exit_code,
        error=error[:_ERROR_LIMIT] if isinstance(error, str) else "",
        step=step if isinstance(step, int) and not isinstance(step, bool) else None,
    )
