"""Requests to save, from first sight to their answer or their miss, on the reader's own monotonic clock."""

import threading
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from rerail.plugins.trainer.agree import Wish

_State = Literal["waiting", "saving", "answered", "missed"]


@dataclass(slots=True, eq=False)
class Asked:
    """One request that was seen.

    Attributes:
        id: The request's own id.
        within_s: Seconds from first sight after which an answer is of no use.
        then: Whether to leave after the save.
        seen_s: Monotonic time of the first sight.
        state: Waiting, in a snapshot that is being saved, answered by a commit, or missed.
    """

    id: str
    within_s: float
    then: Literal["stay", "leave"]
    seen_s: float
    state: _State = "waiting"

    @property
    def deadline_s(self) -> float:
        """Monotonic time at which it is too late."""
        return self.seen_s + self.within_s


class Miss(NamedTuple):
    """A request whose deadline passed without a commit.

    Attributes:
        id: The request.
        phase: What the ranks were doing then; the reason in one word.
        waited_s: Seconds since first sight.
    """

    id: str
    phase: str
    waited_s: float


@dataclass(slots=True, eq=False)
class RequestBook:
    """All requests that this process saw. Safe to use from the poller and the training thread.

    Attributes:
        missed: How many deadlines passed, by phase (the metric ``preempt_checkpoint_missed``).
    """

    missed: dict[str, int] = field(default_factory=dict)
    _asked: dict[str, Asked] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def see(self, id: str, *, within_s: float, then: Literal["stay", "leave"], now_s: float) -> bool:  # noqa: A002
        """Note a request. Its time runs from the first sight; seeing it again changes nothing.

        Returns:
            Whether it is new.
        """
        with self._lock:
            if id in self._asked:
                return False
            self._asked[id] = Asked(id, within_s, then, now_s)
            return True

    def waiting(self) -> tuple[Asked, ...]:
        """Requests that a snapshot taken from now on would answer."""
        with self._lock:
            return tuple(asked for asked in self._asked.values() if asked.state == "waiting")

    def wish(self) -> Wish:
        """What the requests ask for at the next boundary.

        One to leave still counts after its deadline: whoever asked goes on without us, and a late save is better than
        none. One to stay does not: an answer is of no use any more.
        """
        with self._lock:
            open_ones = [
                asked
                for asked in self._asked.values()
                if asked.state == "waiting" or (asked.state == "missed" and asked.then == "leave")
            ]
        return max((_WISHES[asked.then] for asked in open_ones), default=Wish.NONE)

    def begin(self, ids: tuple[str, ...]) -> None:
        """A snapshot that answers these was taken."""
        self._move(ids, "waiting", "saving")

    def failed(self, ids: tuple[str, ...]) -> None:
        """That snapshot did not become a commit: they wait again."""
        self._move(ids, "saving", "waiting")

    def answered(self, ids: tuple[str, ...]) -> None:
        """That snapshot became a commit, and the commit is acknowledged."""
        self._move(ids, "saving", "answered")

    def _move(self, ids: tuple[str, ...], before: _State, after: _State) -> None:
        with self._lock:
            for one in ids:
                if self._asked[one].state == before:
                    self._asked[one].state = after

    def expire(self, *, phase: str, now_s: float) -> tuple[Miss, ...]:
        """Record each request whose deadline passed without a commit, with the phase that it passed in."""
        misses = []
        with self._lock:
            for asked in self._asked.values():
                if asked.state in ("waiting", "saving") and now_s >= asked.deadline_s:
                    asked.state = "missed"
                    self.missed[phase] = self.missed.get(phase, 0) + 1
                    misses.append(Miss(asked.id, phase, now_s - asked.seen_s))
        return tuple(misses)

    def note_miss(self, phase: str) -> None:
        """Count a deadline that is no request's: the grace period after SIGTERM."""
        with self._lock:
            self.missed[phase] = self.missed.get(phase, 0) + 1


_WISHES = {"stay": Wish.SAVE, "leave": Wish.SAVE_AND_LEAVE}
