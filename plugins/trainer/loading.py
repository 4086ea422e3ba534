"""Restoring: each rank loads what the start says, holds it against the manifest, and all ranks certify together."""

import hashlib
import json
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from pydantic import JsonValue

from rerail.plugins.checkpoint.commit import read_entry
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.trainer.codec import decode, decode_inline, encode, inline, leaf_digests
from rerail.plugins.trainer.environment import differences
from rerail.plugins.trainer.rng import derived_seed
from rerail.plugins.trainer.saving import state_digest
from rerail.plugins.trainer.state import OWN_PARTS, Handle, TrainingState
from rerail.policies.documents import Certificate, CommitRef, RankCertificate, canonical
from rerail.policies.errors import DamagedError, RefusedError, TransientError
from rerail.policies.manifest import FileEntry, Manifest

_NAMED_PLACES = 3
_READ_AHEAD = 2


@dataclass(slots=True, eq=False)
class RankLoad:
    """What one rank found while it loaded; travels to rank 0 as JSON.

    Attributes:
        rank: The rank.
        node: Its node.
        environment: What exactness rests on there.
        bytes_read: Bytes read and hashed.
        files: Files whose digest was compared.
        held: Digest of the state that the process now holds.
        expected: The same by the manifest.
        damage: Stored bytes that are not what was written.
        mismatch: State that is not what was saved, though its bytes are whole.
        unreachable: Why the store did not give it.
        reasons: Why a resume is not exact.
        leave: The rank was told to end meanwhile.
    """

    rank: int
    node: str
    environment: dict[str, str]
    bytes_read: int = 0
    files: int = 0
    held: str | None = None
    expected: str | None = None
    damage: list[str] = field(default_factory=list)
    mismatch: list[str] = field(default_factory=list)
    unreachable: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    leave: bool = False

    def encode(self) -> bytes:
        """As bytes."""
        return json.dumps({name: getattr(self, name) for name in self.__slots__}).encode()

    @classmethod
    def decode(cls, data: bytes) -> "RankLoad":
        """From bytes."""
        return cls(**json.loads(data))

    def certificate(self) -> RankCertificate:
        """The rank's share of the certificate."""
        return RankCertificate(
            rank=self.rank,
            node=self.node,
            bytes_read=self.bytes_read,
            files=self.files,
            state_digest=self.held,
            expected_digest=self.expected,
            problems=(*self.damage, *self.mismatch, *self.unreachable),
        )


@dataclass(frozen=True, slots=True, eq=False)
class Loader:
    """Loads one rank's state from a manifest.

    Attributes:
        run: The run's stores.
        manifest: What the start says.
        state: The user's objects.
        rank: This rank.
        world_size: Ranks now.
        seed: The run's seed where the script gives one.
    """

    run: RunStore
    manifest: Manifest
    state: TrainingState
    rank: int
    world_size: int
    seed: int | None

    def load(self, found: RankLoad) -> None:
        """Load all parts, then compare what the process holds with what was saved. Problems go to ``found``."""
        self._compare_layout(found)
        self._compare_parts(found)
        if found.mismatch:
            return
        loaded = self.load_parts(found)
        if not found.damage and not found.unreachable and not found.mismatch:
            self._verify(loaded, found)

    def _compare_layout(self, found: RankLoad) -> None:
        saved = self.manifest.layout.world_size
        if saved == self.world_size:
            return
        if not self.manifest.layout.reshardable:
            found.mismatch.append(
                f"distributed: saved by {saved} ranks, loaded by {self.world_size}, and the layout cannot be "
                f"resharded; start {saved} ranks, or save with a reshardable layout"
            )
            return
        found.reasons.append(f"world size {saved} -> {self.world_size}")
        if self.world_size < saved:
            found.reasons.append(f"per-rank state of ranks {self.world_size}-{saved - 1} dropped")
        for handle in self.state.handles:
            if self.world_size > saved and not handle.shared and handle.reseed is not None:
                name = "RNG" if handle.part == "rng" else handle.part
                found.reasons.append(f"{name} of ranks {saved}-{self.world_size - 1} derived")
        ratio = Fraction(self.world_size, saved)
        found.reasons.append(f"global batch changes unless accumulation {ratio.numerator}x -> {ratio.denominator}x")

    def _compare_parts(self, found: RankLoad) -> None:
        """Parts that one side has and the other has not."""
        manifest = self.manifest
        handled = {handle.part for handle in self.state.handles}
        for part, saved in manifest.parts.items():
            if part in handled:
                if saved.absent:
                    found.mismatch.append(f"{part}: the checkpoint has none ({saved.absent}), this process expects it")
                continue
            of_client = part in OWN_PARTS and not saved.files and part not in self.state.absent
            if saved.absent or of_client:
                continue
            if part in self.state.forgotten:
                found.reasons.append(f"{part} is in the checkpoint and was not restored (strict=False)")
                continue
            why = self.state.absent.get(part, "no object was given for it")
            found.mismatch.append(f"{part}: it is in the checkpoint, and this process leaves it out: {why}")
        if "step" not in handled and manifest.parts["step"].value != manifest.step:
            found.damage.append(f"step: the manifest of step {manifest.step} says {manifest.parts['step'].value!r}")
        said = manifest.state_digests.get(str(self.rank))
        own = {part: value for part, value in self._saved(lambda entry: entry.rank == self.rank).items() if value}
        if said and own and said != state_digest(own):
            found.damage.append(f"state digest of rank {self.rank}: the manifest contradicts its own list of files")

    def _saved(self, mine: Callable[[FileEntry], bool]) -> dict[str, JsonValue]:
        """Digest of the file, or inline value, of each part that satisfies ``mine``."""
        by_path = {entry.path: entry for entry in self.manifest.files}
        saved: dict[str, JsonValue] = {}
        for part, stored in self.manifest.parts.items():
            entries = [by_path[path] for path in stored.files if mine(by_path[path])]
            if entries:
                saved[part] = entries[0].digest
            elif stored.value is not None and part not in OWN_PARTS and self.rank == 0:
                saved[part] = stored.value
        return saved

    def _entry(self, handle: Handle) -> FileEntry | None:
        paths = self.manifest.parts[handle.part].files
        wanted = 0 if handle.shared else self.rank
        return next((entry for entry in self.manifest.files if entry.path in paths and entry.rank == wanted), None)

    def load_parts(self, found: RankLoad) -> list[Handle]:
        """Load the parts one after the other, comparing digests; those that came from the checkpoint.

        Up to two files are being read, and hashed, while a third is taken over: memory for three is needed.
        """
        loaded = []
        with ThreadPoolExecutor(_READ_AHEAD, "rerail-load") as pool:
            waiting = deque((handle, self._entry(handle)) for handle in self.state.handles)
            ahead: deque[tuple[Handle, FileEntry | None, Future[Any] | None]] = deque()
            while waiting or ahead:
                while waiting and sum(read is not None for _, _, read in ahead) < _READ_AHEAD:
                    handle, entry = waiting.popleft()
                    ahead.append((handle, entry, pool.submit(self._read, entry, handle.part) if entry else None))
                handle, entry, read = ahead.popleft()
                if self._load_part(handle, entry, read, found):
                    loaded.append(handle)
        return loaded

    def _load_part(self, handle: Handle, entry: FileEntry | None, read: "Future[Any] | None", found: RankLoad) -> bool:
        """Whether the part was loaded from the checkpoint."""
        stored = self.manifest.parts[handle.part]
        if not stored.files:
            handle.set(decode_inline(stored.value, handle.part))
            return True
        if entry is None or read is None:
            self._derive(handle, found)
            return False
        try:
            handle.set(read.result())
        except DamagedError as error:
            found.damage.append(f"{handle.part}: {error}")
            return False
        except (TransientError, RefusedError) as error:
            found.unreachable.append(f"{handle.part}: {error}")
            return False
        found.bytes_read += entry.size
        found.files += 1
        return True

    def _read(self, entry: FileEntry, part: str) -> Any:
        data = memoryview(bytearray(entry.size))
        read_entry(self.run, entry, data)
        return decode(data, part)

    def _derive(self, handle: Handle, found: RankLoad) -> None:
        """A rank that the checkpoint does not know."""
        if handle.reseed is None or self.rank < self.manifest.layout.world_size:
            found.mismatch.append(
                f"{handle.part}: the checkpoint has nothing for rank {self.rank}; give it as shared={{...}}, or give "
                "its object a reseed(seed) method that may start it from a derived seed"
            )
            return
        distributed = self.manifest.parts["distributed"].value
        saved_seed = distributed.get("seed") if isinstance(distributed, dict) else None
        seed = self.seed if self.seed is not None else saved_seed if isinstance(saved_seed, int) else 0
        handle.reseed(derived_seed(seed, self.manifest.step, self.rank))

    def _verify(self, loaded: list[Handle], found: RankLoad) -> None:
        """Encode what the process now holds once more, and compare: a setter that did nothing is found here."""
        held: dict[str, JsonValue] = {}
        expected: dict[str, JsonValue] = {}
        for handle in loaded:
            stored = self.manifest.parts[handle.part]
            content = handle.get()
            entry = self._entry(handle)
            if entry is None:
                expected[handle.part], held[handle.part] = stored.value, inline(content, handle.part)
                if canonical(held[handle.part]) == canonical(stored.value):
                    continue
                before = decode_inline(stored.value, handle.part)
            else:
                digest = _digest(encode(content, handle.part).buffers())
                expected[handle.part], held[handle.part] = entry.digest, digest
                if digest == entry.digest:
                    continue
                before = self._read(entry, handle.part)
            places = _differences(before, content, handle.part)
            if places:
                found.mismatch.append(
                    f"{handle.part}: restored, but not what was saved, at {', '.join(places)}: its load_state_dict() "
                    "does not take (or its state_dict() does not give) all of it"
                )
            else:
                held[handle.part] = expected[handle.part]  # equal but for the order of dict keys
        found.held, found.expected = state_digest(held), state_digest(expected)


def _digest(buffers: tuple[Any, ...]) -> str:
    hashed = hashlib.sha256()
    for buffer in buffers:
        hashed.update(buffer)
    return "sha256:" + hashed.hexdigest()


def _differences(before: Any, now: Any, part: str) -> list[str]:
    saved, held = leaf_digests(before, part), leaf_digests(now, part)
    places = sorted(place for place in {*saved, *held} if saved.get(place) != held.get(place))
    more = [f"and {len(places) - _NAMED_PLACES} more"] if len(places) > _NAMED_PLACES else []
    return [repr(place) for place in places[:_NAMED_PLACES]] + more


def certify(
    loads: list[RankLoad],
    *,
    run: str,
    attempt: int,
    loaded: CommitRef | None,
    saved_environment: Mapping[str, str] | None,
    writer: str,
) -> Certificate:
    """The certificate of an attempt from what its ranks found.

    Args:
        loads: Of all ranks, by rank.
        run: The run.
        attempt: The attempt.
        loaded: The commit that was loaded; None for a fresh start.
        saved_environment: Environment of the commit; None for a fresh start.
        writer: Random id of this write.
    """
    first = loads[0]
    reasons = [] if saved_environment is None else list(differences(saved_environment, first.environment))
    reasons += [reason for load in loads for reason in load.reasons]
    for load in loads[1:]:
        reasons += [
            f"rank {load.rank} on {load.node or 'another node'} differs from rank 0: {difference}"
            for difference in differences(first.environment, load.environment)
        ]
    ranks = tuple(load.certificate() for load in loads)
    ok = not any(rank.problems for rank in ranks)
    return Certificate(
        writer=writer,
        run=run,
        attempt=attempt,
        loaded=loaded,
        ok=ok,
        exact=ok and not reasons,
        reasons=tuple(dict.fromkeys(reasons)),
        ranks=ranks,
        environment=first.environment,
    )
