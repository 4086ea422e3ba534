"""``rerail pause`` and ``rerail resume``: a person holds one run, or all, and lets them go on."""

import getpass
import secrets
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from rerail.plugins.cli.locate import ControlOption, NamespaceOption, StoreOption, connected, locate
from rerail.plugins.cli.output import Output, OutputOption, emit
from rerail.policies.errors import UsageError

if TYPE_CHECKING:
    from rerail.plugins.nodes.kube_pausing import KubePause
    from rerail.plugins.nodes.pausing import LocalPause

RunOption = Annotated[
    str | None, typer.Argument(metavar="[RUN]", show_default=False, help="The run, or one of its gangs RUN-aN.")
]
AllOption = Annotated[
    bool,
    typer.Option("--all", help="All runs that share a guard (--guard-namespace), or with --local of this machine."),
]
LocalOption = Annotated[bool, typer.Option("--local", help="With --all: the runs that this machine runs.")]
StateOption = Annotated[
    Path | None,
    typer.Option("--state", envvar="RERAIL_STATE", help="With --local: folder as of `rerail run --state`."),
]
GuardOption = Annotated[
    str | None,
    typer.Option(
        "--guard-namespace",
        envvar="RERAIL_GUARD_NAMESPACE",
        help="With --all: of the guard's ConfigMap. [default: the kubeconfig's namespace]",
    ),
]


def register(app: typer.Typer) -> None:
    """Add `pause`."""
    app.command("pause")(pause)


def register_resume(app: typer.Typer) -> None:
    """Add `resume`."""
    app.command("resume")(resume)


def pause(
    run: RunOption = None,
    *,
    every: AllOption = False,
    reason: Annotated[str, typer.Option("--reason", help="Why, for whoever looks at the run.")] = "",
    store: StoreOption = None,
    control: ControlOption = None,
    namespace: NamespaceOption = None,
    guard_namespace: GuardOption = None,
    local: LocalOption = False,
    state: StateOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Hold a run, or all: faults are noted, and nothing is recovered until `rerail resume`.

    A gang that trains goes on. While the run is held no attempt is opened, no gang ended for a fault, no node marked;
    what was begun before is finished, and Ctrl-C on `rerail run` still stops the run.

    Exit codes: 0 held, 2 bad input, 3 the store or the cluster does not answer, 4 there is no such run.
    """
    who = f"{getpass.getuser()} on {socket.gethostname()}"
    words = f"{reason} ({who})" if reason else f"by {who}"
    with ExitStack() as held:
        if every:
            where, switch = _switch(held, run, local=local, state=state, store=store, guard_namespace=guard_namespace)
            switch.pause(words)
            emit({"paused": where, "reason": words}, output)
            return
        from rerail.plugins.checkpoint.notes import pause_run
        from rerail.policies.documents import Pause

        found = locate(_named(run), store, control, namespace, held)
        asked = Pause(writer=secrets.token_hex(8), run=found.run.run, reason=words, at_s=time.time())
        stands = pause_run(found.run, asked)
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(stands.at_s))
    emit({"paused": stands.run, "reason": stands.reason, "since": since}, output)


def resume(
    run: RunOption = None,
    *,
    every: AllOption = False,
    store: StoreOption = None,
    control: ControlOption = None,
    namespace: NamespaceOption = None,
    guard_namespace: GuardOption = None,
    local: LocalOption = False,
    state: StateOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let a run that was paused, or all that --all paused, go on; what was held back is judged again.

    Exit codes: 0 it goes on, 2 bad input, 3 the store or the cluster does not answer, 4 there is no such run.
    """
    with ExitStack() as held:
        if every:
            where, switch = _switch(held, run, local=local, state=state, store=store, guard_namespace=guard_namespace)
            emit({"resumed": where, "was_paused": switch.resume()}, output)
            return
        from rerail.plugins.checkpoint.notes import resume_run

        found = locate(_named(run), store, control, namespace, held)
        emit({"resumed": found.run.run, "was_paused": resume_run(found.run)}, output)


def _named(run: str | None) -> str:
    if run is None:
        raise UsageError("name a run, or pass --all")
    return run


def _switch(
    held: ExitStack,
    run: str | None,
    *,
    local: bool,
    state: Path | None,
    store: str | None,
    guard_namespace: str | None,
) -> tuple[str, "LocalPause | KubePause"]:
    from rerail.plugins.nodes.pausing import LocalPause

    if run is not None:
        raise UsageError(f"--all means every run; leave {run!r} out, or leave --all out")
    if local:
        from rerail.plugins.cli.run import state_folder

        folder = state or state_folder(store or (Path.cwd() / "rerail-runs").as_uri())
        return f"all runs of this machine ({folder})", LocalPause(folder)
    if state is not None:
        raise UsageError("--state belongs to --local")
    from rerail.plugins.nodes.kube_pausing import KubePause

    api = connected(held)
    namespace = guard_namespace or api.namespace
    return f"all runs whose guard is in namespace {namespace}", KubePause(api, namespace=namespace)
