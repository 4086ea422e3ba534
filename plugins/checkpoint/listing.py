"""Lazy looks at ``commits/`` and ``marks/``: newest first, one request for what is nearly always enough."""

from collections.abc import Iterator

from rerail.plugins.checkpoint.store import Entry, RunStore, Store
from rerail.policies import keys

_FIRST_PAGE = 200


class RequestMeter:
    """Counts the requests to a run's stores from its making on; one store in both roles counts once."""

    def __init__(self, run: RunStore) -> None:
        same = run.control is run.shards or run.control.url == run.shards.url
        self._stores = (run.control,) if same else (run.control, run.shards)
        self._before = self._total()

    def _total(self) -> int:
        return sum(store.requests for store in self._stores)

    def count(self) -> int:
        """Requests so far."""
        return self._total() - self._before


class Commits:
    """``commits/`` from the newest attempt on, read as far as it is asked for.

    The first page is read when this is made, so everything before that in the program is before the LIST.
    """

    def __init__(self, store: Store, *, first_page: int = _FIRST_PAGE) -> None:
        self._store = store
        self._entries: list[Entry] = []
        self._after: str | None = ""
        self._more(first_page)

    def _more(self, limit: int = 1000) -> None:
        page = self._store.page(keys.COMMITS, start_after=self._after or "", limit=limit)
        self._entries.extend(page.entries)
        self._after = page.next_after

    @property
    def empty(self) -> bool:
        """Whether nothing was ever opened or committed here."""
        return not self._entries

    def newest(self, kind: keys.CommitKind, *, below: int = keys.ATTEMPT_LIMIT) -> int | None:
        """The newest attempt smaller than ``below`` that has a key of this kind."""
        at = 0
        while True:
            for entry in self._entries[at:]:
                key = keys.parse_commit(entry.key)
                if key and key.kind == kind and key.attempt < below:
                    return key.attempt
            at = len(self._entries)
            if self._after is None:
                return None
            self._more()

    def has(self, key: str) -> bool:
        """Whether ``key`` is there."""
        while self._after is not None and not (self._entries and self._entries[-1].key >= key):
            self._more()
        return any(entry.key == key for entry in self._entries)

    def steps(self, attempt: int, top: int) -> Iterator[int]:
        """Committed steps of ``attempt`` from ``top`` down, from what was read already and else by its own prefix."""
        prefix = keys.manifests_of(attempt)
        after = keys.manifest(attempt, top).removesuffix("json")
        for entry in self._entries:
            if entry.key > after and entry.key.startswith(prefix):
                key = keys.parse_commit(entry.key)
                if key and key.step is not None:
                    yield key.step
        read_to = self._entries[-1].key if self._entries else ""
        if self._after is None or read_to[: len(prefix)] > prefix:
            return
        after = max(after, read_to)
        while True:
            page = self._store.page(prefix, start_after=after)
            for entry in page.entries:
                key = keys.parse_commit(entry.key)
                if key and key.step is not None:
                    yield key.step
            if page.next_after is None:
                return
            after = page.next_after


class Marks:
    """``marks/`` from the newest attempt on, read as far as it is asked for."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._found: set[keys.MarkKey] = set()
        self._after: str | None = ""
        self._read_to = ""

    def of(self, attempt: int, step: int) -> frozenset[keys.MarkKind]:
        """Kinds of marks on one commit."""
        last = keys.mark(attempt, step, "suspect")
        while self._after is not None and self._read_to <= last:
            page = self._store.page(keys.MARKS, start_after=self._after)
            self._found.update(mark for entry in page.entries if (mark := keys.parse_mark(entry.key)))
            self._after = page.next_after
            self._read_to = page.entries[-1].key if page.entries else self._read_to
        return frozenset(mark.kind for mark in self._found if (mark.attempt, mark.step) == (attempt, step))
