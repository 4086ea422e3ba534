"""``rerail evict``: a gang saves, leaves as a whole, and whoever asked knows which."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from rerail.plugins.cli.driving import Progress
from rerail.plugins.cli.locate import connected
from rerail.plugins.cli.output import Output, OutputOption, emit
from rerail.policies.errors import NotFoundError, UsageError
from rerail.policies.units import duration_s

VERDICT_FAIL = 1

DeadlineOption = Annotated[
    str, typer.Option("--deadline", metavar="DURATION", help="How long a commit is waited for, from the request on.")
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("evict")(evict)


def evict(
    *,
    gang: Annotated[str, typer.Option("--gang", "-g", metavar="RUN_OR_GANG", help="The run, or its gang RUN-aN.")],
    deadline: DeadlineOption = "120s",
    store: Annotated[
        str | None,
        typer.Option("--store", envvar="RERAIL_STORE", help="Store address. [default: as the gang's pods say]"),
    ] = None,
    control: Annotated[
        str | None,
        typer.Option("--control", envvar="RERAIL_CONTROL", help="Store of control documents, where it is another one."),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", help="Cluster: of the gang. [default: as the run, or its pods, say]")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option("--state", envvar="RERAIL_STATE", help="This machine: folder of its pods, as for rerail run."),
    ] = None,
    reason: Annotated[str, typer.Option("--reason", help="Why, for the record.")] = "evicted by a person",
    takeover: Annotated[
        str, typer.Option("--takeover", metavar="DURATION", help="How long the run's supervisor is waited for.")
    ] = "30s",
    output: OutputOption = Output.TABLE,
) -> None:
    """Ask all ranks of a gang to save and leave; at the deadline evict it all the same, as a whole.

    The run's supervisor opens the next attempt once there is room; no budget is used. To keep it from a node, cordon
    the node first, or use rerail drain.

    Exit codes: 0 a commit holds all that was done, 1 not so (at the deadline, or it ended before), 2 bad input,
    4 nothing to evict.
    """
    from rerail.plugins.evict.find import in_cluster, in_store, open_place
    from rerail.plugins.evict.preevict import PreEvict, live_gang
    from rerail.plugins.gang.submission import owner_of
    from rerail.policies.eviction import EvictionBounds
    from rerail.policies.owners import namespace_of
    from rerail.policies.recovery import RecoveryPolicy

    deadline_s = positive_s(deadline, "--deadline")
    takeover_s = duration_s(takeover, "--takeover")
    progress = Progress()
    with ExitStack() as held:
        if store is not None:
            opened, doc = in_store(gang, store, control)
            where = namespace or namespace_of(owner_of(opened, doc))
            api = connected(held) if where else None
        else:
            try:
                api = connected(held)
            except UsageError as error:
                raise UsageError(f"{error}; for a run on this machine pass --store") from None
            place = in_cluster(api, gang, namespace)
            opened, where = open_place(place), place.namespace
            from rerail.plugins.checkpoint.attempts import read_run

            doc = read_run(opened)
        policy = RecoveryPolicy.from_mapping(dict(doc.policy), f"run.json of run {opened.run!r}")
        target = live_gang(opened)
        if gang not in (opened.run, target.gang):
            raise NotFoundError(f"nothing to evict: gang {gang!r} ended; run {opened.run!r} has gang {target.gang!r}")
        pods: Any
        if api is not None:
            from rerail.plugins.evict.cluster import ClusterPods, refuse_without_rights

            refuse_without_rights(api, where)
            pods = held.enter_context(ClusterPods(api, where, target.gang))
        else:
            assert store is not None
            pods = _local_pods(opened.run, target.gang, store, state, policy.end_grace_s)
        if not pods.left().alive:
            raise NotFoundError(f"nothing to evict: no pod of gang {target.gang!r} runs")
        progress.line(
            f"gang {target.gang} (attempt {target.attempt}) is asked to save and leave within {deadline_s:g} s"
        )
        evicted = PreEvict(
            opened,
            target,
            pods,
            EvictionBounds(deadline_s=deadline_s),
            reason,
            takeover_s=takeover_s,
            log=progress.line,
        ).perform()
    emit(evicted, output)
    if evicted.why:
        progress.line(evicted.why)
    if evicted.outcome != "committed" or evicted.left:
        raise typer.Exit(VERDICT_FAIL)


def positive_s(text: str, option: str) -> float:
    """A duration that is longer than nothing.

    Raises:
        UsageError: It is none, or zero.
    """
    seconds = duration_s(text, option)
    if seconds <= 0:
        raise UsageError(f"{option} {text!r}: a save takes time; give it some, for example 120s")
    return seconds


def _local_pods(run: str, gang: str, store: str, state: Path | None, grace_s: float) -> Any:
    from rerail.plugins.cli.run import state_folder
    from rerail.plugins.evict.local import LocalPods
    from rerail.plugins.gang.local import LocalBackend

    folder = (state or state_folder(store)) / run / "pods"
    if not (folder / gang).is_dir():
        raise NotFoundError(
            f"nothing to evict: no pod of gang {gang!r} was ever started on this machine ({folder}); run this where "
            "`rerail run` runs, or pass its --state"
        )
    return LocalPods(LocalBackend(run, folder, (), {}), gang, grace_s)
