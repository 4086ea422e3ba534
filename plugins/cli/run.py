"""``rerail run --nproc N -- COMMAND``: any script as a supervised gang on this machine."""

import os
import re
import secrets
import socket
import time
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote

import typer

from rerail.plugins.checkpoint.fork import FORK_ATTEMPT, fork_commit
from rerail.plugins.checkpoint.open import open_run
from rerail.plugins.checkpoint.resolve import resolve
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.cli.driving import Progress, drive
from rerail.plugins.cli.output import Output, OutputOption
from rerail.plugins.gang.executor import Supervisor
from rerail.plugins.gang.ledger import append, newest_entry
from rerail.plugins.gang.local import LocalBackend
from rerail.plugins.gang.submission import submit
from rerail.plugins.nodes.guard import LocalGuard
from rerail.plugins.nodes.local import LocalNodes
from rerail.plugins.nodes.pausing import LocalPause
from rerail.policies.addresses import split
from rerail.policies.documents import RunDoc
from rerail.policies.errors import UsageError
from rerail.policies.keys import check_run_name
from rerail.policies.recovery import RecoveryPolicy
from rerail.policies.supervisor.reopen import begin_forked

LOCAL_POLICY = RecoveryPolicy(poll_s=0.2, capacity_wait_s=30.0, yielded_wait_s=30.0)
"""For one machine: nobody brings a node back, so capacity is not waited for long."""


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("run", context_settings={"ignore_unknown_options": True})(run)


def run(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND [ARGUMENT ...] | FILE",
            show_default=False,
            help="What each rank runs on this machine; or, with another backend, the manifest: a vcjob or a Run.",
        ),
    ] = None,
    *,
    nproc: Annotated[int, typer.Option("--nproc", "-n", min=1, help="Ranks: processes of COMMAND.")] = 1,
    name: Annotated[
        str | None,
        typer.Option(
            "--run", "--name", "-r", help="Name of the run; one that exists is continued. [default: a new one]"
        ),
    ] = None,
    store: Annotated[
        str | None,
        typer.Option("--store", envvar="RERAIL_STORE", help="Store address. [default: the folder ./rerail-runs]"),
    ] = None,
    control: Annotated[
        str | None,
        typer.Option("--control", envvar="RERAIL_CONTROL", help="Store of control documents, where it is another one."),
    ] = None,
    policy: Annotated[
        Path | None, typer.Option("--policy", metavar="FILE.yaml", help="Recovery policy of a new run.")
    ] = None,
    nodes: Annotated[
        str | None,
        typer.Option("--nodes", metavar="N:SLOTS", help="Cut this machine into N nodes. [default: one for all ranks]"),
    ] = None,
    fork: Annotated[
        str | None, typer.Option("--from", metavar="RUN@STEP", help="Begin a new run from another run's commit.")
    ] = None,
    backend: Annotated[
        str,
        typer.Option(
            "--backend", help="Where the gang runs: local, or vcjob or podgroup in a cluster; --observe: fanout, too."
        ),
    ] = "local",
    state: Annotated[
        Path | None,
        typer.Option("--state", envvar="RERAIL_STATE", help="Folder of this machine's pods, nodes and logs."),
    ] = None,
    namespace: Annotated[
        str | None, typer.Option("--namespace", help="Cluster: where the gang runs. [default: as the manifest says]")
    ] = None,
    guard_namespace: Annotated[
        str | None,
        typer.Option(
            "--guard-namespace",
            envvar="RERAIL_GUARD_NAMESPACE",
            help="Cluster: of the ConfigMap that bounds the restarts of all runs. [default: the gang's]",
        ),
    ] = None,
    priority_class: Annotated[
        str, typer.Option("--priority-class", help="Cluster: PriorityClass of every attempt. [default: the manifest's]")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Cluster: show what would be changed in the manifest, and run nothing.")
    ] = False,
    take_over: Annotated[bool, typer.Option("--take-over", help="Drive a run that another owner created.")] = False,
    observe: Annotated[
        bool, typer.Option("--observe", help="Look at --run NAME, say what would be done for it, and touch nothing.")
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Run COMMAND as a gang on this machine, or a manifest's gang in a cluster, and go on after faults.

    After a fault it goes on from the newest good checkpoint.

    A run that exists and is not done is continued: a gang that still runs is adopted. Ctrl-C asks the ranks to save,
    and stops the run; SIGTERM to this process leaves the gang running for a successor.

    Exit codes: 0 done, 1 stopped with a reason, 2 bad input, 3 resume blocked or store unreachable, 5 another owner.
    """
    command = _asked(command, observe=observe, other=bool(dry_run or take_over or fork or nodes or policy))
    if observe:
        from rerail.plugins.cli.observe import observe as look

        look(
            name,
            backend=backend,
            store=store,
            control=control,
            namespace=namespace,
            guard_namespace=guard_namespace,
            state=state,
            output=output,
        )
        return
    if backend != "local":
        from rerail.plugins.cli import run_cluster

        run_cluster.run(
            run_cluster.Asked(
                backend=backend,
                command=tuple(command),
                run=name,
                store=store,
                control=control,
                policy=policy,
                namespace=namespace,
                guard_namespace=guard_namespace,
                priority_class=priority_class,
                take_over=take_over,
            ),
            output,
            dry_run=dry_run,
        )
        return
    if dry_run or namespace or priority_class:
        raise UsageError("--dry-run, --namespace and --priority-class belong to a cluster; add --backend vcjob")
    run_name = check_run_name(name) if name else _new_name(command)
    pieces = _cut(nodes, nproc)
    given = read_policy(policy) if policy else None
    source = _source(fork) if fork else None
    address = store or (Path.cwd() / "rerail-runs").as_uri()
    opened = open_run(run_name, store=address, control=control, create=True)
    if source:
        resolve(open_run(source[0], store=address, control=control), step=source[1])  # before anything is created
    doc = _submit(opened, nproc, given, fork=fork, take_over=take_over)
    if doc.forked_from:
        of, step = _source(doc.forked_from)
        _fork(opened, open_run(of, store=address, control=control), step, doc)
    folder = (state or state_folder(address)) / run_name
    chosen = RecoveryPolicy.from_mapping(dict(doc.policy), f"run.json of run {run_name!r}")
    environment = dict(os.environ) | {
        "RERAIL_STORE": address,
        "RERAIL_HOLD_S": f"{chosen.hold_s:f}",
        "RERAIL_POLL_S": f"{min(chosen.poll_s, 1.0):f}",
    }
    if control:
        environment["RERAIL_CONTROL"] = control
    pods = LocalBackend(run_name, folder / "pods", command, environment, log_dir=folder / "logs")
    places = LocalNodes(folder / "nodes", used=pods.used)
    for node, slots in pieces:
        places.add(node, slots)
    progress = Progress()
    guard = LocalGuard(folder.parent / "guard.json")
    pause = LocalPause(folder.parent)
    supervisor = Supervisor(
        opened,
        doc.world_size,
        pods,
        places,
        chosen,
        guard=guard,
        pause=pause,
        on_event=progress.entry,
        log=progress.line,
    )
    progress.line(f"run {run_name} in {address}; logs of ranks in {folder / 'logs'}")
    if name:
        supervisor.reopen("the same run was asked for again")
    drive(
        supervisor,
        progress,
        output,
        address=address,
        again=f"rerail run --run {run_name} --store {address} ...",
        logs=str(folder / "logs"),
    )


def _asked(command: list[str] | None, *, observe: bool, other: bool) -> list[str]:
    """What each rank runs; nothing where a run is only looked at."""
    if observe and (command or other):
        raise UsageError(
            "--observe takes --run, and where that is: --store, --control, --backend, --namespace, --state"
        )
    if not observe and not command:
        raise UsageError("give COMMAND, what each rank runs: rerail run --nproc 4 -- python train.py")
    return command or []


def _new_name(command: list[str]) -> str:
    """A fresh name after the script, so that a run without a name never continues another one."""
    scripts = [Path(word).stem for word in command if word.endswith((".py", ".sh"))] or [Path(command[0]).stem]
    stem = re.sub(r"[^a-z0-9]+", "-", scripts[0].lower()).strip("-")[:30].strip("-") or "run"
    return f"{stem}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def state_folder(address: str) -> Path:
    """Beside a store that is a folder, else where this user's programs keep their state."""
    parts = split(address)
    if parts.scheme == "file":
        return Path(unquote(parts.path)) / ".local"
    home = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state")
    return home / "rerail" / re.sub(r"[^A-Za-z0-9.-]+", "_", address)


def _submit(opened: RunStore, nproc: int, given: RecoveryPolicy | None, *, fork: str | None, take_over: bool) -> RunDoc:
    """Create the run, or find it and check that it is the one that was meant."""
    another = "or choose another --run name for a new run"

    def check(standing: RunDoc) -> None:
        if fork and standing.forked_from != fork:
            raise UsageError(f"run {opened.run!r} exists and was not forked from {fork}; leave --from out, {another}")
        if standing.world_size != nproc:
            raise UsageError(
                f"run {opened.run!r} has {standing.world_size} ranks, not {nproc}; pass --nproc "
                f"{standing.world_size}, {another}"
            )
        if given is not None and given.model_dump(mode="json") != standing.policy:
            raise UsageError(f"run {opened.run!r} has a policy of its own in run.json; leave --policy out, {another}")

    doc = RunDoc(
        writer=secrets.token_hex(8),
        run=opened.run,
        owner=f"local/{socket.gethostname()}",
        created_at_s=time.time(),
        world_size=nproc,
        policy=(given or LOCAL_POLICY).model_dump(mode="json"),
        forked_from=fork,
    )
    return submit(opened, doc, check, take_over=take_over)


def _source(fork: str) -> tuple[str, int]:
    run, _, step = fork.rpartition("@")
    if not run or not re.fullmatch(r"\d{1,12}", step):
        raise UsageError(f"--from {fork!r} is not RUN@STEP (for example llama-8b@1200)")
    return check_run_name(run), int(step)


def _fork(opened: RunStore, source: RunStore, step: int, doc: RunDoc) -> None:
    """Begin the run from the other run's commit; a run that has begun already is left as it is."""
    if newest_entry(opened) is not None:
        return
    fork_commit(source, opened, step=step)
    first = begin_forked(opened.run, doc.world_size, attempt=FORK_ATTEMPT + 1, source=f"{source.run}@{step}")
    append(opened, 0, first, at_s=time.time())


def read_policy(path: Path, base: RecoveryPolicy = LOCAL_POLICY) -> RecoveryPolicy:
    """Read a policy file over a base; names the field, the value and the way out where it is wrong."""
    from rerail.policies.policy_text import parse_policy

    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--policy {path}: {error.strerror}; pass a YAML file of policy fields") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"--policy {path}: no YAML: {error}") from None
    return parse_policy(text, f"--policy {path}", base)


def _cut(nodes: str | None, nproc: int) -> list[tuple[str, int]]:
    if nodes is None:
        return [("local", nproc)]
    found = re.fullmatch(r"([1-9]\d{0,3}):([1-9]\d{0,3})", nodes)
    if not found:
        raise UsageError(f"--nodes {nodes!r} is not N:SLOTS (for example 3:2: three nodes of two slots each)")
    count, slots = int(found[1]), int(found[2])
    if count * slots < nproc:
        raise UsageError(f"--nodes {nodes} has {count * slots} slots, and --nproc {nproc} ranks need one each")
    return [(f"node-{number + 1}", slots) for number in range(count)]
