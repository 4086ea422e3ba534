"""Leaving after a save: what an eviction waits for, when it goes on without, and what it is called afterwards. Pure."""

from collections.abc import Sequence
from typing import Final, Literal

from rerail.policies.documents import RankExit, Value
from rerail.policies.errors import LEFT_UNSAVED, SAVED_AND_LEFT
from rerail.policies.liveness import FORCE_MARGIN_S

Outcome = Literal["committed", "deadline", "unsaved", "withdrawn"]
"""``committed``: a commit holds all that the gang did; ``deadline``: it was evicted at the deadline; ``unsaved``: it
ended before the deadline without such a commit; ``withdrawn``: nobody wanted it to leave any more, and it was left as
it was, though ranks that were asked may still save and leave."""

Move = Literal["wait", "evict", "over", "give-up"]

REFUSED_FOR_S: Final = 60.0
"""How long an eviction that a PodDisruptionBudget forbids is tried."""


class EvictionBounds(Value):
    """Every wait of one eviction, in seconds.

    Attributes:
        deadline_s: From the request on, how long a commit is waited for.
        leave_s: From the commit on, how long the pods may take to leave by themselves.
        grace_s: From the eviction of the pods on, how long they may take to end: the longest grace period of them.
        refused_for_s: How long an eviction that is refused is tried again.
    """

    deadline_s: float
    leave_s: float = FORCE_MARGIN_S
    grace_s: float = 30.0
    refused_for_s: float = REFUSED_FOR_S


class EvictionLook(Value):
    """What is seen of a gang that is to go. Times count from the request, on the evictor's monotonic clock.

    Attributes:
        after_s: Now.
        alive: Pods that may still hold processes, on nodes that report.
        committed_s: When a commit that answers the request was acknowledged; None before.
        evicted_s: When the eviction of every pod was accepted; None before.
        tried: Whether an eviction was asked for at least once, so that a pause of the evictor gives nobody up untried.
        wanted: Whether anybody still wants it to leave.
    """

    after_s: float
    alive: int
    committed_s: float | None = None
    evicted_s: float | None = None
    tried: bool = False
    wanted: bool = True


def request_id(gang: str, attempt: int) -> str:
    """The name of the request to leave: one per attempt, so that any number of evictors ask once."""
    return f"evict-{gang}-{attempt}"


def next_move(look: EvictionLook, bounds: EvictionBounds) -> Move:
    """What an evictor does next.

    Pods leave by themselves once their commit stands; what is still there a margin later, or at the deadline, is
    evicted, and that is bounded too.
    """
    if look.alive == 0:
        return "over"
    if not look.wanted and look.committed_s is None and look.evicted_s is None:
        return "give-up"
    if look.evicted_s is not None:
        return "give-up" if look.after_s > look.evicted_s + bounds.grace_s + FORCE_MARGIN_S else "wait"
    due_s = bounds.deadline_s if look.committed_s is None else look.committed_s + bounds.leave_s
    if look.after_s < due_s:
        return "wait"
    return "give-up" if look.tried and look.after_s > due_s + bounds.refused_for_s else "evict"


def outcome_of(
    *,
    answered: bool,
    forced: bool,
    exits: Sequence[RankExit],
    loaded_step: int,
    final: bool,
    withdrawn: bool = False,
) -> Outcome:
    """What an eviction is called.

    Args:
        answered: A commit that answers the request was acknowledged.
        forced: The deadline came first, and the pods were evicted.
        withdrawn: Nobody wanted it any more before either, and pods are left.
        exits: Of the ranks that ended by themselves.
        loaded_step: The step that their attempt began from.
        final: The run's last commit stands: there was nothing more to save.
    """
    if answered or final:
        return "committed"
    if forced:
        return "deadline"
    if withdrawn:
        return "withdrawn"
    codes = {end.exit_code for end in exits}
    if not codes or not codes <= {0, SAVED_AND_LEFT, LEFT_UNSAVED}:
        return "unsaved"
    # Somebody else's request, or a SIGTERM, came just before: they saved, and left together.
    saved = SAVED_AND_LEFT in codes
    # Ranks that are asked while they load leave at once: what they load holds all that was done.
    untouched = all((end.step or 0) <= loaded_step for end in exits)
    return "committed" if saved or untouched else "unsaved"
