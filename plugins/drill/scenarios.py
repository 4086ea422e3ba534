"""The drills: what each one breaks, and what has to be true afterwards."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rerail.plugins.drill.world import Folders, World
from rerail.plugins.report.document import Report

Check = Callable[[Report], list[str]]

STEPS = 160
SAVE_EVERY_STEPS = 20
_XID_79 = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@dataclass(frozen=True)
class Scenario:
    """One drill.

    Attributes:
        hypothesis: What the drill claims; the verdict is whether it held.
        inject: Breaks the world while the run goes; runs in a thread of its own.
        check: Returns what was expected and did not come true.
        finishes: Whether training rightly finishes; then it must be identical to the uninterrupted run.
        environment: Extra environment of the ranks, given the drill's folders.
    """

    name: str
    hypothesis: str
    inject: Callable[[World], None]
    check: Check
    finishes: bool = True
    environment: Callable[[Folders], Mapping[str, str]] = field(default=lambda _: {})


def _nothing(_: World) -> None:
    """The fault comes from the environment."""


def _want(told: list[str], text: str, *, holds: bool) -> None:
    if not holds:
        told.append(text)


def _gpu(world: World) -> None:
    world.wait_commit(STEPS // 2)
    node = world.node_of(1)
    world.kernel_line(node, _XID_79)
    world.kill_rank(1, note=f"XID 79 on {node}: rank 1 died")


def _check_gpu(report: Report) -> list[str]:
    told: list[str] = []
    first, last = report.attempts[0], report.attempts[-1]
    _want(told, "exactly one incident", holds=len(report.incidents) == 1)
    if report.incidents:
        incident = report.incidents[0]
        _want(told, f"the incident names xid:79, not {incident.codes}", holds="xid:79" in incident.codes)
        _want(told, f"node {incident.node} is left out of attempt {last.n}", holds=incident.node not in last.nodes)
        _want(told, f"node {incident.node} was used by attempt 1", holds=incident.node in first.nodes)
    _want(told, "two attempts", holds=len(report.attempts) == 2)  # noqa: PLR2004 (the fault ends one)
    _want(told, "the suspect commit is skipped", holds=any(row.state == "suspect" for row in report.checkpoints))
    _want(told, f"a new gang, not {last.how}", holds=last.how == "new-gang")
    return told


def _node(world: World) -> None:
    world.wait_commit(STEPS // 3)
    node = world.node_of(2)
    world.kill_node(node, note=f"node {node} vanished: all its processes were killed at once")


def _check_node(report: Report) -> list[str]:
    told: list[str] = []
    last = report.attempts[-1]
    _want(told, "exactly one incident", holds=len(report.incidents) == 1)
    if report.incidents:
        incident = report.incidents[0]
        _want(told, f"class node-lost, not {incident.class_}", holds=incident.class_ == "node-lost")
        _want(told, f"node {incident.node} is left out", holds=incident.node not in last.nodes)
    _want(told, f"a new gang, not {last.how}", holds=last.how == "new-gang")
    return told


def _hang_environment(folders: Folders) -> Mapping[str, str]:
    return {"RERAIL_DRILL_HANG": f"step={STEPS // 2 + 5},rank=2,once={folders.root / 'hung-once'}"}


def _note_hang(world: World) -> None:
    once = world.folders.root / "hung-once"
    world.wait_for("rank 2 to stop stepping", once.exists)
    world.fault("rank 2 stopped stepping; every process lives")


def _check_hang(report: Report) -> list[str]:
    told: list[str] = []
    _want(told, "exactly one incident", holds=len(report.incidents) == 1)
    _want(told, "class hang", holds=all(incident.class_ == "hang" for incident in report.incidents))
    _want(told, "two attempts", holds=len(report.attempts) == 2)  # noqa: PLR2004 (the hang ends one)
    return told


def _preempt(world: World) -> None:
    world.wait_step(STEPS // 2 + 7)
    world.terminate_gang(note="SIGTERM to every pod, with a grace period")


def _check_preempt(report: Report) -> list[str]:
    told: list[str] = []
    first = report.attempts[0]
    _want(told, f"lost_steps 0, not {report.lost_steps}", holds=report.lost_steps == 0)
    codes = set(first.exit_codes.values())
    _want(told, f"every process left with 85, not {sorted(codes)}", holds=codes == {85})
    _want(told, "resumed from the step of the save", holds=report.resumed_from_step == first.last_step)
    _want(told, "the end is free", holds=all(incident.cause == "preemption" for incident in report.incidents))
    return told


def _app_error_environment(_: Folders) -> Mapping[str, str]:
    return {"RERAIL_DRILL_RAISE": f"step={STEPS // 2 + 5},rank=1"}


def _check_app_error(report: Report) -> list[str]:
    told: list[str] = []
    nodes = {attempt.nodes for attempt in report.attempts}
    _want(told, "the run stops", holds=report.outcome == "stopped")
    said = report.outcome_reason
    _want(told, f"it says why: {said!r}", holds="drill: bad batch" in said)
    _want(told, "it was tried on different nodes", holds=len(nodes) > 1)
    _want(told, "identical is null", holds=report.identical is None)
    _want(told, "no node is blamed", holds=not any(incident.codes for incident in report.incidents))
    return told


def _app_transient_environment(folders: Folders) -> Mapping[str, str]:
    return {"RERAIL_DRILL_RAISE": f"step={STEPS // 2 + 5},rank=1,once={folders.root / 'raised-once'}"}


def _note_raise(world: World) -> None:
    once = world.folders.root / "raised-once"
    world.wait_for("rank 1 to raise", once.exists)
    world.fault("rank 1 raised an exception that does not come back")


def _check_app_transient(report: Report) -> list[str]:
    told: list[str] = []
    last = report.attempts[-1]
    _want(told, f"resumed in place, not {last.how}", holds=last.how == "in-place")
    _want(told, "no new pods", holds=len({attempt.gang for attempt in report.attempts}) == 1)
    _want(told, "two attempts", holds=len(report.attempts) == 2)  # noqa: PLR2004 (the exception ends one)
    return told


def _torn(world: World) -> None:
    older = world.wait_commit(STEPS // 3)
    newer = world.wait_commit(older.step + 1)
    world.flip_bit(older)
    world.truncate(newer)
    world.kill_rank(3, note="rank 3 died; the newest checkpoint is cut, the one before has a flipped bit")


def _check_torn(report: Report) -> list[str]:
    told: list[str] = []
    states = [row.state for row in report.checkpoints]
    skipped = " ".join(text for attempt in report.attempts for text in attempt.skipped)
    _want(told, f"a damaged checkpoint is marked bad: {states}", holds="bad" in states)
    _want(told, f"the cut one is said: {skipped!r}", holds="bytes, expected" in skipped)
    _want(told, f"the flipped one is said: {skipped!r}", holds="bad" in skipped)
    _want(told, "88 was met once", holds=any(88 in attempt.exit_codes.values() for attempt in report.attempts))  # noqa: PLR2004 (the exit code)
    return told


SCENARIOS: Mapping[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            name="gpu",
            hypothesis="a GPU falls off the bus: training goes on elsewhere, from a commit that it cannot have touched",
            inject=_gpu,
            check=_check_gpu,
        ),
        Scenario(
            name="node",
            hypothesis="a node vanishes without a farewell: training goes on elsewhere from the newest commit",
            inject=_node,
            check=_check_node,
        ),
        Scenario(
            name="hang",
            hypothesis="one rank stops stepping while all looks alive: it is noticed and ended, and training goes on",
            inject=_note_hang,
            check=_check_hang,
            environment=_hang_environment,
        ),
        Scenario(
            name="preempt",
            hypothesis="SIGTERM with a grace period: all ranks save at one step, leave with 85, and lose nothing",
            inject=_preempt,
            check=_check_preempt,
        ),
        Scenario(
            name="app-error",
            hypothesis="the same exception at the same step on different nodes: the run stops and tells why",
            inject=_nothing,
            check=_check_app_error,
            finishes=False,
            environment=_app_error_environment,
        ),
        Scenario(
            name="app-transient",
            hypothesis="an exception that does not come back: training goes on in the same pods",
            inject=_note_raise,
            check=_check_app_transient,
            environment=_app_transient_environment,
        ),
        Scenario(
            name="torn",
            hypothesis="the newest checkpoint is cut, the one before has a flipped bit: both are skipped, and said",
            inject=_torn,
            check=_check_torn,
        ),
    )
}
