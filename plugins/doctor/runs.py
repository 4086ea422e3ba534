"""Looks at one run in a cluster, and at all gangs there for those that nobody goes on with."""

from collections.abc import Iterator
from typing import Any

from rerail.plugins.checkpoint.attempts import read_run
from rerail.plugins.checkpoint.notes import why_paused
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.evict.find import in_store, open_place, places
from rerail.plugins.gang.ledger import newest_entry
from rerail.plugins.gang.submission import owner_of
from rerail.plugins.kube.api import KubeApi
from rerail.plugins.kube.resources import PODS, ResourceType
from rerail.plugins.steps.workflow import read_workflow
from rerail.plugins.volcano.job import JOBS
from rerail.plugins.volcano.podgroup import POD_GROUPS
from rerail.policies.doctor.finding import Finding
from rerail.policies.doctor.runs import (
    GRACE_DEFAULT_S,
    GangFound,
    judge_gangs,
    judge_grace,
    judge_pause,
    judge_policies,
)
from rerail.policies.errors import ForbiddenError, NotFoundError, NotInstalledError, RerailError
from rerail.policies.owners import WorkflowRef
from rerail.policies.reaping import why_reap
from rerail.policies.supervisor.state import RunState
from rerail.policies.workloads.attempt import GANG_LABEL, RUN_LABEL

Obj = dict[str, Any]


def run_findings(api: KubeApi, run: RunStore, *, namespace: str) -> Iterator[Finding]:
    """Look at a run's pods and vcjobs.

    Args:
        api: The API server.
        run: The run's stores.
        namespace: Of its gangs, or every one.
    """
    entry = newest_entry(run)
    pods = _labelled(api, PODS, namespace, f"{RUN_LABEL}={run.run}")
    live = [pod for pod in pods if (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")]
    graces = {
        str(pod["metadata"]["name"]): float(
            (pod.get("spec") or {}).get("terminationGracePeriodSeconds", GRACE_DEFAULT_S)
        )
        for pod in live
    }
    yield judge_pause(why_paused(run), of=f"run {run.run!r}", resume=f"rerail resume {run.run}")
    yield judge_grace(entry.state if entry else None, graces)
    yield judge_policies(_labelled(api, JOBS, namespace, f"{RUN_LABEL}={run.run}"))


def orphan_findings(api: KubeApi, *, namespace: str, store: str | None, control: str | None) -> tuple[Finding, ...]:
    """Look for gangs that are left over.

    Args:
        api: The API server.
        namespace: Where to look, or every one.
        store: Where the runs are; else as their pods say.
        control: Of the documents, where that is another one.
    """
    known = {(one.namespace, one.gang): one for one in places(_labelled(api, PODS, namespace, RUN_LABEL))}
    gangs: dict[tuple[str, str], str] = {}
    for resource in (JOBS, POD_GROUPS):
        for one in _labelled(api, resource, namespace, RUN_LABEL):
            metadata = one["metadata"]
            labels = metadata.get("labels") or {}
            gang = str(labels.get(GANG_LABEL) or metadata["name"])
            if not _ended(one):
                gangs.setdefault((str(metadata.get("namespace", "")), gang), str(labels[RUN_LABEL]))
    found = []
    for (where, gang), run in sorted(gangs.items()):
        place = known.get((where, gang))
        try:
            if store is not None:
                opened, _ = in_store(run, store, control, otherwise="it is not known")
            elif place is not None and place.store:
                opened = open_place(place, control=control)
            else:
                raise NotFoundError("it has no pod that says where its store is")
            state, workflow_over = _standing(api, opened)
        except RerailError as error:
            found.append(GangFound(namespace=where, gang=gang, run=run, unknown=str(error)))
            continue
        found.append(GangFound(namespace=where, gang=gang, run=run, state=state, workflow_over=workflow_over))
    return judge_gangs(found)


def _standing(api: KubeApi, run: RunStore) -> tuple[RunState | None, str]:
    """The run's newest state, and why its Workflow drives it no more, where one did."""
    doc = read_run(run)
    entry = newest_entry(run)
    workflow = WorkflowRef.of(owner_of(run, doc))
    over = ""
    if workflow is not None:
        try:
            over = why_reap(workflow, read_workflow(api, workflow))
        except (NotInstalledError, ForbiddenError):
            over = ""  # whether its Workflow goes on is not for us to see
    return (entry.state if entry else None), over


def _ended(one: Obj) -> bool:
    """Whether a vcjob ended, whose object may stay for people to look at, or a PodGroup is a vcjob's own."""
    owners = one["metadata"].get("ownerReferences") or []
    if any(owner.get("kind") == JOBS.kind for owner in owners):
        return True
    phase = ((one.get("status") or {}).get("state") or {}).get("phase")
    return phase in ("Completed", "Failed", "Terminated", "Aborted")


def _labelled(api: KubeApi, resource: ResourceType, namespace: str, labels: str) -> list[Obj]:
    """Objects with these labels; none where the kind is not installed."""
    try:
        return list(api.list(resource, namespace=namespace, labels=labels).items)
    except NotInstalledError:
        return []
