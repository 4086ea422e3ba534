"""What may be deleted: small policies that compose, and a floor under them that no policy can break.

Ordered by attempt and step, never by time of modification or by text. Times are used only for ages.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from pydantic import Field

from rerail.policies.documents import CommitRef, Value
from rerail.policies.errors import UsageError

KEEP_CLEAN_S = 6 * 3600.0
"""A fault can be found late: the newest good commit older than this many seconds always stays."""

CommitName = tuple[int, int]
"""Attempt and step."""


class CommitFact(Value):
    """What retention knows of one commit.

    Attributes:
        at_s: Wall clock of the newest snapshot in it, epoch seconds: for ages only.
        temporary: May go as soon as a newer commit exists, whatever the policies say.
        on_chain: It counts for the newest start.
        good: Neither marked bad nor suspect, and readable.
        closed: Its attempt is sealed and a newer one was started, so nobody writes in it any more.
    """

    attempt: int = Field(ge=1)
    step: int = Field(ge=0)
    at_s: float = 0.0
    loss: float | None = None
    temporary: bool = False
    on_chain: bool = True
    good: bool = True
    closed: bool = False

    @property
    def name(self) -> CommitName:
        """Attempt and step."""
        return (self.attempt, self.step)


class RetentionPolicy(Protocol):
    """Chooses commits to keep among good, permanent ones of the chain."""

    def keeps(self, commits: Sequence[CommitFact], *, now_s: float) -> frozenset[CommitName]:
        """Names of the commits to keep; ``commits`` is ordered newest first."""
        ...


class LatestN(Value):
    """The newest ``n``."""

    n: int = Field(ge=1)

    def keeps(self, commits: Sequence[CommitFact], *, now_s: float) -> frozenset[CommitName]:  # noqa: ARG002 - the protocol
        """The newest ``n``."""
        return frozenset(commit.name for commit in commits[: self.n])


class EveryN(Value):
    """Those at whole multiples of ``steps``."""

    steps: int = Field(ge=1)

    def keeps(self, commits: Sequence[CommitFact], *, now_s: float) -> frozenset[CommitName]:  # noqa: ARG002 - the protocol
        """Those at whole multiples of ``steps``."""
        return frozenset(commit.name for commit in commits if commit.step % self.steps == 0)


class Best(Value):
    """The ``n`` with the lowest loss; of equal ones the newer. Commits without a loss, or with NaN, never win."""

    n: int = Field(ge=1)

    def keeps(self, commits: Sequence[CommitFact], *, now_s: float) -> frozenset[CommitName]:  # noqa: ARG002 - the protocol
        """The ``n`` with the lowest loss."""
        rated = [(commit.loss, at, commit) for at, commit in enumerate(commits) if commit.loss is not None]
        ranked = sorted((loss, at, commit.name) for loss, at, commit in rated if loss == loss)  # noqa: PLR0124 - NaN
        return frozenset(name for _, _, name in ranked[: self.n])


class MaxAge(Value):
    """Those younger than ``max_age_s`` seconds."""

    max_age_s: float = Field(gt=0)

    def keeps(self, commits: Sequence[CommitFact], *, now_s: float) -> frozenset[CommitName]:
        """Those younger than ``max_age_s``."""
        return frozenset(commit.name for commit in commits if now_s - commit.at_s < self.max_age_s)


class AnyOf:
    """Whatever at least one of the policies keeps."""

    def __init__(self, *policies: RetentionPolicy) -> None:
        if not policies:
            raise UsageError("retention needs at least one policy, for example --keep-last 3")
        self.policies = policies

    def keeps(self, commits: Sequence[CommitFact], *, now_s: float) -> frozenset[CommitName]:
        """Whatever at least one of the policies keeps."""
        return frozenset[CommitName]().union(*(policy.keeps(commits, now_s=now_s) for policy in self.policies))


class RetentionPlan(Value):
    """What stays, why, and what may go.

    Attributes:
        keep: Reason by commit, newest first.
        delete: Commits that may go, oldest first.
        warnings: What a person should know, for example a pin on a commit that is not there.
    """

    keep: tuple[tuple[CommitName, str], ...]
    delete: tuple[CommitName, ...]
    warnings: tuple[str, ...] = ()


def plan(
    commits: Collection[CommitFact],
    policy: RetentionPolicy,
    *,
    now_s: float,
    pins: Collection[CommitName] = (),
    load: CommitRef | None = None,
    keep_clean_s: float = KEEP_CLEAN_S,
) -> RetentionPlan:
    """Decide what a run keeps.

    Always kept: the newest good commit of the chain and everything newer, the commit that the current start loads, the
    newest good one older than ``keep_clean_s``, pins, and what an open attempt wrote off the chain. So that there ever
    is one so old, the oldest good one that is younger is kept too; a commit without a stamp does not age.

    Args:
        commits: All commits of the run, in any order.
        policy: What to keep beyond that, among good permanent commits of the chain.
        now_s: Wall clock, epoch seconds, for ages.
        pins: Commits that a person keeps.
        load: What the newest start loads.
        keep_clean_s: Seconds within which a fault may still be found to reach back.
    """
    ordered = sorted(commits, key=lambda commit: commit.name, reverse=True)
    good = [commit for commit in ordered if commit.on_chain and commit.good]
    reasons: dict[CommitName, str] = {}
    chosen = policy.keeps([commit for commit in good if not commit.temporary], now_s=now_s)
    for commit in ordered:
        if commit.on_chain and (not good or commit.name > good[0].name):
            reasons[commit.name] = "newer than the newest good one"
        elif not commit.on_chain and not commit.closed:
            reasons[commit.name] = "its attempt may still be writing"
        elif commit.name in chosen:
            reasons[commit.name] = "policy"
    clean = next((commit for commit in good if now_s - commit.at_s > keep_clean_s), None)
    ageing = next((commit for commit in reversed(good) if commit.at_s and now_s - commit.at_s <= keep_clean_s), None)
    if ageing:
        reasons[ageing.name] = "ages into the one that a late finding does not reach"
    if clean:
        reasons[clean.name] = "newest good one that a late finding does not reach"
    if load is not None:
        reasons[load.attempt, load.step] = "the current start loads it"
    if good:
        reasons[good[0].name] = "newest good one"
    reasons.update(dict.fromkeys(pins, "pin"))
    known = {commit.name for commit in ordered}
    return RetentionPlan(
        keep=tuple((commit.name, reasons[commit.name]) for commit in ordered if commit.name in reasons),
        delete=tuple(commit.name for commit in reversed(ordered) if commit.name not in reasons),
        warnings=tuple(
            f"protected checkpoint not found: attempt {attempt} step {step} ({why})"
            for (attempt, step), why in sorted(reasons.items())
            if (attempt, step) not in known
        ),
    )


def deletable_files(
    files: Mapping[str, int], *, kept: Collection[str], dropped: Collection[str], orphans: Collection[str]
) -> dict[str, int]:
    """Files that may go, with their sizes in bytes: never one that a kept manifest names.

    Args:
        files: Everything that is there, size by key.
        kept: Keys that kept manifests name.
        dropped: Keys that deleted manifests name.
        orphans: Keys of closed saves without a manifest.
    """
    protected = set(kept)
    gone = set(dropped) | set(orphans)
    return {key: size for key, size in files.items() if key in gone and key not in protected}
