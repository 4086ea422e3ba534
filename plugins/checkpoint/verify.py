"""Verify hashes everything that manifests name: slow and complete, where resolve is quick and looks at sizes."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from rerail.plugins.checkpoint.attempts import newest_opening
from rerail.plugins.checkpoint.manifests import StoredManifest, load_manifest, read_entry
from rerail.plugins.checkpoint.resolve import read_start
from rerail.plugins.checkpoint.store import RunStore, all_entries
from rerail.policies import keys
from rerail.policies.documents import CommitRef, Value, digest_of
from rerail.policies.errors import DamagedError, NotFoundError, RefusedError
from rerail.policies.manifest import FileEntry
from rerail.policies.resolving import size_problems


class Verdict(Value):
    """What verification found about one checkpoint.

    Attributes:
        problems: Everything that is wrong, in words; empty exactly when ``ok``.
        bytes_read: Bytes that were read and hashed for it (a file shared with a checkpoint judged before counts once).
    """

    step: int
    attempt: int
    ok: bool
    problems: tuple[str, ...] = ()
    bytes_read: int = 0


def verify(run: RunStore, steps: Collection[int] | None = None) -> list[Verdict]:
    """Judge all checkpoints of a run, or those of ``steps``, newest first.

    Needs memory for the largest file. Checkpoints of a newer format are not judged: that is an error, never "damage".

    Raises:
        NotFoundError: One of ``steps`` has no checkpoint.
        NewerFormatError: A manifest is of a newer format or names an unknown algorithm.
    """
    return list(verdicts(run, steps))


def verdicts(run: RunStore, steps: Collection[int] | None = None) -> Iterator[Verdict]:
    """``verify``, one verdict at a time as it is reached."""
    wanted = None if steps is None else set(steps)
    load = _loaded_by_newest_start(run)
    found = [
        (key.attempt, key.step)
        for entry in all_entries(run.control, keys.COMMITS)
        if (key := keys.parse_commit(entry.key)) and key.step is not None
    ]
    if load is not None and (load.attempt, load.step) not in found:
        found.append((load.attempt, load.step))  # named by the newest start, so its absence is damage
    if wanted is not None:
        missing = sorted(wanted - {step for _, step in found})
        if missing:
            have = ", ".join(str(step) for step in sorted({step for _, step in found})) or "none"
            raise NotFoundError(f"step {missing[0]} not found (have {have})")
    verifier = _Verifier(run, load)
    for attempt, step in found:
        if wanted is None or step in wanted:
            yield verifier.judge(attempt, step)


def _loaded_by_newest_start(run: RunStore) -> CommitRef | None:
    started = newest_opening(run).started
    return read_start(run, started).load if started is not None else None


@dataclass(slots=True)
class _Verifier:
    """Judges checkpoints one by one; files and certificates that they share are read once."""

    run: RunStore
    load: CommitRef | None
    hashed: dict[FileEntry, str | None] = field(default_factory=dict)
    certificates: dict[int, str | None] = field(default_factory=dict)

    def judge(self, attempt: int, step: int) -> Verdict:
        try:
            stored = load_manifest(self.run, attempt, step, named=self.load)
        except (DamagedError, NotFoundError) as error:
            return Verdict(step=step, attempt=attempt, ok=False, problems=(str(error),))
        problems = self._certificate_problems(stored)
        sizes = {entry.key: entry.size for entry in all_entries(self.run.shards, stored.manifest.folder)}
        problems += size_problems(stored.manifest, sizes)
        bytes_read = 0
        for entry in stored.manifest.files:
            if sizes.get(keys.SHARDS + entry.path) != entry.size:
                continue  # told already
            if entry not in self.hashed:
                self.hashed[entry] = _hash(self.run, entry)
                bytes_read += entry.size
            problem = self.hashed[entry]
            if problem:
                problems.append(problem)
        return Verdict(step=step, attempt=attempt, ok=not problems, problems=tuple(problems), bytes_read=bytes_read)

    def _certificate_problems(self, stored: StoredManifest) -> list[str]:
        """A manifest without the certificate that it names is not a commit."""
        named = stored.manifest.certificate
        key = keys.certificate(named.attempt)
        if named.attempt not in self.certificates:
            try:
                self.certificates[named.attempt] = digest_of(self.run.control.get(key))
            except NotFoundError:
                self.certificates[named.attempt] = None
        found = self.certificates[named.attempt]
        if found is None:
            return [f"{key} is missing: without its certificate a manifest is not a commit"]
        if found != named.digest:
            return [f"{key} is not the certificate that the manifest names: expected {named.digest}, found {found}"]
        return []


def _hash(run: RunStore, entry: FileEntry) -> str | None:
    try:
        read_entry(run, entry, memoryview(bytearray(entry.size)))
    except (DamagedError, RefusedError) as error:
        return str(error)
    return None
