"""Which checkpoint of a listing to resume from, and which ones retention may delete: foreign layouts and our own."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, get_args

from rerail.policies.errors import UsageError
from rerail.policies.judging import names
from rerail.policies.judging.candidates import Candidate, FileLayout, Judge, Listing, newest_good, read_listing
from rerail.policies.judging.reading import Answer, Case, need, need_int
from rerail.policies.retention import CommitFact, LatestN, plan

_LAYOUTS: Final = get_args(FileLayout)
_UPLOAD_ORDER: Final = "shards, then manifest (checksums), then pointer"
_PAGING: Final = "NextContinuationToken until IsTruncated is false; CommonPrefixes also paged"
_PAGE: Final = 1000
_UNKNOWN_RUN: Final = "unknown"
_GENERATED = re.compile(r"^\s*(?P<folder>[^\s:]+)\s*:\s*(?P<count>\d+)\s+\w+(?P<rest>.*)$")
_PAGE_SIZE = re.compile(r"page size\s*:?\s*(\d+)", re.IGNORECASE)
_NO_MANIFEST = re.compile(
    r"\b(no|without|missing)\s+(a\s+|the\s+)?manifest|manifest\s+(is\s+)?(missing|absent)", re.IGNORECASE
)


@dataclass(frozen=True)
class Pruning:
    """What retention does with committed steps; both in ascending order."""

    keep: tuple[int, ...]
    delete: tuple[int, ...]


def prune_steps(
    steps: Iterable[int],
    *,
    keep_last: int,
    just_saved: int | None = None,
    protected: Iterable[int] = (),
    temporary: Iterable[int] = (),
) -> Pruning:
    """Decide by the steps of commit records, with the rules of our own store; modification times order nothing.

    Args:
        steps: Steps of the good commits of one run.
        keep_last: How many of the newest stay; at least one always does.
        just_saved: The commit that was made a moment ago: never deleted, whatever its step.
        protected: Steps that stay besides (best, pinned, in use).
        temporary: Steps of temporary commits: they take no place of ``keep_last`` and go when a newer one exists.
    """
    passing = set(temporary)
    # The commit of a moment ago is the newest by the order of commits even where its step is lower (a new attempt).
    attempts = {step: 1 + (step == just_saved) for step in steps}
    facts = [
        CommitFact(attempt=attempt, step=step, temporary=step in passing, closed=True)
        for step, attempt in attempts.items()
    ]
    pins = [(attempts[step], step) for step in protected if step in attempts]
    decided = plan(facts, LatestN(n=max(1, keep_last)), now_s=0.0, pins=pins)
    return Pruning(
        keep=tuple(sorted(step for (_, step), _ in decided.keep)),
        delete=tuple(sorted(step for _, step in decided.delete)),
    )


def _own_and_foreign(candidates: Iterable[Candidate], run: str | None) -> tuple[list[Candidate], dict[str, list[int]]]:
    """Split by run identity. Another run's data is neither resumed nor deleted unless it is asked for by name."""
    every = list(candidates)
    if run is None or not any(one.runs for one in every):
        return every, {}
    own: list[Candidate] = []
    foreign: dict[str, list[int]] = {}
    for one in every:
        if run in one.runs:
            own.append(one)
        else:
            foreign.setdefault(min(one.runs, default=_UNKNOWN_RUN), []).append(one.step)
    return own, foreign


def answer_listing(case: Case) -> Answer:
    """Answer a ``checkpoint_listing``: what to resume from, what was passed over, and what retention may do.

    Raises:
        UsageError: The layout or the operation is unknown, or a key is missing.
    """
    if case.get("generated"):
        return _answer_generated(str(case["generated"]))
    layout = case.get("layout", "generic")
    if layout not in _LAYOUTS:
        raise UsageError(f"layout {layout!r} is unknown; use one of {', '.join(_LAYOUTS)}")
    listing = read_listing(need(case, "entries"))
    judge = Judge(layout=layout, world_size=case.get("world_size"), candidates=listing.candidates)
    just_saved = case.get("just_saved")
    run = case.get("run_id")
    own, foreign = _own_and_foreign(listing.candidates, run)
    operation = case.get("op", "resolve")
    if operation == "resolve":
        result = _resolve(own, judge, listing, case)
    elif operation in ("retention", "retention_after_save"):
        result = _retain(own, judge, keep_last=need_int(case, "keep_last"), just_saved=just_saved, case=case)
    else:
        raise UsageError(f"op {operation!r} is unknown; use resolve, retention or retention_after_save")
    if foreign:
        result |= {"foreign_runs": foreign, "warn": True}
    return result


def _resolve(own: list[Candidate], judge: Judge, listing: Listing, case: Case) -> Answer:
    chosen, skipped = newest_good(own, judge.problems)
    # Nothing usable is no fresh start: a silent step 0 loses the run.
    without = "blocked" if own or listing.pointers or listing.unplaced else "fresh"
    result: Answer = {
        "decision": "resume" if chosen else without,
        "resolve_step": chosen.step if chosen else None,
        "rejected": {str(step): why for step, why in skipped.items()},
        "delete_rejected": False,
    }
    passing = [one.step for one in own if one.temporary and not judge.problems(one)]
    if passing:
        result["retention_may_delete_later"] = passing
    targets = [*listing.pointers.values(), case.get("tracker")]
    named = [names.step_of(str(target)) for target in targets if target is not None]
    if chosen and any(step != chosen.step for step in named):
        result["repair_pointer_to"] = chosen.step
    if case.get("layout") == "s3":
        result["upload_order"] = _UPLOAD_ORDER
    return result


def _retain(own: list[Candidate], judge: Judge, *, keep_last: int, just_saved: int | None, case: Case) -> Answer:
    good = [one for one in own if not judge.problems(one)]
    bad = {str(one.step): "; ".join(found) for one in own if (found := judge.problems(one))}
    steps = [one.step for one in good]
    wanted, unfound = match_protected(case.get("protected") or (), steps)
    passing = [one.step for one in good if one.temporary]
    pruning = prune_steps(steps, keep_last=keep_last, just_saved=just_saved, protected=wanted, temporary=passing)
    newest = max(steps, default=None)
    result: Answer = {
        "latest_step": newest,
        "resolve_step": just_saved if just_saved in steps else newest,
        "keep_steps": list(pruning.keep),
        "delete_steps": list(pruning.delete),
        "rejected": bad,
        "delete_rejected": False,
    }
    if unfound:
        result |= {"warn": "protected checkpoint not found", "missing_protected": unfound}
    return result


def match_protected(protected: Iterable[object], existing: Iterable[int]) -> tuple[list[int], list[object]]:
    """Find protected checkpoints by their step; the folder in front of it may have moved with the volume.

    Args:
        protected: Steps, or paths or addresses that end in a checkpoint's name.
        existing: Steps that are there.

    Returns:
        The steps found, and what was given for those that were not.
    """
    there = set(existing)
    found, missing = [], []
    for one in protected:
        step = one if isinstance(one, int) else names.step_of(str(one).rstrip("/").rsplit("/", maxsplit=1)[-1])
        if step in there and step is not None:
            found.append(step)
        else:
            missing.append(one)
    return found, missing


def answer_retention(case: Case) -> Answer:
    """Answer a ``retention``: bare steps, and protected checkpoints that may be gone. A missing one is no crash."""
    raw = need(case, "existing")
    existing = [step for one in raw if (step := one if isinstance(one, int) else names.step_of(str(one))) is not None]
    protected = case.get("protected") or ()
    found, missing = match_protected([protected] if isinstance(protected, str | int) else protected, existing)
    pruning = prune_steps(
        existing, keep_last=need_int(case, "keep_last"), just_saved=case.get("just_saved"), protected=found
    )
    return {
        "keep_steps": list(pruning.keep),
        "delete_steps": list(pruning.delete),
        "warn": "protected checkpoint not found" if missing else None,
        "missing_protected": missing,
        "crash": False,
    }


def list_calls(keys: int, *, page: int = _PAGE) -> int:
    """Requests that a complete listing of ``keys`` objects takes with pages of ``page``."""
    return max(1, -(-keys // page))


def _answer_generated(text: str) -> Answer:
    """A listing described by counts: ``step-900: 600 shards + manifest; …; page size 1000``."""
    keys, committed, bare, page = 0, [], {}, _PAGE
    folders = []
    for part in text.split(";"):
        size = _PAGE_SIZE.search(part)
        if size:
            page = int(size[1])
        match = _GENERATED.match(part)
        if not match:
            continue
        step = names.step_of(match["folder"])
        if step is None:
            continue
        has_manifest = "manifest" in match["rest"].lower() and not _NO_MANIFEST.search(match["rest"])
        keys += int(match["count"]) + has_manifest
        folders.append((step, has_manifest))
    if not folders:
        raise UsageError(f"'generated' = {text!r}: no part of the form 'step-900: 600 shards + manifest'")
    uses_manifests = any(has for _, has in folders)
    for step, has_manifest in folders:
        if has_manifest or not uses_manifests:
            committed.append(step)
        else:
            bare[step] = "no manifest"
    newest = max(committed)
    return {
        "decision": "resume",
        "resolve_step": newest,
        "rejected": {str(step): why for step, why in sorted(bare.items()) if step > newest},
        "list_calls_at_least": list_calls(keys, page=page),
        "uses": _PAGING,
    }
