"""The gang of one attempt as a PodGroup with bare pods, for clusters and workflows where no vcjob is wanted."""

import copy
import re
from typing import Any, Final

from rerail.policies.documents import Value
from rerail.policies.errors import UsageError
from rerail.policies.supervisor.state import PodShape
from rerail.policies.workloads.attempt import (
    GANG_LABEL,
    OWNER_ANNOTATION,
    SPEC_HASH_ANNOTATION,
    AttemptGang,
    spec_hash,
)
from rerail.policies.workloads.fields import below
from rerail.policies.workloads.lock import LOCKED, PREEMPTABLE, is_locked
from rerail.policies.workloads.pod_template import render_template
from rerail.policies.workloads.quantities import pod_requests, spelled, total
from rerail.policies.workloads.workload import Member, Workload

GROUP_ANNOTATION: Final = "scheduling.k8s.io/group-name"
"""The one key by which Volcano's scheduler finds a pod's PodGroup."""

_NOT_MISSED: Final = ("env", "pytorch", "svc")
_MADE_BY_PLUGINS: Final = re.compile(r"\bV[CK]_[A-Z0-9_]+|/etc/volcano")
_FOR_PODS: Final = (
    PREEMPTABLE,
    "volcano.sh/cooldown-time",
    "volcano.sh/revocable-zone",
    "volcano.sh/jdb-min-available",
    "volcano.sh/jdb-max-unavailable",
)
"""Annotations of a job that Volcano's controller hands on to its pods."""


class GangObjects(Value):
    """The objects of one attempt, in the order in which they are created. Owner references are the backend's to add.

    Attributes:
        group: The PodGroup.
        service: The headless Service by which ranks find each other.
        pods: In the order of ranks; ``<gang>-<index>``.
    """

    group: dict[str, Any]
    service: dict[str, Any]
    pods: tuple[dict[str, Any], ...]


def layout(workload: Workload) -> tuple[PodShape, ...]:
    """The pods that hold ranks, in the order of ranks."""
    return tuple(
        PodShape(suffix=str(member.number), first_rank=member.first_rank, ranks=member.ranks)
        for member in workload.members()
        if member.ranks
    )


def rendezvous_host(workload: Workload, gang: str, namespace: str = "") -> str:
    """Host name of the pod of rank 0; the short name, without ``namespace``, works within the namespace."""
    return f"{gang}-{layout(workload)[0].suffix}.{gang}" + (f".{namespace}.svc" if namespace else "")


def render_podgroup(workload: Workload, gang: AttemptGang) -> GangObjects:
    """The PodGroup, the Service and the pods of one attempt. The same workload and gang give the same objects.

    Raises:
        UsageError: The workload uses what only Volcano's job controller does, sets a variable that recovery must set to
            something else, or has the store inside the pods.
    """
    _check_own(workload)
    pods = tuple(_pod(workload, member, gang) for member in workload.members())
    return GangObjects(group=_group(workload, gang, pods), service=_service(workload, gang), pods=pods)


def _check_own(workload: Workload) -> None:
    """Refuse what would be lost without Volcano's job controller."""
    spec = workload.document["spec"]
    lost = [f"spec.plugins.{name}" for name in spec.get("plugins") or {} if name not in _NOT_MISSED]
    for position, task in enumerate(spec["tasks"]):
        path = f"spec.tasks[{position}]"
        lost += [
            f"{path}.{key}" for key in ("partitionPolicy", "topologyPolicy") if task.get(key) not in (None, "none")
        ]
        if found := _MADE_BY_PLUGINS.search(str(task["template"])):
            lost.append(f"{path}.template: {found[0]}")
    lost += [
        f"spec.volumes[{position}].volumeClaim"
        for position, one in enumerate(spec.get("volumes") or [])
        if not one.get("volumeClaimName")
    ]
    if lost:
        raise UsageError(
            f"{workload.source}: {lost[0]} is made by Volcano's job controller, and a PodGroup has none: use --backend "
            "vcjob, or leave it out"
        )


def _metadata(workload: Workload, gang: AttemptGang, name: str) -> dict[str, Any]:
    own = workload.document["metadata"]
    metadata: dict[str, Any] = {"name": name}
    if workload.namespace:
        metadata["namespace"] = workload.namespace
    metadata["labels"] = {**(own.get("labels") or {}), **gang.labels}
    metadata["annotations"] = {OWNER_ANNOTATION: gang.owner} if gang.owner else {}
    return metadata


def _annotations(workload: Workload) -> dict[str, str]:
    """The user's annotations of the job, with the lock closed where it is asked for."""
    job = workload.document
    lock = {PREEMPTABLE: LOCKED} if is_locked(job) else {}
    return {**(job["metadata"].get("annotations") or {}), **lock}


def _group(workload: Workload, gang: AttemptGang, pods: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    spec = workload.document["spec"]
    metadata = _metadata(workload, gang, gang.gang)
    own = _annotations(workload)
    metadata["annotations"] |= {
        key: value for key, value in own.items() if not key.startswith("kubectl.kubernetes.io/")
    }
    asked = total(pod_requests(pod["spec"], f"{workload.source}: pod {pod['metadata']['name']}") for pod in pods)
    wanted = {
        "minMember": workload.size,
        "queue": workload.queue,
        "priorityClassName": gang.priority_class or spec.get("priorityClassName"),
        "minResources": {name: spelled(amount) for name, amount in asked.items()},
        "networkTopology": copy.deepcopy(spec.get("networkTopology")),
    }
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": metadata,
        "spec": {key: value for key, value in wanted.items() if value},
    }
    return _hashed(group)


def _service(workload: Workload, gang: AttemptGang) -> dict[str, Any]:
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(workload, gang, gang.gang),
        # Ranks look each other up before any of them is ready.
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {GANG_LABEL: gang.gang}},
    }
    return _hashed(service)


def _pod(workload: Workload, member: Member, gang: AttemptGang) -> dict[str, Any]:
    job, task = workload.document, workload.tasks[member.task]
    template: dict[str, Any] = copy.deepcopy(job["spec"]["tasks"][member.task]["template"])
    name = f"{gang.gang}-{member.number}"
    render_template(template, workload, task, gang, index=member.index)
    own = below(template, "metadata")
    handed = {key: value for key, value in _annotations(workload).items() if key in _FOR_PODS}
    metadata = {
        **own,
        **_metadata(workload, gang, name),
        "labels": own["labels"],
        "annotations": {**handed, **(own.get("annotations") or {}), GROUP_ANNOTATION: gang.gang},
    }
    spec = template["spec"]
    spec["schedulerName"] = job["spec"].get("schedulerName") or "volcano"
    spec["hostname"], spec["subdomain"] = name, gang.gang
    priority = gang.priority_class or spec.get("priorityClassName") or job["spec"].get("priorityClassName")
    if priority:
        spec["priorityClassName"] = priority
    _mount(spec, job["spec"].get("volumes") or [])
    return _hashed({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})


def _mount(pod_spec: dict[str, Any], volumes: list[dict[str, Any]]) -> None:
    """Mount a vcjob's own volumes into every container, as its controller does."""
    for position, volume in enumerate(volumes):
        name = f"job-volume-{position}"
        claim = {"name": name, "persistentVolumeClaim": {"claimName": volume["volumeClaimName"]}}
        pod_spec["volumes"] = [*(pod_spec.get("volumes") or []), claim]
        for container in (*(pod_spec.get("initContainers") or []), *pod_spec["containers"]):
            mount = {"name": name, "mountPath": volume["mountPath"]}
            container["volumeMounts"] = [*(container.get("volumeMounts") or []), mount]


def _hashed(document: dict[str, Any]) -> dict[str, Any]:
    document["metadata"]["annotations"][SPEC_HASH_ANNOTATION] = spec_hash(document)
    return document
