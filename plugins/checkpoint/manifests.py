"""Reading commits back: manifests by key, files with their digests compared. Nothing unverified leaves here."""

from typing import NamedTuple

from rerail.plugins.checkpoint.store import RunStore
from rerail.policies import keys
from rerail.policies.documents import CommitRef, digest_of
from rerail.policies.errors import DamagedError, NotFoundError, UsageError
from rerail.policies.manifest import FileEntry, Manifest
from rerail.policies.resolving import disagreement, require_known_algorithm


class StoredManifest(NamedTuple):
    """A manifest that agrees with its place, and the name that a start gives it."""

    manifest: Manifest
    ref: CommitRef


def load_manifest(run: RunStore, attempt: int, step: int, *, named: CommitRef | None = None) -> StoredManifest:
    """Read one manifest and hold it against its key: one request.

    Args:
        run: The run's stores.
        attempt: The attempt that wrote it.
        step: Its step.
        named: How a start names it, if one does: other bytes are damage, whatever they look like.

    Raises:
        NotFoundError: There is no such commit.
        DamagedError: The bytes are not what was written, or belong elsewhere (stale, copied, hostile).
        NewerFormatError: Written by a newer Rerail, or with an unknown algorithm.
    """
    key = keys.manifest(attempt, step)
    try:
        data = run.control.get(key)
    except NotFoundError:
        raise NotFoundError(f"run {run.run!r} has no commit of step {step} in attempt {attempt} ({key})") from None
    ref = CommitRef(attempt=attempt, step=step, digest=digest_of(data))
    if named is not None and (named.attempt, named.step) == (attempt, step) and named != ref:
        raise DamagedError(
            f"{key} is another manifest than a start loaded: expected {named.digest}, found {ref.digest}"
        )
    manifest = Manifest.decode(data, f"{run.control.url}: {key}")
    wrong = disagreement(manifest, run=run.run, attempt=attempt, step=step)
    if wrong:
        raise DamagedError(f"{key}: {wrong}")
    for entry in manifest.files:
        require_known_algorithm(entry)
    return StoredManifest(manifest, ref)


def read_manifest(run: RunStore, attempt: int, step: int) -> Manifest:
    """The manifest of one commit; raises as ``load_manifest``."""
    return load_manifest(run, attempt, step).manifest


def read_entry(run: RunStore, entry: FileEntry, into: memoryview) -> None:
    """Read one file of a checkpoint into ``into`` and compare its digest.

    Args:
        run: The run that holds the file.
        entry: The file as its manifest lists it.
        into: Exactly ``entry.size`` writable bytes. Their content is undefined after an error.

    Raises:
        DamagedError: Missing, of another size, or other bytes than the manifest says.
        NewerFormatError: The digest's algorithm is unknown.
    """
    require_known_algorithm(entry)
    if into.nbytes != entry.size:
        raise UsageError(f"{entry.path}: a buffer of {into.nbytes} bytes for a file of {entry.size}")
    key = keys.SHARDS + entry.path
    try:
        found = run.shards.download(key, into)
    except NotFoundError:
        raise DamagedError(f"{key} is missing, expected {entry.size} bytes, {entry.digest}") from None
    if found != entry.digest:
        raise DamagedError(f"{key} is damaged: expected {entry.digest}, found {found}")
