"""``rerail step retry-assess``: whether a step that failed did so because of its node, and runs again elsewhere.

The second half of rerail-retry. It reads which pods failed below the step, and what their nodes say. A node at fault is
marked, so that other workflows keep off it, too.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from rerail.plugins.gang.ports import Clock
from rerail.plugins.kube.api import KubeApi, Obj
from rerail.plugins.kube.resources import NODES
from rerail.plugins.nodes.fit import why_not_ready
from rerail.plugins.steps.inputs import Inputs
from rerail.plugins.steps.nodes import fence, judged
from rerail.plugins.steps.outputs import Outputs
from rerail.plugins.steps.simple import number
from rerail.plugins.steps.workflow import nodes_of_workflow
from rerail.policies.documents import Value
from rerail.policies.endings import judge_ending
from rerail.policies.errors import DO_NOT_RETRY, LEFT_UNSAVED, NotFoundError, RerailError, UsageError

AGAIN: Final = "again"
GIVE_UP: Final = "give-up"

_DEVICE_LOST: Final = re.compile(r"device plugin|nvml|GPU is lost|Allocate failed", re.IGNORECASE)
_REASON: Final = re.compile(r"\b(UnexpectedAdmissionError|Evicted|NodeShutdown|Preempted|NodeAffinity)\b")
_OOM: Final = "OOMKilled"
_NODE_SHUTDOWN: Final = re.compile(r"node shutdown", re.IGNORECASE)
_MOST_NAMED: Final = 3
_POLL_S: Final = 1.0


class FailedPod(Value):
    """A pod of the step that did not succeed.

    Attributes:
        name: Of the workflow's node.
        node: Where it ran; empty where it never was placed.
        phase: ``Failed`` or ``Error``.
        exit_code: None where it is not known.
        message: Argo's.
    """

    name: str
    node: str = ""
    phase: str
    exit_code: int | None = None
    message: str = ""


class Verdict(Value):
    """What follows.

    Attributes:
        outcome: ``again`` on another node, or ``give-up``.
        words: Why.
        final: Whatever the nodes say later changes nothing.
        at_fault: The node that is to be marked, with incident and reason; empty where none is.
    """

    outcome: str
    words: str
    final: bool = False
    at_fault: str = ""
    incident: str = ""
    reason: str = ""
    device: str = ""


def perform(
    inputs: Inputs, outputs: Outputs, api: KubeApi, *, log: Callable[[str], object], clock: Clock | None = None
) -> int:
    """Judge, mark and tell. A node is looked at for ``settle-s`` seconds: its agent may be later than the failure.

    Returns:
        The exit code: 86 where another node may help, so that the retry goes on; 0 where nothing would.
    """
    node_id = inputs.text("node-id")
    if not node_id:
        raise UsageError("RERAIL_NODE_ID is empty: it is the id of the step's node in its Workflow")
    failed = failed_below(nodes_of_workflow(api, inputs.workflow), node_id)
    time = clock or Clock()
    end_s = time.monotonic_s() + number("settle-s", inputs.text("settle-s") or "0", least=0)
    while True:
        found = verdict(failed, lambda name: _look(api, name, log), now_s=time.wall_s())
        if found.outcome == AGAIN or found.final or time.monotonic_s() >= end_s:
            break
        time.sleep(_POLL_S)
    words = found.words
    if found.at_fault and found.incident:
        try:
            log(fence(api, found.at_fault, found.incident, found.reason, device=found.device))
        except RerailError as error:
            words = f"{words}; {error}"
            log(str(error))
    outputs.write(outcome=found.outcome)
    outputs.words(words)
    log(f"{found.outcome}: {words}")
    return LEFT_UNSAVED if found.outcome == AGAIN else 0


def failed_below(nodes: Mapping[str, Obj], node_id: str) -> tuple[FailedPod, ...]:
    """The pods below a node of a Workflow that did not succeed, of its last try only; pure."""
    root = nodes.get(node_id)
    if root is None:
        return ()
    return tuple(_failed(nodes, root, set()))


def _failed(nodes: Mapping[str, Obj], node: Obj, seen: set[str]) -> Iterator[FailedPod]:
    if node["id"] in seen:
        return
    seen.add(node["id"])
    if node.get("type") == "Pod":
        if node.get("phase") in ("Failed", "Error"):
            code = str((node.get("outputs") or {}).get("exitCode") or "")
            yield FailedPod(
                name=str(node.get("displayName") or node["id"]),
                node=str(node.get("hostNodeName") or ""),
                phase=str(node["phase"]),
                exit_code=int(code) if re.fullmatch(r"\d+", code) else None,
                message=str(node.get("message") or ""),
            )
        return
    inside = [one for one in nodes.values() if one.get("boundaryID") == node["id"]]
    if node.get("type") == "Retry":
        inside = [nodes[child] for child in node.get("children") or [] if child in nodes][-1:]
    for child in inside:
        yield from _failed(nodes, child, seen)


def verdict(failed: tuple[FailedPod, ...], look: Callable[[str], Obj | None], *, now_s: float) -> Verdict:
    """Whether another node may help; pure but for ``look``.

    Args:
        failed: The pods that did not succeed.
        look: A node by its name; None where it is gone. May raise ``RerailError`` where nobody may look.
        now_s: Epoch seconds.
    """
    if not failed:
        return Verdict(outcome=AGAIN, words="no pod of the step is known to have failed: its pod was lost")
    found = [_of_pod(pod, look, now_s=now_s) for pod in failed]
    useless = next((one for one in found if one.final), None)
    helped = next((one for one in found if one.outcome == AGAIN), None)
    words = "; ".join(one.words for one in found[:_MOST_NAMED])
    return useless or helped or Verdict(outcome=GIVE_UP, words=words)


def _of_pod(pod: FailedPod, look: Callable[[str], Obj | None], *, now_s: float) -> Verdict:
    where = f"{pod.name} on {pod.node}" if pod.node else pod.name
    if pod.exit_code == DO_NOT_RETRY:
        words = f"{where}: exit code {DO_NOT_RETRY} says that trying again is useless"
        return Verdict(outcome=GIVE_UP, words=words, final=True)
    if pod.node:
        node = look(pod.node)
        if node is None:
            return Verdict(outcome=AGAIN, words=f"{where}: the node is gone")
        seen = judged(node, source="auto", now_s=now_s)
        if seen.diagnosis is not None and seen.diagnosis.quarantine != "none":
            return Verdict(
                outcome=AGAIN,
                words=f"{where}: {seen.words}",
                at_fault=pod.node,
                incident=seen.incident,
                reason=seen.diagnosis.class_,
                device=(*seen.diagnosis.devices, "")[0],
            )
        lost = why_not_ready(node)
        if lost:
            return Verdict(outcome=AGAIN, words=f"{where}: {lost}")
        if _DEVICE_LOST.search(pod.message):
            return Verdict(
                outcome=AGAIN,
                words=f"{where}: its GPU was refused: {pod.message}",
                at_fault=pod.node,
                incident=f"{pod.node}-refused-{_boot(node)}",
                reason="gpu_lost",
            )
    if pod.phase == "Error" or _NODE_SHUTDOWN.search(pod.message):
        return Verdict(outcome=AGAIN, words=f"{where}: {pod.message or 'its pod was lost'}")
    reason = _REASON.search(pod.message)
    ending = judge_ending(
        pod.exit_code,
        pod_reason=reason[1] if reason else None,
        container_reason=_OOM if _OOM in pod.message else None,
    )
    helps = ending.cause not in ("application", "resource")
    said = f": {pod.message}" if pod.message else ""
    return Verdict(outcome=AGAIN if helps else GIVE_UP, words=f"{where}: {ending.why}{said}")


def _boot(node: Obj) -> str:
    return str(((node.get("status") or {}).get("nodeInfo") or {}).get("bootID") or "boot")[:8]


def _look(api: KubeApi, name: str, log: Callable[[str], object]) -> Obj | None:
    """A node; one that nobody may look at says nothing."""
    ready = {"type": "Ready", "status": "True"}
    try:
        return api.get(NODES, name)
    except NotFoundError:
        return None
    except RerailError as error:
        log(f"node {name} cannot be looked at: {error}")
        return {"metadata": {"name": name}, "status": {"conditions": [ready]}}
