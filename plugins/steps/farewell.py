"""The exit hook: when a Workflow ends without success, nothing of its gang is left running."""

from collections.abc import Callable
from contextlib import ExitStack

from rerail.plugins.checkpoint.attempts import read_run
from rerail.plugins.gang.clusters import supervised
from rerail.plugins.gang.submission import owner_of
from rerail.plugins.steps.assess import named
from rerail.plugins.steps.ending import save_and_end
from rerail.plugins.steps.inputs import Inputs
from rerail.plugins.volcano import VolcanoClient
from rerail.policies.errors import RerailError
from rerail.policies.handover import told


def end_gang(inputs: Inputs, *, log: Callable[[str], None]) -> str:
    """End what the Workflow's run left, after a save; a run that is not this Workflow's is left alone. Never fails.

    Returns:
        Where the run stands then; empty where there was nothing to do.
    """
    status = inputs.text("workflow-status")
    if status in ("", "Succeeded"):
        return ""
    workflow = inputs.workflow
    try:
        with ExitStack() as held:
            client = held.enter_context(VolcanoClient.connect(namespace=workflow.namespace))
            named_inputs = inputs.with_run(inputs.run_name(None, otherwise=named(inputs, client.api)))
            opened = named_inputs.open(named_inputs.run_name(None))
            if owner_of(opened, read_run(opened)) != workflow.owner:
                return ""
            supervisor = supervised(named_inputs.wanted(), client, held, log=log)
            state = save_and_end(supervisor, f"{workflow} ended: {status}", deadline_s=inputs.deadline_s, log=log)
            return told(state) if supervisor.is_ours(state) else ""
    except RerailError as error:
        log(f"what is left of the gang is not ended here, but by the reaper: {error}")
        return ""
