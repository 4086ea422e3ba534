"""Consent before preemption: whom an evictor may take now, who is held back for a save, and until when at most.

A scheduler asks again and again whether an evictor may take pods. A gang is held back until its commit, or until a
deadline that nothing moves: ``hold_s`` after this evictor first asked for it, and ``hold_s`` after its save was asked
for, whichever is first. Gangs are told to leave one after the other, because a scheduler that hears no for one gang
asks for the next: without an order, one small evictor would send every gang of the cluster away.

And a run leaves for an evictor once. A scheduler asks before it knows whether eviction would help, and an evictor that
asks for the same run's next gang got nothing from the first: then ranks save and stay, consent is given for a while,
and only an eviction that really comes sends them away.
"""

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple

State = Literal["holding", "committed", "deadline"]
Then = Literal["leave", "stay"]

MOST_GANGS: Final = 4096
MOST_EVICTORS: Final = 32
"""Of one gang. Another one is treated like the first of these: it waits no longer than that one."""

LIVE_S: Final = 10.0
"""An evictor that did not ask for so long has what it wants, or is gone; nobody is sent away for it."""
SETTLE_S: Final = 5.0
"""After a gang left, how long its evictor has to find out that this is enough, before the next one is asked."""
VISIT_S: Final = 3600.0
"""How long it is remembered that a run left for an evictor."""
_MOST_CHANGES: Final = 10_000
_MOST_VISITS: Final = 10_000
_WHOLE: Final = 0.5
"""Part of the hold for which gangs are asked one after the other; then all of them."""


class Answer(NamedTuple):
    """What an evictor hears about one gang.

    Attributes:
        consent: Whether its pods may be taken now.
        state: Why.
    """

    consent: bool
    state: State


class Change(NamedTuple):
    """A gang's state for one evictor became another one; for logs, counters and Events.

    Attributes:
        asked_at_s: When the evictor first asked, epoch seconds.
        at_s: When this became so, epoch seconds.
    """

    gang: str
    evictor: str
    state: State
    asked_at_s: float
    at_s: float


class Save(NamedTuple):
    """A save that is waited for.

    Attributes:
        since_s: When it was asked for, epoch seconds.
        then: What the ranks do after it.
    """

    since_s: float
    then: Then


class Record(NamedTuple):
    """Where one gang and one evictor stand. Times in epoch seconds."""

    gang: str
    evictor: str
    asked_at_s: float
    deadline_s: float
    state: State


@dataclass(slots=True)
class _Ask:
    first_s: float
    last_s: float
    stays: bool = False
    told: State | None = None


@dataclass(slots=True)
class _Gang:
    asks: dict[str, _Ask] = field(default_factory=dict)
    save_s: float | None = None
    then: Then = "leave"
    run: str = ""
    committed_s: float | None = None

    def deadline_s(self, first_s: float, hold_s: float) -> float:
        return min(first_s, math.inf if self.save_s is None else self.save_s) + hold_s

    def state(self, first_s: float, hold_s: float, now_s: float) -> State:
        if self.committed_s is not None:
            return "committed"
        return "deadline" if now_s >= self.deadline_s(first_s, hold_s) else "holding"


class ConsentBook:
    """All gangs that somebody wants to evict. Not safe for several threads: its owner locks it.

    Gangs and evictors are names, unique over time (``namespace/PodGroup``). Times are epoch seconds and must not run
    backwards.

    Args:
        hold_s: The most that an evictor waits for one gang.
        ttl_s: An evictor that did not ask for so long is forgotten; ``hold_s`` or a minute by default.
    """

    def __init__(self, *, hold_s: float, ttl_s: float | None = None) -> None:
        self.hold_s = hold_s
        self._ttl_s = max(60.0, hold_s) if ttl_s is None else ttl_s
        self._gangs: dict[str, _Gang] = {}
        self._left: dict[str, float] = {}
        self._visits: dict[tuple[str, str], float] = {}
        self._unwritten: dict[str, None] = {}
        self._changes: deque[Change] = deque(maxlen=_MOST_CHANGES)

    def ask(
        self, evictor: str, gang: str, now_s: float, *, since_s: float | None = None, then: Then = "leave"
    ) -> Answer:
        """Whether ``evictor`` may take pods of ``gang`` now. Asking again changes nothing about the deadline.

        Args:
            evictor: Who wants it.
            gang: Whom.
            now_s: Now.
            since_s: Since when, where it did not begin with this question; it counts for the first one.
            then: What the ranks do after the save where everybody who asks is content with it. A gang that is to
                ``stay`` may be taken for as long as such a one asks.
        """
        known = self._gangs.get(gang)
        if known is None:
            if len(self._gangs) >= MOST_GANGS:
                return Answer(consent=True, state="deadline")  # memory is bounded, and nobody is starved for it
            known = self._gangs[gang] = _Gang()
        asked = known.asks.get(evictor)
        if asked is None and len(known.asks) >= MOST_EVICTORS:
            asked = min(known.asks.values(), key=lambda one: one.first_s)
        elif asked is None:
            first_s = now_s if since_s is None else min(since_s, now_s)
            asked = known.asks[evictor] = _Ask(first_s, now_s)
            self._unwritten[gang] = None
        asked.last_s = now_s
        asked.stays = asked.stays or then == "stay"
        state = known.state(asked.first_s, self.hold_s, now_s)
        if asked.told != state:
            asked.told = state
            self._changes.append(Change(gang, evictor, state, asked.first_s, now_s))
        return Answer(state != "holding", state)

    def due(self, now_s: float) -> tuple[str, ...]:
        """Gangs that are to be asked for their save now, those that were wanted first in front."""
        waiting: list[tuple[float, str]] = []
        for gang, known in self._gangs.items():
            if known.save_s is not None or known.committed_s is not None:
                continue
            firsts = [one.first_s for one in known.asks.values() if now_s - one.last_s <= LIVE_S]
            if firsts:
                waiting.append((min(firsts), gang))
        busy = self._busy(now_s)
        chosen = []
        for _, gang in sorted(waiting):
            evictors = {evictor: one for evictor, one in self._gangs[gang].asks.items() if now_s - one.last_s <= LIVE_S}
            late = any(now_s - one.first_s >= _WHOLE * self.hold_s for one in evictors.values())
            free = evictors.keys() - busy
            if late or free:
                chosen.append(gang)
                busy |= evictors.keys()
        return tuple(chosen)

    def _busy(self, now_s: float) -> set[str]:
        """Evictors for which a gang is saving, or has just left."""
        busy = {evictor for evictor, at_s in self._left.items() if now_s - at_s < SETTLE_S}
        for known in self._gangs.values():
            settled = known.committed_s is not None and now_s - known.committed_s >= SETTLE_S
            passed = known.save_s is not None and now_s - known.save_s >= self.hold_s
            if (known.save_s is not None or known.committed_s is not None) and not settled and not passed:
                busy |= known.asks.keys()
        return busy

    def saving(self, gang: str, now_s: float, *, run: str = "") -> None:
        """The gang is being asked for its save from now on; a second call changes nothing.

        Args:
            gang: One that is due.
            now_s: Now.
            run: Its run, by a name that is unique in the cluster; empty takes the gang's own name.
        """
        known = self._gangs.get(gang)
        if known is not None and known.save_s is None:
            known.save_s, known.run = now_s, run or gang
            stay = [one.stays or (evictor, known.run) in self._visits for evictor, one in known.asks.items()]
            known.then = "stay" if all(stay) else "leave"
            self._unwritten[gang] = None

    def committed(self, gang: str, now_s: float) -> None:
        """The gang's commit that answers the request is acknowledged: everybody may take it."""
        known = self._gangs.get(gang)
        if known is not None and known.committed_s is None:
            known.committed_s = now_s
            self._visits |= {(evictor, known.run): now_s for evictor in known.asks}
            for evictor, asked in known.asks.items():
                if asked.told != "committed":
                    asked.told = "committed"
                    self._changes.append(Change(gang, evictor, "committed", asked.first_s, now_s))

    def saves(self) -> dict[str, Save]:
        """Gangs whose commit is waited for, also beyond a deadline."""
        return {
            gang: Save(known.save_s, known.then)
            for gang, known in self._gangs.items()
            if known.save_s is not None and known.committed_s is None
        }

    def drop(self, gang: str, now_s: float) -> None:
        """The gang is gone."""
        known = self._gangs.pop(gang, None)
        self._unwritten.pop(gang, None)
        if known is not None and known.save_s is not None:
            self._left |= dict.fromkeys(known.asks, now_s)

    def forget(self, now_s: float) -> None:
        """Drop evictors that did not ask for ``ttl_s``, and gangs that nobody wants any more.

        A gang that saved and stayed is held anew, for a save of its own, once consent lasted for ``hold_s``; but not
        while somebody asks who was content with that.
        """
        for gang, known in list(self._gangs.items()):
            lasted = known.committed_s is not None and now_s - known.committed_s >= self.hold_s
            if lasted and known.then == "stay" and not any(one.stays for one in known.asks.values()):
                known.save_s = known.committed_s = None
                for one in known.asks.values():
                    one.first_s = now_s
                self._unwritten[gang] = None
            old = [evictor for evictor, one in known.asks.items() if now_s - one.last_s > self._ttl_s]
            for evictor in old:
                del known.asks[evictor]
            if old:
                self._unwritten[gang] = None
            if not known.asks:
                del self._gangs[gang]
        self._left = {evictor: at_s for evictor, at_s in self._left.items() if now_s - at_s < SETTLE_S}
        old_visits = [visit for visit, at_s in self._visits.items() if now_s - at_s > VISIT_S]
        for visit in old_visits + list(self._visits)[: max(0, len(self._visits) - _MOST_VISITS)]:
            self._visits.pop(visit, None)

    def records(self, now_s: float) -> Iterator[Record]:
        """Every pair of a gang and an evictor as it stands."""
        for gang, known in self._gangs.items():
            for evictor, one in known.asks.items():
                yield Record(
                    gang,
                    evictor,
                    one.first_s,
                    known.deadline_s(one.first_s, self.hold_s),
                    known.state(one.first_s, self.hold_s, now_s),
                )

    def take_changes(self) -> tuple[Change, ...]:
        """What became different since the last call."""
        taken = tuple(self._changes)
        self._changes.clear()
        return taken

    def take_unwritten(self) -> tuple[str, ...]:
        """Gangs whose ``note`` changed since the last call."""
        taken = tuple(self._unwritten)
        self._unwritten.clear()
        return taken

    def note(self, gang: str) -> dict[str, Any] | None:
        """What is to be kept outside, so that a restart moves no deadline; None once nobody wants the gang."""
        known = self._gangs.get(gang)
        if known is None:
            return None
        asked = {evictor: one.first_s for evictor, one in known.asks.items()}
        stays = [evictor for evictor, one in known.asks.items() if one.stays]
        return {"asked": asked, "save": known.save_s, "then": known.then, "stays": stays}

    def restore(self, gang: str, note: object, now_s: float) -> None:
        """Take over a note of an earlier process. It can only bring deadlines forward; what is no note is ignored.

        Args:
            gang: Whose.
            note: As ``note`` gave it; it comes from outside and is not trusted.
            now_s: Times beyond it, by another machine's clock, count as now.
        """
        if not isinstance(note, Mapping) or (gang not in self._gangs and len(self._gangs) >= MOST_GANGS):
            return
        asked = note.get("asked")
        asks = {
            str(evictor): min(float(at_s), now_s)
            for evictor, at_s in (asked.items() if isinstance(asked, Mapping) else ())
            if _is_time(at_s)
        }
        if not asks:
            return
        told = note.get("stays")
        stays = [str(evictor) for evictor in told] if isinstance(told, list) else []
        known = self._gangs.setdefault(gang, _Gang())
        for evictor, first_s in list(asks.items())[:MOST_EVICTORS]:
            one = known.asks.setdefault(evictor, _Ask(first_s, now_s))
            one.first_s = min(one.first_s, first_s)
            one.stays = one.stays or evictor in stays
        save_s: Any = note.get("save")
        # A save that was asked for long ago has nothing to do with whoever asks next: they get a hold of their own.
        if _is_time(save_s) and now_s - float(save_s) <= self.hold_s + self._ttl_s:
            known.save_s = min(float(save_s), now_s, math.inf if known.save_s is None else known.save_s)
            known.then = "stay" if note.get("then") == "stay" else "leave"


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value > 0
