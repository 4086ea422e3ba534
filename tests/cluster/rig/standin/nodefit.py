"""Whether a node is one for a pod, apart from what is free there; and why not, in Kubernetes' words."""

from typing import Any

from rig.standin.model import Amounts, Machine, Task, fits, plus
from rig.standin.objects import Obj, labels_of

UNSCHEDULABLE = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


def misfit(task: Task, machine: Machine) -> str:
    """Why a node is none for a pod, however much it had free; empty where it is one."""
    spec, node = task.pod["spec"], machine.content
    if node["spec"].get("unschedulable") and not _tolerated(UNSCHEDULABLE, spec):
        return "node(s) were unschedulable"
    if not _selected(spec, node):
        return "node(s) didn't match Pod's node affinity/selector"
    for taint in node["spec"].get("taints") or []:
        if taint["effect"] in ("NoSchedule", "NoExecute") and not _tolerated(taint, spec):
            return f"node(s) had untolerated taint(s) {{{taint['key']}: {taint.get('value', '')}}}"
    return ""


def lacking(task: Task, free: Amounts) -> str:
    """What there is too little of for a pod; empty where there is enough."""
    asked = plus(task.asked, {"pods": 1.0})
    return ", ".join(f"Insufficient {name}" for name, value in sorted(asked.items()) if not fits({name: value}, free))


def _selected(spec: Obj, node: Obj) -> bool:
    labels = labels_of(node)
    if any(labels.get(key) != value for key, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    fields = {"metadata.name": node["metadata"]["name"]}
    return any(
        (term.get("matchExpressions") or term.get("matchFields"))
        and all(_holds(one, labels) for one in term.get("matchExpressions") or [])
        and all(_holds(one, fields) for one in term.get("matchFields") or [])
        for term in required["nodeSelectorTerms"]
    )


def _holds(expression: Any, labels: dict[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or []
    match expression["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return value is not None and int(value) > int(values[0])
        case "Lt":
            return value is not None and int(value) < int(values[0])
    return False


def _tolerated(taint: Any, spec: Obj) -> bool:
    for toleration in spec.get("tolerations") or []:
        same_effect = toleration.get("effect") in (None, "", taint["effect"])
        exists = toleration.get("operator") == "Exists"
        same_key = toleration.get("key") == taint["key"] or (exists and not toleration.get("key"))
        if same_effect and same_key and (exists or toleration.get("value", "") == taint.get("value", "")):
            return True
    return False
