"""The system calls of the POSIX store, one method each, so that proofs can stop, fail or record any of them."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from rerail.plugins.checkpoint.store import Buffer

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a FIFO put in the place of a file must not hang the reader.
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Files:
    """Real system calls. Every one works inside an open folder, and none follows a symbolic link.

    All raise ``OSError`` as the kernel says it; what that means is the store's business.
    """

    def open_root(self, path: str) -> int:
        """Open the store's own folder; this path is the user's, so links in it are followed."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def open_folder(self, name: str, folder: int) -> int:
        """Open a folder below an open one."""
        return os.open(name, _FOLDER, dir_fd=folder)

    def mkdir(self, name: str, folder: int) -> None:
        """Make a folder."""
        os.mkdir(name, 0o777, dir_fd=folder)

    def open_new(self, name: str, folder: int) -> int:
        """Create a file of a fresh temporary name."""
        return os.open(name, _NEW, 0o666, dir_fd=folder)

    def open_file(self, name: str, folder: int) -> int:
        """Open a file for reading."""
        return os.open(name, _READ, dir_fd=folder)

    def write(self, file: int, data: Buffer) -> int:
        """Write some of ``data``; returns how many bytes."""
        return os.write(file, data)

    def read_into(self, file: int, into: memoryview) -> int:
        """Read some bytes; returns how many, 0 at the end."""
        return os.readv(file, [into])

    def begin_sync(self, file: int, offset: int, size: int) -> None:
        """Have the kernel begin to write a range to the disk, without waiting. Only a hint; fsync is what counts."""
        if hasattr(os, "posix_fadvise"):
            # On Linux this advice starts the range's write-back; it drops only pages that are clean already.
            os.posix_fadvise(file, offset, size, os.POSIX_FADV_DONTNEED)

    def fsync(self, file: int) -> None:
        """Make a file's bytes, or a folder's entries, durable."""
        os.fsync(file)

    def link(self, source: str, target: str, folder: int) -> None:
        """Give a file a second name, which must not exist: the exclusive create."""
        os.link(source, target, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)

    def replace(self, source: str, target: str, folder: int) -> None:
        """Rename a file over whatever has the name."""
        os.replace(source, target, src_dir_fd=folder, dst_dir_fd=folder)

    def unlink(self, name: str, folder: int) -> None:
        """Remove a file's name."""
        os.unlink(name, dir_fd=folder)

    def rmdir(self, name: str, folder: int) -> None:
        """Remove an empty folder."""
        os.rmdir(name, dir_fd=folder)

    def status(self, name: str, folder: int) -> os.stat_result:
        """What is known of a name, of the link itself if it is one."""
        return os.stat(name, dir_fd=folder, follow_symlinks=False)

    def status_of(self, file: int) -> os.stat_result:
        """What is known of an open file."""
        return os.fstat(file)

    def names(self, folder: int) -> list[tuple[str, bool]]:
        """All names in a folder, in no order, each with whether it is a folder; reads no sizes."""
        with os.scandir(folder) as entries:
            return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]

    def close(self, file: int) -> None:
        """Close a file or folder."""
        os.close(file)

    @contextmanager
    def closing(self, file: int) -> Iterator[int]:
        """Close ``file`` at the end, whatever happens."""
        try:
            yield file
        finally:
            self.close(file)
