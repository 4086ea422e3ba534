"""``rerail step`` for nodes and for steps that are no gangs: what rerail-node-*, rerail-retry and failover run."""

from contextlib import ExitStack
from typing import Annotated

import typer

from rerail.plugins.cli.step_telling import FOLDER, OutputsOption, required, say, telling


def add(app: typer.Typer) -> None:
    """Add the commands."""
    for name, command in (
        ("node-judge", node_judge),
        ("node-mark", node_mark),
        ("node-release", node_release),
        ("failover", failover),
        ("retry-assess", retry_assess),
        ("say", tell),
    ):
        app.command(name)(command)


def node_judge(*, outputs: OutputsOption = FOLDER) -> None:
    """Say what a node's conditions tell of its GPUs.

    Exit codes: 0 judged, 2 bad input, 4 no such node.
    """
    import time

    from rerail.plugins.steps.nodes import judge

    with telling(outputs) as (inputs, told), ExitStack() as held:
        say(judge(inputs, told, required(held), now_s=time.time()).words)


def node_mark(*, outputs: OutputsOption = FOLDER) -> None:
    """Fence a node for an incident.

    Exit codes: 0 marked, 2 bad input, 4 no such node, 5 the guard holds or a right is missing.
    """
    from rerail.plugins.steps.nodes import mark

    with telling(outputs) as (inputs, told), ExitStack() as held:
        say(mark(inputs, told, required(held)))


def node_release(*, outputs: OutputsOption = FOLDER) -> None:
    """Give a node back to work.

    Exit codes: 0 released, 2 bad input, 4 no such node, 5 not approved, or only a person may release it.
    """
    from rerail.plugins.steps.nodes import release

    with telling(outputs) as (inputs, told), ExitStack() as held:
        say(release(inputs, told, required(held)))


def failover(*, outputs: OutputsOption = FOLDER) -> None:
    """Replace a Deployment's replicas on a node.

    Exit codes: 0 as many are ready elsewhere, 2 bad input, 3 not in time, 4 no such node or Deployment.
    """
    from rerail.plugins.steps.failover import perform

    with telling(outputs) as (inputs, told), ExitStack() as held:
        perform(inputs, told, required(held), log=say)


def retry_assess(*, outputs: OutputsOption = FOLDER) -> None:
    """Judge why a step failed, and mark its node where that was at fault.

    Exit codes: 86 another node may help, 0 nothing would, 2 bad input.
    """
    from rerail.plugins.steps.retry import perform

    with telling(outputs) as (inputs, told), ExitStack() as held:
        code = perform(inputs, told, required(held), log=say)
    raise typer.Exit(code)


def tell(
    *,
    fail: Annotated[bool, typer.Option("--fail", help="Exit with 1.")] = False,
    outputs: OutputsOption = FOLDER,
) -> None:
    """Say RERAIL_WORDS as the node's message."""
    with telling(outputs) as (inputs, told):
        words = inputs.text("words") or "no reason was given"
        told.words(words)
    say(words)
    raise typer.Exit(1 if fail else 0)
