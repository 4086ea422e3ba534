"""What the store says about a run beyond its state: commits, marks, certificates and the ledger's notes.

A report must come out of a damaged run too, so what cannot be read is a fact of its own and stops nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rerail.plugins.checkpoint.attempts import read_run
from rerail.plugins.checkpoint.manifests import read_manifest
from rerail.plugins.checkpoint.notes import read_certificate, read_marks
from rerail.plugins.checkpoint.resolve import read_start
from rerail.plugins.checkpoint.store import RunStore, all_entries
from rerail.policies import keys
from rerail.policies.documents import Certificate, Mark, RunDoc, Start, Value
from rerail.policies.errors import DamagedError, NewerFormatError, NotFoundError
from rerail.policies.supervisor.state import LedgerEntry
from rerail.policies.worktime import CommitFact, CommitState

NOTES_AT_MOST = 200
"""Newest ledger entries that are read for their notes; each holds a whole state, and a report is for people."""


class Note(Value):
    """One decision of a supervisor, in its own words."""

    number: int
    at_s: float
    text: str


class RunFacts(Value):
    """Everything that a report needs and the state does not hold.

    Attributes:
        created_at_s: Submission; None where run.json is gone.
        until_s: Time of the newest decision; the present of a run that goes on.
        commits: All manifests that stand, and what was passed over and deleted since; oldest first.
        unreadable: Documents that could not be read, with the reason.
    """

    created_at_s: float | None = None
    owner: str = ""
    forked_from: str | None = None
    until_s: float | None = None
    commits: tuple[CommitFact, ...] = ()
    certificates: tuple[Certificate, ...] = ()
    notes: tuple[Note, ...] = ()
    unreadable: tuple[str, ...] = ()


def read_facts(run: RunStore) -> RunFacts:
    """Read the facts of a run; what is missing or damaged is said in ``unreadable``.

    Raises:
        StoreUnreachableError: The store does not answer.
        RefusedError: It may not be read.
    """
    unreadable: list[str] = []
    document = _document(run, unreadable)
    notes = _notes(run, unreadable)
    return RunFacts(
        created_at_s=document.created_at_s if document else None,
        owner=document.owner if document else "",
        forked_from=document.forked_from if document else None,
        until_s=notes[-1].at_s if notes else None,
        commits=_commits(run, unreadable),
        certificates=_certificates(run, unreadable),
        notes=notes,
        unreadable=tuple(unreadable),
    )


def _document(run: RunStore, unreadable: list[str]) -> RunDoc | None:
    try:
        return read_run(run)
    except (NotFoundError, DamagedError, NewerFormatError) as error:
        unreadable.append(str(error))
        return None


def _commits(run: RunStore, unreadable: list[str]) -> tuple[CommitFact, ...]:
    found = [key for entry in all_entries(run.control, keys.COMMITS) if (key := keys.parse_commit(entry.key))]
    marks = read_marks(run)
    starts = _starts(run, sorted({key.attempt for key in found if key.kind == "start"}), unreadable)
    skipped = {(skip.attempt, skip.step): skip.why for start in starts for skip in start.skipped}
    judge = _Standing(run, marks, skipped, _chain(starts))
    facts = []
    standing = {(key.attempt, key.step) for key in found if key.step is not None}
    for attempt, step in sorted(standing):
        state, why = judge.of(attempt, step)
        try:
            manifest = read_manifest(run, attempt, step)
        except (NotFoundError, DamagedError, NewerFormatError) as error:
            unreadable.append(str(error))
            continue
        facts.append(
            CommitFact(
                attempt=attempt,
                step=step,
                at_s=max((snapshot.at_s for snapshot in manifest.snapshots), default=None),
                reason=manifest.reason,
                state=state,
                why=why,
                size_bytes=sum(entry.size for entry in manifest.files),
                save_s=manifest.save_s,
                pinned=keys.MarkKey(attempt, step, "pin") in marks,
            )
        )
    # What a recovery passed over belongs into its report, also when retention has deleted it since.
    passed_over = {(mark.attempt, mark.step) for mark in marks if mark.kind != "pin"} | set(skipped)
    for attempt, step in sorted(passed_over - standing):
        state, why = judge.of(attempt, step)
        facts.append(CommitFact(attempt=attempt, step=step, at_s=None, reason="deleted since", state=state, why=why))
    return tuple(sorted(facts, key=lambda fact: (fact.attempt, fact.step)))


@dataclass(frozen=True, slots=True)
class _Standing:
    """What counts a commit in or out."""

    run: RunStore
    marks: frozenset[keys.MarkKey]
    skipped: Mapping[tuple[int, int], str]
    chain: Mapping[int, int | None]

    def of(self, attempt: int, step: int) -> tuple[CommitState, str]:
        """State of a commit, and why it is not good."""
        kinds: tuple[Literal["bad", "suspect"], ...] = ("bad", "suspect")
        for kind in kinds:
            if keys.MarkKey(attempt, step, kind) in self.marks:
                return kind, _why(self.run, attempt, step, kind)
        if (attempt, step) in self.skipped:
            return "bad", self.skipped[attempt, step]  # resolve saw the damage itself, and needs no mark
        top = self.chain.get(attempt, -1 if self.chain else None)
        if top is not None and step > top:
            return "off-chain", "a later attempt went on from an older commit"
        return "good", ""


def _why(run: RunStore, attempt: int, step: int, kind: keys.MarkKind) -> str:
    key = keys.mark(attempt, step, kind)
    try:
        return Mark.decode(run.control.get(key), key).why
    except (NotFoundError, DamagedError, NewerFormatError):
        return f"marked {kind}; the mark cannot be read"


def _starts(run: RunStore, attempts: list[int], unreadable: list[str]) -> list[Start]:
    found = []
    for attempt in attempts:
        try:
            found.append(read_start(run, attempt))
        except (NotFoundError, DamagedError, NewerFormatError) as error:
            unreadable.append(str(error))
    return found


def _chain(starts: list[Start]) -> dict[int, int | None]:
    """Newest step that counts, by attempt; None in it: all of them. Empty: no start says anything yet."""
    if not starts:
        return {}
    newest = starts[-1]
    steps: dict[int, int | None] = {link.attempt: -1 if link.step is None else link.step for link in newest.chain}
    return {**steps, newest.attempt: None}


def _certificates(run: RunStore, unreadable: list[str]) -> tuple[Certificate, ...]:
    found = []
    for entry in all_entries(run.control, keys.CERTIFICATES):
        number = entry.key.removeprefix(keys.CERTIFICATES).removesuffix(".json")
        if not number.isdigit():
            continue
        try:
            found.append(read_certificate(run, int(number)))
        except (NotFoundError, DamagedError, NewerFormatError) as error:
            unreadable.append(str(error))
    return tuple(found)


def _notes(run: RunStore, unreadable: list[str]) -> tuple[Note, ...]:
    page = run.control.page(keys.LEDGER, limit=NOTES_AT_MOST)
    notes = []
    for entry in page.entries:
        if not keys.is_ledger(entry.key):
            continue
        try:
            decided = LedgerEntry.decode(run.control.get(entry.key), entry.key)
        except (NotFoundError, DamagedError, NewerFormatError) as error:
            unreadable.append(str(error))
            continue
        notes.append(Note(number=decided.number, at_s=decided.at_s, text=decided.note))
    return tuple(reversed(notes))
