"""The supervisor of one run: reads the newest decision, performs its effects, looks, decides, and writes the next.

Any number of these may drive one run. The ledger decides who decides; effects name their object and may be repeated,
so a supervisor that was stopped anywhere and goes on later does nothing that the newer ones did not allow.
"""

import secrets
from collections.abc import Callable
from dataclasses import dataclass, field

from rerail.plugins.checkpoint import retention
from rerail.plugins.checkpoint.attempts import read_run, seal_attempt, start_attempt
from rerail.plugins.checkpoint.notes import add_request
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.gang import ledger
from rerail.plugins.gang.ports import Clock, GangBackend, Guard, Nodes, Pause
from rerail.plugins.gang.watch import Watch
from rerail.plugins.trainer.orders import gang_number
from rerail.policies.documents import Heartbeat, Seal
from rerail.policies.errors import (
    NewerFormatError,
    NotFoundError,
    RefusedError,
    RerailError,
    StoreUnreachableError,
    SupersededError,
    TransientError,
)
from rerail.policies.manifest import Manifest
from rerail.policies.owners import WorkflowRef, not_yours
from rerail.policies.recovery import RecoveryPolicy
from rerail.policies.retention import AnyOf, EveryN, LatestN, RetentionPolicy
from rerail.policies.supervisor.advance import Decision, begin
from rerail.policies.supervisor.effects import (
    Effect,
    EndGang,
    MarkNode,
    RequestSave,
    Retain,
    SealAttempt,
    StartAttempt,
    SubmitGang,
)
from rerail.policies.supervisor.observations import Blocked, Now, Observations
from rerail.policies.supervisor.pausing import advance, begin_paused
from rerail.policies.supervisor.reopen import reopen, taken_over
from rerail.policies.supervisor.state import LedgerEntry, PodShape, RunState
from rerail.policies.supervisor.suspicion import doubt

Advance = Callable[[RunState, Observations, RecoveryPolicy, Now], Decision | None]

_OVER = ("done", "stopped")
_BETWEEN = ("preparing", "saving", "ending", "opening")
_LOOKS_BETWEEN = 4
"""How many times as often as the policy says a run is looked at while it does not train: recovery waits for this."""


@dataclass(slots=True)
class Supervisor:
    """Drives one run to its end.

    Attributes:
        run: The run's stores.
        world_size: Ranks of the run, for its first decision.
        layout: The pods of every gang, where a scheduler places them, for the first decision.
        on_event: Called once for each decision that this supervisor sees, own or other's, oldest first.
        guard: Bounds restarts and fenced nodes of all runs that share it.
        pause: Holds all runs that share it; a run's own pause stands in its store.
        owner: Who this supervisor drives the run for; empty where nobody asks.
        log: Takes one line about anything that went wrong and is tried again.
        decide: The machine; replaced in tests only.
    """

    run: RunStore
    world_size: int
    backend: GangBackend
    nodes: Nodes
    policy: RecoveryPolicy
    layout: tuple[PodShape, ...] = ()
    clock: Clock = field(default_factory=Clock)
    guard: Guard | None = None
    pause: Pause | None = None
    owner: str = ""
    on_event: Callable[[LedgerEntry], None] = lambda _entry: None
    log: Callable[[str], None] = lambda _line: None
    decide: Advance = advance
    _watch: Watch = field(init=False)
    _entry: LedgerEntry | None = None
    _told: int = -1
    _performed: set[int] = field(default_factory=set)
    _owed: list[MarkNode] = field(default_factory=list)
    _unreachable_since_s: float | None = None
    _unwritten: tuple[int, Decision] | None = None
    _last_said: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._watch = Watch(self.run, self.backend, self.nodes, self.clock, self.guard, self.pause, log=self.log)

    def ask_stop(self, reason: str) -> None:
        """Ask for the run's end: the gang is ended with its grace, and the run stops with ``reason``."""
        self._watch.stop_asked = reason

    def drive(self, until: Callable[[], bool] = lambda: False) -> RunState:
        """Pass after pass, until the run is done or stopped, or ``until`` says so; the gang is then left running.

        It is left as well to whoever took the run over: see ``is_ours``.

        Returns:
            The last state seen.

        Raises:
            StoreUnreachableError: For longer than the policy's ``store_wait_s``. A living gang is left alone.
            RerailError: The ledger or the store cannot be used.
        """
        while True:
            state = self.step()
            if self._is_over(state) or not self.is_ours(state) or until():
                return state
            often = _LOOKS_BETWEEN if state.phase in _BETWEEN else 1
            self.clock.sleep(self.policy.poll_s / often)

    def is_ours(self, state: RunState) -> bool:
        """Whether the run is still driven for this supervisor's owner: whoever took it over has a supervisor too."""
        return not self.owner or state.owner in ("", self.owner)

    def refuse_anothers(self, state: RunState) -> None:
        """Say so where the run is somebody else's by now.

        Raises:
            RefusedError: Another owner took it over; its gang goes on.
        """
        if not self.is_ours(state):
            raise RefusedError(not_yours(state.run, owner=state.owner, asked=self.owner))

    def reopen(self, why: str) -> None:
        """Let a stopped run try again, because a person said so; nothing happens to a run in any other phase."""
        entry = ledger.newest_entry(self.run)
        if entry is not None and entry.state.phase == "stopped":
            ledger.append(self.run, entry.number + 1, reopen(entry.state, why), at_s=self.clock.wall_s())

    def take_over(self) -> None:
        """Write down that the run is its owner's from now on; nothing happens where it is already.

        Each step of a Workflow asks for it again: one that had the run and lost it to another does not get it back.

        Raises:
            RefusedError: The run was taken over from this Workflow.
            TransientError: The store does not answer.
        """
        while self.owner:
            entry = self._newest()
            created = read_run(self.run).owner
            standing = entry.state.owner or created
            if standing == self.owner:
                return
            if WorkflowRef.of(self.owner) is not None and self._had(created):
                raise RefusedError(not_yours(self.run.run, owner=standing, asked=self.owner, had=True))
            ledger.append(self.run, entry.number + 1, taken_over(entry, self.owner), at_s=self.clock.wall_s())

    def _had(self, created: str) -> bool:
        return created == self.owner or any(one.state.owner == self.owner for one in ledger.all_decisions(self.run))

    @property
    def state(self) -> RunState | None:
        """The newest state that this supervisor knows."""
        return self._entry.state if self._entry is not None else None

    @property
    def heartbeat(self) -> Heartbeat | None:
        """What the attempt's ranks said last, as the last pass saw it."""
        return self._watch.beat

    @property
    def settled(self) -> bool:
        """Whether all that the newest decision orders is done, and no older mark is owed: then anybody may go on."""
        entry = self._entry
        return entry is not None and len(self._performed) == len(entry.effects) and not self._owed

    def step(self) -> RunState:
        """One pass; none at all over a run that another owner took over, since what is asked of us is not asked of it.

        Returns:
            The newest state that this supervisor knows.

        Raises:
            StoreUnreachableError: The store did not answer for too long, or not even once.
            RerailError: As ``drive``.
        """
        try:
            self._watch.see_pause()
            entry = self._newest()
            if self.is_ours(entry.state):
                entry = self._passed(entry)
        except TransientError as error:
            return self._outage(error)
        self._unreachable_since_s = None
        return entry.state

    def _passed(self, entry: LedgerEntry) -> LedgerEntry:
        """Perform, look and decide; returns the newest decision then."""
        self._perform(entry)
        seen = self._watch.look(entry.state)
        decision = self._decided(entry, seen)
        if decision is not None:
            self._append(entry.number + 1, decision)
            entry = self._newest()
            if not self.is_ours(entry.state):
                return entry
            self._perform(entry)
        self._pay()
        self._end_others(entry.state)
        return entry

    def _newest(self) -> LedgerEntry:
        """The newest decision; the first one is made here."""
        entry = ledger.newest_entry(self.run)
        known = self._entry
        if known is not None and (entry is None or entry.number < known.number):
            # Another, or an empty, mount under the same address must not become a second beginning of the run.
            raise StoreUnreachableError(
                f"decision {known.number} of run {self.run.run!r} is no longer at {self.run.control.url}: "
                "is the right volume mounted?"
            )
        while entry is None:
            read_run(self.run)
            self._append(0, self._first())
            entry = ledger.newest_entry(self.run)
        if self._entry is None or entry.number != self._entry.number:
            self._owe()
            self._performed.clear()
            self._tell(entry)
        self._entry = entry
        return entry

    def _first(self) -> Decision:
        """The first decision of the run."""
        if paused := self._watch.paused:
            return begin_paused(self.run.run, self.world_size, paused, layout=self.layout, owner=self.owner)
        now = Now(wall_s=self.clock.wall_s(), phase_s=0.0)
        return begin(
            self.run.run, self.world_size, nodes=self.nodes.views(), now=now, layout=self.layout, owner=self.owner
        )

    def _append(self, number: int, decision: Decision) -> None:
        """Write the decision, or find that somebody decided first: then theirs counts, and this one never was."""
        ledger.append(self.run, number, decision, at_s=self.clock.wall_s())

    def _tell(self, entry: LedgerEntry) -> None:
        first = self._told + 1 if self._told >= 0 else entry.number
        for number in range(first, entry.number):
            self.on_event(ledger.entry_at(self.run, number))
        self.on_event(entry)
        self._told = entry.number

    def _perform(self, entry: LedgerEntry) -> None:
        """Perform what the entry orders and was not performed yet. An effect that cannot now is tried next pass."""
        started = True
        for number, effect in enumerate(entry.effects):
            if number in self._performed:
                continue
            if isinstance(effect, SubmitGang) and not started:
                continue  # nothing is started before the start stands
            try:
                finished = self._do(effect, entry.state)
            except TransientError as error:
                self._say_once(effect.do, f"{effect.do}: {error}; trying again")
                finished = False
            if finished:
                self._performed.add(number)
            elif isinstance(effect, StartAttempt):
                started = False

    def _say_once(self, about: str, line: str) -> None:
        """Tell what is tried in every pass, until it reads otherwise."""
        if self._last_said.get(about) != line:
            self._last_said[about] = line
            self.log(line)

    def _owe(self) -> None:
        """A newer decision does not take back a mark: what could not be set yet is still tried, each pass."""
        for number, effect in enumerate(self._entry.effects if self._entry else ()):
            if isinstance(effect, MarkNode) and number not in self._performed:
                self._owed.append(effect)

    def _pay(self) -> None:
        if self._watch.paused:
            return
        for effect in tuple(self._owed):
            try:
                self._mark(effect)
            except TransientError as error:
                self.log(f"{effect.do}: {error}; trying again")
            else:
                self._owed.remove(effect)

    def _do(self, effect: Effect, state: RunState) -> bool:
        match effect:
            case SealAttempt():
                self._seal(effect)
            case StartAttempt():
                return self._start(effect, state)
            case SubmitGang():
                if state.gang is not None and state.gang.name == effect.gang:
                    self.backend.submit(state.gang)
            case EndGang():
                return self.backend.end(effect.gang, effect.grace_s)
            case MarkNode():
                if self._watch.paused:
                    return False
                self._mark(effect)
            case RequestSave():
                add_request(
                    self.run,
                    attempt=effect.attempt,
                    reason=effect.reason,
                    within_s=effect.within_s,
                    then=effect.then,
                    writer=secrets.token_hex(8),
                    id=effect.id,
                )
            case Retain():
                self._retain(effect)
        return True

    def _seal(self, effect: SealAttempt | StartAttempt) -> None:
        seal = Seal(
            writer=secrets.token_hex(8),
            run=self.run.run,
            attempt=effect.attempt,
            how=effect.how,
            gang=effect.gang,
            reason=effect.reason,
        )
        seal_attempt(self.run, seal)

    def _start(self, effect: StartAttempt, state: RunState) -> bool:
        """Seal and start. What forbids the start is told to the machine in the next pass."""
        if state.gang is None or state.gang.name != effect.gang:
            return True

        def suspect(manifest: Manifest) -> str | None:
            return doubt(state.suspicions, manifest)

        try:
            self._seal(effect)
            start_attempt(
                self.run,
                attempt=effect.attempt,
                how=effect.how,
                gang=effect.gang,
                world_size=state.world_size,
                rendezvous=self.backend.rendezvous(state.gang),
                writer=secrets.token_hex(8),
                known=effect.attempt > 1,
                suspect=suspect if state.suspicions else None,
            )
        except SupersededError:
            return True  # a newer decision stands, and this supervisor reads it in its next pass
        except RerailError as error:
            transient = isinstance(error, TransientError)
            self._watch.blocked = Blocked(attempt=effect.attempt, reason=str(error), transient=transient)
            return False
        self._watch.blocked = None
        return True

    def _mark(self, effect: MarkNode) -> None:
        """Fence the node for everybody, if guard and rights allow it; this run keeps away from it in any case."""
        if self.guard is not None:
            views = self.nodes.views() or ()
            fenced = sum(not view.usable for view in views if view.name != effect.node)
            hold = self.guard.ask_quarantine(effect.node, effect.incident, nodes=len(views), fenced=fenced)
            if hold:
                self.log(f"mark-node {effect.node}: {hold}")
                return
        try:
            self.nodes.mark(effect.node, effect.incident, effect.reason, device=effect.device)
        except (NotFoundError, RefusedError) as error:
            self.log(f"mark-node: {error}")

    def _retain(self, effect: Retain) -> None:
        if self.run.away:
            return
        rules: list[RetentionPolicy] = [LatestN(n=effect.keep_last)]
        if effect.keep_every_steps:
            rules.append(EveryN(steps=effect.keep_every_steps))
        try:
            retention.collect(self.run, AnyOf(*rules), keep_clean_s=effect.keep_clean_s, wall=self.clock.wall_s)
        except NewerFormatError as error:
            self.log(f"retain: {error}")

    def _end_others(self, state: RunState) -> None:
        """End gangs of the run that were before the current one, and the current one once nothing more is wanted of it.

        A gang with a higher number than ours means that this supervisor is behind; it is not ours to end.
        """
        current = state.gang.name if state.gang else ""
        number = gang_number(current) or 0
        try:
            for gang in self.backend.gangs(self.run.run):
                if gang != current and (gang_number(gang) or 0) < number:
                    self.backend.end(gang, self.policy.end_grace_untrusted_s)
            if state.phase in (*_OVER, "waiting") and current:
                self.backend.end(current, 0.0)
        except TransientError as error:  # the backend's; it must not be taken for an outage of the store
            self._say_once("end-others", f"gangs of this run: {error}; trying again")

    def _is_over(self, state: RunState) -> bool:
        """Whether nothing is left to do: what cannot be killed is waited for as long as the end of any gang."""
        entry = self._entry
        if state.phase not in _OVER or entry is None:
            return False
        owed = [effect for number, effect in enumerate(entry.effects) if number not in self._performed]
        if any(not isinstance(effect, EndGang) for effect in owed):
            return False
        bound_s = self.policy.end_grace_s + self.policy.end_wait_s
        waited_s = self._watch.now(state).phase_s
        try:
            left = self.backend.gangs(self.run.run)
            if not left or waited_s <= bound_s:
                return not left and not owed
            pods = [pod for gang in left for pod in self.backend.view(gang).pods if pod.phase in ("pending", "running")]
        except TransientError:
            return False
        where = ", ".join(f"pod {pod.name} on node {pod.node or 'unknown'}" for pod in pods) or ", ".join(left)
        self.log(
            f"run {state.run!r} is {state.phase}, and {where} did not end within {bound_s:g} s (policy end_grace_s + "
            "end_wait_s): restart that node; to delete a pod by force frees its name, and not the device that its "
            "processes hold"
        )
        return True

    def _decided(self, entry: LedgerEntry, seen: Observations) -> Decision | None:
        """The decision from ``entry``: the one that was acted on already while it could not be written, else a new one.

        What a gang looks like after we ended it says nothing about why it had to be ended.
        """
        if self._unwritten is not None and self._unwritten[0] == entry.number:
            return self._unwritten[1]
        return self.decide(entry.state, seen, self.policy, self._watch.now(entry.state))

    def _outage(self, error: TransientError) -> RunState:
        """The store does not answer: mark nodes, end a gang that is dead anyway, start nothing, and not for ever."""
        if self._entry is None:
            raise error
        at_s = self.clock.monotonic_s()
        if self._unreachable_since_s is None:
            self._unreachable_since_s = at_s
            self.log(f"{error}; going on without it for at most {self.policy.store_wait_s:g} s")
        if at_s - self._unreachable_since_s > self.policy.store_wait_s:
            raise StoreUnreachableError(
                f"{error}; given up after {self.policy.store_wait_s:g} s (policy store_wait_s). "
                "The gang was left as it is: run the same command again once the store answers"
            ) from error
        state = self._entry.state
        if self._watch.paused or not self.is_ours(state):
            return state
        self._end_others(state)
        seen = self._watch.look_without_store(state)
        decision = self._decided(self._entry, seen)
        accused = {signal.node for signal in seen.signals}
        partly = seen.gang is not None and seen.gang.alive
        dead = seen.gang is not None and any(pod.phase in ("failed", "gone") for pod in seen.gang.pods)
        for effect in (*self._entry.effects, *(decision.effects if decision else ())):
            try:
                ordered = effect in self._entry.effects
                # A gang that is gone as a whole accuses no node now: a newer decision may have ended it.
                if isinstance(effect, MarkNode) and (ordered or effect.node in accused or partly):
                    self._mark(effect)
                elif isinstance(effect, EndGang) and (dead or ordered):
                    if not ordered and decision is not None:
                        self._unwritten = (self._entry.number, decision)
                    self.backend.end(effect.gang, effect.grace_s)
            except TransientError as other:
                self.log(f"{effect.do}: {other}; trying again")
        return state
