"""Commit: rank 0 waits for all parts, creates the manifest, and only then looks whether a newer attempt was sealed."""

import re
import time
from collections.abc import Callable, Mapping, Sequence

from pydantic import ValidationError

from rerail.plugins.checkpoint.attempts import newest_opening
from rerail.plugins.checkpoint.manifests import load_manifest, read_entry, read_manifest
from rerail.plugins.checkpoint.parts import Blob, check_record, merge_parts, save_folder, write_part
from rerail.plugins.checkpoint.resolve import read_start
from rerail.plugins.checkpoint.store import Exists, RunStore
from rerail.policies import keys
from rerail.policies.errors import (
    CommitExistsError,
    CommitFencedError,
    DamagedError,
    NewerFormatError,
    NotFoundError,
    SaveFailedError,
    UsageError,
)
from rerail.policies.lineage import holds
from rerail.policies.manifest import CertificateRef, Layout, Manifest, PartRecord, SaveReason

__all__ = ["Blob", "acknowledge", "commit", "confirm", "is_acknowledged", "read_entry", "read_manifest", "write_part"]

_PART = re.compile(r"part-(\d{5})\.json")
_TELL_RANKS = 16


def commit(
    run: RunStore,
    *,
    attempt: int,
    step: int,
    save_id: str,
    world_size: int,
    reason: SaveReason,
    certificate: CertificateRef,
    layout: Layout,
    writer: str,
    counters: Mapping[str, int] | None = None,
    answers: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    loss: float | None = None,
    temporary: bool = False,
    base: Manifest | None = None,
    deadline_s: float = 600.0,
    poll_s: float = 0.05,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Manifest:
    """Make a save a commit. Rank 0 only; returns when the commit is acknowledged.

    Args:
        run: The run's stores.
        attempt: The writer's attempt.
        step: Completed optimizer steps of the snapshot, frozen when it was taken.
        save_id: As the ranks used it.
        world_size: Ranks whose part records are waited for.
        reason: Why it was saved; ``final`` means that the run is done.
        certificate: The attempt's certificate.
        layout: Parallel layout of the saved state.
        writer: Random id of this write.
        counters: What was consumed up to the snapshot, by name.
        answers: Ids of the requests that were seen before the snapshot.
        environment: What exactness rests on.
        loss: Loss at the step, for the retention policy ``Best``.
        temporary: Retention may drop it as soon as a newer commit exists.
        base: The commit that an incremental save was written against, as in ``write_part``.
        deadline_s: Seconds for the parts, and again for the start if a newer seal is met.
        poll_s: Seconds between looks.
        clock: Monotonic seconds.
        sleep: Waits the given seconds.

    Returns:
        The acknowledged manifest.

    Raises:
        SaveFailedError: Parts did not arrive in time (names the ranks), or do not fit together.
        IncompleteStateError: A part of the state is missing without a reason.
        CommitExistsError: Another writer committed this step of this attempt.
        CommitFencedError: A newer attempt goes on without this commit.
    """
    if certificate.attempt != attempt:
        raise UsageError(f"a commit of attempt {attempt} cannot name the certificate of attempt {certificate.attempt}")
    run.control.prove()
    begin = clock()
    folder = save_folder(attempt, step, save_id, base)
    records = _wait_for_parts(
        run,
        folder,
        world_size,
        check=lambda record, rank: check_record(
            record, run=run.run, attempt=attempt, step=step, save_id=save_id, rank=rank
        ),
        deadline_s=deadline_s,
        poll_s=poll_s,
        clock=clock,
        sleep=sleep,
    )
    files = tuple(entry for record in records for entry in record.files)
    try:
        manifest = Manifest(
            writer=writer,
            run=run.run,
            attempt=attempt,
            step=step,
            save_id=save_id,
            folder=base.folder if base else folder,
            reason=reason,
            temporary=temporary,
            layout=layout,
            parts=merge_parts(records),
            files=files,
            snapshots=tuple(record.snapshot for record in records),
            certificate=certificate,
            counters=dict(counters or {}),
            answers=tuple(answers),
            state_digests={str(record.rank): record.state_digest for record in records if record.state_digest},
            environment=dict(environment or {}),
            loss=loss,
            save_s=clock() - begin,
            base=base.folder if base else None,
            full=base is None,
        )
    except ValidationError as error:
        raise SaveFailedError(f"step {step}: the parts do not fit together: {error.errors()[0]['msg']}") from None
    key = keys.manifest(attempt, step)
    outcome = run.control.create(key, manifest.encode())
    if isinstance(outcome, Exists):
        manifest = _own_or_refuse(run, key, outcome.data, writer)
    acknowledge(run, attempt=attempt, step=step, deadline_s=deadline_s, poll_s=poll_s, clock=clock, sleep=sleep)
    return manifest


def _own_or_refuse(run: RunStore, key: str, data: bytes, writer: str) -> Manifest:
    try:
        standing = Manifest.decode(data, f"{run.control.url}: {key}")
    except (DamagedError, NewerFormatError) as error:
        raise CommitExistsError(f"{key} stands already and cannot be read: {error}") from None
    if standing.writer != writer:
        raise CommitExistsError(
            f"step {standing.step} of attempt {standing.attempt} was committed by another writer ({standing.writer}); "
            "two process groups run as one attempt: one of them has to leave with 86"
        )
    return standing


def _wait_for_parts(
    run: RunStore,
    folder: str,
    world_size: int,
    *,
    check: Callable[[PartRecord, int], None],
    deadline_s: float,
    poll_s: float,
    clock: Callable[[], float],
    sleep: Callable[[float], None],
) -> list[PartRecord]:
    """Part records of all ranks in order of rank, read as they come."""
    end = clock() + deadline_s
    records: dict[int, PartRecord] = {}
    prefix = folder + "part-"
    while True:
        after: str | None = ""
        while after is not None:
            page = run.shards.page(prefix, start_after=after)
            for entry in page.entries:
                found = _PART.fullmatch(entry.key.removeprefix(folder))
                if found is None or int(found[1]) in records:
                    continue
                rank = int(found[1])
                if rank >= world_size:
                    raise SaveFailedError(f"{entry.key}: a rank beyond the world size {world_size} wrote to this save")
                record = PartRecord.decode(run.shards.get(entry.key), f"{run.shards.url}: {entry.key}")
                check(record, rank)
                records[rank] = record
            after = page.next_after
        if len(records) == world_size:
            return [records[rank] for rank in range(world_size)]
        if clock() >= end:
            missing = [rank for rank in range(world_size) if rank not in records]
            named = ", ".join(str(rank) for rank in missing[:_TELL_RANKS])
            more = f" and {len(missing) - _TELL_RANKS} more" if len(missing) > _TELL_RANKS else ""
            raise SaveFailedError(
                f"{folder}: no part record of rank {named}{more} within {deadline_s:g} s; "
                "the newest commit before this save stands"
            )
        sleep(poll_s)


def acknowledge(
    run: RunStore,
    *,
    attempt: int,
    step: int,
    deadline_s: float = 600.0,
    poll_s: float = 0.05,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """The look after the manifest: return only if the commit counts for every attempt to come.

    Whoever reports a commit (rank 0, pre-evict, the extender, exit code 85) looks in this order.

    Raises:
        CommitFencedError: A newer attempt was sealed, and its start does not hold the commit, or did not come in time.
    """
    end = clock() + deadline_s
    while not is_acknowledged(run, attempt=attempt, step=step):
        if clock() >= end:
            raise CommitFencedError(
                f"a newer attempt was sealed and not started within {deadline_s:g} s: whether step {step} of attempt "
                f"{attempt} counts is open, so it is not acknowledged"
            )
        sleep(poll_s)


def is_acknowledged(run: RunStore, *, attempt: int, step: int) -> bool:
    """One look after the manifest; False while a newer attempt is sealed and not started, so that it is still open.

    Raises:
        CommitFencedError: A newer attempt goes on without the commit.
    """
    # Of several newer seals the newest one decides: its start may rest on a list made before the older start.
    opening = newest_opening(run)
    if opening.sealed is None or opening.sealed <= attempt:
        return True
    if opening.started is None or opening.started < opening.sealed:
        return False
    start = read_start(run, opening.started)
    if holds(start.chain, attempt, step):
        return True
    raise CommitFencedError(
        f"step {step} of attempt {attempt} is not on the chain of attempt {start.attempt}, which goes on from "
        f"{f'step {start.load.step}' if start.load else 'step 0'}; this gang has to leave with 86"
    )


def confirm(
    run: RunStore,
    *,
    attempt: int,
    step: int,
    save_id: str,
    deadline_s: float = 600.0,
    poll_s: float = 0.05,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Manifest:
    """The other ranks' side of ``commit``: wait for the manifest, then look for seals as rank 0 does.

    Raises:
        SaveFailedError: No manifest in time.
        CommitExistsError: The manifest at this step is of another save.
        CommitFencedError: A newer attempt goes on without it.
    """
    end = clock() + deadline_s
    while True:
        try:
            manifest = load_manifest(run, attempt, step).manifest
            break
        except NotFoundError:
            if clock() >= end:
                raise SaveFailedError(
                    f"step {step} of attempt {attempt}: no manifest within {deadline_s:g} s; rank 0 did not commit"
                ) from None
            sleep(poll_s)
    if manifest.save_id != save_id:
        raise CommitExistsError(
            f"step {step} of attempt {attempt} is the commit of save {manifest.save_id}, not of {save_id}"
        )
    # Rank 0's link can be seen before its folder is synced. Whoever loses a create makes what stands durable, so that
    # what is acknowledged here outlives a power cut, whatever rank 0 came to.
    run.control.create(keys.manifest(attempt, step), manifest.encode())
    acknowledge(run, attempt=attempt, step=step, deadline_s=deadline_s, poll_s=poll_s, clock=clock, sleep=sleep)
    return manifest
