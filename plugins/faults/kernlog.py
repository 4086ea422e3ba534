"""Source ``kernlog``: follow the kernel log file of one node and tell its fault lines as signals."""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from rerail.policies.catalog import load_catalogue
from rerail.policies.faults import FaultSignal
from rerail.policies.faults.catalogue import Catalogue
from rerail.policies.faults.kernel_envelope import MAX_TEXT
from rerail.policies.faults.kernel_signals import signals_of_line

SOURCE = "kernlog"
_MAX_PENDING_BYTES = 4 * MAX_TEXT  # a line without an end is no kernel record; its rest is passed over
_READ_BYTES = 1 << 20


def read_lines(
    data: bytes,
    *,
    node: str,
    path: str,
    offset: int = 0,
    catalogue: Catalogue | None = None,
    read_at_s: float | None = None,
    boot_at_s: float | None = None,
    utc_offset_s: float = 0.0,
    clock: Callable[[], float] = time.time,
) -> Iterator[FaultSignal]:
    """The signals in whole lines of a kernel log.

    Args:
        data: Whole lines; bytes that are no UTF-8 are replaced.
        node: Whose log it is.
        path: The file, for ``raw_ref`` (``path:offset``).
        offset: Where ``data`` begins in the file, bytes.
        catalogue: What codes mean; the packaged one by default.
        read_at_s: Time of lines without a stamp, epoch seconds; the clock's by default.
        boot_at_s: The node's boot, epoch seconds, for stamps that count from there.
        utc_offset_s: The node's zone, seconds east of UTC.
        clock: Wall clock of the node.
    """
    known = catalogue or load_catalogue()
    at_s = clock() if read_at_s is None else read_at_s
    for line in data.splitlines(keepends=True):
        yield from signals_of_line(
            line[:_MAX_PENDING_BYTES].decode(errors="replace").rstrip("\r\n"),
            node=node,
            catalogue=known,
            read_at_s=at_s,
            boot_at_s=boot_at_s,
            utc_offset_s=utc_offset_s,
            source=SOURCE,
            raw_ref=f"{path}:{offset}",
        )
        offset += len(line)


@dataclass
class KernelLog:
    """A tail of one file. It survives rotation (another file under the name) and truncation, and waits for whole lines.

    Attributes:
        path: The log, for example ``/host/var/log/kern.log``; it may not be there yet.
        node: Whose log it is.
        catalogue: What codes mean.
        from_start: Read what is in the file already; else begin at its end.
        boot_at_s: The node's boot, epoch seconds (``btime`` of /proc/stat).
        utc_offset_s: The node's zone, seconds east of UTC.
    """

    path: Path
    node: str
    catalogue: Catalogue = field(default_factory=load_catalogue)
    from_start: bool = True
    boot_at_s: float | None = None
    utc_offset_s: float = 0.0
    clock: Callable[[], float] = time.time
    _file: BinaryIO | None = None
    _identity: tuple[int, int] = (0, 0)
    _offset: int = 0
    _pending: bytes = b""
    _skipping: bool = False

    def poll(self) -> tuple[FaultSignal, ...]:
        """Signals of all lines that were finished since the last call; does not block.

        What a rotated file still holds is read before the new one.
        """
        found: list[FaultSignal] = []
        if self._file is not None:
            found += self._read(self._file)
            if not self._is_current():
                found += self._read(self._file)
                found += self._flush()
                self.close()
        if self._file is None and self._open():
            assert self._file is not None
            found += self._read(self._file)
        return tuple(found)

    def close(self) -> None:
        """Let go of the file; a later poll opens it anew from its beginning."""
        if self._file is not None:
            self._file.close()
        self._file, self._offset, self._pending, self._skipping = None, 0, b"", False
        self.from_start = True

    def _open(self) -> bool:
        try:
            file = self.path.open("rb", buffering=0)
        except (FileNotFoundError, NotADirectoryError):
            return False
        state = os.fstat(file.fileno())
        self._file, self._identity = file, (state.st_dev, state.st_ino)
        if not self.from_start:
            self._offset = file.seek(0, os.SEEK_END)
        return True

    def _is_current(self) -> bool:
        try:
            state = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return False
        return (state.st_dev, state.st_ino) == self._identity

    def _read(self, file: BinaryIO) -> Iterator[FaultSignal]:
        if os.fstat(file.fileno()).st_size < self._offset + len(self._pending):
            # Truncated in place (copytruncate): what is in it now was written after that.
            self._offset, self._pending, self._skipping = file.seek(0), b"", False
        while data := file.read(_READ_BYTES):
            yield from self._take(data)

    def _take(self, data: bytes) -> Iterator[FaultSignal]:
        if self._skipping:
            end = data.find(b"\n")
            if end < 0:
                self._offset += len(data)
                return
            self._offset, data, self._skipping = self._offset + end + 1, data[end + 1 :], False
        text = self._pending + data
        whole = text.rfind(b"\n") + 1
        yield from self._signals(text[:whole])
        self._pending = text[whole:]
        if len(self._pending) > _MAX_PENDING_BYTES:
            self._offset, self._pending, self._skipping = self._offset + len(self._pending), b"", True

    def _flush(self) -> Iterator[FaultSignal]:
        """The last line of a file that nobody writes any more may lack its end."""
        text, self._pending = self._pending, b""
        yield from self._signals(text)

    def _signals(self, text: bytes) -> Iterator[FaultSignal]:
        if not text:
            return
        yield from read_lines(
            text,
            node=self.node,
            path=str(self.path),
            offset=self._offset,
            catalogue=self.catalogue,
            boot_at_s=self.boot_at_s,
            utc_offset_s=self.utc_offset_s,
            clock=self.clock,
        )
        self._offset += len(text)
