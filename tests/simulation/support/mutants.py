"""Broken machines, executors, clients and stores, each of which some seed has to catch."""

from collections.abc import Callable

import pytest
from rerail_simulation.world import World

from rerail.plugins.checkpoint import attempts, commit, resolve, retention
from rerail.plugins.checkpoint.listing import Commits
from rerail.plugins.checkpoint.store import Entry, RunStore
from rerail.plugins.gang import executor
from rerail.policies import keys, recovery
from rerail.policies.documents import Seal
from rerail.policies.retention import RetentionPlan
from rerail.policies.supervisor import advance, budgets, judge, records

Mutant = Callable[[pytest.MonkeyPatch, World], None]


def no_suspicion(patch: pytest.MonkeyPatch, _: World) -> None:
    patch.setattr(executor, "doubt", lambda *_: None)


def suspicion_of_one_attempt(patch: pytest.MonkeyPatch, _: World) -> None:
    """Only the attempt that runs when the line comes is suspected, not the one that ran when the fault began."""
    isolated = records.isolated

    def forgetful(state, *arguments, **more):
        after = isolated(state, *arguments, **more)
        kept = tuple(one for one in after.suspicions if one.attempt == state.attempt or one in state.suspicions)
        return after.model_copy(update={"suspicions": kept})

    patch.setattr(records, "isolated", forgetful)


def list_before_seal(patch: pytest.MonkeyPatch, _: World) -> None:
    listed: dict[int, list[Entry]] = {}
    seal, start = executor.seal_attempt, executor.start_attempt

    def sealing(run: RunStore, wanted: Seal) -> Seal:
        listed.setdefault(wanted.attempt, Commits(run.control)._entries)
        return seal(run, wanted)

    def starting(run: RunStore, *, attempt: int, **more):
        class Stale(Commits):
            def _more(self, limit: int = 1000) -> None:
                super()._more(limit)
                own = [entry for entry in self._entries if entry.key == keys.seal(attempt)]
                self._entries = own + [entry for entry in listed[attempt] if entry.key != keys.seal(attempt)]
                self._after = None

        with pytest.MonkeyPatch.context() as inner:
            inner.setattr(attempts, "Commits", Stale)
            return start(run, attempt=attempt, **more)

    patch.setattr(executor, "seal_attempt", sealing)
    patch.setattr(executor, "start_attempt", starting)


def acknowledge_without_looking(patch: pytest.MonkeyPatch, _: World) -> None:
    patch.setattr(commit, "acknowledge", lambda *_, **__: None)


def no_exclusion(patch: pytest.MonkeyPatch, _: World) -> None:
    """The judge does not say that the node must not be used again."""
    patch.setattr(records, "isolated", lambda state, *_, **__: state)
    patch.setattr(records, "_kept_away", lambda state, _: state)


def charge_twice(patch: pytest.MonkeyPatch, _: World) -> None:
    patch.setattr(records, "rejudged", records.incident)


def no_budgets(patch: pytest.MonkeyPatch, _: World) -> None:
    patch.setattr(advance, "why_stop", lambda *_, **__: None)


def no_identical_failures(patch: pytest.MonkeyPatch, _: World) -> None:
    """Each failure is taken for a new one, and the budget of the application for an endless one."""
    patch.setattr(budgets, "same_failures", lambda *_: ())
    patch.setattr(budgets, "_BUDGETED", ("hardware",))


def ledger_overwrites(_: pytest.MonkeyPatch, world: World) -> None:
    world.disk.overwrites = keys.LEDGER


def starts_overwrite(_: pytest.MonkeyPatch, world: World) -> None:
    world.disk.overwrites = keys.COMMITS


def ends_the_current_gang(patch: pytest.MonkeyPatch, _: World) -> None:
    def end_all(self, state) -> None:
        for gang in self.backend.gangs(self.run.run):
            if state.gang is not None and gang == state.gang.name:
                self.backend.end(gang, 0.0)

    patch.setattr(executor.Supervisor, "_end_others", end_all)


def never_ends_old_gangs(patch: pytest.MonkeyPatch, _: World) -> None:
    patch.setattr(executor.Supervisor, "_end_others", lambda *_: None)


def marks_do_not_count(patch: pytest.MonkeyPatch, _: World) -> None:
    patch.setattr(resolve.Marks, "of", lambda *_: frozenset())
    patch.setattr(executor, "doubt", lambda *_: None)


def off_the_chain(patch: pytest.MonkeyPatch, _: World) -> None:
    """The newest commit of anybody is taken, whether the chain holds it or not."""
    links = resolve.links

    def all_links(start):
        return tuple(link.model_copy(update={"step": keys.STEP_LIMIT - 1}) for link in links(start))

    patch.setattr(resolve, "links", all_links)


def retention_forgets_the_floor(patch: pytest.MonkeyPatch, _: World) -> None:
    def plan(commits, *_, **__) -> RetentionPlan:
        return RetentionPlan(keep=(), delete=tuple(sorted(commit.name for commit in commits)))

    patch.setattr(retention, "plan", plan)


def submits_before_the_start(patch: pytest.MonkeyPatch, _: World) -> None:
    start = executor.Supervisor._start

    def hurried(self, effect, state):
        self.backend.submit(state.gang)
        return start(self, effect, state)

    patch.setattr(executor.Supervisor, "_start", hurried)


def own_signals_are_evidence(patch: pytest.MonkeyPatch, _: World) -> None:
    """How pods end that the supervisor ends itself is taken for a lost node: the bug that this suite found first."""
    policy = recovery.DRILL_POLICY
    patch.setattr(
        advance, "judge_meanwhile", lambda state, seen, *, now_s: judge.judge(state, seen, policy, now_s=now_s)
    )


MUTANTS: tuple[Mutant, ...] = (
    no_suspicion,
    suspicion_of_one_attempt,
    list_before_seal,
    acknowledge_without_looking,
    no_exclusion,
    charge_twice,
    no_budgets,
    no_identical_failures,
    ledger_overwrites,
    starts_overwrite,
    ends_the_current_gang,
    never_ends_old_gangs,
    marks_do_not_count,
    off_the_chain,
    retention_forgets_the_floor,
    submits_before_the_start,
    own_signals_are_evidence,
)

FOCUS: dict[Mutant, tuple[str, ...]] = {
    list_before_seal: ("partition", "partition"),
    suspicion_of_one_attempt: ("xid-late", "sigkill"),
}
"""Faults of the worlds in which a rare mutant is sought: what it breaks is used only there."""
