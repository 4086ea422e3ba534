"""Retention carried out: which commits a policy lets go, then manifests first, and files that no kept manifest names.

It is a decision of the run's supervisor, so that it is ordered against starts; others ask through it.
"""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass

from rerail.plugins.checkpoint.attempts import newest_opening
from rerail.plugins.checkpoint.notes import mark_commit, read_marks, unmark_commit
from rerail.plugins.checkpoint.resolve import read_start
from rerail.plugins.checkpoint.store import RunStore, all_entries
from rerail.policies import keys
from rerail.policies.documents import Start, Value
from rerail.policies.errors import DamagedError, NewerFormatError, NotFoundError
from rerail.policies.lineage import holds, links
from rerail.policies.manifest import Manifest
from rerail.policies.resolving import disagreement
from rerail.policies.retention import (
    KEEP_CLEAN_S,
    CommitFact,
    CommitName,
    RetentionPlan,
    RetentionPolicy,
    deletable_files,
    plan,
)

_DELETE_AT_ONCE = 500


class Collected(Value):
    """What a collection did, or would do.

    Attributes:
        kept: Reason by "attempt.step".
        deleted: Commits that went, as "attempt.step", oldest first.
        files: Number of files that went.
        freed_bytes: Their bytes.
        foreign_runs: Steps of manifests that belong to other runs, by run; never touched.
        warnings: What a person should know.
        dry_run: Nothing was deleted.
    """

    run: str
    kept: dict[str, str]
    deleted: tuple[str, ...]
    files: int
    freed_bytes: int
    foreign_runs: dict[str, tuple[int, ...]]
    warnings: tuple[str, ...] = ()
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Survey:
    """Everything that retention looked at, before any decision."""

    sealed: int
    started: int
    start: Start | None
    facts: tuple[CommitFact, ...]
    manifests: dict[CommitName, Manifest]
    pins: frozenset[CommitName]
    foreign: dict[str, tuple[int, ...]]


def survey(run: RunStore) -> Survey:
    """Read all manifests, marks and the newest start of a run.

    Raises:
        NewerFormatError: A manifest cannot be read by this Rerail: what it names is unknown, so nothing may be deleted.
    """
    opening = newest_opening(run)
    start = read_start(run, opening.started) if opening.started is not None else None
    chain = links(start)
    marks = read_marks(run)
    wrong = {(mark.attempt, mark.step) for mark in marks if mark.kind != "pin"}
    facts: list[CommitFact] = []
    manifests: dict[CommitName, Manifest] = {}
    foreign: dict[str, list[int]] = {}
    for entry in all_entries(run.control, keys.COMMITS):
        key = keys.parse_commit(entry.key)
        if key is None or key.step is None:
            continue
        name = (key.attempt, key.step)
        manifest = _read(run, entry.key)
        if manifest is not None and manifest.run != run.run:
            foreign.setdefault(manifest.run, []).append(manifest.step)
            continue
        if manifest is not None and disagreement(manifest, run=run.run, attempt=key.attempt, step=key.step):
            manifest = None
        if manifest is not None:
            manifests[name] = manifest
        facts.append(
            CommitFact(
                attempt=key.attempt,
                step=key.step,
                at_s=max((snapshot.at_s for snapshot in manifest.snapshots), default=0.0) if manifest else 0.0,
                loss=manifest.loss if manifest else None,
                temporary=manifest.temporary if manifest else False,
                on_chain=holds(chain, key.attempt, key.step),
                good=manifest is not None and name not in wrong,
                closed=key.attempt < (opening.started or 0),
            )
        )
    return Survey(
        sealed=opening.sealed or 0,
        started=opening.started or 0,
        start=start,
        facts=tuple(facts),
        manifests=manifests,
        pins=frozenset((mark.attempt, mark.step) for mark in marks if mark.kind == "pin"),
        foreign={name: tuple(sorted(steps)) for name, steps in foreign.items()},
    )


def _read(run: RunStore, key: str) -> Manifest | None:
    try:
        return Manifest.decode(run.control.get(key), f"{run.control.url}: {key}")
    except (DamagedError, NotFoundError):
        return None
    except NewerFormatError as error:
        raise NewerFormatError(f"nothing was deleted: {error}") from None


def plan_for(
    seen: Survey, policy: RetentionPolicy, *, now_s: float, keep_clean_s: float = KEEP_CLEAN_S
) -> RetentionPlan:
    """What ``policy`` lets go of what was seen."""
    return plan(
        seen.facts,
        policy,
        now_s=now_s,
        pins=seen.pins,
        load=seen.start.load if seen.start else None,
        keep_clean_s=keep_clean_s,
    )


def collect(
    run: RunStore,
    policy: RetentionPolicy,
    *,
    dry_run: bool = False,
    keep_clean_s: float = KEEP_CLEAN_S,
    wall: Callable[[], float] = time.time,
) -> Collected:
    """Delete what ``policy`` lets go: each manifest first, then its files that no kept manifest names.

    Files without a manifest go only when their attempt is sealed and a newer one was started: a save may be under way.

    Args:
        run: The run's stores.
        policy: What to keep beyond the floor.
        dry_run: Only say what would happen.
        keep_clean_s: See ``policies.retention.plan``.
        wall: Epoch seconds, for ages only.

    Raises:
        NewerFormatError: A manifest cannot be read by this Rerail; nothing was deleted.
    """
    # Files are listed before manifests are read: a save that commits in between is then among the manifests.
    files = {entry.key: entry.size for entry in all_entries(run.shards, keys.SHARDS)}
    seen = survey(run)
    decided = plan_for(seen, policy, now_s=wall(), keep_clean_s=keep_clean_s)
    gone = set(decided.delete)
    kept = [manifest for name, manifest in seen.manifests.items() if name not in gone]
    dropped = [manifest for name, manifest in seen.manifests.items() if name in gone]
    alive = {keys.FolderKey(manifest.attempt, manifest.step, manifest.save_id) for manifest in kept}
    dead = {keys.FolderKey(manifest.attempt, manifest.step, manifest.save_id) for manifest in dropped}
    unreadable = {name for name, _ in decided.keep if name not in seen.manifests}
    orphans = [key for key in files if _is_orphan(key, seen.started, alive, dead, unreadable)]
    going = deletable_files(
        files,
        kept=[keys.SHARDS + entry.path for manifest in kept for entry in manifest.files],
        dropped=[keys.SHARDS + entry.path for manifest in dropped for entry in manifest.files],
        orphans=orphans,
    )
    warnings = list(decided.warnings)
    if not dry_run and not _doom(run, decided.delete, seen.sealed):
        warnings.append("an attempt was being opened: nothing was deleted, the next collection does it")
        decided, going, dry_run = decided.model_copy(update={"delete": ()}), {}, True
    if not dry_run:
        run.control.delete(tuple(keys.manifest(attempt, step) for attempt, step in decided.delete))
        names = tuple(sorted(going))
        for at in range(0, len(names), _DELETE_AT_ONCE):
            run.shards.delete(names[at : at + _DELETE_AT_ONCE])
        run.control.delete(tuple(keys.mark(attempt, step, "doomed") for attempt, step in decided.delete))
    warnings += [f"checkpoints of run {name!r} lie here: not touched" for name in sorted(seen.foreign)]
    return Collected(
        run=run.run,
        kept={f"{attempt}.{step}": why for (attempt, step), why in decided.keep},
        deleted=tuple(f"{attempt}.{step}" for attempt, step in decided.delete),
        files=len(going),
        freed_bytes=sum(going.values()),
        foreign_runs=seen.foreign,
        warnings=tuple(warnings),
        dry_run=dry_run,
    )


def _doom(run: RunStore, names: tuple[CommitName, ...], sealed: int) -> bool:
    """Mark what goes, then look for an attempt that is being opened; the same order as a commit and a seal.

    An opener seals before it lists marks: either it sees the mark and passes the commit over, or its seal is seen here
    and nothing is deleted. So a collector that slept through anything deletes no commit that a start loads.

    Returns:
        Whether the commits may be deleted now.
    """
    for attempt, step in names:
        mark_commit(run, attempt=attempt, step=step, kind="doomed", why="retention", writer=secrets.token_hex(8))
    opening = newest_opening(run)
    if (opening.sealed or 0) == sealed == (opening.started or 0):
        return True
    for attempt, step in names:
        unmark_commit(run, attempt=attempt, step=step, kind="doomed")
    return False


def _is_orphan(
    key: str,
    started: int,
    alive: set[keys.FolderKey],
    dead: set[keys.FolderKey],
    unreadable: set[CommitName],
) -> bool:
    """Whether no commit needs the save that wrote ``key``, and nobody can still be writing it."""
    save = keys.parse_shard(key)
    if save is None or save in alive or (save.attempt, save.step) in unreadable:
        return False
    return save in dead or save.attempt < started
