"""Small readings of objects as the API server has them."""

from datetime import UTC, datetime
from typing import Any, Final

from rerail.plugins.volcano import OwnerReference, VolcanoJob
from rerail.plugins.volcano.job import GROUP_ANNOTATION, JOBS

Obj = dict[str, Any]

OUT_OF_SYNC: Final = "volcano.sh/controller-out-of-sync"
PREEMPTABLE: Final = "volcano.sh/preemptable"
QUEUE_ANNOTATION: Final = "scheduling.volcano.sh/queue-name"
SCHEDULER: Final = "volcano"
ENDED: Final = frozenset({"Succeeded", "Failed"})

_SCALES: Final = {
    "n": 1e-9,
    "u": 1e-6,
    "m": 1e-3,
    "": 1.0,
    "k": 1e3,
    "M": 1e6,
    "G": 1e9,
    "T": 1e12,
    "P": 1e15,
    "E": 1e18,
    **{f"{letter}i": 1024.0**power for power, letter in enumerate("KMGTPE", start=1)},
}


def now_text() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def name_of(one: Obj) -> str:
    return str(one["metadata"]["name"])


def namespace_of(one: Obj) -> str:
    return str(one["metadata"].get("namespace") or "")


def uid_of(one: Obj) -> str:
    return str(one["metadata"].get("uid") or "")


def annotations_of(one: Obj) -> dict[str, str]:
    return one["metadata"].get("annotations") or {}


def labels_of(one: Obj) -> dict[str, str]:
    return one["metadata"].get("labels") or {}


def leaving(one: Obj) -> bool:
    return "deletionTimestamp" in one["metadata"]


def phase_of(one: Obj) -> str:
    return str((one.get("status") or {}).get("phase") or "")


def controller_of(one: Obj) -> Obj | None:
    return next((ref for ref in one["metadata"].get("ownerReferences") or [] if ref.get("controller")), None)


def owned_by_a_job(pod: Obj) -> bool:
    owner = controller_of(pod)
    return owner is not None and (owner["apiVersion"], owner["kind"]) == (JOBS.api_version, JOBS.kind)


def owner_reference(job: VolcanoJob) -> OwnerReference:
    return OwnerReference(
        api_version=JOBS.api_version,
        kind=JOBS.kind,
        name=job.name,
        uid=job.uid,
        controller=True,
        block_owner_deletion=True,
    )


def group_of(pod: Obj) -> str:
    """The PodGroup that a pod belongs to, as ``namespace/name``; empty without one."""
    group = annotations_of(pod).get(GROUP_ANNOTATION)
    return f"{namespace_of(pod)}/{group}" if group else ""


def quantity(value: str | float) -> float:
    """A Kubernetes quantity as a number."""
    text = str(value)
    number = text.rstrip("numkKMGTPEi")
    return float(text) if text[-1:].isdigit() else float(number) * _SCALES[text[len(number) :]]


def requests_of(spec: Obj, *, limits: bool = True) -> dict[str, float]:
    """What a pod asks for: the sum of its containers, or one init container if that is more.

    Args:
        spec: The pod's.
        limits: Whether a limit without a request counts as one: so in a pod as the API server has it, but not in what
            Volcano reads from a template.
    """
    total: dict[str, float] = {}
    for container in spec.get("containers") or []:
        for resource, value in _asked(container, limits=limits).items():
            total[resource] = total.get(resource, 0.0) + value
    for container in spec.get("initContainers") or []:
        for resource, value in _asked(container, limits=limits).items():
            total[resource] = max(total.get(resource, 0.0), value)
    for resource, value in (spec.get("overhead") or {}).items():
        total[resource] = total.get(resource, 0.0) + quantity(value)
    return {resource: value for resource, value in total.items() if value > 0}


def _asked(container: Obj, *, limits: bool) -> dict[str, float]:
    resources = container.get("resources") or {}
    asked = {**((resources.get("limits") or {}) if limits else {}), **(resources.get("requests") or {})}
    return {resource: quantity(value) for resource, value in asked.items()}
