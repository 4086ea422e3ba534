"""SHA-256 beside the transfer: hashlib lets go of the interpreter lock, so hash and disk (or network) overlap."""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from queue import Queue
from threading import Thread
from types import TracebackType
from typing import Self

from rerail.plugins.checkpoint.store import Buffer
from rerail.policies.errors import UsageError

INLINE_BYTES = 1 << 20
"""Below this many bytes a thread costs more than it saves."""

_QUEUED_PIECES = 64


def sha256(data: Buffer) -> str:
    """The digest of ``data`` in the form that manifests hold."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def cut(buffers: Iterable[Buffer], limit: int) -> Iterator[memoryview]:
    """The bytes of ``buffers`` in order, as views of at most ``limit`` bytes; nothing is copied.

    Raises:
        UsageError: A buffer is not contiguous.
    """
    for buffer in buffers:
        view = memoryview(buffer)
        if not view.c_contiguous:
            raise UsageError(f"a buffer of {view.nbytes} bytes is not contiguous; pass a contiguous copy of it")
        if not view.nbytes:
            continue
        flat = view.cast("B")
        for at in range(0, len(flat), limit):
            yield flat[at : at + limit]


def check_size(key: str, written: int, size: int) -> None:
    """Hold the bytes that came against the size that was announced.

    Raises:
        UsageError: They differ.
    """
    if written != size:
        raise UsageError(f"the buffers for {key!r} hold {written} bytes, but size={size} was announced; pass their sum")


class Hasher:
    """Hashes pieces in the order given, in a thread of its own when ``size`` is worth one. A context manager.

    A piece must not change before ``digest`` has returned.
    """

    def __init__(self, size: int) -> None:
        self._hash = hashlib.sha256()
        self._pieces: Queue[Buffer | None] = Queue(_QUEUED_PIECES)
        self._thread: Thread | None = None
        if size >= INLINE_BYTES:
            self._thread = Thread(target=self._drain, name="rerail-hash", daemon=True)
            self._thread.start()

    def _drain(self) -> None:
        update: Callable[[Buffer], None] = self._hash.update
        while (piece := self._pieces.get()) is not None:
            update(piece)

    def update(self, piece: Buffer) -> None:
        """Hash ``piece`` after those before it; returns before it is done."""
        if self._thread:
            self._pieces.put(piece)
        else:
            self._hash.update(piece)

    def digest(self) -> str:
        """Wait for all pieces; their digest with its algorithm in front."""
        self._end()
        return f"sha256:{self._hash.hexdigest()}"

    def _end(self) -> None:
        if self._thread:
            self._pieces.put(None)
            self._thread.join()
            self._thread = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()
