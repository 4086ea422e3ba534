"""The extender's work behind its answers: saves, their commits, notes and Events on PodGroups. Never in a request.

Two loops, because a store that hangs must not keep a deadline from being told, and an API server that hangs must not
keep a save from being asked for: looks at stores have threads of their own, so many at once and one per gang.
"""

import json
import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final, Self

from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.evict.extender import Decider
from rerail.plugins.evict.extender_gangs import ASKED_ANNOTATION, CHECKPOINT_ANNOTATION, OurGroup
from rerail.plugins.evict.extender_saves import GangSave, Taken, newest_commit
from rerail.plugins.evict.locks import Flip, Locks
from rerail.plugins.kube.api import KubeApi
from rerail.plugins.kube.events import About, write_event
from rerail.plugins.volcano.podgroup import POD_GROUPS
from rerail.policies.consent import Change, Save
from rerail.policies.errors import ConflictError, NotFoundError, RerailError, TransientError

log = logging.getLogger("rerail.extender")

TICK_S: Final = 0.2
SAVE_LOOKS: Final = 8
COMMIT_LOOKS: Final = 4
"""Stores that are looked at at once, for saves and for the annotation. One that hangs keeps its place; where all
of them hang, gangs go at their deadline."""

CHECKPOINT_EVERY_S: Final = 30.0
"""How often a gang's newest commit is looked for, for the annotation."""

RETRY_S: Final = 1.0
_MOST_TELLINGS: Final = 2000

_REASONS: Final = {"holding": "EvictionHeld", "committed": "EvictionAfterCommit", "deadline": "EvictionAtDeadline"}


@dataclass(slots=True)
class _Looks:
    """Looks of one kind: so many at once, and one per gang."""

    most: int
    busy: set[str] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, gang: str) -> bool:
        with self.lock:
            if gang in self.busy or len(self.busy) >= self.most:
                return False
            self.busy.add(gang)
            return True

    def end(self, gang: str) -> None:
        with self.lock:
            self.busy.discard(gang)


@dataclass(slots=True)
class Worker:
    """Runs in the background; use it in a ``with`` statement.

    Attributes:
        decider: Whose book is worked on.
        api: The API server; one try per write, since every write is repeated by the loop.
        open_run: Opens a run's stores by its name, store and control address.
        locks: Opens and closes locks of gangs; None leaves them as they are.
    """

    decider: Decider
    api: KubeApi
    open_run: Callable[[str, str, str | None], RunStore]
    locks: Locks | None = None
    checkpoint_every_s: float = CHECKPOINT_EVERY_S
    tick_s: float = TICK_S
    _stopped: threading.Event = field(default_factory=threading.Event)
    _threads: list[threading.Thread] = field(default_factory=list)
    _save_looks: _Looks = field(default_factory=lambda: _Looks(SAVE_LOOKS))
    _commit_looks: _Looks = field(default_factory=lambda: _Looks(COMMIT_LOOKS))
    _saves: dict[str, GangSave] = field(default_factory=dict)
    _taken: dict[str, Taken | None] = field(default_factory=dict)
    _looked_s: dict[str, float] = field(default_factory=dict)
    _why: dict[str, str] = field(default_factory=dict)
    _said: dict[str, str] = field(default_factory=dict)
    _tellings: deque[Callable[[], None]] = field(default_factory=lambda: deque(maxlen=_MOST_TELLINGS))

    def __enter__(self) -> Self:
        for loop in (self._look_loop, self._tell_loop):
            thread = threading.Thread(target=loop, name=f"rerail-extender{loop.__name__}", daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        for thread in self._threads:
            thread.join(2.0)

    @property
    def broken(self) -> bool:
        """Whether a loop ended by itself, by a mistake in it: better to begin anew than to save nobody."""
        return not self._stopped.is_set() and not all(thread.is_alive() for thread in self._threads)

    # Looks at stores.

    def _look_loop(self) -> None:
        while not self._stopped.wait(self.tick_s):
            self.advance()

    def advance(self) -> None:
        """One pass: forget what is old, choose gangs that are to save, look for commits."""
        if self.locks is not None:
            try:
                self.locks.look()
            except RerailError as error:
                self._trouble("", "cluster", error)
        book, now_s = self.decider.book, self.decider.now()
        with self.decider.lock:
            book.forget(now_s)
            due = book.due(now_s)
            for gang in due:
                group = self.decider.gangs.group(gang)
                book.saving(gang, now_s, run=f"{group.namespace}/{group.run}" if group else "")
            waiting = book.saves()
        for gang in due:
            self.decider.metrics.count("saves")
            log.info("%s is asked to save and %s", gang, waiting[gang].then)
        for gang, save in waiting.items():
            left_s = save.since_s + book.hold_s - now_s
            self._look(self._save_looks, gang, partial(self._save, gang, save, left_s))
        for gang in self._saves.keys() - waiting.keys():
            self._saves.pop(gang, None)
        self._look_at_commits()

    def _look(self, looks: _Looks, gang: str, what: Callable[[], None]) -> None:
        """Do something with a gang's store in a thread, unless one does already or too many do."""
        if not looks.begin(gang):
            return

        def looked() -> None:
            try:
                what()
                self._said.pop(gang, None)
            except (RerailError, OSError) as error:
                self._trouble(gang, "store", error)
            finally:
                looks.end(gang)

        threading.Thread(target=looked, name="rerail-extender-look", daemon=True).start()

    def _save(self, key: str, asked: Save, left_s: float) -> None:
        """Ask a gang for its save, or look for its commit."""
        save = self._saves.get(key)
        if save is None:
            pod = self.decider.gangs.ranks_of(key)
            if pod is None:
                return
            run = self.open_run(pod.run, pod.store, pod.control or None)
            save = self._saves[key] = GangSave(run, pod.gang, then=asked.then, since_s=asked.since_s)
        saved = save.look(reason="somebody of higher priority needs the room: Volcano asks to evict", within_s=left_s)
        if saved is not None:
            self._why[key] = saved.why
            with self.decider.lock:
                self.decider.book.committed(key, self.decider.now())

    def _look_at_commits(self) -> None:
        """Bring annotations of the newest commit up to date, each gang's every so often."""
        now_s = time.monotonic()
        try:
            groups = self.decider.gangs.groups()
        except RerailError as error:
            self._trouble("", "cluster", error)
            return
        keys = {group.key for group in groups}
        for known in (self._taken, self._looked_s, self._why, self._said):
            for key in known.keys() - keys - {""}:
                known.pop(key, None)
        for group in groups:
            if now_s - self._looked_s.get(group.key, -self.checkpoint_every_s) >= self.checkpoint_every_s:
                self._look(self._commit_looks, group.key, partial(self._commit_of, group))

    def _commit_of(self, group: OurGroup) -> None:
        pod = self.decider.gangs.ranks_of(group.key)
        if pod is None:
            return  # its pods are still to come: look again soon
        self._looked_s[group.key] = time.monotonic()
        run = self.open_run(pod.run, pod.store, pod.control or None)
        taken = self._taken[group.key] = newest_commit(run, self._taken.get(group.key))
        if taken is not None:
            stamp = datetime.fromtimestamp(taken.at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            if stamp != group.checkpoint:
                self._tell(partial(self._annotate, group, CHECKPOINT_ANNOTATION, stamp))

    # Words to the cluster.

    def _tell(self, what: Callable[[], None]) -> None:
        self._tellings.append(what)

    def _tell_loop(self) -> None:
        while not self._stopped.wait(self.tick_s):
            self.tell()

    def tell(self) -> None:
        """One pass: write what changed to PodGroups and Events. What fails because of the API server comes again."""
        flips = self._flips()  # before the changes: that a gang may go is told before that its lock is open
        with self.decider.lock:
            changes = self.decider.book.take_changes()
            notes = {gang: self.decider.book.note(gang) for gang in self.decider.book.take_unwritten()}
        for gang, note in notes.items():
            self._tell(partial(self._write_note, gang, note))
        for change in changes:
            self._announce(change)
        self._flip(flips)
        for _ in range(len(self._tellings)):
            if self._stopped.is_set():
                return
            telling = self._tellings.popleft()
            try:
                telling()
            except (NotFoundError, ConflictError):
                continue  # the PodGroup went meanwhile, or is another one of that name
            except TransientError as error:
                self._trouble("", "cluster", error)
                self._tellings.appendleft(telling)
                self._stopped.wait(RETRY_S)
                return
            except RerailError as error:
                self._trouble("", "cluster", error)  # a missing right: the next word may be allowed

    def _flips(self) -> tuple[Flip, ...]:
        """Locks that are to be opened or closed."""
        if self.locks is None:
            return ()
        try:
            return self.locks.flips()
        except RerailError as error:
            self._trouble("", "cluster", error)
            return ()

    def _flip(self, flips: tuple[Flip, ...]) -> None:
        """Bring locks where they should be; what fails is found again in the next pass."""
        try:
            for flip in flips:
                assert self.locks is not None
                self.locks.perform(flip)
                if flip.news:
                    self._announce_lock(flip)
        except RerailError as error:
            self._trouble("", "cluster", error)

    def _announce_lock(self, flip: Flip) -> None:
        if flip.opens:
            after = "a commit" if flip.why == "committed" else "the deadline, without a commit"
            text = f"the lock is open after {after}: {flip.evictor} starves, and may take it"
            self.decider.metrics.count("unlocks", by="commit" if flip.why == "committed" else "deadline")
        else:
            text = "the lock is closed again: nobody starves for it any more"
            self.decider.metrics.count("relocks")
        log.info("%s: %s", flip.group.key, text)
        reason = "PreemptionUnlocked" if flip.opens else "PreemptionLocked"
        late = flip.why == "deadline"
        self._tell_event(flip.group, reason, text, self.decider.now(), late=late)

    def _write_note(self, key: str, note: dict[str, Any] | None) -> None:
        group = self.decider.gangs.group(key)
        if group is not None:
            text = None if note is None else json.dumps(note, sort_keys=True)
            self._annotate(group, ASKED_ANNOTATION, text)

    def _annotate(self, group: OurGroup, name: str, value: str | None) -> None:
        body = {"metadata": {"uid": group.uid, "annotations": {name: value}}}
        self.api.patch(POD_GROUPS, group.name, body, namespace=group.namespace, repeatable=True)

    def _announce(self, change: Change) -> None:
        """Log and count a decision, and show it as an Event of the PodGroup."""
        if change.state == "holding":
            self.decider.metrics.count("holds")
        else:
            self.decider.metrics.count("consents", by="commit" if change.state == "committed" else "deadline")
        waited_s = change.at_s - change.asked_at_s
        text = {
            "holding": f"{change.evictor} is held back until a commit, or for {self.decider.book.hold_s:g} s at most",
            "committed": f"{change.evictor} may evict after {waited_s:.1f} s: {self._why.get(change.gang, '')}",
            "deadline": f"{change.evictor} may evict after {waited_s:.1f} s without a commit: the deadline passed",
        }[change.state]
        log.info("%s: %s", change.gang, text)
        group = self.decider.gangs.group(change.gang)
        if group is not None:
            late = change.state == "deadline"
            self._tell_event(group, _REASONS[change.state], text, change.at_s, late=late)

    def _tell_event(self, group: OurGroup, reason: str, text: str, at_s: float, *, late: bool) -> None:
        """Its name is drawn once: written again after a lost answer, it is still one Event."""
        self._tell(
            partial(
                write_event,
                self.api,
                About(POD_GROUPS, group.name, group.namespace, group.uid),
                name=f"{group.name[:40]}.{secrets.token_hex(8)}",
                reason=reason,
                text=text,
                warning=late,
                component="rerail-extender",
                at_s=at_s,
            )
        )

    def _trouble(self, gang: str, where: str, error: Exception) -> None:
        """Count what went wrong, and say it once per gang until something else happens."""
        self.decider.metrics.count("troubles", where=where)
        said = f"{type(error).__name__}: {error}"
        if self._said.get(gang) != said:
            self._said[gang] = said
            log.warning("%s%s", f"{gang}: " if gang else "", said)
