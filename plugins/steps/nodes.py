"""``rerail step node-judge``, ``node-mark`` and ``node-release``: what a node says of its GPUs, and what follows.

The steps of rerail-node-fault and rerail-node-release. Each reads the node anew, may be repeated, and says in words
what it saw and did.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from rerail.plugins.kube.api import KubeApi, Obj
from rerail.plugins.kube.resources import NODES
from rerail.plugins.nodes.fit import why_not_usable
from rerail.plugins.nodes.kube import LINUX, KubeNodes
from rerail.plugins.nodes.kube_guard import KubeGuard
from rerail.plugins.nodes.local import QUARANTINED
from rerail.plugins.nodes.marks import taints
from rerail.plugins.steps.inputs import Inputs
from rerail.plugins.steps.outputs import Outputs
from rerail.policies.catalog import OVERLAYS, builtin_overlay, load_catalogue, load_conditions
from rerail.policies.errors import RefusedError, UsageError
from rerail.policies.faults import Diagnosis, FaultSignal
from rerail.policies.faults.conditions import read_conditions
from rerail.policies.faults.diagnosis import diagnose

SOURCES: Final = ("auto", "npd", "ack", "eks")
APPROVE: Final = "APPROVE"

_MOST_INCIDENT: Final = 120


@dataclass(frozen=True, slots=True)
class Judged:
    """What a node's conditions mean.

    Attributes:
        diagnosis: None where nothing is wrong.
        incident: Of this node, boot and class, so that whoever judges it again means the same.
        words: For people.
    """

    diagnosis: Diagnosis | None
    incident: str
    words: str


def judge(inputs: Inputs, outputs: Outputs, api: KubeApi, *, now_s: float) -> Judged:
    """Read the node's conditions and say what they mean.

    Raises:
        UsageError: The source is not known, or no node is named.
        NotFoundError: There is no such node.
    """
    name, source = node_name(inputs), inputs.text("source") or SOURCES[0]
    if source not in SOURCES:
        raise UsageError(f"parameter source = {source!r}: use one of {', '.join(SOURCES)}")
    found = judged(api.get(NODES, name), source=source, now_s=now_s)
    seen = found.diagnosis
    outputs.write(
        quarantine=seen.quarantine if seen else "none",
        incident=found.incident,
        reason=seen.class_ if seen else "",
        device=(*seen.devices, "")[0] if seen else "",
    )
    outputs.words(found.words)
    return found


def judged(node: Obj, *, source: str, now_s: float) -> Judged:
    """What the conditions of a node object mean; pure.

    Args:
        node: As the API server gives it.
        source: Whose conditions count.
        now_s: Epoch seconds.
    """
    name = str(node["metadata"]["name"])
    told = signals_of(node, source=source, now_s=now_s)
    clouds = sorted({one.source for one in told} & set(OVERLAYS))
    catalogue = load_catalogue([builtin_overlay(cloud) for cloud in clouds])
    found = diagnose(told, now_s=now_s, catalogue=catalogue)
    if found is None:
        whose = "" if source == SOURCES[0] else f" of {source}"
        return Judged(None, "", f"node {name}: no condition{whose} tells of a fault")
    boot = str(((node.get("status") or {}).get("nodeInfo") or {}).get("bootID") or "")[:8]
    incident = re.sub(r"[^A-Za-z0-9._-]+", "-", f"{name}-{boot or 'boot'}-{found.class_}")[:_MOST_INCIDENT]
    held = "it is held back" if found.quarantine != "none" else "it is not held back"
    return Judged(found, incident, f"node {name}: {found.class_}, {held}, cure {found.action}: {found.evidence[0]}")


def signals_of(node: Obj, *, source: str, now_s: float) -> tuple[FaultSignal, ...]:
    """What a node's conditions tell now: faults, and what takes them back."""
    readings = read_conditions(node, load_conditions(), read_at_s=now_s)
    return tuple(one for reading in readings for one in reading.signals if source in (SOURCES[0], one.source))


def mark(inputs: Inputs, outputs: Outputs, api: KubeApi) -> str:
    """Fence the node for an incident, if the guard lets it.

    Returns:
        What was done.

    Raises:
        RefusedError: The guard holds: too many nodes are fenced; or a right is missing.
        NotFoundError: There is no such node.
    """
    name, incident = node_name(inputs), inputs.text("incident")
    if not incident:
        raise UsageError("parameter incident is empty: rerail step node-judge gives it")
    words = fence(api, name, incident, inputs.text("reason") or "unknown", device=inputs.text("device"))
    outputs.words(words)
    return words


def fence(api: KubeApi, node: str, incident: str, reason: str, *, device: str = "") -> str:
    """Mark a node, if the guard lets it.

    Raises:
        RefusedError: The guard holds, or a right is missing.
    """
    others = [one for one in api.list(NODES, labels=LINUX).items if one["metadata"]["name"] != node]
    fenced = sum(bool(why_not_usable(one, ())) for one in others)
    hold = KubeGuard(api).ask_quarantine(node, incident, nodes=len(others) + 1, fenced=fenced)
    if hold:
        raise RefusedError(f"node {node!r} is not marked: {hold}")
    KubeNodes(api, count_pods=False).mark(node, incident, reason, device=device)
    return f"node {node} is marked: {reason}{f' of {device}' if device else ''} (incident {incident})"


def release(inputs: Inputs, outputs: Outputs, api: KubeApi) -> str:
    """Give the node back to work, if that was approved.

    Returns:
        What was done.

    Raises:
        RefusedError: It was not approved, or a device failed so often that only a person may release the node.
    """
    name, approval, answer = node_name(inputs), inputs.text("approval"), inputs.text("answer")
    if approval not in ("required", "automatic"):
        raise UsageError(f"parameter approval = {approval!r}: required or automatic belongs there")
    outputs.write(released="false")
    if approval == "required" and answer != APPROVE:
        raise RefusedError(f"node {name!r} stays as it is: the answer is {answer or 'missing'}, not {APPROVE}")
    KubeNodes(api, count_pods=False).release(name, by=inputs.text("by"))
    cordoned = bool((api.get(NODES, name).get("spec") or {}).get("unschedulable"))
    if cordoned and inputs.text("uncordon") == "true":
        api.patch(NODES, name, {"spec": {"unschedulable": None}}, kind="merge", repeatable=True)
        cordoned = False
    words = f"node {name} goes back to work" + ("; it is still cordoned: kubectl uncordon it" if cordoned else "")
    outputs.write(released="true")
    outputs.words(words)
    return words


def node_name(inputs: Inputs) -> str:
    """The node that is meant.

    Raises:
        UsageError: None is named.
    """
    name = inputs.text("node")
    if not name:
        raise UsageError("parameter node is empty: name the node as kubectl get nodes does")
    return name


def is_fenced(node: Obj) -> bool:
    """Whether new work is kept off a node, by our mark or by a cordon."""
    marked: Sequence[Any] = [one for one in taints(node) if one.get("key") == QUARANTINED]
    return bool(marked) or bool((node.get("spec") or {}).get("unschedulable"))
