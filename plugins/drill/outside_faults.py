"""Drills whose fault comes from around the gang: an eviction, the network, the store and what lies in it."""

from rerail.plugins.checkpoint.commit import read_manifest
from rerail.plugins.drill.scenario import MIDDLE, PATIENT, WORLD_SIZE, Expectations, Scenario
from rerail.plugins.drill.world import World
from rerail.plugins.report.document import Report
from rerail.policies.errors import DAMAGE_MET, SAVED_AND_LEFT

_SILENCE_S = 8.0
_AWAY_S = 1.0


def _preempt(world: World) -> None:
    world.wait_step(MIDDLE + 7)
    world.terminate_gang(note="SIGTERM to every pod, with a grace period")


def _check_preempt(report: Report, world: World) -> list[str]:
    expect = Expectations(report, world)
    first = report.attempts[0]
    expect.attempts(2)
    expect.that(f"lost_steps 0, not {report.lost_steps}", holds=report.lost_steps == 0)
    codes = first.exit_codes
    expect.that(f"every process left with 85: {codes}", holds=set(codes.values()) == {SAVED_AND_LEFT})
    ranks = sum(name.startswith("rank-") for name in codes)
    expect.that(f"every rank is among them: {codes}", holds=ranks == WORLD_SIZE)
    saved = max((row.step for row in report.checkpoints if row.attempt == 1), default=None)
    expect.that(
        f"all ranks saved at one step, {saved}, the last one: {first.last_step}", holds=saved == first.last_step
    )
    expect.that("resumed from the step of the save", holds=report.resumed_from_step == saved)
    expect.that("the end is free", holds=[incident.cause for incident in report.incidents] == ["preemption"])
    expect.unmarked()
    expect.certified()
    return expect.told


def _torn(world: World) -> None:
    world.wait_commit(MIDDLE)
    world.kill_rank(3, note="rank 3 died; the newest checkpoint is cut, the one before has a flipped bit")
    newer, older = (read_manifest(world.run, one.attempt, one.step or 0) for one in world.commits()[:2])
    world.flip_bit(older)
    world.truncate(newer)


def _check_torn(report: Report, world: World) -> list[str]:
    expect = Expectations(report, world)
    states = [(row.step, row.state) for row in report.checkpoints]
    skipped = " ".join(text for attempt in report.attempts for text in attempt.skipped)
    expect.that(f"a damaged checkpoint is marked bad: {states}", holds="bad" in [state for _, state in states])
    expect.that(f"the cut one is said: {skipped!r}", holds="bytes, expected" in skipped)
    expect.that(f"the flipped one is said: {skipped!r}", holds="bad" in skipped)
    met = [attempt for attempt in report.attempts if DAMAGE_MET in attempt.exit_codes.values()]
    expect.that("damage was met once, while loading", holds=len(met) == 1)
    expect.that("damage is free", holds=all(attempt.charged_to == "damage" for attempt in met))
    resumed = report.resumed_from_step
    whole = sorted(row.step for row in report.checkpoints if row.attempt == 1)[-3]
    expect.that(f"resumed before both, from {whole}, not from {resumed}", holds=resumed == whole)
    expect.certified()
    return expect.told


def _partition(world: World) -> None:
    world.wait_commit(MIDDLE)
    world.relays.freeze()
    world.fault("the network between the nodes froze: connections stay open, and nothing goes through")
    world.wait_for("the restart", lambda: _second_attempt(world))
    # Longer than any silence that would end a training gang: a gang that is still meeting is left alone.
    world.over.wait(1.5 * _SILENCE_S)
    world.relays.heal()
    world.notes.append("the network healed")


def _second_attempt(world: World) -> bool:
    state = world.newest_state()
    return state is not None and state.phase == "running" and state.attempt > 1


def _check_partition(report: Report, world: World) -> list[str]:
    expect = Expectations(report, world)
    for incident in expect.incidents(1):
        expect.that(f"class hang, not {incident.class_}", holds=incident.class_ == "hang")
    expect.attempts(2)
    last = report.attempts[-1]
    met_s = (last.first_step_s or 0.0) - (last.started_s or 0.0)
    expect.that(f"the ranks were left to meet for {met_s:.1f} s", holds=met_s > _SILENCE_S)
    expect.unmarked()
    expect.certified()
    return expect.told


def _store_down(world: World) -> None:
    world.wait_commit(MIDDLE)
    node, _, _ = world.place_of(2)
    world.kill_node(node, note=f"node {node} vanished")
    world.take_store_away(note="the folder of the checkpoints went away with it")
    world.wait_for("the resume to be blocked", lambda: _blocked(world))
    world.over.wait(_AWAY_S)
    world.bring_store_back()


def _blocked(world: World) -> bool:
    state = world.newest_state()
    return state is not None and state.reason.startswith("resume blocked")


def _check_store_down(report: Report, world: World) -> list[str]:
    expect = Expectations(report, world)
    expect.elsewhere(class_="node-lost", scope="node")
    expect.said("resume blocked: ")
    last = report.attempts[-1]
    waited_s = (last.started_s or 0.0) - last.opened_s
    expect.that(f"attempt 2 waited {waited_s:.1f} s for the store", holds=waited_s >= _AWAY_S)
    newest = max((row.step for row in report.checkpoints if row.attempt == 1), default=None)
    expect.that(f"resumed from the newest commit, {newest}", holds=report.resumed_from_step == newest)
    expect.that("it did not begin afresh", holds=bool(last.started_from_step))
    expect.certified()
    return expect.told


OUTSIDE_FAULTS = (
    Scenario(
        name="preempt",
        hypothesis="SIGTERM with a grace period: all ranks save at one step, leave with 85, and lose nothing",
        inject=_preempt,
        check=_check_preempt,
    ),
    Scenario(
        name="torn",
        hypothesis="the newest checkpoint is cut, the one before has a flipped bit: both are skipped, and said",
        inject=_torn,
        check=_check_torn,
    ),
    Scenario(
        name="partition",
        hypothesis="the network between the nodes freezes: one restart, and none while the ranks try to meet again",
        inject=_partition,
        check=_check_partition,
        policy=PATIENT.model_copy(update={"hang_after_s": _SILENCE_S}),
        relayed=True,
    ),
    Scenario(
        name="store-down",
        hypothesis="the checkpoints are out of reach at resume: that is said, and training goes on when they are back",
        inject=_store_down,
        check=_check_store_down,
        control_apart=True,
    ),
)
