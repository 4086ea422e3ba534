"""Steps on nodes that are lost: their pods stay as long as the node is silent, and Argo waits for them without end.

What drives a run may be driven twice, so it need not be known that the lost one is dead: its pod is given up, Argo sees
that it failed and starts it anew elsewhere. Argo 4.0.5 waits also for a pod that is deleted by force or declared failed
as Kubernetes does (taint ``out-of-service``), as long as its containers count as running: so these are ended, too.
"""

from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from rerail.plugins.kube.api import KubeApi
from rerail.plugins.kube.resources import NODES, PODS
from rerail.policies.errors import ConflictError, NotFoundError

OF_ARGO: Final = "workflows.argoproj.io/workflow"
"""Label of every pod of a Workflow."""

_REPEATABLE: Final = ("resolve", "run", "open", "assess", "report")
_LIVE: Final = ("Pending", "Running", "Unknown")
_KILLED: Final = 137

Obj = dict[str, Any]


def give_up_lost(api: KubeApi, namespace: str, *, wall_s: float, log: Callable[[str], None]) -> list[str]:
    """Give up the pods of steps that were told to go, whose time for that is over, and whose node does not report.

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
        if not _is_overdue(pod, wall_s) or not _may_repeat(pod) or not node or _reports(api, node):
            continue
        words = f"node {node} is lost, and its pod was given up: the step begins anew elsewhere"
        uid = pod["metadata"]["uid"]
        with suppress(NotFoundError, ConflictError):  # gone meanwhile
            change = {"metadata": {"uid": uid}, "status": _lost(pod, words, wall_s)}
            api.patch(PODS, name, change, namespace=namespace, subresource="status", repeatable=True)
            api.delete(PODS, name, namespace=namespace, uid=uid, grace_s=0)
        given_up.append(name)
        log(f"pod {name}: {words}")
    return given_up


def _lost(pod: Obj, words: str, wall_s: float) -> Obj:
    at = datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ended = {"terminated": {"exitCode": _KILLED, "reason": "NodeLost", "finishedAt": at}}
    containers = [
        one if "terminated" in (one.get("state") or {}) else {**one, "ready": False, "started": False, "state": ended}
        for one in (pod.get("status") or {}).get("containerStatuses") or []
    ]
    return {"phase": "Failed", "reason": "NodeLost", "message": words, "containerStatuses": containers}


def _is_overdue(pod: Obj, wall_s: float) -> bool:
    """Whether it was to be gone by now; Kubernetes stamps a deletion with the end of the pod's grace."""
    stamp = pod["metadata"].get("deletionTimestamp")
    live = (pod.get("status") or {}).get("phase") in _LIVE
    return bool(stamp) and live and datetime.fromisoformat(stamp).timestamp() < wall_s


def _may_repeat(pod: Obj) -> bool:
    """Whether it is a step of ours that may run twice at once."""
    for container in pod["spec"].get("containers") or []:
        words = [*(container.get("command") or []), *(container.get("args") or [])]
        if words[-3:-1] == ["rerail", "step"] and words[-1] in _REPEATABLE:
            return True
    return False


def _reports(api: KubeApi, node: str) -> bool:
    try:
        conditions = (api.get(NODES, node).get("status") or {}).get("conditions") or []
    except NotFoundError:
        return False
    return any((one.get("type"), one.get("status")) == ("Ready", "True") for one in conditions)
