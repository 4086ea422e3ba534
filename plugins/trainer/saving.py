"""One save of one rank: freeze the state at a step boundary, write it, and (rank 0) commit it.

Everything that the commit says (step, epoch, counters, loss, answers) is frozen together with the state, so a commit
that happens later, in the background, cannot read a live value.
"""

import hashlib
import mmap
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import JsonValue

from rerail.plugins.checkpoint.commit import Blob, commit, confirm, read_manifest, write_part
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.trainer.codec import Encoded, encode, inline
from rerail.plugins.trainer.state import OWN_PARTS, TrainingState
from rerail.policies.documents import canonical, digest_of
from rerail.policies.manifest import CertificateRef, FileEntry, Layout, Manifest, SaveReason, Snapshot

SUFFIX = ".safetensors"


def save_id(start_writer: str, step: int, count: int) -> str:
    """The id of one save: all ranks derive the same without talking, and no two saves of a run share one.

    Args:
        start_writer: Random id of the attempt's start.
        step: Completed optimizer steps.
        count: Saves that this attempt began before.
    """
    return hashlib.sha256(f"{start_writer}.{step}.{count}".encode()).hexdigest()[:16]


def file_name(part: str, rank: int, *, shared: bool) -> str:
    """Name of a part's file in its save folder."""
    return f"{part}{SUFFIX}" if shared else f"{part}.{rank:05d}{SUFFIX}"


def state_digest(parts: Mapping[str, JsonValue]) -> str:
    """Digest of a rank's state from its parts: each a file's digest, or a small value itself."""
    return digest_of(canonical(dict(parts)))


class Buffers:
    """Memory for snapshots, kept from save to save: the first touch of fresh memory costs more than the copy."""

    def __init__(self) -> None:
        self._held: dict[str, mmap.mmap] = {}

    def copy(self, name: str, encoded: Encoded) -> memoryview:
        """Copy a state into the memory of that name. Valid until the next copy under this name."""
        held = self._held.get(name)
        if held is None or len(held) < encoded.size:
            held = self._held[name] = mmap.mmap(-1, encoded.size)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                held.madvise(mmap.MADV_HUGEPAGE)
        return encoded.copy_into(memoryview(held))


class Facts(NamedTuple):
    """What a commit says besides the state, as of the snapshot.

    Attributes:
        step: Completed optimizer steps.
        epoch: As the loop told it; None where it told none.
        reason: Why it is saved.
        counters: What was consumed, by name.
        answers: Requests that were seen before the snapshot.
        loss: Loss of the step.
        seed: The run's seed, for ranks that a later attempt may add.
    """

    step: int
    epoch: int | None
    reason: SaveReason
    counters: Mapping[str, int]
    answers: tuple[str, ...]
    loss: float | None
    seed: int | None


class Frozen(NamedTuple):
    """The state of one rank at one boundary, ready to be written by any thread."""

    facts: Facts
    save_id: str
    blobs: tuple[Blob, ...]
    values: Mapping[str, JsonValue]
    absent: Mapping[str, str]
    snapshot: Snapshot


def freeze(
    state: TrainingState,
    facts: Facts,
    *,
    save_id: str,
    rank: int,
    layout: Layout,
    snapshot: Snapshot,
    buffers: Buffers | None,
) -> Frozen:
    """Take the state of this rank. With ``buffers`` it is copied, else referred to (training has to wait then).

    Raises:
        UsageError: Something in it cannot be saved.
    """
    blobs: list[Blob] = []
    values: dict[str, JsonValue] = {}
    for handle in state.handles:
        if handle.shared and rank != 0:
            continue
        content: Any = handle.get()
        small = inline(content, handle.part) if handle.shared and handle.part not in OWN_PARTS else None
        if small is not None:
            values[handle.part] = small
            continue
        name = file_name(handle.part, rank, shared=handle.shared)
        encoded = encode(content, handle.part)
        taken = (buffers.copy(name, encoded),) if buffers else encoded.buffers()
        blobs.append(Blob(name=name, part=handle.part, size=encoded.size, buffers=taken))
    if rank == 0:
        given = {handle.part for handle in state.handles}
        own: dict[str, JsonValue] = {
            "step": facts.step,
            "epoch": facts.epoch,
            "distributed": {**layout.model_dump(mode="json"), "seed": facts.seed},
        }
        values |= {part: value for part, value in own.items() if part not in given and part not in state.absent}
    return Frozen(facts, save_id, tuple(blobs), values, state.absent if rank == 0 else {}, snapshot)


@dataclass(frozen=True, slots=True, eq=False)
class Saver:
    """Writes frozen states of one attempt.

    Attributes:
        run: The run's stores.
        attempt: The attempt.
        rank: This rank.
        world_size: Ranks whose parts a commit needs.
        layout: Parallel layout.
        certificate: The attempt's certificate; every commit names it.
        environment: What exactness rests on.
        new_id: Gives a random writer id.
        deadline_s: Seconds within which all parts, or the manifest, have to be there.
        poll_s: Seconds between looks.
        sleep: Waits; raises to give up.
        clock: Monotonic seconds.
    """

    run: RunStore
    attempt: int
    rank: int
    world_size: int
    layout: Layout
    certificate: CertificateRef
    environment: Mapping[str, str]
    new_id: Callable[[], str]
    deadline_s: float
    poll_s: float
    sleep: Callable[[float], None]
    clock: Callable[[], float] = time.monotonic

    def write(self, frozen: Frozen, *, base: tuple[int, int] | None, wait: bool) -> Manifest | None:
        """Write this rank's part; rank 0 then commits, another rank waits for the commit if it is told to.

        Args:
            frozen: The state.
            base: Attempt and step of the commit whose equal files are reused; None for a full save.
            wait: Whether ranks other than 0 wait for the acknowledged commit.

        Returns:
            The acknowledged commit; None on a rank that did not wait.

        Raises:
            SaveFailedError: No commit came of it.
            CommitFencedError: A newer attempt goes on without it.
            CommitExistsError: Another process group wrote this step of this attempt.
        """
        facts = frozen.facts
        against = read_manifest(self.run, *base) if base else None
        inlined = {part: value for part, value in frozen.values.items() if part not in OWN_PARTS}

        def digest(files: Sequence[FileEntry]) -> str:
            written = {blob.part: entry.digest for blob, entry in zip(frozen.blobs, files, strict=True)}
            return state_digest({**inlined, **written})

        write_part(
            self.run,
            attempt=self.attempt,
            step=facts.step,
            save_id=frozen.save_id,
            rank=self.rank,
            blobs=frozen.blobs,
            values=frozen.values,
            absent=frozen.absent,
            snapshot=frozen.snapshot,
            state_digest=digest,
            writer=self.new_id(),
            base=against,
        )
        if self.rank == 0:
            return commit(
                self.run,
                attempt=self.attempt,
                step=facts.step,
                save_id=frozen.save_id,
                world_size=self.world_size,
                reason=facts.reason,
                certificate=self.certificate,
                layout=self.layout,
                writer=self.new_id(),
                counters=facts.counters,
                answers=facts.answers,
                environment=self.environment,
                loss=facts.loss,
                base=against,
                deadline_s=self.deadline_s,
                poll_s=self.poll_s,
                clock=self.clock,
                sleep=self.sleep,
            )
        if not wait:
            return None
        return confirm(
            self.run,
            attempt=self.attempt,
            step=facts.step,
            save_id=frozen.save_id,
            deadline_s=self.deadline_s,
            poll_s=self.poll_s,
            clock=self.clock,
            sleep=self.sleep,
        )
