"""Pods of Workflows on lost nodes: they stay as long as the node is silent, and Argo waits for them without end.

A step that drives a run may run twice, so it need not be known that the lost one is dead: its pod is given up, Argo
sees that it failed and starts it anew elsewhere. A rank that Argo made, and that was told to go, is never made again:
should its processes live on unseen, the store lets none of them commit, since the next attempt seals theirs.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Final

from rerail.plugins.gang.giving_up import give_up
from rerail.plugins.kube.api import KubeApi
from rerail.plugins.kube.resources import NODES, PODS
from rerail.policies.errors import NotFoundError
from rerail.policies.volcano_verdict import GHOST_AFTER_S
from rerail.policies.workloads.fanout import POD_LABEL

OF_ARGO: Final = "workflows.argoproj.io/workflow"
"""Label of every pod of a Workflow."""

_REPEATABLE: Final = ("resolve", "run", "open", "assess", "report", "give-up", "say", "reap")
_LIVE: Final = ("Pending", "Running", "Unknown")

Obj = dict[str, Any]


def give_up_lost(api: KubeApi, namespace: str, *, wall_s: float, log: Callable[[str], None]) -> list[str]:
    """Give up the pods of steps and ranks that were told to go, whose time is over, and whose node does not report.

    Args:
        api: The API server.
        namespace: Of the Workflows.
        wall_s: Epoch seconds now.
        log: Takes one line for people.

    Returns:
        Names of the pods.

    Raises:
        RerailError: Pods or nodes cannot be read, or a pod cannot be given up.
    """
    given_up = []
    for pod in api.list(PODS, namespace=namespace, labels=OF_ARGO).items:
        name, node = str(pod["metadata"]["name"]), str(pod["spec"].get("nodeName") or "")
        what = _after(pod, wall_s)
        if not what or not node or _reports(api, node):
            continue
        words = f"node {node} is lost, and its pod was given up: {what}"
        give_up(api, pod, words, wall_s=wall_s)
        given_up.append(name)
        log(f"pod {name}: {words}")
    return given_up


def _after(pod: Obj, wall_s: float) -> str:
    """What follows if a pod is given up; empty where it must not be."""
    if _may_repeat(pod) and _is_overdue(pod, wall_s):
        return "the step begins anew elsewhere"
    if POD_LABEL in (pod["metadata"].get("labels") or {}) and _is_overdue(pod, wall_s - GHOST_AFTER_S):
        return "its gang was told to go"
    return ""


def _is_overdue(pod: Obj, wall_s: float) -> bool:
    """Whether it was to be gone by now; Kubernetes stamps a deletion with the end of the pod's grace."""
    stamp = pod["metadata"].get("deletionTimestamp")
    live = (pod.get("status") or {}).get("phase") in _LIVE
    return bool(stamp) and live and datetime.fromisoformat(stamp).timestamp() < wall_s


def _may_repeat(pod: Obj) -> bool:
    """Whether it is a step of ours that may run twice at once."""
    for container in pod["spec"].get("containers") or []:
        words = [*(container.get("command") or []), *(container.get("args") or [])]
        at = words.index("rerail") if "rerail" in words else len(words)
        if words[at + 1 : at + 2] == ["step"] and any(word in _REPEATABLE for word in words[at + 2 : at + 3]):
            return True
    return False


def _reports(api: KubeApi, node: str) -> bool:
    try:
        conditions = (api.get(NODES, node).get("status") or {}).get("conditions") or []
    except NotFoundError:
        return False
    return any((one.get("type"), one.get("status")) == ("Ready", "True") for one in conditions)
