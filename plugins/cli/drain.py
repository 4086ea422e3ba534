"""``rerail drain``: a node is emptied; training gangs on it save first, and leave as a whole."""

from contextlib import ExitStack
from typing import Annotated

import typer

from rerail.plugins.cli.driving import Progress
from rerail.plugins.cli.evict import VERDICT_FAIL, DeadlineOption, positive_s
from rerail.plugins.cli.locate import connected
from rerail.plugins.cli.output import Output, OutputOption, emit
from rerail.policies.units import duration_s


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("drain")(drain)


def drain(
    node: Annotated[str, typer.Argument(metavar="NODE", show_default=False, help="The node.")],
    *,
    deadline: DeadlineOption = "120s",
    store: Annotated[
        str | None,
        typer.Option("--store", help="Store of the gangs' runs as seen from here. [default: as their pods say]"),
    ] = None,
    control: Annotated[
        str | None, typer.Option("--control", help="Store of control documents, where it is another one.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Evict pods that no controller would make again.")] = False,
    takeover: Annotated[
        str, typer.Option("--takeover", metavar="DURATION", help="How long each run's supervisor is waited for.")
    ] = "30s",
    output: OutputOption = Output.TABLE,
) -> None:
    """Cordon NODE and empty it: gangs save and leave as a whole, other pods go at once through the Eviction API.

    Pods of DaemonSets and static pods stay. Local data of evicted pods (emptyDir) goes with them. To give the node back
    afterwards, use kubectl uncordon.

    Exit codes: 0 empty, and every gang left with a commit; 1 not so; 2 bad input, 4 no such node.
    """
    from rerail.plugins.evict.drain import Drain
    from rerail.plugins.evict.find import open_place

    deadline_s, takeover_s = positive_s(deadline, "--deadline"), duration_s(takeover, "--takeover")
    progress = Progress()
    with ExitStack() as held:
        drained = Drain(
            connected(held),
            node,
            deadline_s,
            lambda place: open_place(place, store=store, control=control),
            force=force,
            takeover_s=takeover_s,
            log=progress.line,
        ).perform()
    emit(drained, output)
    for one in drained.gangs:
        if one.error or (one.eviction and one.eviction.why):
            progress.line(f"{one.gang}: {one.error or (one.eviction and one.eviction.why)}")
    if not (drained.drained and drained.committed):
        raise typer.Exit(VERDICT_FAIL)
