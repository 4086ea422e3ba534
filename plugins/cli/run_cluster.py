"""``rerail run --backend vcjob|podgroup FILE``: the gang of a manifest in a cluster, supervised from here."""

import secrets
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from rerail.plugins.checkpoint.attempts import create_run, read_run
from rerail.plugins.checkpoint.open import open_run
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.cli.driving import Progress, drive
from rerail.plugins.cli.output import Output, emit
from rerail.plugins.cli.rights import refuse_missing
from rerail.plugins.gang.cluster import GangWatch
from rerail.plugins.gang.executor import Supervisor
from rerail.plugins.gang.podgroup import PodGroupBackend
from rerail.plugins.gang.pods import PodMemory
from rerail.plugins.gang.vcjob import VcjobBackend
from rerail.plugins.gang.volumes import Volumes
from rerail.plugins.nodes.kube import KubeNodes
from rerail.plugins.nodes.kube_guard import KubeGuard
from rerail.plugins.volcano import VolcanoClient
from rerail.policies.documents import RunDoc
from rerail.policies.errors import NotFoundError, RefusedError, UsageError
from rerail.policies.keys import check_run_name
from rerail.policies.recovery import RecoveryPolicy
from rerail.policies.supervisor.advance import gang_name
from rerail.policies.supervisor.state import GangSpec
from rerail.policies.workloads.difference import difference, reasons_text, unified
from rerail.policies.workloads.reading import parse_manifest, read_workload
from rerail.policies.workloads.workload import Workload

CLUSTER_POLICY = RecoveryPolicy()
BACKENDS = ("vcjob", "podgroup")


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
        progress = Progress()
        backend = _backend(asked, workload, store, policy, client, nodes=None)
        if dry_run:
            _show(backend, path, output, progress)
            return
        refuse_missing(client.api, asked.backend, guard_namespace=asked.guard_namespace)
        opened = open_run(run_name, store=store, control=asked.control or workload.control, create=True, outside=True)
        if opened.away:
            progress.line(f"{store} is not mounted here: only ranks check its files, and old checkpoints stay there")
        if not _exists(opened):
            _refuse_trouble(backend, progress)
        doc = _submit(
            opened, workload, policy, owner=backend.owner, given=asked.policy is not None, take_over=asked.take_over
        )
        assert doc.workload is not None
        workload = read_workload(dict(doc.workload), str(path), run=run_name).model_copy(
            update={"store": workload.store, "control": workload.control}
        )
        policy = RecoveryPolicy.from_mapping(dict(doc.policy), f"run.json of run {run_name!r}")
        nodes = held.enter_context(_nodes(workload, client, progress))
        backend = _backend(asked, workload, store, policy, client, nodes=nodes)
        backend.volumes = Volumes(client.api, workload.claims, nodes.ready, progress.line)
        held.enter_context(backend.watch)
        supervisor = Supervisor(
            opened,
            doc.world_size,
            backend,
            nodes,
            policy,
            layout=backend.shape,
            guard=KubeGuard(client.api, namespace=asked.guard_namespace),
            on_event=progress.entry,
            log=progress.line,
        )
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


def _nodes(workload: Workload, client: VolcanoClient, progress: Progress) -> KubeNodes:
    first = next(task for task in workload.tasks if task.ranks_per_pod)
    return KubeNodes(
        client.api,
        resource=first.gpu_resource or None,
        per_pod=max(1, first.gpus_per_pod),
        ranks_per_pod=first.ranks_per_pod,
        tolerations=first.tolerations,
        node_selector=first.node_selector,
        count_pods=False,
        log=progress.line,
    )


def _backend(
    asked: Asked,
    workload: Workload,
    store: str,
    policy: RecoveryPolicy,
    client: VolcanoClient,
    *,
    nodes: KubeNodes | None,
) -> VcjobBackend | PodGroupBackend:
    memory = PodMemory(node_ready=nodes.ready) if nodes else PodMemory()
    kind = VcjobBackend if asked.backend == "vcjob" else PodGroupBackend
    watch = GangWatch(workload.run, client, with_jobs=asked.backend == "vcjob", memory=memory)
    return kind(
        workload,
        watch,
        store,
        policy,
        control=asked.control or workload.control,
        owner=f"cluster/{client.api.namespace}",
        priority_class=asked.priority_class,
        hostnames=nodes.hostnames if nodes else (lambda _nodes: {}),
    )


def _exists(opened: RunStore) -> bool:
    try:
        read_run(opened)
    except NotFoundError:
        return False
    return True


def _first(backend: VcjobBackend | PodGroupBackend) -> GangSpec:
    workload = backend.workload
    return GangSpec(name=gang_name(workload.run, 1), world_size=workload.world_size, pods=())


def _show(backend: VcjobBackend | PodGroupBackend, path: Path, output: Output, progress: Progress) -> None:
    """What would be submitted for attempt 1, beside the user's manifest; then refuse what would be refused."""
    before = backend.workload.document
    objects = backend.render(_first(backend))
    changes = difference(before, objects[0]) if len(objects) == 1 else ()
    if output is not Output.TABLE:
        emit({"objects": objects, "changes": [change.model_dump(mode="json") for change in changes]}, output)
    elif changes:
        sys.stdout.write(unified(before, objects[0], str(path)))
        sys.stdout.write("".join(f"# {line}\n" for line in reasons_text(changes).splitlines()))
    else:
        import yaml

        yaml.safe_dump_all(objects, sys.stdout, sort_keys=False, allow_unicode=True)
    _refuse_trouble(backend, progress)


def _refuse_trouble(backend: VcjobBackend | PodGroupBackend, progress: Progress) -> None:
    """Refuse what would never run, before anything is created for it; tell what may break later."""
    problems = backend.problems(_first(backend))
    errors = [problem for problem in problems if problem.severity == "error"]
    for problem in problems:
        if problem not in errors:
            progress.line(str(problem))
    if errors:
        raise RefusedError("; ".join(str(problem) for problem in errors))


def _submit(
    opened: RunStore, workload: Workload, policy: RecoveryPolicy, *, owner: str, given: bool, take_over: bool
) -> RunDoc:
    """Create the run, or find it and check that it is the one that was meant."""
    chosen = policy.model_dump(mode="json")
    try:
        standing = read_run(opened)
    except NotFoundError:
        doc = RunDoc(
            writer=secrets.token_hex(8),
            run=opened.run,
            owner=owner,
            created_at_s=time.time(),
            world_size=workload.world_size,
            policy=chosen,
            workload=workload.document,
        )
        return create_run(opened, doc, take_over=take_over)
    another = "or choose another --run name for a new run"
    if standing.workload != workload.document:
        raise UsageError(f"run {opened.run!r} was begun with another manifest; pass that one again, {another}")
    if given and chosen != standing.policy:
        raise UsageError(f"run {opened.run!r} has a policy of its own in run.json; leave --policy out, {another}")
    return create_run(opened, standing.model_copy(update={"owner": owner}), take_over=take_over)
