"""``rerail step assess`` and ``give-up``: what follows a step that did not succeed, and why a run is given up."""

from collections.abc import Callable
from contextlib import suppress
from typing import Final

from rerail.plugins.checkpoint.attempts import read_run
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.gang.ledger import newest_entry
from rerail.plugins.gang.ports import Clock
from rerail.plugins.kube.api import KubeApi
from rerail.plugins.steps.inputs import Inputs
from rerail.plugins.steps.outputs import Outputs
from rerail.plugins.steps.resolve import how_of
from rerail.plugins.steps.workflow import annotate, last_run, read_workflow, tell
from rerail.policies.errors import RerailError, TransientError
from rerail.policies.handover import Assessment, How, LastRun, assess
from rerail.policies.supervisor.state import RunState

ASK_WITHIN_S: Final = 600.0
"""How long a store that does not answer is asked before the run is given up."""

_AGAIN_S: Final = 5.0

Log = Callable[[str], None]


def perform(
    inputs: Inputs, outputs: Outputs, api: KubeApi | None, *, log: Log, clock: Clock | None = None
) -> Assessment:
    """Decide, and tell Argo; never fails.

    What is given up is told here, to the Workflow itself: this step is tried again when its pod is lost, the one that
    fails for people to see is not.

    Args:
        inputs: What the template said.
        outputs: Where Argo is told.
        api: The API server; None where there is no way to it.
        log: Takes one line for people.
        clock: For waits.
    """
    clock = clock or Clock()
    name, opened, found = _judged(inputs, api, log=log, clock=clock)
    how: How = "resume"
    if opened is not None and found.decision == "again":
        with suppress(RerailError):
            entry = newest_entry(opened)
            how = how_of(opened, entry.state) if entry is not None else "fresh"
    if api is not None and found.decision == "give-up":
        _tell(inputs, api, _reason(name, found), log=log, clock=clock)
    outputs.write(decision=found.decision, how=how, next_attempt=found.attempt)
    outputs.words(found.words)
    return found


def give_up(inputs: Inputs, outputs: Outputs, api: KubeApi | None, *, log: Log, clock: Clock | None = None) -> str:
    """Say why as the pod's last words, which become the node's message; what was told already is said again as it is.

    Returns:
        The reason.
    """
    clock = clock or Clock()
    name = inputs.run_name(None, otherwise=named(inputs, api))
    words = ""
    if api is not None:
        with suppress(RerailError):
            words = read_workflow(api, inputs.workflow).reason
    if not words.startswith(_reason(name)):
        _, _, found = _judged(inputs, api, log=log, clock=clock)
        words = _reason(name, found)
        if api is not None:
            _tell(inputs, api, words, log=log, clock=clock)
    outputs.words(words)
    return words


def _reason(name: str, found: Assessment | None = None) -> str:
    return f"run {name}: {found.words if found is not None else ''}"


def _tell(inputs: Inputs, api: KubeApi, words: str, *, log: Log, clock: Clock) -> None:
    """Say why in an annotation of the Workflow, and in an Event of it."""
    try:
        annotate(api, inputs.workflow, reason=words)
    except RerailError as error:
        log(f"the Workflow is not annotated: {error}")
    try:
        tell(api, inputs.workflow, "GangGaveUp", words, at_s=clock.wall_s())
    except RerailError as error:
        log(f"no Event is recorded: {error}")


def _judged(inputs: Inputs, api: KubeApi | None, *, log: Log, clock: Clock) -> tuple[str, RunStore | None, Assessment]:
    """The run's name, its stores where they can be opened, and what follows."""
    asked = inputs.workflow
    name = inputs.run_name(None, otherwise=named(inputs, api))
    opened, state, owner, trouble = _look(inputs, name, log=log, clock=clock)
    last: LastRun | None = None
    if api is not None:
        try:
            last = last_run(api, asked, name)
        except RerailError as error:
            log(f"how the step ended cannot be told: {error}")
    return name, opened, assess(name, state, owner=owner, asked=asked.owner, last=last, trouble=trouble)


def named(inputs: Inputs, api: KubeApi | None) -> str:
    """The run's name as the Workflow was told it, where no parameter has it."""
    if inputs.text("run") or api is None:
        return ""
    with suppress(RerailError):
        return read_workflow(api, inputs.workflow).run
    return ""


def _look(inputs: Inputs, name: str, *, log: Log, clock: Clock) -> tuple[RunStore | None, RunState | None, str, str]:
    """The run's stores, its newest state, its owner, and why it cannot be read."""
    end_s = clock.monotonic_s() + ASK_WITHIN_S
    while True:
        try:
            opened = inputs.open(name)
            doc = read_run(opened)
            entry = newest_entry(opened)
        except TransientError as error:
            if clock.monotonic_s() >= end_s:
                return None, None, "", f"{error}; retry the Workflow once the store answers"
            log(f"{error}; trying again")
            clock.sleep(_AGAIN_S)
        except RerailError as error:
            return None, None, "", str(error)
        else:
            state = entry.state if entry is not None else None
            return opened, state, (state.owner if state is not None else "") or doc.owner, ""
