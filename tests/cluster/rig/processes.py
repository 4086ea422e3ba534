"""Daemons in network namespaces: started with their pid recorded, ended by that record only."""

import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from rig import cgroups
from rig.clock import ClusterError
from rig.layout import LOGS, PIDS

STOP_DEADLINE_S = 10.0


def _started_at(pid: int) -> str | None:
    """When the kernel started the process (a pid alone may be used again), or None if it ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else fields[19]


def start(name: str, command: Sequence[str], *, space: str, env: Mapping[str, str] | None = None) -> None:
    """Start a daemon in a network namespace, in its cgroup, its output in ``logs/NAME.log``.

    ``ip netns exec`` would mount another /sys, without the cgroups: so nsenter.
    """
    PIDS.mkdir(parents=True, exist_ok=True)
    LOGS.mkdir(parents=True, exist_ok=True)
    enter = [
        "nsenter",
        f"--net=/run/netns/{space}",
        "sh",
        "-c",
        'echo $$ >"$0" && exec "$@"',
        str(cgroups.for_daemon(name)),
    ]
    log = str(LOGS / f"{name}.log")
    outputs = [(os.POSIX_SPAWN_OPEN, one, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644) for one in (1, 2)]
    devices = [(os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0), *outputs]
    # Not subprocess: the daemon outlives this process, which is no mistake to warn of.
    inherited = {key: value for key, value in os.environ.items() if not key.lower().endswith("_proxy")}
    environment = inherited | dict(env or {})
    pid = os.posix_spawnp("nsenter", [*enter, *command], environment, file_actions=devices, setsid=True)
    record = {"pid": pid, "started_at": _started_at(pid)}
    (PIDS / f"{name}.json").write_text(json.dumps(record))


def pid_of(name: str) -> int | None:
    """The daemon's pid, or None if it does not run."""
    try:
        record = json.loads((PIDS / f"{name}.json").read_text())
    except FileNotFoundError:
        return None
    pid: int = record["pid"]
    started_at = _started_at(pid)
    return pid if started_at and started_at == record["started_at"] else None


def check(name: str) -> None:
    """Make sure that a daemon still runs.

    Raises:
        ClusterError: It ended; the message has the end of its log.
    """
    if pid_of(name) is None:
        tail = (LOGS / f"{name}.log").read_text(errors="replace")[-2000:]
        raise ClusterError(f"{name} ended; the end of {LOGS / name}.log:\n{tail}")


def stop(name: str, sign: signal.Signals = signal.SIGTERM) -> None:
    """End one daemon by its record, with SIGKILL after ten seconds; what it started (shims of containers) goes on."""
    deadline = time.monotonic() + STOP_DEADLINE_S
    while pid := pid_of(name):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, sign if time.monotonic() < deadline else signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
        time.sleep(0.1)
    (PIDS / f"{name}.json").unlink(missing_ok=True)
