"""The port to a place that outlives pods. ``posix.py`` and ``s3.py`` implement it; nothing else touches storage.

Control documents are small and created exclusively: ``create`` is the only way to write one, and whoever loses learns
what is there. Shard files are large, live under a fresh save id, and are written by ``upload``.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Created:
    """The document is ours and durable."""


class Exists(NamedTuple):
    """Somebody else's document stands at the key.

    Attributes:
        data: Its bytes.
    """

    data: bytes


class Entry(NamedTuple):
    """One key of a listing."""

    key: str
    size: int


class Page(NamedTuple):
    """One listing request's answer.

    Attributes:
        entries: In UTF-8 order of keys.
        next_after: Pass as ``start_after`` for the next page; None when this was the last.
    """

    entries: tuple[Entry, ...]
    next_after: str | None


class Uploaded(NamedTuple):
    """What an upload stored, measured on the way."""

    size: int
    digest: str


@runtime_checkable
class Store(Protocol):
    """A prefix of durable storage. All keys are relative to it.

    Every method raises ``StoreUnreachableError`` (transient), ``RefusedError`` (forbidden, or a guard) or
    ``NotFoundError``.
    """

    @property
    def url(self) -> str:
        """Address as a user gives it: ``file:///dir`` or ``s3://bucket/prefix``."""
        ...

    @property
    def requests(self) -> int:
        """Requests made by this object so far (POSIX: the operations that would be requests)."""
        ...

    def below(self, prefix: str) -> "Store":
        """The same storage, seen from a prefix (a run's name); counts its requests in the same counter."""
        ...

    def prove(self) -> None:
        """Prove once per process and address that a second create of one key fails.

        Raises:
            StoreRefusedError: It does not; the message says what to do.
        """
        ...

    def create(self, key: str, data: bytes) -> Created | Exists:
        """Create a document exclusively and durably, or say what is there.

        An unknown outcome is settled by reading the key: the bytes are the writer's own = Created
        (each document has a random writer id, so equal bytes are one's own).
        """
        ...

    def put(self, key: str, data: bytes) -> None:
        """Overwrite a hint (heartbeat, proof). Never used for anything that decides."""
        ...

    def get(self, key: str) -> bytes:
        """The whole object; NotFoundError if there is none."""
        ...

    def page(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> Page:
        """One page of keys below ``prefix`` in UTF-8 order: one request. ``limit`` is at most 1000."""
        ...

    def upload(self, key: str, buffers: Iterable[Buffer], *, size: int) -> Uploaded:
        """Write a large object durably from buffers whose lengths add up to ``size``, hashing on the way.

        Not exclusive: the key carries a fresh save id. A failed sync fails the upload.
        """
        ...

    def download(self, key: str, into: memoryview) -> str:
        """Fill ``into`` with the object's bytes and return their digest, hashed on the way.

        Raises:
            DamagedError: The object's size is not ``len(into)``.
        """
        ...

    def delete(self, keys: tuple[str, ...]) -> None:
        """Delete objects; one that is gone already is no error."""
        ...


def all_entries(store: Store, prefix: str) -> Iterator[Entry]:
    """All keys below ``prefix``, page by page."""
    after = ""
    while True:
        page = store.page(prefix, start_after=after)
        yield from page.entries
        if page.next_after is None:
            return
        after = page.next_after


@dataclass(frozen=True, slots=True, eq=False)
class RunStore:
    """The two roots of one run, already below its name.

    Attributes:
        run: The run's name.
        control: run.json, commits, marks, certificates, requests, signals, ledger, heartbeat.
        shards: The files; the same store unless RERAIL_CONTROL differs from RERAIL_STORE.
        away: The files cannot be seen from here: they lie on a volume that only pods mount. Ranks check them as they
            load, and nothing of them is deleted from here.
    """

    run: str
    control: Store
    shards: Store
    away: bool = False
