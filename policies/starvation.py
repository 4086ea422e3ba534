"""Who starves while a locked gang holds what it may have, where no scheduler asks: seen in PodGroups and queues. Pure.

It follows Volcano's rules as far as objects of the API show them. Where they do not show enough it takes the side of
who waits: a lock that is opened in vain costs one save, one that stays closed costs somebody all their time.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from rerail.policies.workloads.quantities import Amounts, total

STARVE_S: Final = 15.0
"""How long a group waits for room before it counts as starving: a gang is often placed a session or two later."""

MOST_STARVING: Final = 64
"""Groups that are looked at in one pass, the most urgent first."""

_WHOLE: Final = 0.5
"""Part of the hold after which every gang that may be taken is asked, not only as many as should suffice."""

_WAITS: Final = ("Inqueue", "Unknown")
"""Phases in which Volcano looks for victims for a group; for one that was not admitted (Pending) it never does."""

_OF_QUOTAS: Final = ("count/", "requests.", "limits.")
"""Beginnings of names in ``minResources`` that count objects, or say once more what a resource's own name says."""

_NO_ROOM_WOULD_HELP: Final = ("NotEnoughTasks", "NotEnoughPodsOfTask")
"""Reasons of Unschedulable that tell of missing pods."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A PodGroup that is not placed.

    Attributes:
        key: ``namespace/name``.
        priority: Of its PriorityClass.
        wants: What all its pods together ask for, by resource; empty where nobody says.
        since_s: Since when it is unschedulable, epoch seconds.
    """

    key: str
    queue: str
    priority: int
    wants: Amounts
    since_s: float


@dataclass(frozen=True, slots=True)
class Holder:
    """A locked gang that runs; attributes as of ``Waiting``.

    Attributes:
        holds: What its pods hold, by resource.
    """

    key: str
    queue: str
    priority: int
    holds: Amounts


@dataclass(frozen=True, slots=True)
class Share:
    """A queue.

    Attributes:
        reclaimable: Whether other queues may take from it.
        deserved: What it may always have, for the scheduler's plugin ``capacity``; empty leaves it to weights.
        allocated: What its pods hold.
    """

    weight: int = 1
    reclaimable: bool = True
    deserved: Amounts = field(default_factory=dict)
    allocated: Amounts = field(default_factory=dict)


def waits_for_room(phase: str, reason: str | None) -> bool:
    """Whether a PodGroup is one that room would help.

    Args:
        phase: Of the group.
        reason: Of its newest true condition where that is Unschedulable; None where it is another one.
    """
    return phase in _WAITS and reason is not None and reason not in _NO_ROOM_WOULD_HELP


def starving(waiting: Collection[Waiting], now_s: float, *, starve_s: float) -> tuple[Waiting, ...]:
    """Groups that waited long enough, the most urgent first, then those that waited longest."""
    long = [one for one in waiting if now_s - one.since_s >= starve_s]
    return tuple(sorted(long, key=lambda one: (-one.priority, one.since_s, one.key))[:MOST_STARVING])


def hold_since_s(who: Waiting, now_s: float, *, starve_s: float, hold_s: float, seen_since_s: float) -> float:
    """From when on a gang that is asked for the first time is held back from ``who``.

    From when it starved, but half of the hold is always left for a save.

    Args:
        who: The group that starves.
        now_s: Now.
        starve_s: See ``starving``.
        hold_s: The most that a gang is held.
        seen_since_s: Since when anybody looks at all.
    """
    return max(who.since_s + starve_s, seen_since_s, now_s - _WHOLE * hold_s)


def to_ask(
    who: Waiting, holders: Collection[Holder], shares: Mapping[str, Share], *, starved_s: float, hold_s: float
) -> tuple[Holder, ...]:
    """Gangs that are asked to save so that ``who`` may take their room, the least urgent first.

    As many as hold what it wants; after half of the hold all that it may take, since what suffices by number may lie on
    the wrong nodes.

    Args:
        who: The group that starves.
        holders: Locked gangs that run.
        shares: Queues by name.
        starved_s: For how long it has starved.
        hold_s: The most that a gang is held.
    """
    there = [one for one in holders if may_take(who, one, shares)]
    there.sort(key=lambda one: (one.queue != who.queue, one.priority, one.key))
    needed = devices(who.wants)
    if not needed or starved_s >= _WHOLE * hold_s:
        return tuple(there)
    chosen: list[Holder] = []
    for one in there:
        chosen.append(one)
        have = total(each.holds for each in chosen)
        if all(have.get(name, Fraction(0)) >= amount for name, amount in needed.items()):
            break
    return tuple(chosen)


def may_take(who: Waiting, holder: Holder, shares: Mapping[str, Share]) -> bool:
    """Whether Volcano may give a gang's room to a group: by priority within a queue, by their shares between queues."""
    if who.key == holder.key:
        return False
    needed, held = devices(who.wants), devices(holder.holds)
    if needed and held and not needed.keys() & held.keys():
        return False
    if who.queue == holder.queue:
        return who.priority > holder.priority
    taker, giver = shares.get(who.queue), shares.get(holder.queue)
    if taker is None or giver is None:
        return True  # nobody tells
    return giver.reclaimable and _deserves(taker, giver, tuple(needed) or tuple(who.wants))


def _deserves(taker: Share, giver: Share, resources: Sequence[str]) -> bool:
    """Whether a queue holds less than its share of something that the other one holds more of."""
    if not resources:
        return True
    for name in resources:
        has, gives = taker.allocated.get(name, Fraction(0)), giver.allocated.get(name, Fraction(0))
        if taker.deserved or giver.deserved:
            short, over = has < taker.deserved.get(name, 0), gives > giver.deserved.get(name, 0)
            if short and over:
                return True
        elif has / max(1, taker.weight) < gives / max(1, giver.weight):
            return True
    return False


def devices(amounts: Amounts) -> Amounts:
    """Resources of a vendor: GPUs and their like, for which gangs wait; not the names of quotas, which Volcano adds."""
    return {
        name: amount
        for name, amount in amounts.items()
        if "/" in name and not name.startswith(_OF_QUOTAS) and amount > 0
    }
