"""The end of a pod on a node that is lost, as Argo has to see it: it waits for such a pod without end.

Argo 4.0.5 waits also for a pod that is deleted by force or declared failed as Kubernetes does (taint
``out-of-service``), as long as its containers count as running: so these are ended, too.
"""

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from rerail.plugins.kube.api import KubeApi
from rerail.plugins.kube.resources import PODS
from rerail.policies.errors import ConflictError, NotFoundError

_KILLED: Final = 137

Obj = dict[str, Any]


def give_up(api: KubeApi, pod: Obj, words: str, *, wall_s: float) -> None:
    """Declare that a pod failed, and take its object away. Only for one whose processes may live on unseen.

    Args:
        api: The API server.
        pod: As the API server has it.
        words: Why, for people; the pod's message.
        wall_s: Epoch seconds now.

    Raises:
        RerailError: It cannot be given up. One that is gone, or another one of its name, is no trouble.
    """
    metadata = pod["metadata"]
    name, namespace, uid = str(metadata["name"]), str(metadata["namespace"]), metadata["uid"]
    with suppress(NotFoundError, ConflictError):
        change = {"metadata": {"uid": uid}, "status": _lost(pod, words, wall_s)}
        api.patch(PODS, name, change, namespace=namespace, subresource="status", repeatable=True)
        api.delete(PODS, name, namespace=namespace, uid=uid, grace_s=0)


def _lost(pod: Obj, words: str, wall_s: float) -> Obj:
    at = datetime.fromtimestamp(wall_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    ended = {"terminated": {"exitCode": _KILLED, "reason": "NodeLost", "finishedAt": at}}
    containers = [
        one if "terminated" in (one.get("state") or {}) else {**one, "ready": False, "started": False, "state": ended}
        for one in (pod.get("status") or {}).get("containerStatuses") or []
    ]
    return {"phase": "Failed", "reason": "NodeLost", "message": words, "containerStatuses": containers}
