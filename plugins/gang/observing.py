"""Observe-only: what a supervisor would decide and do, while nothing is written, marked, ended or asked for."""

from collections.abc import Callable
from dataclasses import dataclass, field

from rerail.plugins.checkpoint.readonly import read_only
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.gang import ledger
from rerail.plugins.gang.ports import Clock, GangBackend, Nodes, Pause
from rerail.plugins.gang.watch import Watch
from rerail.policies.errors import TransientError
from rerail.policies.recovery import RecoveryPolicy
from rerail.policies.supervisor.pausing import advance
from rerail.policies.supervisor.state import LedgerEntry, RunState
from rerail.policies.supervisor.wording import would

_OVER = ("done", "stopped")


@dataclass(slots=True)
class Observer:
    """Looks at a run that somebody else drives, or nobody, and says what it would do.

    It has no guard: a token that it asked for would be one that the run's supervisor cannot have. Time that a phase
    took is counted from when this one first saw it.

    Attributes:
        run: The run's stores; only read.
        backend: Of its gangs; only looked at.
        nodes: Only looked at.
        policy: Of the run.
        pause: Holds all runs; None where nothing is shared.
        on_event: Called once for each decision that somebody wrote, oldest first, from the one that stands.
        log: Takes one line about what would be decided, and about trouble.
    """

    run: RunStore
    backend: GangBackend
    nodes: Nodes
    policy: RecoveryPolicy
    pause: Pause | None = None
    clock: Clock = field(default_factory=Clock)
    on_event: Callable[[LedgerEntry], None] = lambda _entry: None
    log: Callable[[str], None] = lambda _line: None
    _watch: Watch = field(init=False)
    _told: int = -1
    _said: tuple[int, str] = (-1, "")

    def __post_init__(self) -> None:
        self.run = read_only(self.run)
        self._watch = Watch(self.run, self.backend, self.nodes, self.clock, pause=self.pause, log=self.log)

    def step(self) -> RunState | None:
        """One pass.

        Returns:
            The newest state of the ledger; None before its first entry, or while the store does not answer.

        Raises:
            RerailError: The ledger or the store cannot be read.
        """
        try:
            self._watch.see_pause()
            entry = ledger.newest_entry(self.run)
            if entry is None:
                self._say(-1, "no supervisor has begun this run yet: attempt 1 would be opened")
                return None
            self._tell(entry)
            seen = self._watch.look(entry.state)
        except TransientError as error:
            self._say(self._told, f"{error}; looking again")
            return None
        decision = advance(entry.state, seen, self.policy, self._watch.now(entry.state))
        if decision is not None:
            self._say(entry.number, would(decision))
        return entry.state

    def drive(self, until: Callable[[], bool] = lambda: False) -> RunState | None:
        """Pass after pass, until the run is done or stopped, or ``until`` says so.

        Returns:
            The last state seen.

        Raises:
            RerailError: As ``step``.
        """
        last: RunState | None = None
        while True:
            last = self.step() or last
            if until() or (last is not None and last.phase in _OVER):
                return last
            self.clock.sleep(self.policy.poll_s)

    def _tell(self, entry: LedgerEntry) -> None:
        first = self._told + 1 if self._told >= 0 else entry.number
        for number in range(first, entry.number):
            self.on_event(ledger.entry_at(self.run, number))
        if entry.number > self._told:
            self.on_event(entry)
        self._told = entry.number

    def _say(self, number: int, line: str) -> None:
        """Say what stands after a decision until it reads otherwise."""
        if self._said != (number, line):
            self._said = (number, line)
            self.log(line)
