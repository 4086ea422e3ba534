"""``rerail doctor``: what of a cluster, a store and a run is in the way of recovery, before it is needed."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from rerail.plugins.cli.locate import ControlOption, StoreOption
from rerail.plugins.cli.output import Output, OutputOption, emit

VERDICT_FAIL = 1
_STYLES = {"ok": "green", "warn": "yellow", "fail": "bold red", "skipped": "dim"}


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


def doctor(
    *,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Of the gangs. [default: the kubeconfig's]")
    ] = None,
    store: StoreOption = None,
    control: ControlOption = None,
    backend: Annotated[str, typer.Option("--backend", help="Of the gangs: vcjob or podgroup.")] = "vcjob",
    account: Annotated[
        str, typer.Option("--account", help="Whose rights count: a ServiceAccount there. [default: this login]")
    ] = "",
    guard_namespace: Annotated[
        str | None,
        typer.Option("--guard-namespace", envvar="RERAIL_GUARD_NAMESPACE", help="Of the guard. [default: the gangs']"),
    ] = None,
    volcano_namespace: Annotated[
        str, typer.Option("--volcano-namespace", help="Of Volcano's own objects.")
    ] = "volcano-system",
    argo_namespace: Annotated[
        str | None, typer.Option("--argo-namespace", help="Of Argo's controller. [default: wherever it is seen]")
    ] = None,
    scheduler_conf: Annotated[
        Path | None,
        typer.Option("--scheduler-conf", metavar="FILE", help="Volcano's scheduler's. [default: its ConfigMap]"),
    ] = None,
    run: Annotated[str | None, typer.Option("--run", help="Look at this run too, and at its pods.")] = None,
    orphans: Annotated[bool, typer.Option("--orphans", help="Look for gangs that nobody goes on with.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Check what recovery rests on, and say how to mend what is wrong.

    It looks at the cluster's versions, rights and clock, at Argo's and Volcano's settings, at others that drain nodes
    too, and at the store. With --store it writes one small object there, and takes it away again.

    Exit codes: 0 nothing fails (warnings may stand), 1 something fails, 2 bad input.
    """
    from rerail.plugins.gang.rights import OF_BACKEND
    from rerail.policies.doctor.finding import Finding, failed
    from rerail.policies.errors import UsageError

    if backend not in OF_BACKEND:
        raise UsageError(f"--backend {backend!r} is not known; use one of: {', '.join(OF_BACKEND)}")
    conf = _text(scheduler_conf) if scheduler_conf else None

    def looks(held: ExitStack) -> Iterator[Finding]:
        from rerail.plugins.doctor.store import store_findings

        yield from _of_cluster(
            held,
            {
                "backend": backend,
                "volcano_namespace": volcano_namespace,
                "argo_namespace": argo_namespace,
                "guard_namespace": guard_namespace,
                "scheduler_conf": conf,
            },
            namespace=namespace,
            account=account,
            run=run,
            orphans=orphans,
            store=store,
            control=control,
        )
        if store:
            yield from store_findings(store, control)

    with ExitStack() as held:
        found = []
        for one in looks(held):
            found.append(one)
            if output is Output.TABLE:
                _show(one)
    if output is not Output.TABLE:
        emit(found, output)
    if failed(tuple(found)):
        raise typer.Exit(VERDICT_FAIL)


def _of_cluster(
    held: ExitStack,
    options: dict[str, Any],
    *,
    namespace: str | None,
    account: str,
    run: str | None,
    orphans: bool,
    store: str | None,
    control: str | None,
) -> Iterator[Any]:
    from rerail.plugins.cli.locate import locate
    from rerail.plugins.doctor.cluster import ClusterLook
    from rerail.plugins.doctor.runs import orphan_findings, run_findings
    from rerail.plugins.kube.api import ALL_NAMESPACES, KubeApi
    from rerail.policies.doctor.finding import fail, skipped
    from rerail.policies.errors import RerailError, UsageError

    try:
        api = KubeApi.connect(namespace=namespace)
    except UsageError as error:
        if store is None:
            raise UsageError(f"{error}; or look at a store alone: --store (or RERAIL_STORE)") from None
        yield skipped("api-server", str(error))
        return
    held.callback(api.close)
    whose = f"{api.namespace}/{account}" if account else None
    alive = True
    for one in ClusterLook(api, account=whose, **options).findings():
        alive = alive and (one.check, one.verdict) != ("api-server", "fail")
        yield one
    if not alive:
        return
    where = namespace or ALL_NAMESPACES
    try:
        if run:
            yield from run_findings(api, locate(run, store, control, namespace, held).run, namespace=where)
    except RerailError as error:
        yield fail("run", str(error), "mend that, then look again")
    try:
        if orphans:
            yield from orphan_findings(api, namespace=where, store=store, control=control)
    except RerailError as error:
        yield fail("orphans", str(error), "mend that, then look again")


def _show(one: Any) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False, soft_wrap=True)
    console.print(f"[{_STYLES[one.verdict]}]{one.verdict:<8}[/] {one.check:<24} {escape(one.found)}")
    if one.way_out:
        console.print(f"{'':33} [dim]-> {escape(one.way_out)}[/]")


def _text(path: Path) -> str:
    from rerail.policies.errors import UsageError

    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--scheduler-conf {path}: {error}; pass the YAML of volcano-scheduler.conf") from None
