"""``rerail step resolve``: from where a run goes on, so that the DAG can show it; a first look at what was given."""

from contextlib import suppress
from typing import Literal

from rerail.plugins.checkpoint.attempts import read_run, read_start
from rerail.plugins.checkpoint.resolve import Resolution, resolve
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.gang.clusters import refuse_elsewhere
from rerail.plugins.gang.ledger import newest_entry
from rerail.plugins.kube.api import KubeApi
from rerail.plugins.kube.resources import PODS
from rerail.plugins.steps.executor import refuse_old_argo
from rerail.plugins.steps.inputs import Inputs
from rerail.plugins.steps.outputs import Outputs
from rerail.plugins.steps.workflow import annotate
from rerail.plugins.volcano import VolcanoJob
from rerail.policies.documents import Value
from rerail.policies.errors import NotFoundError, RefusedError, RerailError, ResumeBlockedError
from rerail.policies.handover import How, told
from rerail.policies.owners import not_yours
from rerail.policies.supervisor.state import RunState
from rerail.policies.workloads.attempt import RUN_LABEL


class Found(Value):
    """Where a run stands.

    Attributes:
        attempt: The attempt that stands, or will be opened.
        from_step: Its first step is the one after this.
    """

    how: Literal["fresh", "resume", "done"]
    attempt: int
    from_step: int
    words: str


def perform(inputs: Inputs, outputs: Outputs, api: KubeApi) -> Found:
    """Check the parameters, find the run, and tell Argo where it stands.

    Raises:
        UsageError: A parameter is wrong.
        RefusedError: The run is another owner's, or Argo is too old.
        ResumeBlockedError: It cannot go on now.
        TransientError: The store does not answer.
    """
    refuse_old_argo(inputs)
    given = inputs.given()
    run = inputs.run_name(given)
    outputs.write(run=run)
    if given is not None:
        refuse_elsewhere(given, inputs.workflow.namespace)
        inputs.wanted()
    _ = inputs.most_attempts, inputs.deadline_s, inputs.kind
    found = look(inputs, run, api)
    with suppress(RerailError):  # a convenience for the exit hook, where nobody named the run
        annotate(api, inputs.workflow, run=run)
    outputs.write(how=found.how, attempt=found.attempt, from_step=found.from_step)
    outputs.words(found.words)
    return found


def look(inputs: Inputs, run: str, api: KubeApi) -> Found:
    """Where the run stands.

    Raises:
        As ``perform``.
    """
    try:
        opened = inputs.open(run)
        doc = read_run(opened)
    except NotFoundError as error:
        left = _known(api, run, inputs.workflow.namespace)
        if left:
            raise ResumeBlockedError(
                f"run {run!r} is known here ({left}), and the store does not have it: {error}. Check the store's "
                "address, or choose another run name; a wrong address looks like an empty store"
            ) from None
        return Found(how="fresh", attempt=1, from_step=0, words=f"run {run!r} is new")
    entry = newest_entry(opened)
    state = entry.state if entry is not None else None
    owner = (state.owner if state is not None else "") or doc.owner
    if owner != inputs.workflow.owner and not inputs.take_over:
        raise RefusedError(not_yours(run, owner=owner, asked=inputs.workflow.owner))
    if state is not None and state.phase == "done":
        last = state.attempts[-1].last_step if state.attempts else None
        return Found(how="done", attempt=state.attempt, from_step=last or 0, words=told(state))
    if state is not None and state.phase in ("running", "saving"):
        with suppress(NotFoundError):
            start = read_start(opened, state.attempt)
            step = start.load.step if start.load is not None else 0
            how: How = "fresh" if start.load is None else "resume"
            return Found(how=how, attempt=state.attempt, from_step=step, words=f"adopted: {told(state)}")
    return _resolved(opened, state)


def how_of(run: RunStore, state: RunState) -> How:
    """Whether the attempt that stands loads a checkpoint, or the next one will."""
    with suppress(NotFoundError):
        return "fresh" if read_start(run, state.attempt).load is None else "resume"
    return "fresh" if resolve(run, known=True).decision == "fresh" else "resume"


def _resolved(opened: RunStore, state: RunState | None) -> Found:
    attempt = state.attempt if state is not None else 1
    known = state is not None and bool(state.attempts)
    found: Resolution = resolve(opened, known=known)
    if found.decision == "blocked":
        raise ResumeBlockedError(f"run {opened.run!r}: {found.reason}; what to do: {'; or '.join(found.options)}")
    if found.final:
        return Found(how="done", attempt=attempt, from_step=found.step or 0, words=f"done at step {found.step}")
    if state is not None and state.phase in ("ending", "waiting", "stopped") and state.attempts:
        attempt += 1
    how: How = "resume" if found.decision == "resume" else "fresh"
    return Found(how=how, attempt=attempt, from_step=found.step or 0, words=found.reason)


def _known(api: KubeApi, run: str, namespace: str) -> str:
    """What of the run is in the cluster; empty where nothing is, or nobody may look."""
    for resource in (VolcanoJob.RESOURCE, PODS):
        with suppress(RerailError):
            items = api.list(resource, namespace=namespace, labels={RUN_LABEL: run}).items
            if items:
                return f"{resource.full_name} {items[0]['metadata']['name']!r}"
    return ""
