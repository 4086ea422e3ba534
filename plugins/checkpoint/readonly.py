"""A store that is only read: for whoever looks at a run and must change nothing in it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from rerail.plugins.checkpoint.store import Buffer, Created, Exists, Page, RunStore, Store, Uploaded
from rerail.policies.errors import NotFoundError, RefusedError


@dataclass(frozen=True, slots=True, eq=False)
class ReadOnlyStore:
    """A store of which every write is refused before it is sent; creating again what is there is no write."""

    inner: Store

    @property
    def url(self) -> str:
        """As the inner store's."""
        return self.inner.url

    @property
    def requests(self) -> int:
        """As the inner store's."""
        return self.inner.requests

    def below(self, prefix: str) -> "ReadOnlyStore":
        """The same, from a prefix."""
        return ReadOnlyStore(self.inner.below(prefix))

    def prove(self) -> None:
        """Refused: a proof writes."""
        self._refuse("its proof of exclusive creation")

    def create(self, key: str, data: bytes) -> Created | Exists:
        """What is there, for those who create again to make sure of it."""
        del data
        try:
            return Exists(self.inner.get(key))
        except NotFoundError:
            self._refuse(key)

    def put(self, key: str, data: bytes) -> None:
        """Refused."""
        del data
        self._refuse(key)

    def get(self, key: str) -> bytes:
        """As the inner store's."""
        return self.inner.get(key)

    def page(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> Page:
        """As the inner store's."""
        return self.inner.page(prefix, start_after=start_after, limit=limit)

    def upload(self, key: str, buffers: Iterable[Buffer], *, size: int) -> Uploaded:
        """Refused."""
        del buffers, size
        self._refuse(key)

    def download(self, key: str, into: memoryview) -> str:
        """As the inner store's."""
        return self.inner.download(key, into)

    def delete(self, keys: tuple[str, ...]) -> None:
        """Refused."""
        self._refuse(", ".join(keys))

    def _refuse(self, what: str) -> NoReturn:
        raise RefusedError(f"{self.url}: {what} would be written, and this store is only looked at")


def read_only(run: RunStore) -> RunStore:
    """A run's stores, only to be read."""
    control = ReadOnlyStore(run.control)
    shards = control if run.shards is run.control else ReadOnlyStore(run.shards)
    return RunStore(run.run, control=control, shards=shards, away=run.away)
