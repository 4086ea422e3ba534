"""Pre-evict: ask a gang to save and leave, wait for the commit or the deadline, then see to it that it went as one.

The ranks are asked by a request, and leave with 85 once their commit stands; the run's supervisor judges that as a
preemption and opens the next attempt. Nothing here opens, seals or decides anything of the run: it asks, waits, and
evicts pods that are still there.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from rerail.plugins.checkpoint.attempts import newest_opening, read_start
from rerail.plugins.checkpoint.commit import is_acknowledged, read_manifest
from rerail.plugins.checkpoint.notes import add_request, read_heartbeat, read_reports
from rerail.plugins.checkpoint.resolve import resolve
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.gang.ledger import newest_entry
from rerail.plugins.gang.ports import Clock
from rerail.policies import keys
from rerail.policies.documents import RankExit, Value
from rerail.policies.errors import CommitFencedError, DamagedError, NotFoundError, RerailError, TransientError
from rerail.policies.eviction import EvictionBounds, EvictionLook, Outcome, next_move, outcome_of, request_id
from rerail.policies.manifest import Manifest
from rerail.policies.resolving import Resolution

POLL_S: Final = 0.2
TAKEOVER_S: Final = 30.0
_GLANCE: Final = 8

_T = TypeVar("_T")


class PodsLeft(Value):
    """What is left of a gang.

    Attributes:
        alive: Pods that may hold processes.
        unreachable: Pods that are to go and lie on a node that does not report: nothing can be said of them, and they
            are never deleted by force, since that frees a name and no device.
    """

    alive: tuple[str, ...] = ()
    unreachable: tuple[str, ...] = ()


class GangPods(Protocol):
    """The pods of one gang, wherever they run. Every method raises ``TransientError`` where nobody answers."""

    def left(self) -> PodsLeft:
        """What is left now."""
        ...

    def evict(self) -> str:
        """Ask all that is left to go, all or none; may be repeated. Returns why not, empty once all were asked."""
        ...

    def grace_s(self) -> float:
        """The longest time that a pod may take to end."""
        ...


class Evicted(Value):
    """How an eviction ended.

    Attributes:
        outcome: See ``policies.eviction.Outcome``.
        step: Completed steps of the newest commit that counts, from which the run goes on; 0 where nothing was done,
            None where that cannot be told.
        asked_at_s: Wall clock, epoch seconds.
        committed_at_s: When the answering commit was seen to be acknowledged.
        evicted_at_s: When the last pod was gone; None where some are left.
        left: Pods that are still there, for the reason in ``why``.
        unreachable: Pods on nodes that do not report; fence those nodes before anybody counts them as gone.
        supervised: Whether a supervisor of the run was seen to act on it; without one nobody opens the next attempt.
        why: What went otherwise than asked, in words; empty where nothing did.
    """

    run: str
    gang: str
    attempt: int
    outcome: Outcome
    step: int | None
    asked_at_s: float
    committed_at_s: float | None = None
    evicted_at_s: float | None = None
    left: tuple[str, ...] = ()
    unreachable: tuple[str, ...] = ()
    supervised: bool = False
    why: str = ""


class LiveGang(Value):
    """The gang that a run's newest start names."""

    gang: str
    attempt: int


def live_gang(run: RunStore) -> LiveGang:
    """The gang that runs, or is about to.

    Raises:
        NotFoundError: There is none: the run is over, waits, or never started.
    """
    entry = newest_entry(run)
    if entry is not None and entry.state.phase in ("done", "stopped", "waiting"):
        why = f": {entry.state.reason}" if entry.state.reason else ""
        raise NotFoundError(f"run {run.run!r} has no gang to evict: it is {entry.state.phase}{why}")
    started = newest_opening(run).started
    if started is None:
        raise NotFoundError(f"run {run.run!r} has no gang to evict: no attempt was started yet")
    return LiveGang(gang=read_start(run, started).gang, attempt=started)


@dataclass(slots=True)
class PreEvict:
    """One eviction of one gang.

    Attributes:
        run: The run's stores.
        target: The gang.
        pods: The gang's pods.
        bounds: Of every wait.
        reason: Why, for people and for the report.
        takeover_s: After the gang left, how long a supervisor is waited for.
        wanted: Whether anybody still wants the gang to leave; what was not evicted yet is not evicted otherwise.
        log: Takes one line about what is tried again, or went otherwise.
    """

    run: RunStore
    target: LiveGang
    pods: GangPods
    bounds: EvictionBounds
    reason: str
    takeover_s: float = TAKEOVER_S
    wanted: Callable[[], bool] = lambda: True
    poll_s: float = POLL_S
    clock: Clock = field(default_factory=Clock)
    log: Callable[[str], None] = lambda _line: None
    _attempt: int = 0
    _asked: set[int] = field(default_factory=set)
    _looked: set[tuple[int, int]] = field(default_factory=set)
    _found: Manifest | None = None
    _fenced: str = ""
    _missed: str = ""
    _said: str = ""
    _refusal: str = ""
    _withdrawn: bool = False

    def perform(self) -> Evicted:
        """Ask, wait, and evict; every wait is bounded.

        Raises:
            PermanentError: The store, or the cluster, forbids it. An outage of either does not end it: the deadline
                counts all the same.
        """
        self._attempt = self.target.attempt
        begun_s, asked_at_s = self.clock.monotonic_s(), self.clock.wall_s()
        left = PodsLeft(alive=("unknown",))
        committed_s: float | None = None
        committed_at_s: float | None = None
        evicted_s: float | None = None
        forced = tried = False
        grace_s = self.bounds.grace_s
        while True:
            # Pods first: a commit is there before its writers are gone.
            left = self._tried(self.pods.left, otherwise=left)
            if committed_s is None and self._tried(self._answered, otherwise=False):
                committed_s, committed_at_s = self.clock.monotonic_s() - begun_s, self.clock.wall_s()
            look = EvictionLook(
                after_s=self.clock.monotonic_s() - begun_s,
                alive=len(left.alive),
                committed_s=committed_s,
                evicted_s=evicted_s,
                tried=tried,
                wanted=self.wanted(),
            )
            self._withdrawn = not look.wanted and bool(left.alive)
            move = next_move(look, self.bounds.model_copy(update={"grace_s": grace_s}))
            if move in ("over", "give-up"):
                break
            if move == "evict":
                tried = True
                grace_s = max(grace_s, self._tried(self.pods.grace_s, otherwise=grace_s))
                if committed_s is None and not forced:
                    forced = True
                    self._missed = self._tried(self._doing, otherwise="nobody can tell what the ranks did")
                if self._evict():
                    evicted_s = look.after_s
            self.clock.sleep(self.poll_s)
        evicted_at_s = None if left.alive else self.clock.wall_s()
        if committed_at_s is None and self._settled():
            committed_at_s = self.clock.wall_s()
        return self._ended(
            forced=forced, asked_at_s=asked_at_s, committed_at_s=committed_at_s, evicted_at_s=evicted_at_s, left=left
        )

    def _tried(self, look: Callable[[], _T], *, otherwise: _T) -> _T:
        """A look that may fail for a while: then what was known before counts."""
        try:
            return look()
        except TransientError as error:
            self._say(f"{error}; trying again")
            return otherwise

    def _say(self, line: str) -> None:
        if line != self._said:
            self._said = line
            self.log(line)

    def _ask(self) -> None:
        standing = add_request(
            self.run,
            attempt=self._attempt,
            reason=self.reason,
            within_s=self.bounds.deadline_s,
            then="leave",
            writer=secrets.token_hex(8),
            id=request_id(self.target.gang, self._attempt),
        )
        self._asked.add(self._attempt)
        if standing.reason != self.reason:
            self.log(f"gang {self.target.gang} was asked to leave already: {standing.reason}")

    def _answered(self) -> bool:
        """Whether a commit that answers is acknowledged. Ranks that were started again in their pods are asked anew."""
        if not self._asked:
            self._ask()
        started = newest_opening(self.run).started
        if started is not None and started > self._attempt and read_start(self.run, started).gang == self.target.gang:
            self._attempt = started
            self._ask()
        for attempt in sorted(self._asked, reverse=True):
            found = self._find(attempt)
            if found is not None and self._is_acknowledged(found):
                return True
        return False

    def _find(self, attempt: int) -> Manifest | None:
        """The commit of an attempt that answers our request, read once each, newest first."""
        if self._found is not None:
            return self._found
        wanted = request_id(self.target.gang, attempt)
        for entry in self.run.control.page(keys.manifests_of(attempt), limit=_GLANCE).entries:
            key = keys.parse_commit(entry.key)
            if key is None or key.step is None or (attempt, key.step) in self._looked:
                continue
            try:
                manifest = read_manifest(self.run, attempt, key.step)
            except (NotFoundError, DamagedError):
                continue
            self._looked.add((attempt, key.step))
            if wanted in manifest.answers:
                # Its writer may not have synced the folder yet: whoever loses a create makes what stands durable.
                self.run.control.create(entry.key, manifest.encode())
                self._found = manifest
                return manifest
        return None

    def _is_acknowledged(self, found: Manifest) -> bool:
        try:
            return not self._fenced and is_acknowledged(self.run, attempt=found.attempt, step=found.step)
        except CommitFencedError as error:
            self._fenced = str(error)
            return False

    def _settled(self) -> bool:
        """Wait until it is known whether the commit that was found counts: a next attempt is being opened meanwhile."""
        end_s = self.clock.monotonic_s() + self.bounds.leave_s
        while self._found is not None and not self._fenced and self.clock.monotonic_s() < end_s:
            if self._tried(self._answered, otherwise=False):
                return True
            self.clock.sleep(self.poll_s)
        return False

    def _evict(self) -> bool:
        try:
            self._refusal = self.pods.evict()
        except TransientError as error:
            self._refusal = str(error)
        if self._refusal:
            self._say(f"gang {self.target.gang} cannot be evicted now: {self._refusal}; trying again")
        return not self._refusal

    def _ended(
        self,
        *,
        forced: bool,
        asked_at_s: float,
        committed_at_s: float | None,
        evicted_at_s: float | None,
        left: PodsLeft,
    ) -> Evicted:
        # What the run goes on from, before the next attempt adds to it.
        newest: Resolution | None = None
        exits: tuple[RankExit, ...] = ()
        loaded = 0
        try:
            newest = resolve(self.run)
            exits = tuple(end for _, report in read_reports(self.run, self._attempt) for end in report.exits)
            start = read_start(self.run, self._attempt)
            loaded = start.load.step if start.load else 0
        except RerailError as error:
            self._say(f"what the run goes on from cannot be told: {error}")
        outcome = outcome_of(
            answered=committed_at_s is not None,
            forced=forced,
            exits=exits,
            loaded_step=loaded,
            final=newest is not None and newest.final,
            withdrawn=self._withdrawn,
        )
        supervised = not left.alive and self._supervised()
        return Evicted(
            run=self.run.run,
            gang=self.target.gang,
            attempt=self._attempt,
            outcome=outcome,
            step=self._step(newest, committed=committed_at_s is not None),
            asked_at_s=asked_at_s,
            committed_at_s=committed_at_s,
            evicted_at_s=evicted_at_s,
            left=left.alive,
            unreachable=left.unreachable,
            supervised=supervised,
            why=self._why(outcome, exits, left, supervised=supervised),
        )

    def _step(self, newest: Resolution | None, *, committed: bool) -> int | None:
        if committed and self._found is not None:
            return self._found.step
        return newest.step if newest is not None else None

    def _why(self, outcome: Outcome, exits: tuple[RankExit, ...], left: PodsLeft, *, supervised: bool) -> str:
        said = []
        if outcome == "deadline":
            said.append(f"no commit within {self.bounds.deadline_s:g} s of the request: {self._missed}")
        elif outcome == "unsaved":
            ends = ", ".join(str(code) for code in sorted({end.exit_code for end in exits})) or "unknown"
            said.append(f"the gang ended before the deadline without saving (exit codes of ranks: {ends})")
        elif outcome == "withdrawn":
            said.append("nobody wants the gang to leave any more; it was asked already, and may still save and leave")
        if self._fenced:
            said.append(self._fenced)
        if left.alive:
            said.append(f"pods are still there: {', '.join(left.alive)}" + (self._refusal and f": {self._refusal}"))
        if left.unreachable:
            said.append(f"pods on nodes that do not report, not deleted by force: {', '.join(left.unreachable)}")
        if not supervised and not left.alive:
            said.append("no supervisor of the run was seen: start `rerail run` for it again, so that it goes on")
        return "; ".join(said)

    def _doing(self) -> str:
        beat = read_heartbeat(self.run)
        return f"the ranks were in {beat.phase}, at step {beat.step}" if beat else "nothing was heard of the ranks"

    def _supervised(self) -> bool:
        """Whether the run's ledger goes on after the gang left; waits for that, bounded."""
        end_s = self.clock.monotonic_s() + self.takeover_s
        while True:
            try:
                entry = newest_entry(self.run)
            except TransientError:
                entry = None
            if entry is not None:
                state = entry.state
                ours = state.gang is not None and state.gang.name == self.target.gang
                if not ours or state.phase not in ("running", "saving", "preparing"):
                    return True
            if self.clock.monotonic_s() >= end_s:
                return False
            self.clock.sleep(self.poll_s)
