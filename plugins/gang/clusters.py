"""The supervisor of gangs in a cluster, put together: for `rerail run`, the steps of a Workflow, and the reaper."""

import secrets
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from rerail.plugins.checkpoint.attempts import read_run
from rerail.plugins.checkpoint.open import open_run
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.gang.cluster import GangWatch
from rerail.plugins.gang.executor import Supervisor
from rerail.plugins.gang.fanout import FanoutBackend
from rerail.plugins.gang.observing import Observer
from rerail.plugins.gang.podgroup import PodGroupBackend
from rerail.plugins.gang.pods import PodMemory
from rerail.plugins.gang.ports import Clock
from rerail.plugins.gang.rights import refuse_missing
from rerail.plugins.gang.submission import submit
from rerail.plugins.gang.telling import Teller
from rerail.plugins.gang.vcjob import VcjobBackend
from rerail.plugins.gang.volumes import Volumes
from rerail.plugins.nodes.kube import KubeNodes
from rerail.plugins.nodes.kube_guard import KubeGuard
from rerail.plugins.nodes.kube_pausing import KubePause
from rerail.plugins.volcano import VolcanoClient
from rerail.policies.documents import RunDoc
from rerail.policies.errors import RefusedError, UsageError
from rerail.policies.recovery import RecoveryPolicy
from rerail.policies.supervisor.advance import gang_name
from rerail.policies.supervisor.state import GangSpec, LedgerEntry
from rerail.policies.workloads.fanout import as_rank
from rerail.policies.workloads.reading import read_workload
from rerail.policies.workloads.workload import Workload

Backend = VcjobBackend | PodGroupBackend
BACKENDS = ("vcjob", "podgroup")

FANOUT = "fanout"
"""The backend of gangs whose pods a Workflow brings: only its steps can drive one, everybody can look at one."""

ALL_BACKENDS = (*BACKENDS, FANOUT)

Log = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A workload that is to be supervised.

    Attributes:
        kind: Of the backend.
        store: Address of its store, as pods and this process reach it.
        policy: Of a new run.
        policy_given: Somebody gave it, so a run that stands must have the same.
        owner: Who asks.
        take_over: Go on with another owner's run.
        guard_namespace: Of the guard's ConfigMap; None where the gangs are.
        most_attempts: A bound on attempts beyond the run's own policy.
    """

    kind: str
    workload: Workload
    store: str
    control: str | None
    policy: RecoveryPolicy
    owner: str
    policy_given: bool = False
    take_over: bool = False
    guard_namespace: str | None = None
    priority_class: str = ""
    most_attempts: int | None = None


def cluster_backend(wanted: Wanted, client: VolcanoClient, *, nodes: KubeNodes | None = None) -> Backend:
    """The backend alone; without ``nodes`` only good for showing and judging what would be created."""
    memory = PodMemory(node_ready=nodes.ready) if nodes else PodMemory()
    kinds: dict[str, type[Backend]] = {"vcjob": VcjobBackend, "podgroup": PodGroupBackend, FANOUT: FanoutBackend}
    watch = GangWatch(wanted.workload.run, client, with_jobs=wanted.kind == "vcjob", memory=memory)
    if wanted.kind == FANOUT:
        watch.as_ours = as_rank
    return kinds[wanted.kind](
        wanted.workload,
        watch,
        wanted.store,
        wanted.policy,
        control=wanted.control,
        owner=wanted.owner,
        priority_class=wanted.priority_class,
        hostnames=nodes.hostnames if nodes else (lambda _nodes: {}),
    )


def first_gang(workload: Workload) -> GangSpec:
    """The gang of attempt 1."""
    return GangSpec(name=gang_name(workload.run, 1), world_size=workload.world_size, pods=())


def refuse_elsewhere(workload: Workload, namespace: str) -> None:
    """Refuse a manifest of another namespace: its gang would be created where nobody watches.

    Raises:
        UsageError: Names both.
    """
    if workload.namespace not in (None, namespace):
        raise UsageError(
            f"{workload.source}: metadata.namespace = {workload.namespace!r}, and gangs are watched in {namespace!r}: "
            "leave it out, or go there"
        )


def refuse_trouble(backend: Backend, log: Log) -> None:
    """Refuse what would never run, before anything is created for it; tell what may break later.

    Raises:
        RefusedError: Names all that is in the way.
    """
    problems = backend.problems(first_gang(backend.workload))
    errors = [problem for problem in problems if problem.severity == "error"]
    for problem in problems:
        if problem not in errors:
            log(str(problem))
    if errors:
        raise RefusedError("; ".join(str(problem) for problem in errors))


def supervised(
    wanted: Wanted,
    client: VolcanoClient,
    held: ExitStack,
    *,
    log: Log,
    on_event: Callable[[LedgerEntry], None] = lambda _entry: None,
) -> Supervisor:
    """Create the run, or find it, and its supervisor, which has not looked yet.

    Args:
        wanted: What is asked for. Of a run that stands, the manifest and the policy are those of its beginning.
        client: Volcano's API, in the namespace of the gangs.
        held: Keeps the watches of gangs and nodes running.
        log: Takes one line for people.
        on_event: Takes each decision.

    Raises:
        UsageError: The run that stands is another one, or the manifest is of another namespace.
        RefusedError: Another owner drives it, or Volcano's queue, an admission or a missing right is in the way.
    """
    refuse_elsewhere(wanted.workload, client.api.namespace)
    refuse_missing(client.api, wanted.kind, guard_namespace=wanted.guard_namespace)
    asked = wanted.workload
    opened = open_run(asked.run, store=wanted.store, control=wanted.control, create=True, outside=True)
    if opened.away:
        log(f"{wanted.store} is not mounted here: only ranks check its files, and old checkpoints stay there")
    fresh = RunDoc(
        writer=secrets.token_hex(8),
        run=opened.run,
        owner=wanted.owner,
        created_at_s=time.time(),
        world_size=asked.world_size,
        policy=wanted.policy.model_dump(mode="json"),
        workload=asked.document,
    )
    doc = submit(
        opened,
        fresh,
        lambda standing: _check(wanted, standing),
        first=lambda: refuse_trouble(cluster_backend(wanted, client), log),
        take_over=wanted.take_over,
    )
    assert doc.workload is not None
    workload = read_workload(dict(doc.workload), asked.source, run=asked.run).model_copy(
        update={"store": asked.store, "control": asked.control}
    )
    policy = RecoveryPolicy.from_mapping(dict(doc.policy), f"run.json of run {asked.run!r}")
    if wanted.most_attempts is not None:
        policy = policy.model_copy(update={"max_attempts": min(policy.max_attempts, wanted.most_attempts)})
    stands = Wanted(
        kind=wanted.kind,
        workload=workload,
        store=wanted.store,
        control=wanted.control,
        policy=policy,
        owner=wanted.owner,
        priority_class=wanted.priority_class,
    )
    nodes = held.enter_context(nodes_of(workload, client, log))
    backend = cluster_backend(stands, client, nodes=nodes)
    backend.volumes = Volumes(client.api, workload.claims, nodes.ready, log)
    nodes.on_signal = held.enter_context(backend.watch).wake
    teller = held.enter_context(Teller(client.api, wanted.kind, wanted.owner, log))

    def told(entry: LedgerEntry) -> None:
        on_event(entry)
        teller.entry(entry)

    supervisor = Supervisor(
        opened,
        doc.world_size,
        backend,
        nodes,
        policy,
        layout=backend.shape,
        clock=Clock(sleep=backend.watch.doze),
        guard=KubeGuard(client.api, namespace=wanted.guard_namespace),
        pause=KubePause(client.api, namespace=wanted.guard_namespace),
        owner=wanted.owner,
        on_event=told,
        log=log,
    )
    if wanted.take_over:
        supervisor.take_over()
    return supervisor


def observed(
    run: RunStore,
    client: VolcanoClient,
    held: ExitStack,
    *,
    kind: str,
    store: str,
    guard_namespace: str | None = None,
    log: Log,
    on_event: Callable[[LedgerEntry], None] = lambda _entry: None,
) -> Observer:
    """What looks at a run that exists, and touches nothing.

    Args:
        run: The run's stores.
        client: Volcano's API, in the namespace of the gangs.
        held: Keeps the watches of gangs and nodes running.
        kind: Of the gangs' backend.
        store: Address of the run's store.
        guard_namespace: Of the ConfigMap that may pause all runs; None where the gangs are.
        log: Takes what would be decided, and trouble.
        on_event: Takes each decision that somebody wrote.

    Raises:
        UsageError: The run was begun on one machine.
    """
    doc = read_run(run)
    if doc.workload is None:
        raise UsageError(f"run {run.run!r} was begun on one machine; leave --backend {kind} out")
    where = f"run.json of run {run.run!r}"
    workload = read_workload(dict(doc.workload), where, run=run.run)
    policy = RecoveryPolicy.from_mapping(dict(doc.policy), where)
    nodes = held.enter_context(nodes_of(workload, client, log))
    wanted = Wanted(kind=kind, workload=workload, store=store, control=None, policy=policy, owner=doc.owner)
    backend = cluster_backend(wanted, client, nodes=nodes)
    held.enter_context(backend.watch)
    pause = KubePause(client.api, namespace=guard_namespace)
    return Observer(run, backend, nodes, policy, pause=pause, on_event=on_event, log=log)


def _check(wanted: Wanted, standing: RunDoc) -> None:
    """Whether the run that stands is the one that was meant."""
    another = "or choose another --run name for a new run"
    if standing.workload != wanted.workload.document:
        raise UsageError(f"run {standing.run!r} was begun with another manifest; pass that one again, {another}")
    if wanted.policy_given and wanted.policy.model_dump(mode="json") != standing.policy:
        raise UsageError(f"run {standing.run!r} has a policy of its own in run.json; leave --policy out, {another}")


def nodes_of(workload: Workload, client: VolcanoClient, log: Log) -> KubeNodes:
    """The nodes as the pods of a workload may use them; without the count of what is free there."""
    first = next(task for task in workload.tasks if task.ranks_per_pod)
    return KubeNodes(
        client.api,
        resource=first.gpu_resource or None,
        per_pod=max(1, first.gpus_per_pod),
        ranks_per_pod=first.ranks_per_pod,
        tolerations=first.tolerations,
        node_selector=first.node_selector,
        count_pods=False,
        log=log,
    )
