"""Cgroups, version 1 and 2: they hold every process of the cluster, so that none is missed or mistaken at the end."""

import contextlib
import os
import signal
import time
from pathlib import Path

from rig.clock import ClusterError
from rig.layout import SPACE

ROOT = Path("/sys/fs/cgroup")
END_DEADLINE_S = 20.0


def unified() -> bool:
    """Whether this machine has cgroup version 2 only."""
    return (ROOT / "cgroup.controllers").exists()


def hierarchies() -> list[Path]:
    """The root of every hierarchy: one with version 2, one for each controller with version 1."""
    if unified():
        return [ROOT]
    return sorted(path for path in ROOT.iterdir() if path.is_dir() and not path.is_symlink())


def make(name: str) -> None:
    """Make a cgroup in every hierarchy, ready to hold processes."""
    for root in hierarchies():
        folder = root
        for part in Path(name).parts:
            folder /= part
            folder.mkdir(exist_ok=True)
            # A new cpuset has no processors and no memory, and so can hold no process.
            for file in ("cpuset.cpus", "cpuset.mems"):
                if not unified() and (folder / file).exists() and not (folder / file).read_text().strip():
                    (folder / file).write_text((folder.parent / file).read_text())


def for_daemon(name: str) -> Path:
    """Make the cgroup of one daemon (in one hierarchy: it is a list, not a limit) and return its list of processes."""
    folder = _lists() / SPACE / "daemons" / name
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "cgroup.procs"


def _lists() -> Path:
    return ROOT if unified() else ROOT / "pids"


def _processes() -> set[int]:
    found: set[int] = set()
    for root in hierarchies():
        for file in (root / SPACE).rglob("cgroup.procs"):
            with contextlib.suppress(OSError):
                found.update(int(line) for line in file.read_text().split())
    return found - {0}


def end_all() -> None:
    """Kill every process in the cluster's cgroups, then remove these.

    Raises:
        ClusterError: A process outlived SIGKILL.
    """
    deadline = time.monotonic() + END_DEADLINE_S
    while alive := _processes():
        if time.monotonic() > deadline:
            raise ClusterError(f"processes {sorted(alive)} of the old cluster do not end; see /proc/PID/stack")
        for process in alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.05)
    for root in hierarchies():
        for folder, _, _ in os.walk(root / SPACE, topdown=False):
            _remove(Path(folder), deadline)


def _remove(folder: Path, deadline: float) -> None:
    """Remove a cgroup; a process that is still exiting is in no list and keeps it busy."""
    while True:
        try:
            folder.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return
