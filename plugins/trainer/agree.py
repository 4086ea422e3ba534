"""All ranks save at one step boundary: agreement on a step without a collective of our own.

``agree(local wish) -> step | None`` has two forms.

**A flag in a collective that the loop makes anyway.** ``Checkpointer.wish()`` gives a small number. The loop reduces it
with *max* together with its gradients, or its loss, and hands the result to ``step_done(step, agreed=...)``. The step
is the one that was just completed. Needs no assumption: all ranks see the same number in the same step.

**A key-value store on TCP** (``KeyValueAgreement``), for loops in which no flag can ride along. It rests on one
property of synchronous data parallel training, stated at the class.
"""

import time
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol, Self

from rerail.plugins.trainer.kvstore import KeyValue
from rerail.policies.errors import UsageError


class Wish(IntEnum):
    """What a rank wants at the next step boundary; of several wishes the largest counts."""

    NONE = 0
    SAVE = 1
    SAVE_AND_LEAVE = 2
    LEAVE = 3


class Group(Protocol):
    """The process group of one attempt, as far as the training client needs it.

    Attributes:
        rank: This process's global rank.
        world_size: Number of ranks.
    """

    @property
    def rank(self) -> int: ...  # noqa: D102  (said above)

    @property
    def world_size(self) -> int: ...  # noqa: D102

    def all_gather(self, payload: bytes) -> list[bytes]:
        """Every rank's payload, by rank; called by all ranks in the same order, in the training thread only."""
        ...


class Agreement(Protocol):
    """The second form of agreement, called by every rank at the end of each step."""

    def decided(self, step: int) -> Wish:
        """What all ranks do at the boundary after ``step``: the same answer on all of them."""
        ...

    def announce(self, wish: Wish, *, step: int) -> None:
        """What this rank wants at the boundary after ``step``, said before it begins that step."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Solo:
    """The group of a single process."""

    rank: int = 0
    world_size: int = 1

    def all_gather(self, payload: bytes) -> list[bytes]:
        """Its own payload."""
        return [payload]


class KeyValueGroup:
    """A process group's ``all_gather`` over a key-value store, for loops whose framework offers none for bytes.

    A context manager: at the end rank 0, beside which the server runs, stays until the others have read their last
    answer (at most ``linger_s``). So a rank that leaves early takes nobody else's answer away.
    """

    def __init__(
        self, store: KeyValue, *, rank: int, world_size: int, name: str = "rerail", linger_s: float = 5.0
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self._store = store
        self._name = name
        self._count = 0
        self._linger_s = linger_s

    def all_gather(self, payload: bytes) -> list[bytes]:
        """Every rank's payload; waits for all."""
        self._count += 1
        prefix = f"{self._name}.gather.{self._count}"
        self._store.set(f"{prefix}.{self.rank}", payload.hex())
        return [bytes.fromhex(self._store.get(f"{prefix}.{rank}").decode()) for rank in range(self.world_size)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.rank != 0:
            self._store.set(f"{self._name}.bye.{self.rank}", "1")
            return
        byes = [f"{self._name}.bye.{rank}" for rank in range(1, self.world_size)]
        end = time.monotonic() + self._linger_s
        while byes and not self._store.check(byes) and time.monotonic() < end:
            time.sleep(0.02)


class KeyValueAgreement:
    """Rank 0 says "at the end of step t + 1" through a key-value store.

    At the end of step t, **before it enters step t + 1**, rank 0 publishes its decision for t + 1. Every rank looks for
    the decision about t + 1 at the end of its step t + 1. It cannot look too early: in synchronous data parallel
    training each step contains a collective in which all ranks take part, so no rank finishes step t + 1 before rank 0
    has entered it, and rank 0 published before that. Nor can a decision be missed or be different on two ranks: each
    step has a key of its own, which is written once, and a key that is absent at that moment stays absent for ever.

    Another rank's wish (it got SIGTERM) goes to rank 0 through a key that rank 0 looks at; it takes effect one or two
    steps later.

    Precondition: every step has such a collective. Loops without one (local SGD, pipelines with stale weights,
    asynchronous parameter servers) use the flag form.

    Args:
        store: A ``KeyValueClient`` or a ``torch.distributed.TCPStore``, used by this attempt only.
        rank: This process's rank.
        name: Prefix of the keys; fresh for each attempt where the store outlives one.
    """

    def __init__(self, store: KeyValue, *, rank: int, name: str = "rerail") -> None:
        if not name or "\n" in name:
            raise UsageError(f"KeyValueAgreement(name={name!r}): a short prefix without line breaks")
        self._store = store
        self._rank = rank
        self._name = name
        self._told = Wish.NONE
        self._ahead: dict[int, Wish] = {}

    def decided(self, step: int) -> Wish:
        """See ``Agreement.decided``: one or two small requests on ranks other than 0, none on rank 0."""
        if self._rank == 0:
            return self._ahead.pop(step, Wish.NONE)
        key = f"{self._name}.at.{step}"
        return Wish(int(self._store.get(key))) if self._store.check([key]) else Wish.NONE

    def announce(self, wish: Wish, *, step: int) -> None:
        """See ``Agreement.announce``. When to save is rank 0's to say; leaving is a matter of every rank."""
        if self._rank != 0:
            if wish > max(self._told, Wish.SAVE):
                self._store.set(f"{self._name}.wish.{wish.value}", "1")
                self._told = wish
            return
        for other in (Wish.SAVE_AND_LEAVE, Wish.LEAVE):
            if other > wish and self._store.check([f"{self._name}.wish.{other.value}"]):
                wish = other
        if wish:
            self._store.set(f"{self._name}.at.{step}", str(wish.value))
            self._ahead[step] = wish
