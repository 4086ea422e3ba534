"""A run is created once, and found again afterwards: by whom it is driven, and whether it is the one that was meant."""

from collections.abc import Callable

from rerail.plugins.checkpoint.attempts import create_run, read_run
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.gang.ledger import newest_entry
from rerail.policies.documents import RunDoc
from rerail.policies.errors import NotFoundError, RefusedError
from rerail.policies.owners import not_yours


def submit(
    run: RunStore,
    fresh: RunDoc,
    check: Callable[[RunDoc], None],
    *,
    first: Callable[[], None] = lambda: None,
    take_over: bool = False,
) -> RunDoc:
    """Create the run, or find it and go on with it.

    Args:
        run: The run's stores.
        fresh: What to write where there is none.
        check: Raises where the document that stands is not the one that was meant.
        first: Called before the run is created; raises where it could never run.
        take_over: Go on with another owner's run.

    Returns:
        The document that stands.

    Raises:
        RefusedError: Another owner drives the run.
        StoreRefusedError: The store cannot create exclusively.
    """
    try:
        standing = read_run(run)
    except NotFoundError:
        first()
        standing = create_run(run, fresh, take_over=take_over)
        if standing.writer == fresh.writer:
            return standing
    check(standing)
    owner = owner_of(run, standing)
    if owner != fresh.owner and not take_over:
        raise RefusedError(not_yours(run.run, owner=owner, asked=fresh.owner))
    run.control.prove()
    return standing


def owner_of(run: RunStore, doc: RunDoc) -> str:
    """Who drives a run: whoever took it over last, else who created it."""
    entry = newest_entry(run)
    return (entry.state.owner if entry is not None else "") or doc.owner
