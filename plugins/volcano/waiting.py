"""Waiting for an object to come into a state: watch and poll in one, with a deadline, and every other end named."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TypeVar

from rerail.plugins.kube.watch import Watch
from rerail.plugins.volcano.base import VolcanoObject
from rerail.policies.errors import ConditionError, DeadlineError, NotFoundError, TransientError

R = TypeVar("R", bound=VolcanoObject)

Condition = Callable[[R], bool] | Collection[str]
"""A function of the object, or phases (a Queue's: states)."""


@dataclass(frozen=True, slots=True)
class Target:
    """What is awaited, for messages."""

    kind: str
    name: str
    namespace: str | None

    def __str__(self) -> str:
        """For people."""
        where = f" in namespace {self.namespace!r}" if self.namespace else ""
        return f"{self.kind} {self.name!r}{where}"


def phase_of(one: VolcanoObject) -> str:
    """The phase of an object that has one; of a Queue its state."""
    phase = getattr(one, "phase", None)
    if phase is None:
        phase = getattr(getattr(one, "status", None), "state", None)
    return "" if phase is None else str(phase)


def holds(condition: Condition[R], one: R) -> bool:
    """Whether a condition is met."""
    return condition(one) if callable(condition) else phase_of(one) in condition


def words(condition: Condition[R]) -> str:
    """A condition for messages."""
    return getattr(condition, "__name__", "a condition") if callable(condition) else " or ".join(map(str, condition))


def await_condition(
    watch: Watch,
    kind: type[R],
    target: Target,
    *,
    until: Condition[R],
    fail_on: Condition[R],
    uid: str | None,
    timeout_s: float,
    trouble: Sequence[TransientError] = (),
) -> R:
    """Read a watch of one object until a condition is met.

    Args:
        watch: Of this one object, for ``timeout_s``.
        kind: Its model.
        target: It, in words.
        until: What is awaited.
        fail_on: Where waiting is pointless.
        uid: Only this very object counts; another one of its name means that it is gone.
        timeout_s: For the message.
        trouble: Failures that the watch survived, the newest last; told where nothing else is known.

    Raises:
        ConditionError: ``fail_on`` is met.
        NotFoundError: It is not there, or was deleted meanwhile.
        DeadlineError: Neither came in time; tells the phase.
    """
    last: R | None = None
    for event in watch:
        if event.change == "synced":
            if last is None:
                raise NotFoundError(f"{target} does not exist; nothing to wait for")
            continue
        one = kind.from_dict(event.object)
        if event.change == "deleted":
            if last is None or (uid is not None and one.uid != uid):
                continue
            raise NotFoundError(
                f"{target} was deleted while {words(until)} was awaited; its phase was {phase_of(one)!r}"
            )
        if uid is not None and one.uid != uid:
            raise NotFoundError(f"{target} is another object now (uid {one.uid}, not {uid}): the one awaited is gone")
        last = one
        if holds(until, one):
            return one
        if holds(fail_on, one):
            raise ConditionError(f"{target} is {phase_of(one)!r}; from there {words(until)} is not reached")
    if last is None:
        last_words = f"; the last failure: {trouble[-1]}" if trouble else ""
        raise DeadlineError(f"{target} could not be read within {timeout_s:g} s{last_words}")
    raise DeadlineError(
        f"{target} is {phase_of(last)!r} after {timeout_s:g} s; awaited: {words(until)}; see its verdict"
    )
