"""Gangs that were taken away: free, patient, and back in the order of their runs' age, without a storm.

A simulation of many runs over the real machine and the real guard: every supervisor looks once a second at a moment of
its own, and a scheduler places what was submitted as Volcano does: by the second of creation, and within it by chance.
"""

import random
from dataclasses import dataclass, field

import pytest

from rerail.policies.documents import RankExit, Rendezvous, Start
from rerail.policies.guards import GuardPolicy, GuardState, ask_submission
from rerail.policies.recovery import DRILL_POLICY, RecoveryPolicy
from rerail.policies.supervisor.advance import advance, begin
from rerail.policies.supervisor.budgets import backoff_s, in_line_since_s, why_stop
from rerail.policies.supervisor.effects import SubmitGang
from rerail.policies.supervisor.observations import GangView, NodeView, Now, Observations, PodView
from rerail.policies.supervisor.state import AttemptRecord, PodShape, RunState

POLICY = RecoveryPolicy()
GUARD = GuardPolicy()
LAYOUT = (PodShape(suffix="worker-0", first_rank=0, ranks=1),)
NODES = tuple(NodeView(name=f"n{number}", slots=200, free=0) for number in range(2))


@dataclass
class Run:
    """One run, its supervisor and its gang."""

    name: str
    state: RunState
    phase_at_s: float = 0.0
    gang_alive: bool = True
    placed: bool = True
    left_at_s: float = 0.0
    supervised: bool = True
    ask_again_at_s: float = 0.0
    hold: str = ""


@dataclass
class World:
    seed: int
    runs: int
    now_s: float = 10_000.0
    guard: GuardState = field(default_factory=GuardState)
    submitted: list[tuple[float, str]] = field(default_factory=list)
    placed: list[str] = field(default_factory=list)
    room: int = 0
    writes: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(self.seed)
        self.all = [self.begun(f"r{number:03}", float(number)) for number in range(self.runs)]

    def begun(self, name: str, since_s: float) -> Run:
        """A run whose gang trains."""
        first = begin(name, 1, nodes=NODES, now=Now(wall_s=since_s, phase_s=0.0), layout=LAYOUT)
        run = Run(name, first.state)
        self.looks(run, start=self.start(run))
        return run

    def start(self, run: Run) -> Start:
        assert run.state.gang
        return Start(
            writer="w" * 8,
            run=run.name,
            attempt=run.state.attempt,
            how=run.state.next_how,
            gang=run.state.gang.name,
            world_size=1,
            rendezvous=Rendezvous(id="r", host="h", port=1),
            load=None,
        )

    def looks(self, run: Run, **seen: object) -> None:
        """One pass of a run's supervisor."""
        observed = Observations.model_validate({"nodes": NODES, **seen})
        decision = advance(run.state, observed, POLICY, Now(wall_s=self.now_s, phase_s=self.now_s - run.phase_at_s))
        if decision is None:
            return
        if decision.state.phase_number != run.state.phase_number:
            run.phase_at_s = self.now_s
        run.state = decision.state
        if run.state.phase == "running" and any(isinstance(one, SubmitGang) for one in decision.effects):
            self.submit(run)

    def submit(self, run: Run) -> None:
        """The API server stamps whole seconds."""
        if run.state.attempt > 1 and not run.gang_alive:
            run.gang_alive, run.placed = True, False
            self.submitted.append((self.now_s, run.name))

    def ask(self, run: Run) -> str:
        """As the guard of a cluster is asked: what it said holds until it has a sense to ask again."""
        if run.hold and self.now_s < run.ask_again_at_s:
            return run.hold
        since_s = in_line_since_s(run.state)
        answer = ask_submission(
            self.guard, GUARD, run=run.name, attempt=run.state.attempt + 1, now_s=self.now_s, since_s=since_s
        )
        self.writes += answer.state != self.guard
        self.guard, run.hold = answer.state, answer.hold
        run.ask_again_at_s = self.now_s + min(answer.again_in_s, 15.0) * (1 + self.chance.random() / 4)
        return run.hold

    def pass_of(self, run: Run) -> None:
        assert run.state.gang
        if run.gang_alive and run.placed and self.now_s >= run.left_at_s > 0 and run.state.attempt == 1:
            run.gang_alive = False
        gang = run.state.gang.name
        if not run.supervised or (run.gang_alive and run.state.phase == "running"):
            return
        if run.state.phase == "running":
            ended = PodView(name=f"{gang}-worker-0", node="n0", phase="failed", exit_code=85, farewell=True)
            view, exits = GangView(name=gang, pods=(ended,)), (RankExit(rank=0, exit_code=85),)
            self.looks(run, gang=view, exits=exits)
        elif run.state.phase in ("ending", "waiting"):
            self.looks(run, gang=GangView(name=gang), hold=self.ask(run))
        else:
            self.looks(run, gang=GangView(name=gang), start=self.start(run))

    def schedule(self) -> None:
        waiting = [
            (int(at_s), self.chance.random(), name)
            for at_s, name in self.submitted
            if not next(run for run in self.all if run.name == name).placed
        ]
        for _, _, name in sorted(waiting)[: self.room]:
            next(run for run in self.all if run.name == name).placed = True
            self.placed.append(name)
            self.room -= 1

    def live(self, seconds: int) -> None:
        moments = [(self.chance.random(), run) for run in self.all]
        moments.sort(key=lambda one: one[0])
        begun_s = self.now_s
        for second in range(seconds):
            for moment, run in moments:
                self.now_s = begun_s + second + moment
                self.pass_of(run)
            self.schedule()

    def all_leave(self, within_s: float) -> None:
        for run in self.all:
            run.left_at_s = self.now_s + 0.001 + self.chance.random() * within_s


def most_within(times: list[float], window_s: float) -> int:
    return max(sum(at <= other < at + window_s for other in times) for at in times)


def inversions(names: list[str]) -> int:
    """Gangs that are before one of an older run."""
    return sum(any(other < name for other in names[place + 1 :]) for place, name in enumerate(names))


@pytest.mark.parametrize("seed", range(3))
def test_many_gangs_that_leave_at_once_come_back_in_order_and_without_a_storm(seed):
    world = World(seed, 40)
    world.all_leave(within_s=1.0)
    world.live(130)
    times = [at_s for at_s, _ in world.submitted]
    assert len(times) == 40, "all are back"
    assert most_within(times, 1.0) == 1, "whole seconds tell them apart"
    assert most_within(times, 60.0) <= 60
    assert inversions([name for _, name in world.submitted]) <= 1, "the first that asks waits for nobody"
    assert world.writes <= 2 * 40, "into the line once, out of it once"
    assert all(run.state.phase == "running" and run.state.attempt == 2 for run in world.all)
    assert not world.placed, "there is no room yet"
    while len(world.placed) < 40:
        world.room += 1
        world.live(1)
    assert inversions(world.placed) <= 1


def test_more_than_a_window_takes_wait_for_the_next_one_in_order():
    world = World(7, 75)
    world.all_leave(within_s=1.0)
    world.live(420)
    times = [at_s for at_s, _ in world.submitted]
    assert len(times) == 75
    assert most_within(times, GUARD.window_s) <= GUARD.submissions
    assert most_within(times, 60.0) <= 60
    assert inversions([name for _, name in world.submitted]) <= 1


def test_supervisors_that_died_in_line_hold_nobody_up_for_long():
    world = World(3, 12)
    world.all_leave(within_s=1.0)
    world.live(3)
    in_line = [run for run in world.all if run.state.phase == "waiting"]
    for run in in_line[:2]:
        run.supervised = False
    world.live(60)
    assert len(world.submitted) == 10
    for run in in_line[:2]:
        run.supervised = True
    world.live(30)
    assert len(world.submitted) == 12


def preempted(count: int, *, commits: bool) -> RunState:
    records = tuple(
        AttemptRecord(
            n=number,
            gang=f"r-a{number}",
            nodes=("n0",),
            how="fresh",
            opened_at_s=0.0,
            ended_at_s=1.0,
            charged_to="preemption",
            started_from_step=0,
            last_commit_step=1 if commits else None,
        )
        for number in range(1, count + 1)
    )
    return RunState(run="r", world_size=1, phase="waiting", attempt=count, attempts=records, layout=LAYOUT)


@pytest.mark.parametrize("commits", [True, False])
def test_giving_room_is_free_and_the_next_gang_is_not_delayed(commits):
    policy = DRILL_POLICY.model_copy(update={"max_attempts": 100})
    state = preempted(40, commits=commits)
    assert why_stop(state, policy, now_s=2.0) is None
    assert backoff_s(state, policy) == 0.0


def test_who_gave_room_waits_longer_for_it_than_who_never_had_any():
    state = preempted(1, commits=True)
    full = {"nodes": ()}

    def after(phase_s: float, of: RunState) -> RunState | None:
        decision = advance(of, Observations.model_validate(full), POLICY, Now(wall_s=2.0, phase_s=phase_s))
        return decision and decision.state

    failed = state.attempts[0].model_copy(update={"charged_to": "infrastructure"})
    assert after(3601.0, state).phase == "waiting"
    assert after(3601.0, state.model_copy(update={"attempts": (failed,)})).phase == "stopped"
    stopped = after(604_801.0, state)
    assert stopped.phase == "stopped"
    assert "policy yielded_wait_s" in stopped.reason
