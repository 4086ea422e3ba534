"""``rerail step failover``: a Deployment's replicas on a faulty node are replaced at once, and nothing is saved."""

from collections.abc import Callable
from typing import Any, Final

from rerail.plugins.gang.ports import Clock
from rerail.plugins.kube.api import KubeApi, Obj
from rerail.plugins.kube.resources import NODES, PODS, ResourceType
from rerail.plugins.nodes.fit import why_not_ready
from rerail.plugins.steps.inputs import Inputs
from rerail.plugins.steps.nodes import fence, is_fenced, node_name
from rerail.plugins.steps.outputs import Outputs
from rerail.plugins.steps.simple import number
from rerail.policies.errors import ConflictError, DeadlineError, DisruptionBudgetError, NotFoundError, UsageError

DEPLOYMENTS: Final = ResourceType("apps", "v1", "deployments", "Deployment")

_POLL_S: Final = 1.0

Log = Callable[[str], object]


def perform(inputs: Inputs, outputs: Outputs, api: KubeApi, *, log: Log, clock: Clock | None = None) -> int:
    """Keep new work off the node, evict the Deployment's pods there, and wait until as many are ready elsewhere.

    Returns:
        How many were replaced.

    Raises:
        DeadlineError: They are not ready elsewhere in time, or a disruption budget keeps one of them.
        NotFoundError: There is no such node or Deployment.
        UsageError: A parameter is wrong.
    """
    name, node = inputs.text("deployment"), node_name(inputs)
    if not name:
        raise UsageError("parameter deployment is empty: name the Deployment as kubectl get deployments does")
    within_s = number("ready-within-s", inputs.text("ready-within-s") or "300", least=1)
    time = clock or Clock()
    end_s = time.monotonic_s() + within_s
    namespace = inputs.workflow.namespace
    deployment = api.get(DEPLOYMENTS, name, namespace=namespace)
    wanted = int((deployment.get("spec") or {}).get("replicas", 1))
    labels = _labels(deployment)
    standing = api.get(NODES, node)
    if not is_fenced(standing) and not why_not_ready(standing):
        log(fence(api, node, f"{inputs.workflow.name}-failover", "inference-failover"))
    there = [pod for pod in _pods(api, namespace, labels) if _node_of(pod) == node]
    refusals = [refusal for pod in there if (refusal := _evicted(api, pod, end_s=end_s, clock=time))]
    while True:
        ready = [pod for pod in _pods(api, namespace, labels) if _node_of(pod) != node and _is_ready(pod)]
        if len(ready) >= wanted and not refusals:
            break
        if time.monotonic_s() >= end_s or refusals:
            why = f" ({refusals[0]})" if refusals else ""
            words = f"{len(ready)} of {wanted} replicas of {name} are ready on other nodes than {node}{why}"
            outputs.write(replaced=len(there))
            raise DeadlineError(words)
        time.sleep(_POLL_S)
    words = f"{len(there)} replicas of {name} left node {node}; {len(ready)} of {wanted} are ready elsewhere"
    outputs.write(replaced=len(there))
    outputs.words(words)
    log(words)
    return len(there)


def _labels(deployment: Obj) -> dict[str, str]:
    labels = ((deployment.get("spec") or {}).get("selector") or {}).get("matchLabels") or {}
    if not labels:
        raise UsageError(f"Deployment {deployment['metadata']['name']!r} selects its pods without matchLabels")
    return {str(key): str(value) for key, value in labels.items()}


def _pods(api: KubeApi, namespace: str, labels: dict[str, str]) -> list[Obj]:
    """Pods that were not asked to go; on a node that does not report those stay, and do not count."""
    pods: list[Obj] = list(api.list(PODS, namespace=namespace, labels=labels).items)
    return [pod for pod in pods if not pod["metadata"].get("deletionTimestamp")]


def _evicted(api: KubeApi, pod: Obj, *, end_s: float, clock: Clock) -> str:
    """Evict one pod, as soon as its disruption budget lets it; why not, where it did not in time."""
    metadata: dict[str, Any] = pod["metadata"]
    while True:
        try:
            api.evict(metadata["name"], namespace=metadata["namespace"], uid=metadata["uid"])
        except (NotFoundError, ConflictError):
            return ""
        except DisruptionBudgetError as error:
            if clock.monotonic_s() >= end_s:
                return str(error)
            clock.sleep(_POLL_S)
        else:
            return ""


def _node_of(pod: Obj) -> str:
    return str((pod.get("spec") or {}).get("nodeName") or "")


def _is_ready(pod: Obj) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions)
