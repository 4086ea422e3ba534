"""One pass of looking at a run: everything that ``advance`` may know, from the store, the backend and the nodes."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from rerail.plugins.checkpoint.attempts import read_start
from rerail.plugins.checkpoint.notes import read_heartbeat, read_reports, why_paused
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.gang.ports import Clock, GangBackend, Guard, HoldsVolumes, Nodes, Pause
from rerail.policies import keys
from rerail.policies.documents import Heartbeat, RankExit, Start
from rerail.policies.errors import DamagedError, NotFoundError, RerailError, TransientError
from rerail.policies.faults import FaultSignal
from rerail.policies.lineage import holds, links
from rerail.policies.manifest import Manifest
from rerail.policies.supervisor.budgets import in_line_since_s
from rerail.policies.supervisor.observations import Blocked, CommitView, GangView, NodeView, Now, Observations
from rerail.policies.supervisor.placement import still_excluded
from rerail.policies.supervisor.state import RunState

_GLANCE = 50
"""Keys of a look at ``commits/``: the newest opening and the newest commit stand first."""

DEAF_S: Final = 10.0
"""How long a watcher that never heard of faults of nodes concludes nothing from a gang, while they cannot be read."""


@dataclass(slots=True)
class _Reports:
    """Reports about one attempt, read once each."""

    after: str = ""
    exits: dict[int, RankExit] = field(default_factory=dict)
    ready: set[str] = field(default_factory=set)


@dataclass(slots=True)
class Watch:
    """Looks at one run, pass by pass, and keeps what need not be read twice. Nothing here decides.

    Attributes:
        blocked: Why the start of the state's attempt could not be written, as the executor met it.
        guard: Bounds restarts and fenced nodes of all runs together; None where nothing is shared.
        pause: Of all runs together; None where nothing is shared.
        paused: Why nothing may be recovered now, as it was seen last; empty while all goes on.
        stop_asked: A person asked for the run's end, with the reason; empty otherwise.
        log: Takes one line where the backend ceases to answer, and one where it answers again.
    """

    run: RunStore
    backend: GangBackend
    nodes: Nodes
    clock: Clock
    guard: Guard | None = None
    pause: Pause | None = None
    paused: str = ""
    blocked: Blocked | None = None
    stop_asked: str = ""
    log: Callable[[str], None] = lambda _line: None
    _unseen: bool = False
    _starts: dict[int, Start] = field(default_factory=dict)
    _reports: dict[int, _Reports] = field(default_factory=dict)
    _commits: dict[str, CommitView] = field(default_factory=dict)
    _phase: tuple[int, float] = (-1, 0.0)
    _step: tuple[tuple[int, int | None], float] = ((0, None), 0.0)
    _beat: Heartbeat | None = None
    _waits_since: tuple[str, float] | None = None
    _paused_all: str = ""
    _pause_unseen: bool = False
    _signalled: tuple[FaultSignal, ...] = ()
    _heard: bool = False
    _deaf_since_s: float | None = None

    @property
    def beat(self) -> Heartbeat | None:
        """The newest heartbeat of the attempt that was looked at last."""
        return self._beat

    def now(self, state: RunState) -> Now:
        """Time, with how long this watcher has seen the state's phase."""
        at_s = self.clock.monotonic_s()
        if self._phase[0] != state.phase_number:
            self._phase = (state.phase_number, at_s)
        return Now(wall_s=self.clock.wall_s(), phase_s=at_s - self._phase[1])

    def see_pause(self) -> str:
        """Look whether a person paused the run, or all of them.

        Raises:
            TransientError: The store does not answer.
        """
        if self.pause is not None:
            try:
                self._paused_all = self.pause.why()
                self._pause_unseen = False
            except RerailError as error:
                if not self._pause_unseen:
                    self.log(f"whether all runs are paused cannot be told, and what was seen last counts: {error}")
                self._pause_unseen = True
        self.paused = self.paused or self._paused_all  # should the store not answer
        self.paused = why_paused(self.run) or self._paused_all
        return self.paused

    def look(self, state: RunState) -> Observations:
        """Everything that can be seen now.

        Raises:
            TransientError: The store does not answer.
        """
        reports = self._reports_of(state.attempt)
        ready = self._reports_of(state.attempt + 1).ready if state.phase == "preparing" else set()
        beat = read_heartbeat(self.run)
        self._beat = beat if beat is not None and beat.attempt == state.attempt else None
        commit = self._commit()
        start = self.start(state.attempt) if state.phase == "opening" else self._starts.get(state.attempt)
        return self._seen(state).model_copy(
            update={
                "start": start,
                "exits": tuple(reports.exits.values()),
                "ready": tuple(sorted(ready)),
                "heartbeat": self._beat,
                "heartbeat_age_s": self._silent_s(state),
                "commit": commit,
            }
        )

    def look_without_store(self, state: RunState) -> Observations:
        """What can be seen while the store does not answer. Silence of the ranks means nothing then."""
        return self._seen(state).model_copy(update={"heartbeat": self._beat})

    def start(self, attempt: int) -> Start | None:
        """The start of ``attempt`` if it stands."""
        if attempt not in self._starts:
            try:
                self._starts[attempt] = read_start(self.run, attempt)
            except NotFoundError:
                return None
        return self._starts[attempt]

    def _seen(self, state: RunState) -> Observations:
        gang = self._gang(state)
        nodes = self._nodes()
        signals = self._signals()
        return Observations(
            gang=None if self._deaf() else gang,
            waits_s=self.clock.monotonic_s() - self._waits_since[1] if self._waits_since else 0.0,
            blocked=self.blocked,
            signals=signals,
            nodes=nodes,
            hold=self._hold(state, gang, nodes),
            paused=self.paused,
            stop_asked=self.stop_asked,
        )

    def _hold(self, state: RunState, gang: GangView | None, nodes: tuple[NodeView, ...] | None) -> str:
        """Ask the guard only where the next gang could start now: a token is a permission to start, not a wish."""
        if self.paused or state.phase not in ("ending", "waiting") or (gang is not None and gang.alive):
            return ""
        held = self._held_volume(state, nodes)
        if held or self.guard is None:
            return held
        try:
            if not state.attempts:
                return self.guard.ask_submission(state.run, state.attempt)
            return self.guard.ask_submission(state.run, state.attempt + 1, since_s=in_line_since_s(state))
        except RerailError as error:
            return f"the guard does not answer: {error}"

    def _held_volume(self, state: RunState, nodes: tuple[NodeView, ...] | None) -> str:
        if not isinstance(self.backend, HoldsVolumes) or not state.attempts:
            return ""
        try:
            return self.backend.why_hold(frozenset(still_excluded(state, nodes)))
        except TransientError as error:
            return f"whether a volume is still attached elsewhere cannot be told: {error}"

    def _gang(self, state: RunState) -> GangView | None:
        if state.gang is None:
            return None
        try:
            seen = self.backend.view(state.gang.name)
        except TransientError as error:
            if not self._unseen:
                self.log(f"gang {state.gang.name} cannot be seen now, and is left as it is: {error}")
            self._unseen = True
            self._waits_since = None  # it may have been placed meanwhile: it waits anew
            return None
        if self._unseen:
            self.log(f"gang {state.gang.name} is seen again")
        self._unseen = False
        if not seen.waits:
            self._waits_since = None
        elif self._waits_since is None or self._waits_since[0] != seen.name:
            self._waits_since = (seen.name, self.clock.monotonic_s())
        return seen

    def _nodes(self) -> tuple[NodeView, ...] | None:
        try:
            return self.nodes.views()
        except TransientError:
            return ()

    def _signals(self) -> tuple[FaultSignal, ...]:
        """Faults of nodes; one that was seen does not cease to be known because nobody answers now."""
        try:
            self._signalled = self.nodes.signals()
        except TransientError:
            self._deaf_since_s = self._deaf_since_s or self.clock.monotonic_s()
        else:
            self._heard = True
        return self._signalled

    def _deaf(self) -> bool:
        """Whether faults of nodes were never heard of yet, for a while at most: they say who is to blame."""
        since_s = self._deaf_since_s
        return not self._heard and since_s is not None and self.clock.monotonic_s() - since_s < DEAF_S

    def _reports_of(self, attempt: int) -> _Reports:
        known = self._reports.setdefault(attempt, _Reports())
        for key, report in read_reports(self.run, attempt, after=known.after):
            known.after = key
            known.exits |= {end.rank: end for end in report.exits}
            if report.ready_for == attempt:
                known.ready.add(report.pod)
        return known

    def _silent_s(self, state: RunState) -> float:
        """Seconds without a new step in the state's attempt, counted from when it began to run."""
        at_s = self.clock.monotonic_s()
        step = (state.attempt, self._beat.step if self._beat and self._beat.first_step is not None else None)
        if state.phase == "opening" or self._waits_since or step != self._step[0]:
            self._step = (step, at_s)
        return at_s - self._step[1]

    def _commit(self) -> CommitView | None:
        """The newest commit that counts: on the newest start's chain, or of an attempt that no start followed yet."""
        started: int | None = None
        after = ""
        while True:
            page = self.run.control.page(keys.COMMITS, start_after=after, limit=_GLANCE if not after else 1000)
            for entry in page.entries:
                key = keys.parse_commit(entry.key)
                if key is None:
                    continue
                if key.kind == "start" and started is None:
                    started = key.attempt
                if key.step is None or not self._counts(started, key.attempt, key.step):
                    continue
                view = self._commit_at(entry.key, key.attempt, key.step)
                if view is not None:
                    return view
            if page.next_after is None:
                return None
            after = page.next_after

    def _counts(self, started: int | None, attempt: int, step: int) -> bool:
        if started is None:
            return False
        start = self.start(started)
        return start is not None and holds(links(start), attempt, step)

    def _commit_at(self, key: str, attempt: int, step: int) -> CommitView | None:
        if key not in self._commits:
            try:
                data = self.run.control.get(key)
                manifest = Manifest.decode(data, f"{self.run.control.url}: {key}")
            except (NotFoundError, DamagedError):
                return None
            if manifest.reason == "final" or manifest.answers:
                # Its writer may not have synced the folder yet, and a decision will rest on it: create what is there
                # again, which makes the loser sync.
                self.run.control.create(key, data)
            self._commits[key] = CommitView(
                attempt=attempt, step=step, reason=manifest.reason, answers=manifest.answers
            )
        return self._commits[key]
