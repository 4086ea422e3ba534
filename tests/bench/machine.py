"""Where a figure was taken: CPU, file system, load; and how the page cache of files is dropped."""

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

IDLE_LOAD = 0.5


def cpu_model() -> str:
    """Name of the CPU as the kernel says it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return "unknown CPU"


def file_system(folder: Path) -> str:
    """Type of the file system that holds ``folder``."""
    best, kind = "", "unknown"
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, mount, found = line.split()[:3]
        inside = f"{folder.resolve()}/".startswith(f"{mount.rstrip('/')}/")
        if inside and len(mount) >= len(best):
            best, kind = mount, found
    return kind


def load_1m() -> float:
    """Processes that ran or waited, on average over the last minute."""
    return os.getloadavg()[0]


def describe(folder: Path) -> str:
    """The machine in a few words."""
    cores = len(os.sched_getaffinity(0))
    memory_gib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    return f"{cpu_model()}, {cores} cores, {memory_gib} GiB, {file_system(folder)}"


def settle(files: Iterable[Path]) -> None:
    """Sync files, so that nobody later pays for them."""
    for path in files:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)


def drop_cache(files: Iterable[Path]) -> None:
    """Sync files and drop their pages, so that the next read comes from the disk.

    Raises:
        RuntimeError: The pages are still there: a "cold" figure would be none.
    """
    for path in files:
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
            if _cached(file):
                raise RuntimeError(f"{path} stays in the page cache: it cannot be read cold here")
        finally:
            os.close(file)


def _cached(file: int) -> bool:
    try:
        return bool(os.preadv(file, [bytearray(1)], os.fstat(file).st_size // 2, os.RWF_NOWAIT))
    except BlockingIOError:
        return False
    except OSError:  # not every file system can tell
        return False


def clear(*folders: Path) -> None:
    """Remove folders with all that is in them, and sync, so that the next arm does not pay for it."""
    parents = {folder.parent for folder in folders}
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    settle(parent for parent in parents if parent.is_dir())
