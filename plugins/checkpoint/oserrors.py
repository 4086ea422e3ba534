"""What a failed system call means for a checkpoint store, and what to do about it."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from rerail.policies.errors import (
    NotFoundError,
    RefusedError,
    RerailError,
    SaveFailedError,
    StoreFullError,
    StoreRefusedError,
    StoreUnreachableError,
)

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
FORBIDDEN = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
NO_HARD_LINKS = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EXDEV, errno.EMLINK})
NO_SYNC = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})

_WAYS_OUT = {
    errno.ENOSPC: "free space on the volume or lower retention (`rerail ckpt gc`); the next save tries again",
    errno.EDQUOT: "raise the quota or lower retention (`rerail ckpt gc`); the next save tries again",
    errno.EFBIG: "raise the limit on file sizes (`ulimit -f`) or split the state over more files",
    errno.EACCES: "give this user the right to read, write and enter the folder",
    errno.EPERM: "give this user the right to read, write and enter the folder",
    errno.EROFS: "the volume is mounted read-only: mount it writable, or pass another --store",
    errno.ENAMETOOLONG: "use a shorter name",
}


def explain(error: OSError, action: str, path: str) -> RerailError:
    """The typed error for ``error``, which came up on ``action`` of ``path``."""
    number = error.errno or 0
    said = f"cannot {action} {path}: {os.strerror(number)}"
    way_out = _WAYS_OUT.get(number)
    if number in FULL:
        return StoreFullError(f"{said}; {way_out}")
    if number in FORBIDDEN or number == errno.ENAMETOOLONG:
        return RefusedError(f"{said}; {way_out}")
    if number == errno.ENOENT:
        return NotFoundError(f"{said}; list what is there with `rerail ckpt ls`")
    if number in {errno.ENOTDIR, errno.EISDIR, errno.ELOOP}:
        return RefusedError(f"{said}; something that is not ours stands there: move it away")
    return StoreUnreachableError(f"{said}; look at the volume and its mount, then try again")


def explain_sync(error: OSError, path: str) -> RerailError:
    """The typed error for a failed fsync: the kernel may have dropped the pages, so the file is never synced again."""
    number = error.errno or 0
    if number in FULL:
        return explain(error, "sync", path)
    if number in NO_SYNC:
        return StoreRefusedError(
            f"the volume cannot sync {path} ({os.strerror(number)}), so nothing on it survives a power cut for sure; "
            "use a volume that can, or an s3:// address"
        )
    return SaveFailedError(
        f"fsync of {path} failed: {os.strerror(number)}; its bytes may be lost, so this save does not count. "
        "Look at the disk or the mount; the next save writes everything anew"
    )


@contextmanager
def explained(action: str, path: str) -> Iterator[None]:
    """Turn an ``OSError`` of the block into its typed error."""
    try:
        yield
    except OSError as error:
        raise explain(error, action, path) from error
