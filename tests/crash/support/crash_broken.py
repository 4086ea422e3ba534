"""Stores and steps that are broken on purpose, each in one way that has lost people's checkpoints before."""

from collections.abc import Iterable
from typing import Any

from crash_disk import Recorder
from crash_story import Code

from rerail.plugins.checkpoint import commit as commit_module
from rerail.plugins.checkpoint.attempts import Start, seal_attempt
from rerail.plugins.checkpoint.commit import commit, confirm
from rerail.plugins.checkpoint.listing import Commits
from rerail.plugins.checkpoint.resolve import resolve_below
from rerail.plugins.checkpoint.store import Buffer, Created, Entry, Exists, Page, RunStore, Store, Uploaded, all_entries
from rerail.policies import keys
from rerail.policies.documents import How, Rendezvous, Seal, digest_of
from rerail.policies.manifest import Manifest


class NoFileSync(Recorder):
    """Trusts the page cache with the bytes of files."""

    def fsync(self, file: int) -> None:
        if file in self._folders:
            super().fsync(file)


class NoFolderSync(Recorder):
    """Trusts the page cache with the names of files."""

    def fsync(self, file: int) -> None:
        if file not in self._folders:
            super().fsync(file)


class Overwriting(Recorder):
    """Renames over what is there instead of linking."""

    def link(self, source: str, target: str, folder: int) -> None:
        self.replace(source, target, folder)


class Around:
    """A store that hands everything on, for others to change a part of it."""

    def __init__(self, store: Store) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


class Unproven(Around):
    """Never tries whether the store creates exclusively; the proof alone refuses a store that overwrites."""

    def below(self, prefix: str) -> "Unproven":
        return Unproven(self.store.below(prefix))

    def prove(self) -> None:
        return


class HeldBack(Around):
    """Says that files are stored, and stores them when the manifest is there already."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.held: dict[str, bytes] = {}

    def upload(self, key: str, buffers: Iterable[Buffer], *, size: int) -> Uploaded:
        self.held[key] = b"".join(bytes(buffer) for buffer in buffers)
        return Uploaded(size, digest_of(self.held[key]))

    def create(self, key: str, data: bytes) -> Created | Exists:
        self.held[key] = data
        return Created()

    def get(self, key: str) -> bytes:
        return self.held[key] if key in self.held else self.store.get(key)

    def page(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> Page:
        found = [Entry(key, len(data)) for key, data in sorted(self.held.items()) if key.startswith(prefix)]
        return Page(tuple(found), None) if found else self.store.page(prefix, start_after=start_after, limit=limit)

    def flush(self) -> None:
        for key, data in self.held.items():
            self.store.upload(key, [data], size=len(data))
        self.held.clear()


class NoLateSync(Around):
    """Takes what can be seen for what is durable."""

    def create(self, key: str, data: bytes) -> Created | Exists:
        return Created() if self.store.get(key) == data else self.store.create(key, data)


def list_before_seal(
    run: RunStore,
    *,
    attempt: int,
    how: How,
    gang: str,
    world_size: int,
    rendezvous: Rendezvous,
    writer: str,
) -> Start:
    """Look which commits there are, then close the attempts below, then start from what was seen."""
    listed = Commits(run.control)
    all(all_entries(run.control, keys.COMMITS))
    run.control.prove()
    found = resolve_below(run, listed, below=attempt, known=True, world_size=world_size)
    seal_attempt(run, Seal(writer=writer, run=run.run, attempt=attempt, how=how, gang=gang))
    start = Start(
        writer=writer,
        run=run.run,
        attempt=attempt,
        how=how,
        gang=gang,
        world_size=world_size,
        rendezvous=rendezvous,
        load=found.load,
        chain=found.chain,
    )
    outcome = run.control.create(keys.start(attempt), start.encode())
    return Start.decode(outcome.data, keys.start(attempt)) if isinstance(outcome, Exists) else start


def commit_without_look(run: RunStore, **how: Any) -> Manifest:
    """Acknowledge as soon as the manifest is there."""
    look = commit_module.acknowledge
    commit_module.acknowledge = lambda *_, **__: None
    try:
        return commit(run, **how)
    finally:
        commit_module.acknowledge = look


def confirm_what_is_seen(run: RunStore, **how: Any) -> Manifest:
    """Confirm a manifest that may not be durable yet."""
    return confirm(RunStore(run.run, control=NoLateSync(run.control), shards=run.shards), **how)


LIST_BEFORE_SEAL = Code(open_attempt=list_before_seal)
ACK_BEFORE_LOOK = Code(commit=commit_without_look)
MANIFEST_BEFORE_PARTS = Code(shards=HeldBack, after_commit=lambda shards: shards.flush())
CONFIRM_WHAT_IS_SEEN = Code(confirm=confirm_what_is_seen)
