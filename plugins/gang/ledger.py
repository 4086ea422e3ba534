"""The ledger of a run: numbered decisions, each created exclusively. It is the only state that supervisors share."""

import secrets

from rerail.plugins.checkpoint.store import Created, RunStore
from rerail.policies import keys
from rerail.policies.documents import Value
from rerail.policies.errors import NotFoundError
from rerail.policies.supervisor.advance import Decision
from rerail.policies.supervisor.state import LedgerEntry


class Lost(Value):
    """Somebody else decided first; read the ledger again."""

    number: int


def newest_entry(run: RunStore) -> LedgerEntry | None:
    """The newest decision, by one short LIST and one GET, and more LISTs only past what is no entry; None if none is.

    Raises:
        DamagedError: The entry is not what was written.
    """
    page = run.control.page(keys.LEDGER, limit=1)
    while True:
        for entry in page.entries:
            if keys.is_ledger(entry.key):
                return _read(run, entry.key)
        if page.next_after is None:
            return None
        page = run.control.page(keys.LEDGER, start_after=page.next_after)


def entry_at(run: RunStore, number: int) -> LedgerEntry:
    """One decision by its number; NotFoundError if it was never made."""
    return _read(run, keys.ledger(number))


def all_decisions(run: RunStore) -> list[LedgerEntry]:
    """Every entry, oldest first: what the report is computed from.

    Raises:
        NotFoundError: The run has no ledger.
    """
    found: list[LedgerEntry] = []
    after = ""
    while True:
        page = run.control.page(keys.LEDGER, start_after=after)
        found += [_read(run, entry.key) for entry in page.entries if keys.is_ledger(entry.key)]
        if page.next_after is None:
            break
        after = page.next_after
    if not found:
        raise NotFoundError(f"run {run.run!r} at {run.control.url} has no ledger: no supervisor ever drove it")
    return found[::-1]


def append(run: RunStore, number: int, decision: Decision, *, at_s: float) -> LedgerEntry | Lost:
    """Create entry ``number`` exclusively.

    Args:
        run: The run's stores.
        number: The number after the entry that the decision was made from; 0 for the first.
        decision: What was decided.
        at_s: Wall clock, epoch seconds.

    Returns:
        The entry, now the newest, or ``Lost``.
    """
    entry = LedgerEntry(
        writer=secrets.token_hex(8),
        number=number,
        at_s=at_s,
        note=decision.note,
        state=decision.state,
        effects=decision.effects,
    )
    outcome = run.control.create(keys.ledger(number), entry.encode())
    return entry if isinstance(outcome, Created) else Lost(number=number)


def _read(run: RunStore, key: str) -> LedgerEntry:
    return LedgerEntry.decode(run.control.get(key), f"{run.control.url}: {key}")
