"""The gang of one attempt whose pods Argo makes: what its template of a rank is told, and as which pod each one counts.

The PodGroup and the Service are those of bare pods, and so is each pod: its fields are taken from what
``render_podgroup`` makes, so that both forms run the same.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import JsonValue

from rerail.policies.documents import Value
from rerail.policies.errors import UsageError
from rerail.policies.workloads.attempt import AttemptGang
from rerail.policies.workloads.podgroup import GangObjects, render_podgroup
from rerail.policies.workloads.workload import Workload

POD_LABEL: Final = "rerail.dev/pod"
"""On each pod that Argo makes: the name by which its run knows it, ``<gang>-<index>``. Argo's own name says nothing."""

MAIN: Final = "main"
"""The container with the ranks; Argo's own stand beside it."""

_MADE_AS: Final = "rerail.dev/made-as"
_SPEC: Final = frozenset({"schedulerName", "queue", "priorityClassName", "minAvailable", "tasks"})
_POD: Final = frozenset({"containers", "volumes"})
_OURS: Final = frozenset({"rerail.dev/ranks-per-pod"})
_CONTAINER: Final = frozenset({"name", "image", "command", "args", "envFrom", "resources", "volumeMounts"})


class RankPods(Value):
    """What Argo is told to make the pods of one attempt.

    Attributes:
        count: How many.
        command: With launch before the user's words.
        resources: Of the container.
        affinity: Keeps them off nodes that failed; empty where nothing did.
        grace_s: From SIGTERM to SIGKILL.
        priority_class: Empty leaves it to the cluster.
        environment: What launch reads and only this attempt knows, by name.
    """

    gang: str
    attempt: int
    count: int
    image: str
    command: tuple[str, ...]
    resources: dict[str, JsonValue]
    affinity: dict[str, JsonValue]
    grace_s: int
    priority_class: str
    environment: dict[str, str]


def render_fanout(workload: Workload, gang: AttemptGang) -> GangObjects:
    """The PodGroup and the Service of one attempt, without pods.

    ``minResources`` of the group counts the ranks alone: what Argo's own containers request is set in Argo's
    configuration (``executor.resources``, by default nothing).
    """
    return render_podgroup(workload, gang).model_copy(update={"pods": ()})


def rank_pods(workload: Workload, gang: AttemptGang) -> RankPods:
    """What Argo is told of the pods of one attempt. They differ in their index only.

    Raises:
        UsageError: As ``render_podgroup``.
    """
    pods = render_podgroup(workload, gang).pods
    spec = pods[0]["spec"]
    container = spec["containers"][workload.tasks[0].container]
    told = {one["name"]: str(one["value"]) for one in container["env"] if "value" in one}
    return RankPods(
        gang=gang.gang,
        attempt=gang.attempt,
        count=len(pods),
        image=container["image"],
        command=(*container["command"], *(container.get("args") or [])),
        resources=container.get("resources") or {},
        affinity=spec.get("affinity") or {},
        grace_s=spec["terminationGracePeriodSeconds"],
        priority_class=spec.get("priorityClassName") or "",
        environment={
            name: told[name] for name in ("WORLD_SIZE", "RERAIL_LOCAL_RANKS", "RERAIL_HOLD_S", "RERAIL_POLL_S")
        },
    )


def refuse_manifest(workload: Workload, *, volumes: tuple[str, ...] = ()) -> None:
    """Refuse a workload of which the template of a rank would lose something.

    Args:
        workload: Of the run.
        volumes: Names of volumes that the template has.

    Raises:
        UsageError: Names the field, and the way out.
    """
    lost = next(_lost(workload.document, volumes), "")
    if lost:
        raise UsageError(
            f"{workload.source}: {lost} cannot be given to pods that Argo makes: go on with this run by rerail-train "
            "(backend vcjob or podgroup), or begin another one with image and command"
        )


def _lost(document: Mapping[str, Any], volumes: tuple[str, ...]) -> Iterator[str]:
    yield from _marks(document, "")
    spec = document["spec"]
    yield from (f"spec.{key}" for key in spec if key not in _SPEC)
    yield from (f"spec.tasks[{number}]" for number in range(1, len(spec["tasks"])))
    where = "spec.tasks[0].template"
    yield from _marks(spec["tasks"][0]["template"], f"{where}.")
    pod = spec["tasks"][0]["template"]["spec"]
    where += ".spec"
    yield from (f"{where}.{key}" for key in pod if key not in _POD)
    yield from (f"{where}.volumes: {one['name']}" for one in pod.get("volumes") or [] if one["name"] not in volumes)
    yield from (f"{where}.containers[{number}]" for number in range(1, len(pod["containers"])))
    yield from (f"{where}.containers[0].{key}" for key in pod["containers"][0] if key not in _CONTAINER)


def _marks(one: Mapping[str, Any], where: str) -> Iterator[str]:
    """Labels and annotations of the user's own."""
    metadata = one.get("metadata") or {}
    for kind in ("labels", "annotations"):
        yield from (f"{where}metadata.{kind}.{key}" for key in metadata.get(kind) or {} if key not in _OURS)


def as_rank(pod: Mapping[str, Any]) -> dict[str, Any]:
    """A pod as if Rerail had made it: by the name that its run knows, and judged by its container of ranks alone.

    The container ``wait`` of Argo outlives the ranks, and its end says nothing of theirs.
    """
    metadata = pod["metadata"]
    name = (metadata.get("labels") or {}).get(POD_LABEL)
    if not name:
        return dict(pod)
    annotations = {**(metadata.get("annotations") or {}), _MADE_AS: metadata["name"]}
    status = dict(pod.get("status") or {})
    main = [one for one in status.get("containerStatuses") or [] if one.get("name") == MAIN]
    status["containerStatuses"] = main
    ended = (main[0].get("state") or {}).get("terminated") if main else None
    if ended:
        status["phase"] = "Succeeded" if ended.get("exitCode") == 0 else "Failed"
    return {**pod, "metadata": {**metadata, "name": name, "annotations": annotations}, "status": status}


def made_as(pod: Mapping[str, Any]) -> str:
    """The name that the API server knows a pod by."""
    metadata = pod["metadata"]
    return str((metadata.get("annotations") or {}).get(_MADE_AS) or metadata["name"])
