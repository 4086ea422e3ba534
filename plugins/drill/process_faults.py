"""Drills whose fault is a process's own: no node is to blame."""

from collections.abc import Mapping

from rerail.plugins.drill.scenario import MIDDLE, PATIENT, STEPS, Expectations, Scenario
from rerail.plugins.drill.world import Folders, World
from rerail.plugins.report.document import Report

_STEP = MIDDLE + 5
_OOM_FIRST, _OOM_AGAIN = 30, 75


def _hang_environment(folders: Folders) -> Mapping[str, str]:
    return {"RERAIL_DRILL_HANG": f"step={_STEP},rank=2,once={folders.root / 'hung-once'}"}


def _note_hang(world: World) -> None:
    once = world.folders.root / "hung-once"
    world.wait_for("rank 2 to stop stepping", once.exists)
    world.fault("rank 2 stopped stepping; every process lives")


def _check_hang(report: Report, world: World) -> list[str]:
    expect = Expectations(report, world)
    for incident in expect.incidents(1):
        expect.that(f"class hang, not {incident.class_}", holds=incident.class_ == "hang")
        expect.that(f"no codes: {incident.codes}", holds=not incident.codes)
    expect.attempts(2)
    expect.that("every process lived until it was ended", holds=0 not in report.attempts[0].exit_codes.values())
    expect.unmarked()
    expect.certified()
    return expect.told


def _app_error_environment(folders: Folders) -> Mapping[str, str]:
    return {"RERAIL_DRILL_RAISE": f"step={_STEP},rank=1,note={folders.root / 'raised'}"}


def _note_raises(world: World) -> None:
    for attempt in range(1, PATIENT.budgets.identical + 1):
        sign = world.folders.root / f"raised.a{attempt}"
        world.wait_for(f"rank 1 to raise in attempt {attempt}", sign.exists)
        world.fault(f"rank 1 raised in attempt {attempt}")


def _check_app_error(report: Report, world: World) -> list[str]:
    expect = Expectations(report, world)
    nodes = {attempt.nodes for attempt in report.attempts}
    said = report.outcome_reason
    expect.that(f"the run stops, not {report.outcome}", holds=report.outcome == "stopped")
    expect.that(f"it says why: {said!r}", holds=f"drill: bad batch at step {_STEP}" in said)
    expect.that(f"it says at which step: {said!r}", holds=f"step {_STEP - 1}" in said)
    expect.that(f"it says where it was tried: {said!r}", holds=all(node in said for pair in nodes for node in pair))
    expect.that("it was tried on different nodes", holds=len(nodes) > 1)
    expect.that("identical is null", holds=report.identical is None)
    expect.that("no device is blamed", holds=not any(incident.codes for incident in report.incidents))
    expect.that("every end is the application's", holds={one.cause for one in report.incidents} == {"application"})
    expect.unmarked()
    return expect.told


def _app_transient_environment(folders: Folders) -> Mapping[str, str]:
    return {"RERAIL_DRILL_RAISE": f"step={_STEP},rank=1,once={folders.root / 'raised-once'}"}


def _note_raise(world: World) -> None:
    once = world.folders.root / "raised-once"
    world.wait_for("rank 1 to raise", once.exists)
    world.fault("rank 1 raised an exception that does not come back")


def _in_place(expect: Expectations) -> None:
    """One recovery in the same pods: no new one was ever made."""
    expect.incidents(1)
    expect.attempts(2)
    last = expect.report.attempts[-1]
    expect.that(f"resumed in place, not {last.how}", holds=last.how == "in-place")
    gangs = sorted(path.name for path in expect.world.folders.pods.iterdir())
    expect.that(f"no new pods: {gangs}", holds=len(gangs) == 1)
    expect.unmarked()
    expect.certified()


def _check_app_transient(report: Report, world: World) -> list[str]:
    expect = Expectations(report, world)
    _in_place(expect)
    for incident in report.incidents:
        expect.that(f"the exception is named: {incident.evidence}", holds="bad batch" in " ".join(incident.evidence))
        expect.that(f"charged to the application, not {incident.cause}", holds=incident.cause == "application")
    return expect.told


def _contained(world: World) -> None:
    world.wait_commit(MIDDLE)
    node, pci, pid = world.place_of(1)
    line = f"NVRM: Xid (PCI:{pci}): 94, pid={pid}, name=python, Contained: SM (0x1). RST: No, D-RST: No"
    world.kernel_lines(node, line)
    world.kill_rank(1, note=f"XID 94 on {node}: the error is contained, and only rank 1 dies of it")


def _check_contained(report: Report, world: World) -> list[str]:
    expect = Expectations(report, world)
    _in_place(expect)
    for incident in report.incidents:
        what = (incident.class_, incident.scope, incident.codes)
        expect.that(
            f"class gpu_memory_ecc, scope process, code xid:94, not {what}",
            holds=what == ("gpu_memory_ecc", "process", ("xid:94",)),
        )
    expect.that("no commit is suspect", holds=not any(row.state == "suspect" for row in report.checkpoints))
    newest = max((row.step for row in report.checkpoints if row.attempt == 1), default=None)
    expect.that(f"resumed from the newest commit, {newest}", holds=report.resumed_from_step == newest)
    return expect.told


def _oom_environment(folders: Folders) -> Mapping[str, str]:
    note = folders.root / "at-the-step"
    first = f"step={_OOM_FIRST},rank=1,attempt=1,note={note}"
    return {"RERAIL_DRILL_HANG": f"{first};step={_OOM_AGAIN},rank=1,note={note}"}


def _oom(world: World) -> None:
    for attempt in (1, 2, 3):
        sign = world.folders.root / f"at-the-step.a{attempt}"
        world.wait_for(f"rank 1 to come to its step in attempt {attempt}", sign.exists)
        node, _, pid = world.place_of(1)
        world.kernel_lines(
            node,
            f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=pod,mems_allowed=0,oom_memcg=/kubepods/pod1,"
            f"task_memcg=/kubepods/pod1/c1,task=python,pid={pid},uid=0",
            f"Memory cgroup out of memory: Killed process {pid} (python) total-vm:18349052kB, anon-rss:16612340kB, "
            "file-rss:1024kB, shmem-rss:0kB, UID:0 pgtables:33012kB oom_score_adj:984",
        )
        world.kill_rank(1, note=f"the kernel killed rank 1 on {node} for memory")


def _check_oom(report: Report, world: World) -> list[str]:
    expect = Expectations(report, world)
    expect.attempts(3)
    hows = [attempt.how for attempt in report.attempts]
    expect.that(f"never tried in the same pods: {hows}", holds=hows == ["fresh", "new-gang", "new-gang"])
    for incident in expect.incidents(3):
        what = (incident.class_, incident.codes, incident.cause)
        expect.that(f"out of memory, not {what}", holds=what == ("oom", ("name:oom_kill",), "application"))
    ends = [attempt.last_step or 0 for attempt in report.attempts]
    expect.that(f"the first end is passed in the second attempt: {ends}", holds=_OOM_FIRST <= ends[1] < _OOM_AGAIN)
    said = report.outcome_reason
    expect.that(f"the run stops, not {report.outcome}", holds=report.outcome == "stopped")
    told = f"out of memory at the same step {_OOM_AGAIN - 1} in 2 attempts"
    expect.that(f"it says {told!r}: {said!r}", holds=told in said)
    expect.that("identical is null", holds=report.identical is None)
    expect.unmarked()
    expect.certified()
    return expect.told


PROCESS_FAULTS = (
    Scenario(
        name="hang",
        hypothesis="one rank stops stepping while all looks alive: it is noticed and ended, and training goes on",
        inject=_note_hang,
        check=_check_hang,
        environment=_hang_environment,
        policy=PATIENT.model_copy(update={"hang_after_s": 12.0}),
    ),
    Scenario(
        name="app-error",
        hypothesis="the same exception at the same step on different nodes: the run stops and tells why",
        inject=_note_raises,
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
        name="ecc-contained",
        hypothesis="a contained memory error ends one process: it is restarted in place, and no device is fenced",
        inject=_contained,
        check=_check_contained,
    ),
    Scenario(
        name="oom",
        hypothesis="out of memory is never tried in place: once goes on in a new gang, twice at one step stops the run",
        inject=_oom,
        check=_check_oom,
        finishes=False,
        environment=_oom_environment,
    ),
)
assert STEPS > _OOM_AGAIN
