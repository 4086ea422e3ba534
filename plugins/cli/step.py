"""``rerail step ...``: what the containers of the Argo templates run. Parameters come as environment, RERAIL_<NAME>."""

from contextlib import ExitStack
from typing import Annotated

import typer

from rerail.plugins.cli.step_nodes import add
from rerail.plugins.cli.step_telling import FOLDER, OutputsOption, reachable, required, say, telling

app = typer.Typer(
    help="Steps of the Argo templates. Parameters come as environment: RERAIL_STORE, RERAIL_RUN, RERAIL_MANIFEST, ...",
    no_args_is_help=True,
)
add(app)


def register(root: typer.Typer) -> None:
    """Add the commands."""
    root.add_typer(app, name="step", hidden=True)


@app.command("resolve")
def resolve(*, outputs: OutputsOption = FOLDER) -> None:
    """Check the parameters, and say from where the run goes on.

    Exit codes: 0 fresh, resume or done, 2 bad input, 3 blocked, 5 another owner.
    """
    from rerail.plugins.steps.resolve import perform

    with telling(outputs) as (inputs, told), ExitStack() as held:
        found = perform(inputs, told, required(held))
    say(f"{found.how}: attempt {found.attempt} from step {found.from_step}: {found.words}")


@app.command("run")
def run(*, outputs: OutputsOption = FOLDER) -> None:
    """Drive one gang of the run; after a fault open the next attempt, and hand over.

    Exit codes: 0 done, 10 the next attempt stands, 11 the run stopped, 143 left to the next runner; 2 bad input,
    3 the store does not answer, 5 another owner or a missing right.
    """
    from rerail.plugins.steps.run import RunStep

    with telling(outputs) as (inputs, told):
        code = RunStep(
            inputs, told, log=say, on_event=lambda entry: say(f"{entry.state.phase:<9} {entry.note}")
        ).perform()
    raise typer.Exit(int(code))


@app.command("open")
def open_attempt(
    *,
    outputs: OutputsOption = FOLDER,
    after: Annotated[bool, typer.Option("--after", help="First judge what follows an attempt that ended.")] = False,
) -> None:
    """Let an attempt's PodGroup stand, and tell Argo what its pods need; supervising them is for the step `run`.

    Exit codes: 0 it stands, or the run is over; 143 left to the next one; 2 bad input, 3 the store does not answer,
    5 another owner or a missing right. With --after only 0 and 143.
    """
    from rerail.plugins.steps.open import OpenStep, begin, follow

    with telling(outputs) as (inputs, told), ExitStack() as held:
        step = OpenStep(inputs, told, log=say, on_event=lambda entry: say(f"{entry.state.phase:<9} {entry.note}"))
        code = (follow if after else begin)(step, reachable(held))
    raise typer.Exit(int(code))


@app.command("assess")
def assess(*, outputs: OutputsOption = FOLDER) -> None:
    """Decide what follows a step that did not succeed; always exits with 0."""
    from rerail.plugins.steps.assess import perform

    with telling(outputs) as (inputs, told), ExitStack() as held:
        found = perform(inputs, told, reachable(held), log=say)
    say(f"{found.decision}: {found.words}")


@app.command("give-up")
def give_up(*, outputs: OutputsOption = FOLDER) -> None:
    """Say why the run ends without success, and exit with 1."""
    from rerail.plugins.steps.assess import give_up as perform

    with telling(outputs) as (inputs, told), ExitStack() as held:
        words = perform(inputs, told, reachable(held), log=say)
    say(words)
    raise typer.Exit(1)


@app.command("report")
def report(*, outputs: OutputsOption = FOLDER) -> None:
    """Write the report; with RERAIL_WORKFLOW_STATUS, as exit hook, first end what is left of the gang. Exits with 0."""
    from rerail.plugins.steps.farewell import end_gang
    from rerail.plugins.steps.report import perform

    with telling(outputs) as (inputs, told), ExitStack() as held:
        ended = end_gang(inputs, log=say)
        if ended:
            say(ended)
        perform(inputs, told, reachable(held), log=say)


@app.command("reap")
def reap(*, outputs: OutputsOption = FOLDER) -> None:
    """End gangs whose Workflow is over, after a save; one line each.

    Exit codes: 0 all that was found is dealt with, 1 not so.
    """
    from rerail.plugins.steps.reap import Reaper
    from rerail.plugins.volcano import VolcanoClient

    with telling(outputs) as (inputs, told):
        namespace = inputs.text("namespace") or None
        with VolcanoClient.connect(namespace=namespace) as client:
            done = Reaper(client, client.api.namespace, inputs.deadline_s, log=say).perform()
        told.words("; ".join(f"{one.run}: {one.words}" for one in done) or "nothing to do")
    if any(one.failed for one in done):
        raise typer.Exit(1)
