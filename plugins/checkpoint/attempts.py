"""Opening attempts: seal -> LIST -> start, so that no commit that anybody was told of is lost.

A writer creates its manifest and only then looks for a newer seal; an opener seals and only then lists. So a manifest
is in the opener's list, or its writer sees the seal and asks the start. Listing before sealing loses acknowledged
commits (tests/checkpoint/test_interleavings.py shows it).
"""

from collections.abc import Callable
from typing import NamedTuple

from rerail.plugins.checkpoint.listing import Commits
from rerail.plugins.checkpoint.notes import mark_commit
from rerail.plugins.checkpoint.resolve import Resolution, read_start, resolve_below
from rerail.plugins.checkpoint.store import Exists, RunStore
from rerail.policies import keys
from rerail.policies.documents import How, Rendezvous, RunDoc, Seal, Start
from rerail.policies.errors import (
    DamagedError,
    NotFoundError,
    RefusedError,
    ResumeBlockedError,
    SupersededError,
    UsageError,
)
from rerail.policies.manifest import Layout, Manifest
from rerail.policies.owners import not_yours

__all__ = [
    "Opening",
    "create_run",
    "newest_opening",
    "open_attempt",
    "read_run",
    "read_seal",
    "read_start",
    "seal_attempt",
    "start_attempt",
]

_GLANCE = 8
"""Keys of a short look at ``commits/``: the newest seal and start are the first two but for half-opened attempts."""


class Opening(NamedTuple):
    """The newest attempts that were sealed and started; None: no attempt yet."""

    sealed: int | None
    started: int | None


def create_run(run: RunStore, doc: RunDoc, *, take_over: bool = False) -> RunDoc:
    """Create ``run.json``, once for all time.

    Args:
        run: The run's stores.
        doc: What to write.
        take_over: Accept the document of another owner and go on with it.

    Returns:
        The document that stands.

    Raises:
        RefusedError: Another owner drives the run.
        StoreRefusedError: The store cannot create exclusively.
    """
    run.control.prove()
    outcome = run.control.create(keys.RUN, doc.encode())
    if not isinstance(outcome, Exists):
        return doc
    standing = RunDoc.decode(outcome.data, f"{run.control.url}: {keys.RUN}")
    if standing.owner != doc.owner and not take_over:
        raise RefusedError(not_yours(run.run, owner=standing.owner, asked=doc.owner))
    return standing


def read_run(run: RunStore) -> RunDoc:
    """``run.json`` of the run.

    Raises:
        NotFoundError: There is none: a wrong name, a wrong address, or a wrong mount.
        DamagedError: It is not what was written, or it is another run's.
    """
    try:
        data = run.control.get(keys.RUN)
    except NotFoundError:
        raise NotFoundError(
            f"run {run.run!r} is not at {run.control.url} (no {keys.RUN}); check the name, --store and the mount"
        ) from None
    doc = RunDoc.decode(data, f"{run.control.url}: {keys.RUN}")
    if doc.run != run.run:
        raise DamagedError(f"{run.control.url}: {keys.RUN} is that of run {doc.run!r} (copied here?)")
    return doc


def read_seal(run: RunStore, attempt: int) -> Seal:
    """The seal of one attempt; NotFoundError if it was never opened."""
    key = keys.seal(attempt)
    return Seal.decode(run.control.get(key), f"{run.control.url}: {key}")


def newest_opening(run: RunStore) -> Opening:
    """The newest seal and the newest start, by one short LIST."""
    commits = Commits(run.control, first_page=_GLANCE)
    return Opening(commits.newest("seal"), commits.newest("start"))


def seal_attempt(run: RunStore, seal: Seal) -> Seal:
    """Close all attempts below ``seal.attempt`` for new acknowledgements.

    Returns:
        The seal that stands: this one, or that of whoever was first.
    """
    run.control.prove()
    key = keys.seal(seal.attempt)
    outcome = run.control.create(key, seal.encode())
    return Seal.decode(outcome.data, f"{run.control.url}: {key}") if isinstance(outcome, Exists) else seal


def start_attempt(
    run: RunStore,
    *,
    attempt: int,
    how: How,
    gang: str,
    world_size: int,
    rendezvous: Rendezvous,
    writer: str,
    known: bool = False,
    layout: Layout | None = None,
    step: int | None = None,
    suspect: Callable[[Manifest], str | None] | None = None,
) -> Start:
    """The last two steps of opening a sealed attempt: LIST, then the start. Anybody may repeat them.

    Args:
        run: The run's stores.
        attempt: The sealed attempt.
        how: How its gang comes to be.
        gang: The only gang that may run it.
        world_size: Ranks of the gang.
        rendezvous: Where its ranks meet.
        writer: Random id of this write.
        known: Labels or a Workflow say that the run had an attempt before.
        layout: The gang's parallel layout; None compares only the world size.
        step: Load exactly this step of the chain.
        suspect: Why a commit cannot be trusted although it is not marked; it is skipped, and marked ``suspect``.

    Returns:
        The start that stands, own or other's.

    Raises:
        ResumeBlockedError: No checkpoint may be used now; the message says what to do.
        SupersededError: A newer attempt was sealed, and this one was never started.
        UsageError: The attempt is not sealed: listing before the seal would lose commits.
    """
    commits = Commits(run.control)
    if commits.newest("start", below=attempt + 1) == attempt:
        return read_start(run, attempt)
    newest = commits.newest("seal")
    if newest is not None and newest > attempt:
        raise SupersededError(f"attempt {newest} of run {run.run!r} was opened; attempt {attempt} will not start")
    if newest != attempt:
        raise UsageError(f"attempt {attempt} of run {run.run!r} is not sealed; seal it before it is started")
    doubts: dict[tuple[int, int], str] = {}

    def doubt(manifest: Manifest) -> str | None:
        why = suspect(manifest) if suspect else None
        if why is not None:
            doubts[manifest.attempt, manifest.step] = why
        return why

    found = resolve_below(
        run,
        commits,
        below=attempt,
        known=known,
        step=step,
        layout=layout,
        world_size=world_size,
        suspect=doubt if suspect else None,
    )
    for (of_attempt, of_step), why in doubts.items():
        mark_commit(run, attempt=of_attempt, step=of_step, kind="suspect", why=why, writer=writer)
    if found.decision == "blocked":
        raise ResumeBlockedError(blocked_message(found))
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
        skipped=found.skipped,
    )
    outcome = run.control.create(keys.start(attempt), start.encode())
    if isinstance(outcome, Exists):
        return Start.decode(outcome.data, f"{run.control.url}: {keys.start(attempt)}")
    return start


def open_attempt(
    run: RunStore,
    *,
    attempt: int,
    how: How,
    gang: str,
    world_size: int,
    rendezvous: Rendezvous,
    writer: str,
    reason: str = "",
    known: bool = False,
    layout: Layout | None = None,
    step: int | None = None,
) -> Start:
    """Seal, LIST, start. If another opener's seal stands, its gang is the one that the start names.

    Arguments, return and errors are those of ``seal_attempt`` and ``start_attempt``.
    """
    wanted = Seal(writer=writer, run=run.run, attempt=attempt, how=how, gang=gang, reason=reason)
    standing = seal_attempt(run, wanted)
    return start_attempt(
        run,
        attempt=attempt,
        how=standing.how,
        gang=standing.gang,
        world_size=world_size,
        rendezvous=rendezvous,
        writer=writer,
        known=known,
        layout=layout,
        step=step,
    )


def blocked_message(found: Resolution) -> str:
    """A blocked resolution in one sentence with its ways out."""
    return f"run {found.run!r}: {found.reason}; what to do: {'; or '.join(found.options)}"
