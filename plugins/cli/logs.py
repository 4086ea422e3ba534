"""``rerail logs RUN``: what the ranks of a run wrote, from their pods, or from this machine's files."""

import sys
import threading
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from rerail.plugins.cli.locate import (
    ControlOption,
    Located,
    NamespaceOption,
    RunArgument,
    StoreOption,
    connected,
    locate,
)
from rerail.policies.errors import NotFoundError, RerailError, UsageError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("logs")(logs)


def logs(
    run: RunArgument,
    *,
    attempt: Annotated[
        int | None, typer.Option("--attempt", "-a", min=1, help="Of this attempt. [default: the newest]")
    ] = None,
    rank: Annotated[int | None, typer.Option("--rank", min=0, help="This machine: only of this rank.")] = None,
    tail: Annotated[int | None, typer.Option("--tail", min=0, help="Only so many of the last lines.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Cluster: go on until the pods end.")] = False,
    store: StoreOption = None,
    control: ControlOption = None,
    namespace: NamespaceOption = None,
    state: Annotated[
        Path | None, typer.Option("--state", envvar="RERAIL_STATE", help="This machine: folder of pods and logs.")
    ] = None,
) -> None:
    """Show what the ranks of an attempt wrote, each line after its pod's or rank's name.

    In a cluster the pods of the attempt must still be there; a finished vcjob keeps them until it is deleted.

    Exit codes: 0 shown, 2 bad input, 4 there is no such run or log.
    """
    with ExitStack() as held:
        found = locate(run, store, control, namespace, held)
        where = found.namespace or found.doc.owner.partition("/")[2].partition("/")[0]
        number = attempt if attempt is not None else _newest(found)
        if found.doc.owner.startswith("local/"):
            if follow:
                raise UsageError("--follow is for pods of a cluster; use tail -f on the files of this machine")
            _from_files(found, state, number, rank, tail)
            return
        if rank is not None:
            raise UsageError("--rank is for runs on this machine; in a cluster each line names its pod")
        _from_pods(connected(held), found.run.run, where, number, tail, follow=follow)


def _newest(found: Located) -> int:
    from rerail.plugins.gang.ledger import newest_entry

    entry = newest_entry(found.run)
    return entry.state.attempt if entry is not None else 1


def _from_files(found: Located, state: Path | None, attempt: int, rank: int | None, tail: int | None) -> None:
    from rerail.plugins.cli.run import state_folder

    folder = (state or state_folder(found.store)) / found.run.run / "logs" / str(attempt)
    wanted = "*.log" if rank is None else f"{rank}.log"
    paths = sorted(folder.glob(wanted), key=lambda path: (len(path.stem), path.stem))
    if not paths:
        raise NotFoundError(
            f"no log of attempt {attempt} of run {found.run.run!r} is on this machine ({folder / wanted}); look where "
            "`rerail run` runs, or pass its --state"
        )
    for path in paths:
        _say(f"rank {path.stem}", _last(path.read_bytes().splitlines(), tail))


def _last(lines: list[bytes], tail: int | None) -> list[bytes]:
    return lines if tail is None else lines[max(0, len(lines) - tail) :]


def _say(name: str, lines: Iterable[bytes]) -> None:
    for line in lines:
        sys.stdout.write(f"{name}: {line.decode(errors='replace')}\n")  # whole lines, also of several threads
        sys.stdout.flush()


def _from_pods(api: Any, run: str, namespace: str, attempt: int, tail: int | None, *, follow: bool) -> None:
    from rerail.plugins.kube.resources import PODS
    from rerail.policies.supervisor.advance import gang_name
    from rerail.policies.workloads.attempt import GANG_LABEL
    from rerail.policies.workloads.fanout import MAIN, POD_LABEL

    gang = gang_name(run, attempt)
    pods = api.list(PODS, namespace=namespace, labels={GANG_LABEL: gang}).items
    named = {str(pod["metadata"]["labels"].get(POD_LABEL) or pod["metadata"]["name"]): pod for pod in pods}
    names = sorted(named)
    if not names:
        raise NotFoundError(f"no pod of gang {gang!r} is in namespace {namespace!r}, so its log went with it")
    failed: list[str] = []

    def one(name: str) -> None:
        try:
            metadata = named[name]["metadata"]
            container = MAIN if POD_LABEL in metadata["labels"] else None
            lines = api.log(metadata["name"], namespace=namespace, container=container, tail_lines=tail, follow=follow)
            _say(name, lines)
        except RerailError as error:
            failed.append(f"{name}: {error}")

    if not follow:
        for name in names:
            one(name)
    else:
        threads = [threading.Thread(target=one, args=(name,), daemon=True) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for line in failed:
        typer.echo(f"rerail: {line}", err=True)
    if len(failed) == len(names):
        raise NotFoundError(f"no log of gang {gang!r} can be read")
