"""``rerail run --backend vcjob|podgroup FILE``: the gang of a manifest in a cluster, supervised from here."""

import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rerail.plugins.cli.driving import Progress, drive
from rerail.plugins.cli.output import Output, emit
from rerail.plugins.gang.clusters import (
    BACKENDS,
    FANOUT,
    Backend,
    Wanted,
    cluster_backend,
    first_gang,
    refuse_elsewhere,
    refuse_trouble,
    supervised,
)
from rerail.plugins.volcano import VolcanoClient
from rerail.policies.errors import UsageError
from rerail.policies.keys import check_run_name
from rerail.policies.owners import cluster_owner
from rerail.policies.recovery import RecoveryPolicy
from rerail.policies.workloads.difference import difference, reasons_text, unified
from rerail.policies.workloads.reading import parse_manifest, read_workload
from rerail.policies.workloads.workload import Workload

CLUSTER_POLICY = RecoveryPolicy()


@dataclass(frozen=True, slots=True)
class Asked:
    """The options of ``rerail run`` that count in a cluster."""

    backend: str
    command: tuple[str, ...]
    run: str | None
    store: str | None
    control: str | None
    policy: Path | None
    namespace: str | None
    guard_namespace: str | None
    priority_class: str
    take_over: bool


def run(asked: Asked, output: Output, *, dry_run: bool) -> None:
    """Supervise the manifest's gang until the run is over, or show what would be submitted.

    Raises:
        UsageError: The manifest, an option or a combination of them is wrong.
        RefusedError: Volcano's queue, an admission or a missing right is in the way.
    """
    if asked.backend == FANOUT:
        raise UsageError(
            f"--backend {FANOUT}: a Workflow brings those pods; submit the template rerail-train-fanout, or look at "
            "its run with --observe"
        )
    if asked.backend not in BACKENDS:
        raise UsageError(f"--backend {asked.backend!r} is not known; use one of: local, {', '.join(BACKENDS)}")
    if len(asked.command) != 1:
        raise UsageError(f"--backend {asked.backend} takes one FILE, not {' '.join(asked.command)!r}")
    path = Path(asked.command[0])
    workload = _read(path, asked.run)
    store = asked.store or workload.store
    if store is None:
        raise UsageError("no store: pass --store s3://BUCKET/PREFIX (or RERAIL_STORE) that pods reach as well as this")
    run_name = check_run_name(workload.run)
    policy = _policy(asked, workload, path)
    namespace = asked.namespace or workload.namespace
    with ExitStack() as held:
        client = held.enter_context(VolcanoClient.connect(namespace=namespace))
        refuse_elsewhere(workload, client.api.namespace)
        progress = Progress()
        wanted = Wanted(
            kind=asked.backend,
            workload=workload,
            store=store,
            control=asked.control or workload.control,
            policy=policy,
            owner=cluster_owner(client.api.namespace),
            policy_given=asked.policy is not None,
            take_over=asked.take_over,
            guard_namespace=asked.guard_namespace,
            priority_class=asked.priority_class,
        )
        if dry_run:
            _show(cluster_backend(wanted, client), path, output, progress)
            return
        supervisor = supervised(wanted, client, held, log=progress.line, on_event=progress.entry)
        progress.line(f"run {run_name} in {store}; gangs in namespace {client.api.namespace}")
        if asked.run:
            supervisor.reopen("the same run was asked for again")
        again = f"rerail run --backend {asked.backend} --run {run_name} --store {store}"
        again += "".join(
            f" --{option} {value}"
            for option, value in (
                ("control", asked.control),
                ("namespace", asked.namespace),
                ("guard-namespace", asked.guard_namespace),
                ("priority-class", asked.priority_class),
            )
            if value
        )
        drive(supervisor, progress, output, address=store, again=f"{again} {path}", namespace=client.api.namespace)


def _read(path: Path, run_name: str | None) -> Workload:
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: {error}; pass a manifest: a vcjob, or a rerail.dev/v1alpha1 Run") from None
    return read_workload(parse_manifest(text, str(path)), str(path), run=run_name)


def _policy(asked: Asked, workload: Workload, path: Path) -> RecoveryPolicy:
    from rerail.plugins.cli.run import read_policy

    base = CLUSTER_POLICY
    if workload.policy:
        base = RecoveryPolicy.from_mapping(base.model_dump() | dict(workload.policy), f"{path}: spec.policy")
    return read_policy(asked.policy, base) if asked.policy else base


def _show(backend: Backend, path: Path, output: Output, progress: Progress) -> None:
    """What would be submitted for attempt 1, beside the user's manifest; then refuse what would be refused."""
    before = backend.workload.document
    objects = backend.render(first_gang(backend.workload))
    changes = difference(before, objects[0]) if len(objects) == 1 else ()
    if output is not Output.TABLE:
        emit({"objects": objects, "changes": [change.model_dump(mode="json") for change in changes]}, output)
    elif changes:
        sys.stdout.write(unified(before, objects[0], str(path)))
        sys.stdout.write("".join(f"# {line}\n" for line in reasons_text(changes).splitlines()))
    else:
        import yaml

        yaml.safe_dump_all(objects, sys.stdout, sort_keys=False, allow_unicode=True)
    refuse_trouble(backend, progress.line)
