"""Runs one drill: the gang, the fault, the uninterrupted run beside it, and the verdict."""

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rerail.plugins.checkpoint.attempts import create_run
from rerail.plugins.checkpoint.open import open_run
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.drill.identical import Comparison, compare
from rerail.plugins.drill.scenarios import SAVE_EVERY_STEPS, STEPS, Scenario
from rerail.plugins.drill.world import DrillTimeoutError, Folders, World
from rerail.plugins.gang.executor import Supervisor
from rerail.plugins.gang.local import LocalBackend
from rerail.plugins.nodes.local import LocalNodes
from rerail.plugins.report import placed, write
from rerail.plugins.report.document import Report, build_report
from rerail.plugins.report.facts import read_facts
from rerail.policies.documents import RunDoc
from rerail.policies.recovery import DRILL_POLICY, RecoveryPolicy
from rerail.policies.supervisor.state import LedgerEntry, RunState

WORLD_SIZE = 4
NODES = ("node-a", "node-b", "node-c")
SLOTS = 2

OnEvent = Callable[[str, LedgerEntry], None]


@dataclass(frozen=True)
class Baseline:
    """The uninterrupted run of a seed; one serves all drills of that seed."""

    run: RunStore
    trace: Path


@dataclass(frozen=True)
class Setting:
    """What all drills of one call share.

    Attributes:
        seed: Of parameters, order of samples and dropout.
        policy: The drills' own policy; it is printed in the report.
        on_event: Told of every decision, with the name of the run it belongs to.
    """

    seed: int = 1
    policy: RecoveryPolicy = DRILL_POLICY
    on_event: OnEvent = lambda _run, _entry: None


def _command(seed: int) -> list[str]:
    return [
        sys.executable,
        "-m",
        "rerail.examples.local_gang.train",
        f"--steps={STEPS}",
        f"--save-every={SAVE_EVERY_STEPS}",
        f"--seed={seed}",
    ]


def _drive(
    name: str, folders: Folders, setting: Setting, extra: dict[str, str], world: World | None = None
) -> RunState:
    """Run one gang to its end under its own supervisor."""
    folders.store.mkdir(parents=True, exist_ok=True)
    url = folders.store.as_uri()
    run = open_run(name, store=url)
    run.control.prove()
    document = RunDoc(
        writer=os.urandom(8).hex(),
        run=name,
        owner=f"drill/{os.getpid()}",
        created_at_s=time.time(),
        world_size=WORLD_SIZE,
        policy=setting.policy.model_dump(mode="json"),
    )
    create_run(run, document)
    environment = {
        **os.environ,
        "RERAIL_STORE": url,
        "RERAIL_TRACE": str(folders.trace),
        "RERAIL_POLL_S": "0.1",
        "RERAIL_HOLD_S": str(setting.policy.hold_s),
        **extra,
    }
    environment.pop("RERAIL_CONTROL", None)
    backend = LocalBackend(
        run=name,
        state=folders.pods,
        command=_command(setting.seed),
        environment=environment,
        log_dir=folders.logs,
    )
    nodes = LocalNodes(folders.nodes, used=backend.used)
    for node in NODES:
        nodes.add(node, SLOTS)
    supervisor = Supervisor(
        run=run,
        world_size=WORLD_SIZE,
        backend=backend,
        nodes=nodes,
        policy=setting.policy,
        on_event=lambda entry: setting.on_event(name, entry),
    )
    try:
        return supervisor.drive(lambda: world is not None and world.failed is not None)
    finally:
        for gang in backend.gangs(name):
            _end(backend, gang)


def _end(backend: LocalBackend, gang: str) -> None:
    """Nothing that a drill started outlives it, also when it is interrupted."""
    pause = threading.Event()
    while not backend.end(gang, 0.0):
        pause.wait(0.02)


def run_baseline(folder: Path, setting: Setting) -> Baseline:
    """The uninterrupted run, in processes of its own."""
    folders = Folders(folder)
    _drive("baseline", folders, setting, {})
    return Baseline(open_run("baseline", store=folders.store.as_uri()), folders.trace)


def run_drill(scenario: Scenario, folder: Path, setting: Setting, *, baseline: Baseline | None = None) -> Report:
    """Run a drill and judge it.

    Args:
        scenario: What to break.
        folder: Everything of this drill goes below it; it must be empty or absent.
        setting: Seed, policy and who is told.
        baseline: An uninterrupted run of the same seed; made below the folder when absent and needed.

    Returns:
        The report, already written to ``report.html`` and ``report.json`` in the folder.
    """
    folders = Folders(folder)
    name = f"drill-{scenario.name}"
    folders.store.mkdir(parents=True, exist_ok=True)
    run = open_run(name, store=folders.store.as_uri())
    world = World(run, folders)
    injector = threading.Thread(target=_inject, args=(scenario, world), daemon=True)
    injector.start()
    try:
        state = _drive(name, folders, setting, dict(scenario.environment(folders)), world)
    finally:
        world.over.set()
        injector.join()
    comparison = None
    if scenario.finishes and state.phase == "done":
        beside = baseline or run_baseline(folders.baseline, setting)
        comparison = compare(run, folders.trace, beside.run, beside.trace, attempts=state.attempt)
    return _judge(scenario, folders, state, world, comparison, setting=setting)


def _inject(scenario: Scenario, world: World) -> None:
    try:
        scenario.inject(world)
    except DrillTimeoutError as error:
        world.failed = str(error)


def _judge(
    scenario: Scenario,
    folders: Folders,
    state: RunState,
    world: World,
    comparison: Comparison | None,
    *,
    setting: Setting,
) -> Report:
    facts = read_facts(world.run)
    identical = comparison.identical if comparison else None
    faults = dict(zip((incident.id for incident in state.incidents), world.faults, strict=False))

    def report(verdict: str, reason: str) -> Report:
        return build_report(
            state,
            facts,
            setting.policy,
            scenario=scenario.name,
            verdict="pass" if verdict == "pass" else "fail",
            reason=reason,
            identical=identical,
            fault_at_s=faults,
        )

    wrong = scenario.check(report("fail", state.reason)) if state.attempts else ["the run made no attempt"]
    if world.failed:
        wrong.insert(0, world.failed)
    if scenario.finishes and state.phase != "done":
        wrong.insert(0, f"the run ended as {state.phase}: {state.reason}")
    if comparison is not None and not comparison.identical:
        wrong.insert(0, "not identical to the uninterrupted run: " + "; ".join(comparison.differences))
    said = state.reason or scenario.hypothesis
    if comparison is not None:
        said = (
            f"{scenario.hypothesis}; {comparison.steps} steps and {comparison.samples} samples "
            "are bitwise identical to the uninterrupted run"
        )
    judged = report("fail" if wrong else "pass", "not true: " + "; ".join(wrong) if wrong else said)
    write(judged, folders.root)
    return placed(judged, folders.root)
