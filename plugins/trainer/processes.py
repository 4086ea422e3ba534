"""Linux process plumbing for launch: children that die with their parent, and sessions that end completely."""

import ctypes
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Stat:
    """What ``/proc/<pid>/stat`` says about one process.

    Attributes:
        started: Start time in clock ticks since boot; with the pid it names one process and no later one.
    """

    pid: int
    state: str
    parent: int
    session: int
    started: int


def stat_of(pid: int) -> Stat | None:
    """Read a process's stat; None when there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:  # noqa: PTH123 - this runs for every process of the machine
            text = file.read()
    except OSError:
        return None
    # The name stands in parentheses and may hold anything, parentheses and blanks included.
    fields = text[text.rindex(b")") + 2 :].split()
    return Stat(pid, fields[0].decode(), int(fields[1]), int(fields[3]), int(fields[19]))


def is_running(pid: int, started: int) -> bool:
    """Whether exactly that process lives; a zombie is dead and only waits for its parent."""
    found = stat_of(pid)
    return found is not None and found.started == started and found.state not in ("Z", "X")


def all_stats() -> Iterator[Stat]:
    """Every process that can be seen now."""
    for name in os.listdir("/proc"):  # noqa: PTH208 - the names are enough
        if name.isdigit() and (found := stat_of(int(name))) is not None:
            yield found


def descendants(root: int) -> list[Stat]:
    """All processes below ``root`` that are not dead, nearest first."""
    by_parent: dict[int, list[Stat]] = {}
    for found in all_stats():
        by_parent.setdefault(found.parent, []).append(found)
    below: list[Stat] = []
    parents = [root]
    while parents:
        children = by_parent.get(parents.pop(0), [])
        below.extend(child for child in children if child.state not in ("Z", "X"))
        parents.extend(child.pid for child in children)
    return below


def adopt_orphans() -> None:
    """Make this process the parent of orphaned descendants, so that none escapes being ended and reaped."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with(parent: int) -> None:
    """In a fresh child: be killed as soon as ``parent`` is gone, also when it is SIGKILLed."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def send(pid: int, number: int) -> None:
    """Send a signal; a process that is gone already is no error."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def send_exactly(pid: int, started: int, number: int) -> bool:
    """Send a signal to the process of that start time and to no later one of the same pid; False when it is gone."""
    try:
        handle = os.pidfd_open(pid)
    except (ProcessLookupError, OSError):
        return False
    try:
        if not is_running(pid, started):
            return False
        signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def shell_code(status: int) -> int:
    """A wait status as the shell gives it: ``128 + n`` for signal ``n``."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code
