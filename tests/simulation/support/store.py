"""A store in memory whose operations fail, lose replies, are slow, or find their caller dead, as the seed says."""

import bisect
from collections.abc import Callable
from dataclasses import dataclass, field

from rerail_simulation.kernel import Actor

from rerail.plugins.checkpoint.store import Created, Entry, Exists, Page, Uploaded
from rerail.policies.documents import digest_of
from rerail.policies.errors import DamagedError, NotFoundError

Hook = Callable[[Actor, str, str], None]


@dataclass
class Disk:
    """What is stored, with the order in which keys came to be.

    Attributes:
        before: Runs before each operation; may raise what the store would.
        after: The same once it has taken effect: its reply is lost.
        on_create: Told of each new document.
        on_delete: Told of each key that is about to go.
        overwrites: Prefix of keys that a broken store overwrites.
    """

    before: Hook
    after: Hook
    objects: dict[str, bytes] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    born: dict[str, int] = field(default_factory=dict)
    sequence: int = 0
    on_create: Callable[[str, bytes], None] = lambda *_: None
    on_delete: Callable[[str], None] = lambda *_: None
    overwrites: str | None = None

    def set(self, key: str, data: bytes) -> None:
        self.sequence += 1
        if key not in self.objects:
            bisect.insort(self.order, key)
            self.born[key] = self.sequence
        self.objects[key] = data

    def remove(self, key: str) -> None:
        if self.objects.pop(key, None) is not None:
            del self.order[bisect.bisect_left(self.order, key)]

    def under(self, prefix: str) -> list[str]:
        """Keys below a prefix, in order."""
        at = bisect.bisect_left(self.order, prefix)
        found = []
        for key in self.order[at:]:
            if not key.startswith(prefix):
                break
            found.append(key)
        return found


@dataclass
class SimStore:
    """The Store protocol for one actor."""

    disk: Disk
    actor: Actor
    made: int = 0

    url: str = "memory:///run/"

    @property
    def requests(self) -> int:
        return self.made

    def below(self, prefix: str) -> "SimStore":
        raise NotImplementedError(prefix)

    def prove(self) -> None:
        return

    def _before(self, op: str, key: str) -> None:
        self.made += 1
        self.disk.before(self.actor, op, key)

    def create(self, key: str, data: bytes) -> Created | Exists:
        self._before("create", key)
        found = self.disk.objects.get(key)
        broken = self.disk.overwrites is not None and key.startswith(self.disk.overwrites)
        if found is None or broken:
            self.disk.set(key, data)
            self.disk.on_create(key, data)
            found = data
        self.disk.after(self.actor, "create", key)
        return Created() if found == data else Exists(found)

    def put(self, key: str, data: bytes) -> None:
        self._before("put", key)
        self.disk.set(key, data)
        self.disk.after(self.actor, "put", key)

    def get(self, key: str) -> bytes:
        self._before("get", key)
        try:
            return self.disk.objects[key]
        except KeyError:
            raise NotFoundError(f"{self.url}{key} is not there") from None

    def page(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> Page:
        self._before("page", prefix)
        order = self.disk.order
        at = bisect.bisect_right(order, start_after) if start_after > prefix else bisect.bisect_left(order, prefix)
        entries: list[Entry] = []
        more = False
        while at < len(order) and order[at].startswith(prefix):
            if len(entries) == limit:
                more = True
                break
            entries.append(Entry(order[at], len(self.disk.objects[order[at]])))
            at += 1
        return Page(tuple(entries), entries[-1].key if more else None)

    def upload(self, key: str, buffers, *, size: int) -> Uploaded:
        self._before("upload", key)
        data = b"".join(bytes(buffer) for buffer in buffers)
        assert len(data) == size
        self.disk.set(key, data)
        self.disk.after(self.actor, "upload", key)
        return Uploaded(len(data), digest_of(data))

    def download(self, key: str, into: memoryview) -> str:
        self._before("download", key)
        try:
            data = self.disk.objects[key]
        except KeyError:
            raise NotFoundError(f"{self.url}{key} is not there") from None
        if len(data) != len(into):
            raise DamagedError(f"{key} has {len(data)} bytes, expected {len(into)}")
        into[:] = data
        return digest_of(data)

    def delete(self, keys: tuple[str, ...]) -> None:
        self._before("delete", keys[0] if keys else "")
        for key in keys:
            if key in self.disk.objects:
                self.disk.on_delete(key)
                self.disk.remove(key)
        self.disk.after(self.actor, "delete", "")
