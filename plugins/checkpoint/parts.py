"""The ranks' side of a save: files under a fresh save id, last of all the part record."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from pydantic import JsonValue

from rerail.plugins.checkpoint.store import Buffer, Created, RunStore
from rerail.policies import keys
from rerail.policies.errors import IncompleteStateError, SaveFailedError, UsageError
from rerail.policies.manifest import PARTS, FileEntry, Manifest, PartRecord, Snapshot, StatePart, check_path
from rerail.policies.resolving import DIGEST_PREFIX

_SIDE_BY_SIDE = 2
_SIDE_BY_SIDE_BYTES = 16 << 20
"""Below this many bytes in all, threads cost more than they save."""


class Blob(NamedTuple):
    """One file to save.

    Attributes:
        name: File name inside the save folder, unique over all ranks of the save.
        part: The part of the state that it belongs to, one of ``manifest.PARTS``.
        size: Bytes, the sum of the buffers' lengths; never zero.
        buffers: The content.
    """

    name: str
    part: str
    size: int
    buffers: tuple[Buffer, ...]


def save_folder(attempt: int, step: int, save_id: str, base: Manifest | None) -> str:
    """Folder of one save; an incremental one lies inside its full base's folder, so that one LIST finds all files."""
    return keys.folder(attempt, step, save_id, base=base.folder if base else None)


def write_part(
    run: RunStore,
    *,
    attempt: int,
    step: int,
    save_id: str,
    rank: int,
    blobs: Sequence[Blob],
    values: Mapping[str, JsonValue],
    absent: Mapping[str, str],
    snapshot: Snapshot,
    state_digest: str | Callable[[Sequence[FileEntry]], str] | None,
    writer: str,
    base: Manifest | None = None,
) -> PartRecord:
    """Write one rank's share of a save: its files, then its part record.

    Args:
        run: The run's stores.
        attempt: The writer's attempt.
        step: Completed optimizer steps of the snapshot.
        save_id: Fresh for this save, the same on all ranks.
        rank: The writing rank.
        blobs: Its files.
        values: Small parts of the state, inline.
        absent: Parts that are absent, each with its reason.
        snapshot: When and where the state was taken.
        state_digest: Digest of the state as it was in memory, or a function that gives it from the blobs' entries (in
            the order of ``blobs``), which saves hashing the state twice.
        writer: Random id of this write.
        base: Makes the save incremental: a file that is equal to the base's of the same rank and name is reused. Only
            the newest commit of the own attempt, or the one that its start loads, may be a base.

    Raises:
        UsageError: A blob's name, part or size is unusable.
        SaveFailedError: The store holds fewer bytes than were given, or another rank record under this save id.
    """
    folder = save_folder(attempt, step, save_id, base)
    reusable = {(entry.rank, entry.path.rsplit("/", 1)[-1]): entry for entry in base.files} if base else {}
    files: list[FileEntry] = []
    by_part: dict[str, list[str]] = {}

    def settle(blob: Blob) -> FileEntry:
        entry = reusable.get((rank, blob.name))
        if entry is not None and entry.size == blob.size and entry.digest == _digest(blob):
            return entry
        key = folder + blob.name
        done = run.shards.upload(key, blob.buffers, size=blob.size)
        if done.size != blob.size:
            raise SaveFailedError(f"{key}: {done.size} bytes were stored of {blob.size}")
        return FileEntry(path=key.removeprefix(keys.SHARDS), size=done.size, digest=done.digest, rank=rank)

    for blob in blobs:
        _check(blob)
    for blob, entry in zip(blobs, _side_by_side(settle, blobs), strict=True):
        files.append(entry)
        by_part.setdefault(blob.part, []).append(entry.path)
    record = PartRecord(
        writer=writer,
        run=run.run,
        attempt=attempt,
        step=step,
        save_id=save_id,
        rank=rank,
        parts=_parts(by_part, values, absent),
        files=tuple(files),
        snapshot=snapshot,
        state_digest=state_digest(files) if callable(state_digest) else state_digest,
    )
    key = keys.part_record(folder, rank)
    outcome = run.shards.create(key, record.encode())
    if not isinstance(outcome, Created):
        standing = PartRecord.decode(outcome.data, f"{run.shards.url}: {key}")
        if standing.writer != writer:
            raise SaveFailedError(f"{key} was written by another process: a save id must be fresh for each save")
    return record


def _side_by_side(settle: Callable[[Blob], FileEntry], blobs: Sequence[Blob]) -> list[FileEntry]:
    """Settle all files: large ones two at a time, so that one is hashed while the other waits for the disk."""
    if len(blobs) < _SIDE_BY_SIDE or sum(blob.size for blob in blobs) < _SIDE_BY_SIDE_BYTES:
        return [settle(blob) for blob in blobs]
    with ThreadPoolExecutor(_SIDE_BY_SIDE, "rerail-files") as pool:
        return list(pool.map(settle, blobs))


def _parts(
    by_part: Mapping[str, Sequence[str]], values: Mapping[str, JsonValue], absent: Mapping[str, str]
) -> dict[str, StatePart]:
    unknown = sorted(({*by_part, *values, *absent}) - set(PARTS))
    if unknown:
        raise UsageError(f"part {unknown[0]!r} is none of the state's parts: {', '.join(PARTS)}")
    parts = {name: StatePart(files=tuple(paths)) for name, paths in by_part.items()}
    for name, value in values.items():
        if name in parts:
            raise UsageError(f"part {name!r} has files and a value; give one of them")
        if value is not None:
            parts[name] = StatePart(value=value)
    for name, reason in absent.items():
        if name not in parts:
            parts[name] = StatePart(absent=reason)
    return parts


def _check(blob: Blob) -> None:
    try:
        check_path(blob.name)
    except ValueError as error:
        raise UsageError(f"file name {blob.name!r}: {error}") from None
    if "/" in blob.name or (blob.name.startswith("part-") and blob.name.endswith(".json")):
        raise UsageError(f"file name {blob.name!r}: one plain name, and not that of a part record")
    if blob.size <= 0:
        raise UsageError(f"file {blob.name!r} has {blob.size} bytes: an empty file is never a valid part of a state")


def _digest(blob: Blob) -> str:
    digest = hashlib.sha256()
    for buffer in blob.buffers:
        digest.update(buffer)
    return DIGEST_PREFIX + digest.hexdigest()


def merge_parts(records: Sequence[PartRecord]) -> dict[str, StatePart]:
    """The parts of a whole save from what its ranks wrote: files of all ranks, else the value they agree on.

    Raises:
        SaveFailedError: Ranks disagree: they did not save the same state.
        IncompleteStateError: A part has neither files, nor a value, nor a reason for its absence.
    """
    merged: dict[str, StatePart] = {}
    missing = []
    for name in PARTS:
        given = [(record.rank, record.parts[name]) for record in records if name in record.parts]
        files = tuple(path for _, part in given for path in part.files)
        values = [(rank, part.value) for rank, part in given if part.value is not None]
        reasons = [part.absent for _, part in given if part.absent]
        if files:
            merged[name] = StatePart(files=files)
        elif values:
            other = next((rank for rank, value in values if value != values[0][1]), None)
            if other is not None:
                raise SaveFailedError(
                    f"part {name!r}: rank {other} has another value than rank {values[0][0]}; "
                    "values are shared by all ranks, state of one rank belongs into a file"
                )
            merged[name] = StatePart(value=values[0][1])
        elif reasons:
            merged[name] = StatePart(absent=reasons[0])
        else:
            missing.append(name)
    if missing:
        raise IncompleteStateError(
            f"parts of the state without files, value or a reason for their absence: {', '.join(missing)}; "
            "save them, or declare them absent with a reason"
        )
    return merged


def check_record(record: PartRecord, *, run: str, attempt: int, step: int, save_id: str, rank: int) -> None:
    """Refuse a part record that is not of this very save.

    Raises:
        SaveFailedError: It belongs to another save.
    """
    said = (record.run, record.attempt, record.step, record.save_id, record.rank)
    if said != (run, attempt, step, save_id, rank):
        raise SaveFailedError(f"the part record of rank {rank} is of save {said}, not of this one")
