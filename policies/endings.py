"""Whose fault an ending is, whether it uses a budget, and where to go on: exit code, pod and node joined.

An exit code alone cannot tell infrastructure from application: 137 is a node's shutdown, a missing gigabyte or a
person; 1 is a bug, or what Python says when a GPU fell off the bus 20 s before. ``judge_ending`` joins it with what
the pod, its conditions, the container and the node's own fault records say. The supervisor charges budgets by it.
"""

from collections.abc import Collection
from typing import Final, Literal

from pydantic import Field

from rerail.policies.documents import Value
from rerail.policies.errors import (
    DAMAGE_MET,
    DO_NOT_RETRY,
    DONE,
    LEFT_UNSAVED,
    NVRX_TERMINAL,
    SAVED_AND_LEFT,
)

Cause = Literal["none", "infrastructure", "hardware", "application", "resource", "damage", "request", "unknown"]
Retry = Literal["no", "yes", "until-limit", "changed"]
Where = Literal["same", "elsewhere", "nowhere"]

EVIDENCE_WINDOW_S: Final = 600.0
"""How long before an exit a device fault may lie to be its cause: collectives give up after up to 600 s."""

IDENTICAL_FAILURES: Final = 2
"""From this many failures at one step on, the step is what fails."""

INFRASTRUCTURE_REASONS: Final = frozenset(
    {
        "Evicted",
        "NodeAffinity",
        "NodeLost",
        "NodeNotReady",
        "NodeShutdown",
        "NodeUnreachable",
        "OutOfcpu",
        "OutOfmemory",
        "OutOfpods",
        "Preempted",
        "Preempting",
        "Shutdown",
        "Terminated",
        "UnexpectedAdmissionError",
    }
)
"""Pod reasons by which the kubelet or the control plane says that it ended the pod, or never let it begin."""

_SIGKILL, _SIGTERM = 137, 143


class NodeEvidence(Value):
    """A fault record of a node that lies near an ending.

    Attributes:
        hardware: Whether the record speaks of a device or the node itself. The catalogue says so of codes: some XIDs
            are what a faulty program causes as well, or are ignored by NVIDIA's own table, and accuse nothing.
        before_s: Seconds between the record and the exit; None where unknown. Negative: logged after the exit.
        same_node: Whether the node is the one the failed rank ran on, or of the same gang.
    """

    hardware: bool = True
    before_s: float | None = None
    same_node: bool = True

    def accuses(self, window_s: float = EVIDENCE_WINDOW_S) -> bool:
        """Whether the record makes the device or node the cause of an exit at this distance."""
        near = self.before_s is None or abs(self.before_s) <= window_s
        return self.hardware and self.same_node and near


class Ending(Value):
    """The verdict on one ending.

    Attributes:
        cause: Which budget it belongs to; ``none``, ``damage`` and ``request`` use none.
        counted: Whether the attempt is charged against a limit of the user's own.
        retry: ``until-limit``: stop at the limit of identical failures; ``changed``: only with other resources.
        where: Whether the same node may be used again.
        why: The fact that decided, for the report.
    """

    cause: Cause
    counted: bool
    retry: Retry
    where: Where
    why: str = Field(min_length=1)


def judge_ending(
    exit_code: int | None,
    *,
    pod_reason: str | None = None,
    conditions: Collection[str] = (),
    container_reason: str | None = None,
    node_evidence: Collection[NodeEvidence] = (),
    same_step_failures: int = 0,
) -> Ending:
    """Judge how a training container ended. The most concrete fact decides; the bare exit code comes last.

    Args:
        exit_code: As the container runtime reports it (128 + signal number for a signal); None where it is lost.
        pod_reason: ``status.reason`` of the pod, for example ``NodeShutdown``.
        conditions: Types of the pod's conditions that are True, for example ``DisruptionTarget``.
        container_reason: ``state.terminated.reason`` of the container, for example ``OOMKilled``.
        node_evidence: Fault records of the node near the exit.
        same_step_failures: How often the run has failed at this step with the same error, this time included.
    """
    if exit_code == DONE:
        return Ending(cause="none", counted=False, retry="no", where="nowhere", why="finished with exit code 0")
    if container_reason == "OOMKilled":
        why = "the container's memory limit was reached"
        return Ending(cause="resource", counted=True, retry="changed", where="same", why=why)
    told = _told_by_exit_code(exit_code)
    if told is not None:
        return told
    if any(one.accuses() for one in node_evidence):
        why = "the node recorded a fault of a device or of itself shortly before"
        return Ending(cause="hardware", counted=False, retry="yes", where="elsewhere", why=why)
    if pod_reason in INFRASTRUCTURE_REASONS or "DisruptionTarget" in conditions:
        by = pod_reason if pod_reason in INFRASTRUCTURE_REASONS else "DisruptionTarget"
        return Ending(
            cause="infrastructure", counted=False, retry="yes", where="same", why=f"the cluster ended it: {by}"
        )
    if same_step_failures >= IDENTICAL_FAILURES:
        why = f"the same failure at the same step {same_step_failures} times"
        return Ending(cause="application", counted=True, retry="until-limit", where="elsewhere", why=why)
    if exit_code in (None, _SIGKILL, _SIGTERM):
        why = f"exit code {exit_code} and nothing that says who ended it"
        return Ending(cause="unknown", counted=True, retry="yes", where="same", why=why)
    why = f"exit code {exit_code} and no fault of pod or node near it"
    return Ending(cause="application", counted=True, retry="yes", where="same", why=why)


def _told_by_exit_code(exit_code: int | None) -> Ending | None:
    """The codes by which launch and training processes say themselves what happened."""
    if exit_code in (SAVED_AND_LEFT, LEFT_UNSAVED):
        why = "left as asked, " + ("saved" if exit_code == SAVED_AND_LEFT else "without saving")
        return Ending(cause="request", counted=False, retry="yes", where="same", why=why)
    if exit_code in (DO_NOT_RETRY, NVRX_TERMINAL):
        why = f"exit code {exit_code} says that trying again is useless"
        return Ending(cause="application", counted=True, retry="no", where="nowhere", why=why)
    if exit_code == DAMAGE_MET:
        why = "met a damaged checkpoint, which the next attempt passes over"
        return Ending(cause="damage", counted=False, retry="yes", where="same", why=why)
    return None
