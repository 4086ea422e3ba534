"""Runs one drill: the gang, the fault, the uninterrupted run beside it, and the verdict."""

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rerail.plugins.checkpoint.attempts import create_run
from rerail.plugins.checkpoint.open import open_run
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.drill.identical import Comparison, compare
from rerail.plugins.drill.relay import RelayedBackend, Relays
from rerail.plugins.drill.scenario import PATIENT, SAVE_EVERY_STEPS, STEPS, WORLD_SIZE, Scenario, nothing
from rerail.plugins.drill.world import PCI, DrillTimeoutError, Folders, World
from rerail.plugins.gang.executor import Supervisor
from rerail.plugins.gang.ledger import newest_entry
from rerail.plugins.gang.local import LocalBackend
from rerail.plugins.nodes.local import LocalNodes
from rerail.plugins.report import placed, write
from rerail.plugins.report.document import Report, build_report
from rerail.plugins.report.facts import read_facts
from rerail.policies.documents import RunDoc
from rerail.policies.errors import NotFoundError, RerailError
from rerail.policies.supervisor.state import LedgerEntry, RunState

NODES = ("node-a", "node-b", "node-c")

# Half of the text, 52 steps of an epoch. The pause keeps commits further apart than the margin of suspicion, however
# fast the machine is.
_PACE = ("--batch=70", "--samples=3640", "--step-delay-s=0.025")

_AT_MOST_S = 240.0
"""A drill takes a minute at most; a machine that is shared by many may need more."""

OnEvent = Callable[[str, LedgerEntry], None]

_UNINTERRUPTED = Scenario(
    name="baseline", hypothesis="nothing happens", inject=nothing, check=lambda _report, _world: [], policy=PATIENT
)


@dataclass(frozen=True)
class Baseline:
    """The uninterrupted run of a seed; one serves all drills of that seed.

    Attributes:
        attempts: More than one where the machine itself interrupted it.
    """

    run: RunStore
    trace: Path
    attempts: int = 1


@dataclass(frozen=True)
class Setting:
    """What all drills of one call share.

    Attributes:
        seed: Of parameters, order of samples and dropout.
        on_event: Told of every decision, with the name of the run it belongs to.
    """

    seed: int = 1
    on_event: OnEvent = lambda _run, _entry: None


def _command(seed: int) -> list[str]:
    return [
        sys.executable,
        "-m",
        "rerail.examples.local_gang.train",
        f"--steps={STEPS}",
        f"--save-every={SAVE_EVERY_STEPS}",
        f"--seed={seed}",
        *_PACE,
    ]


def _prepare(name: str, scenario: Scenario, folders: Folders) -> World:
    """Make the run, its nodes and its network."""
    for folder in (folders.store, folders.control) if scenario.control_apart else (folders.store,):
        folder.mkdir(parents=True, exist_ok=True)
    control = folders.control.as_uri() if scenario.control_apart else None
    run = open_run(name, store=folders.store.as_uri(), control=control)
    run.control.prove()
    run.shards.prove()
    document = RunDoc(
        writer=os.urandom(8).hex(),
        run=name,
        owner=f"drill/{os.getpid()}",
        created_at_s=time.time(),
        world_size=WORLD_SIZE,
        policy=scenario.policy.model_dump(mode="json"),
    )
    create_run(run, document)
    nodes = LocalNodes(folders.nodes)
    for node in NODES:
        nodes.add(node, len(PCI))
        if node in scenario.cordoned:
            nodes.update(node, lambda before: before.model_copy(update={"unschedulable": True}))
    return World(run, folders, nodes, Relays())


def _drive(name: str, scenario: Scenario, world: World, setting: Setting) -> RunState:
    """Run one gang to its end under its own supervisor."""
    folders = world.folders
    environment = {
        **os.environ,
        "RERAIL_STORE": folders.store.as_uri(),
        "RERAIL_TRACE": str(folders.trace),
        "RERAIL_POLL_S": "0.1",
        "RERAIL_HOLD_S": str(scenario.policy.hold_s),
        **scenario.environment(folders),
    }
    environment.pop("RERAIL_CONTROL", None)
    if scenario.control_apart:
        environment["RERAIL_CONTROL"] = folders.control.as_uri()
    backend = RelayedBackend(
        run=name,
        state=folders.pods,
        command=_command(setting.seed),
        environment=environment,
        log_dir=folders.logs,
        relays=world.relays if scenario.relayed else None,
    )
    supervisor = Supervisor(
        run=world.run,
        world_size=WORLD_SIZE,
        backend=backend,
        nodes=LocalNodes(folders.nodes, used=backend.used),
        policy=scenario.policy,
        on_event=lambda entry: setting.on_event(name, entry),
    )
    deadline_s = time.monotonic() + _AT_MOST_S
    with ExitStack() as stack:
        stack.callback(world.relays.close)
        stack.callback(_end, backend, name)
        return supervisor.drive(lambda: world.failed is not None or _too_long(world, deadline_s))


def _too_long(world: World, deadline_s: float) -> bool:
    if time.monotonic() <= deadline_s:
        return False
    world.failed = f"the run did not end within {_AT_MOST_S:g} s"
    return True


def _end(backend: LocalBackend, name: str) -> None:
    """Nothing that a drill started outlives it, also when it is interrupted."""
    pause = threading.Event()
    for gang in backend.gangs(name):
        while not backend.end(gang, 0.0):
            pause.wait(0.02)


def run_baseline(folder: Path, setting: Setting) -> Baseline:
    """The uninterrupted run, in processes of its own.

    Raises:
        RerailError: The supervisor gave up.
    """
    folders = Folders(folder)
    world = _prepare("baseline", _UNINTERRUPTED, folders)
    state = _drive("baseline", _UNINTERRUPTED, world, setting)
    return Baseline(world.run, folders.trace, state.attempt)


def run_drill(scenario: Scenario, folder: Path, setting: Setting, *, baseline: Baseline | None = None) -> Report:
    """Run a drill and judge it.

    Args:
        scenario: What to break.
        folder: Everything of this drill goes below it; it must be empty or absent.
        setting: Seed, and who is told.
        baseline: An uninterrupted run of the same seed; made below the folder when absent and needed.

    Returns:
        The report, already written to ``report.html`` and ``report.json`` in the folder.

    Raises:
        RerailError: The run could not even be begun, or its baseline not be made.
    """
    folders = Folders(folder)
    name = f"drill-{scenario.name}"
    world = _prepare(name, scenario, folders)
    injector = threading.Thread(target=_inject, args=(scenario, world), daemon=True)
    injector.start()
    try:
        state = _drive(name, scenario, world, setting)
    except RerailError as error:
        world.failed = f"the supervisor gave up: {error}"
        state = _newest(world.run)
    finally:
        world.over.set()
        injector.join()
    comparison = None
    if scenario.finishes and state.phase == "done":
        beside = baseline or run_baseline(folders.baseline, setting)
        if beside.attempts > 1:
            world.failed = world.failed or "the run to compare with was interrupted itself: is this machine too busy?"
        comparison = compare(world.run, folders.trace, beside.run, beside.trace, attempts=state.attempt)
    return _judge(scenario, folders, state, world, comparison)


def _newest(run: RunStore) -> RunState:
    entry = newest_entry(run)
    if entry is None:
        raise NotFoundError(f"run {run.run!r} at {run.control.url} has no ledger: nothing was decided")
    return entry.state


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
) -> Report:
    facts = read_facts(world.run)
    identical = comparison.identical if comparison else None
    faults = dict(zip((incident.id for incident in state.incidents), world.faults, strict=False))

    def report(verdict: str, reason: str) -> Report:
        return build_report(
            state,
            facts,
            scenario.policy,
            scenario=scenario.name,
            verdict="pass" if verdict == "pass" else "fail",
            reason=reason,
            identical=identical,
            fault_at_s=faults,
        )

    wrong = scenario.check(report("fail", state.reason), world) if state.attempts else ["the run made no attempt"]
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
