"""The last words of a launch, in the pod's termination log, and its claim to be the pod."""

import contextlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from rerail.plugins.trainer import processes

_LIMIT_BYTES = 4096  # the kubelet cuts a longer termination message


def say(
    path: Path,
    *,
    run: str,
    attempt: int | None,
    gang: str,
    pod: str,
    exit_code: int,
    exits: Mapping[int, int],
    why: str,
) -> None:
    """Write how launch ends, whole or not at all.

    Args:
        path: The termination log.
        run: The run.
        attempt: Newest attempt that ran here; None if none did.
        gang: The gang.
        pod: The pod.
        exit_code: What launch is about to exit with.
        exits: Exit codes of the ranks of that attempt.
        why: One line for people.

    Raises:
        OSError: It cannot be written.
    """
    content = {
        "run": run,
        "attempt": attempt,
        "gang": gang,
        "pod": pod,
        "exit_code": exit_code,
        "exits": {str(rank): code for rank, code in sorted(exits.items())},
        "why": why[:500],
    }
    data = json.dumps(content).encode()
    if len(data) > _LIMIT_BYTES:
        data = json.dumps(content | {"exits": {}}).encode()
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError:
        # In a container the log is a mounted file: it cannot be replaced, and one short write is as good.
        with contextlib.suppress(OSError):
            temporary.unlink()
        with path.open("wb", buffering=0) as file:
            file.write(data)


def claim(path: Path) -> bool:
    """Become the pod: the first process to create ``path`` is it, whoever started it and however often.

    Returns:
        False when another process is the pod already.

    Raises:
        OSError: It cannot be written.
    """
    own = processes.stat_of(os.getpid())
    assert own is not None
    return claim_for(path, own.pid, own.started)


def claim_for(path: Path, pid: int, started: int) -> bool:
    """Create the claim of process ``pid``, exclusively and whole; False when there is one already."""
    return create_whole(path, json.dumps({"pid": pid, "started": started, "boot": boot_id()}))


def create_whole(path: Path, text: str) -> bool:
    """Create a small file exclusively and whole; False when it is there."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    temporary.write_text(text, encoding="utf-8")
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    return True


def boot_id() -> str:
    """This boot of the kernel; pids and start times of another one mean nothing. Empty where it cannot be read."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""
