"""Draining a node for another healer: when to begin, until when, and what the healer is told. Pure.

A healer asks on an object of its own and goes on once it is told that the node is drained. What it is told is on that
object, and so is the deadline: neither is kept in memory only, so a restart tells nothing twice and moves no deadline.
"""

import json
import math
from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Final, Self

from rerail.policies.documents import Value
from rerail.policies.liveness import FORCE_MARGIN_S

LEAST_SAVE_S: Final = 10.0
"""A gang that is asked when the deadline is close, or after it, still gets so long to save."""

RETRY_S: Final = 60.0
"""After a drain that left something behind, how long until the next one begins."""

_LEAVE_S: Final = 2 * FORCE_MARGIN_S
_SOONER_S: Final = 1.0
_MOST_NAMED: Final = 5
_LONGEST: Final = 1000


class Telling(Value):
    """What a healer is told.

    Attributes:
        done: Whether it may go on.
        reason: One word in CamelCase, for programs.
        message: For people.
    """

    done: bool
    reason: str
    message: str


class DrainNote(Value):
    """What is kept on the healer's object. Times in epoch seconds.

    Attributes:
        begun_at_s: When the request was first seen.
        deadline_at_s: When gangs that did not save are evicted all the same.
        boot_id: Of the node at that time; a note of another boot belongs to another request.
        told: What the healer was told, where its object has no place of its own for that.
    """

    begun_at_s: float
    deadline_at_s: float
    boot_id: str = ""
    told: Telling | None = None

    @classmethod
    def of(cls, text: object) -> Self | None:
        """Read a note; None for what is none: the object belongs to somebody else."""
        try:
            return cls.model_validate(json.loads(text)) if isinstance(text, str) else None
        except ValueError:
            return None

    def text(self) -> str:
        """As one line of JSON."""
        return self.model_dump_json(exclude_none=True)


class Ask(Value):
    """A healer that wants a node emptied.

    Attributes:
        id: Of the request, unique in its slot and over time.
        pods: ``namespace/name`` of pods that have to leave, of whatever kind.
        gangs: Whether all training gangs on the node have to leave besides.
        why: The healer's reason, for people.
        note: What was kept on its object; None before.
        told: What it was told last.
    """

    id: str
    node: str
    pods: tuple[str, ...] = ()
    gangs: bool = True
    why: str = ""
    note: DrainNote | None = None
    told: Telling | None = None


class PodThere(Value):
    """A pod on the node that does not belong to the node itself.

    Attributes:
        name: ``namespace/name``.
        training: Whether it is of a gang of ours.
        deleted_at_s: When its grace ends, epoch seconds; None where nobody asked it to leave.
    """

    name: str
    training: bool
    deleted_at_s: float | None = None


class LastDrain(Value):
    """The newest drain of a node.

    Attributes:
        pods: What it was to move.
        deadline_at_s: Until when it waits for saves, epoch seconds.
        ended_at_s: None while it runs.
        words: What became of each gang.
        saved: Whether all of them left after a commit.
    """

    pods: tuple[str, ...]
    deadline_at_s: float
    ended_at_s: float | None = None
    words: tuple[str, ...] = ()
    saved: bool = True


class NodeLook(Value):
    """What is seen of a node.

    Attributes:
        now_s: Epoch seconds.
        exists: Whether there is such a node.
        fenced: Whether new work is kept off it.
        pods: Those on it, without what belongs to it.
        last: The newest drain; None where this process began none.
    """

    now_s: float
    exists: bool = True
    fenced: bool = True
    pods: tuple[PodThere, ...] = ()
    last: LastDrain | None = None


class Order(Value):
    """A drain that is to begin now.

    Attributes:
        pods: ``namespace/name`` of what has to leave.
        within_s: How long each gang's commit is waited for.
        deadline_at_s: The end of that, epoch seconds.
        regardless: Whether gangs that cannot be asked, because of their store, are evicted all the same.
    """

    pods: tuple[str, ...]
    within_s: float
    deadline_at_s: float
    regardless: bool = False


class Step(Value):
    """What to do about a node.

    Attributes:
        tell: What each request's healer is told now, by its id; those that know already are left out.
        drain: The drain to begin; None for none.
    """

    tell: dict[str, Telling]
    drain: Order | None = None


def begin(now_s: float, deadline_s: float, *, boot_id: str = "") -> DrainNote:
    """The note of a request that is seen for the first time."""
    return DrainNote(begun_at_s=now_s, deadline_at_s=now_s + deadline_s, boot_id=boot_id)


def next_step(asks: Sequence[Ask], look: NodeLook, *, save_within_s: float) -> Step:
    """Decide about all requests for one node together: they are one drain.

    Args:
        asks: With their notes; those without one are not begun yet, and are left out.
        look: At the node.
        save_within_s: The most that a gang's commit is waited for, within the deadline.
    """
    tell: dict[str, Telling] = {}
    moving: dict[str, None] = {}
    deadline_at_s = math.inf
    for ask in asks:
        if ask.note is None or (ask.told is not None and ask.told.done):
            continue
        mine = [pod for pod in look.pods if pod.name in ask.pods or (ask.gangs and pod.training)]
        said = _settled(ask, mine, look)
        if said is None:
            moving |= {pod.name: None for pod in mine}
            deadline_at_s = min(deadline_at_s, ask.note.deadline_at_s)
            said = _under_way(ask, ask.note, mine, look)
        if said != ask.told:
            tell[ask.id] = said
    if not moving or not _is_due(look, tuple(moving), deadline_at_s):
        return Step(tell=tell)
    within_s = max(LEAST_SAVE_S, min(save_within_s, deadline_at_s - _LEAVE_S - look.now_s))
    order = Order(
        pods=tuple(moving),
        within_s=within_s,
        deadline_at_s=look.now_s + within_s + _LEAVE_S,
        regardless=look.now_s >= deadline_at_s,
    )
    return Step(tell=tell, drain=order)


def _settled(ask: Ask, mine: Sequence[PodThere], look: NodeLook) -> Telling | None:
    """What the healer is told where no drain is wanted; None where one is."""
    if not look.exists:
        return _yes("NodeGone", f"node {ask.node} does not exist any more")
    last = look.last
    if not mine:
        if last is not None and last.ended_at_s is None:
            return None  # it knows in a moment what became of each gang
        if last is None or not last.words:
            return _yes("Drained", f"nothing that had to leave is on node {ask.node}")
        return _yes("GangsSaved" if last.saved else "LeftUnsaved", "; ".join(last.words))
    if all(pod.deleted_at_s is not None and look.now_s > pod.deleted_at_s + FORCE_MARGIN_S for pod in mine):
        # Waiting longer saves nothing, and the repair is what ends them. Their commits are refused by the store.
        what = f"{_names(mine)}: asked to leave, and not gone after their grace; only a reboot ends them"
        return _yes("PodsStuck", "; ".join((what, *(last.words if last else ()))))
    if not look.fenced:
        what = f"node {ask.node} takes new work, so what leaves would come back: cordon it, or taint it NoSchedule"
        return _no("NodeOpen", what)
    return None


def _under_way(ask: Ask, note: DrainNote, mine: Sequence[PodThere], look: NodeLook) -> Telling:
    last = look.last
    if last is None or last.ended_at_s is None:
        until = _stamp(note.deadline_at_s)
        return _no("Draining", f"node {ask.node}: gangs save and leave, until {until} at most")
    words = "; ".join((f"still there: {_names(mine)}", *last.words))
    late = look.now_s >= note.deadline_at_s
    return _no("DeadlineExceeded" if late else "Blocked", f"{words}; trying again")


def _is_due(look: NodeLook, moving: Collection[str], deadline_at_s: float) -> bool:
    last = look.last
    if last is None:
        return True
    if last.ended_at_s is None:
        # Somebody asked later who will wait less long.
        sooner_s = max(deadline_at_s, look.now_s + LEAST_SAVE_S + _LEAVE_S)
        return last.deadline_at_s > sooner_s + _SOONER_S
    return not set(moving) <= set(last.pods) or look.now_s >= last.ended_at_s + RETRY_S


def _yes(reason: str, message: str) -> Telling:
    return Telling(done=True, reason=reason, message=message[:_LONGEST])


def _no(reason: str, message: str) -> Telling:
    return Telling(done=False, reason=reason, message=message[:_LONGEST])


def _names(pods: Sequence[PodThere]) -> str:
    names = [pod.name for pod in pods]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _stamp(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
