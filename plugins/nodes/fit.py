"""Whether a gang's pods fit on a node of a cluster, and how many: taints, readiness, slots, requests. Pure."""

from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from rerail.plugins.nodes.local import QUARANTINED
from rerail.plugins.nodes.marks import taints

_UNSCHEDULABLE: Final = "node.kubernetes.io/unschedulable"
_CONTROL_PLANE: Final = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
_KEEPS_OFF: Final = ("NoSchedule", "NoExecute")
_UNITS: Final[Mapping[str, Decimal]] = {
    "m": Decimal("0.001"),
    "k": Decimal(10**3),
    "M": Decimal(10**6),
    "G": Decimal(10**9),
    "T": Decimal(10**12),
    "Ki": Decimal(2**10),
    "Mi": Decimal(2**20),
    "Gi": Decimal(2**30),
    "Ti": Decimal(2**40),
}


def quantity(value: object) -> Decimal:
    """A Kubernetes quantity; what is none counts as nothing."""
    text = str(value)
    for suffix in ("Ki", "Mi", "Gi", "Ti", "m", "k", "M", "G", "T"):
        if text.endswith(suffix):
            text, unit = text.removesuffix(suffix), _UNITS[suffix]
            break
    else:
        unit = Decimal(1)
    try:
        return Decimal(text) * unit
    except InvalidOperation:
        return Decimal(0)


def tolerates(tolerations: Sequence[Mapping[str, Any]], taint: Mapping[str, Any]) -> bool:
    """Whether pods with these tolerations may be placed in spite of a taint, by the scheduler's rules.

    An empty key with ``Exists`` tolerates every taint, an empty effect every effect.
    """
    return any(_tolerates(one, taint) for one in tolerations)


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    key, operator = toleration.get("key") or "", toleration.get("operator") or "Equal"
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if key and key != taint.get("key"):
        return False
    if operator == "Exists":
        return True
    return bool(key) and operator == "Equal" and (toleration.get("value") or "") == (taint.get("value") or "")


def is_for_others(node: Mapping[str, Any], tolerations: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a node belongs to the control plane and the pods do not go there: never a node of this run."""
    return any(one.get("key") in _CONTROL_PLANE and not tolerates(tolerations, one) for one in taints(node))


def why_not_usable(node: Mapping[str, Any], tolerations: Sequence[Mapping[str, Any]]) -> str:
    """Why no pod of the gang may be placed on a node now; empty where one may.

    Our own quarantine is tolerated by nobody, whatever the pods tolerate.
    """
    spec, metadata = node.get("spec") or {}, node.get("metadata") or {}
    reasons: list[str] = []
    if spec.get("unschedulable") and not tolerates(tolerations, {"key": _UNSCHEDULABLE, "effect": "NoSchedule"}):
        reasons.append("unschedulable")
    if metadata.get("deletionTimestamp"):
        reasons.append("being deleted")
    for taint in taints(node):
        key = taint.get("key")
        if taint.get("effect") not in _KEEPS_OFF or key == _UNSCHEDULABLE:
            continue
        if key == QUARANTINED or not tolerates(tolerations, taint):
            reasons.append(f"{key}: {taint['value']}" if taint.get("value") else str(key))
    not_ready = why_not_ready(node)
    return "; ".join([*reasons, not_ready] if not_ready else reasons)


def why_not_ready(node: Mapping[str, Any]) -> str:
    """What the condition Ready says where it is not True; empty where it is."""
    for condition in (node.get("status") or {}).get("conditions") or ():
        if condition.get("type") == "Ready":
            if condition.get("status") == "True":
                return ""
            words = [str(condition[key]) for key in ("reason", "message") if condition.get(key)]
            return f"not Ready ({': '.join(words)})" if words else "not Ready"
    return "not Ready (its kubelet never reported)"


def slots(
    node: Mapping[str, Any], resource: str | None, per_pod: int, ranks_per_pod: int, used: Decimal = Decimal(0)
) -> int:
    """Ranks that fit on a node beside what its pods hold of the resource (without one: beside that many pods)."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    left = max(Decimal(0), quantity(allocatable.get(resource or "pods", 0)) - used)
    return int(left // (per_pod if resource else 1)) * ranks_per_pod


def has(node: Mapping[str, Any], resource: str | None) -> bool:
    """Whether a node has the resource at all, be it that none of it is allocatable now."""
    capacity = (node.get("status") or {}).get("capacity") or {}
    return resource is None or resource in capacity


def held(pod: Mapping[str, Any], resource: str | None) -> tuple[str, Decimal]:
    """The node that a pod is bound to and what it holds there of the resource (without one: 1, itself).

    A pod that ended holds nothing. Devices that are given by resource claims (DRA) are not counted.
    """
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    node = str(spec.get("nodeName") or "")
    if not node or status.get("phase") in ("Succeeded", "Failed"):
        return "", Decimal(0)
    if resource is None:
        return node, Decimal(1)
    beside = peak = Decimal(0)
    for one in spec.get("initContainers") or ():
        asked = _asked(one, resource)
        peak = max(peak, beside + asked)
        if one.get("restartPolicy") == "Always":  # a sidecar: it goes on beside the others
            beside += asked
    return node, max(peak, beside + sum((_asked(one, resource) for one in spec.get("containers") or ()), Decimal(0)))


def _asked(container: Mapping[str, Any], resource: str) -> Decimal:
    resources = container.get("resources") or {}
    asked = (resources.get("requests") or {}).get(resource, (resources.get("limits") or {}).get(resource, 0))
    return quantity(asked)
