"""What the platform says about a gang's pods, nodes and objects, judged without the ranks' own words."""

from rerail.policies.endings import judge_ending
from rerail.policies.recovery import RecoveryPolicy
from rerail.policies.supervisor.budgets import room_wait
from rerail.policies.supervisor.judgement import Judgement
from rerail.policies.supervisor.observations import Observations, PodView, StuckView
from rerail.policies.supervisor.state import OUT_OF_MEMORY, Failure, RunState

DELETED = "deleted"
"""Why a pod goes away that somebody deleted, where the platform gives no reason of its own."""


def of_pods(seen: Observations) -> Judgement | None:
    """Judge how pods ended; None while none did."""
    lost = of_lost_pods(seen)
    if lost is not None:
        return lost
    pods = pods_of(seen)
    failed = sorted((pod for pod in pods if pod.phase == "failed"), key=lambda pod: pod.disrupted == DELETED)
    if failed:
        pod = failed[0]
        if pod.disrupted:
            return _disrupted(pod)
        ending = judge_ending(pod.exit_code, pod_reason=pod.reason or None, conditions=(pod.reason,))
        evicted = ending.cause == "infrastructure"
        return Judgement(
            class_name="evicted" if evicted else "pod-failed",
            scope="cluster" if evicted else "process",
            action="none" if evicted else "restart_app",
            cause="preemption" if evicted else "application" if ending.cause == "application" else "unknown",
            next="new-gang",
            node=pod.node,
            evidence=(f"pod {pod.name} ended with exit code {pod.exit_code}: {ending.why}",),
        )
    if pods and all(pod.phase == "succeeded" for pod in pods) and not is_final(seen):
        return Judgement(
            class_name="no-final-commit",
            scope="process",
            action="none",
            cause="application",
            next="stop",
            evidence=("every rank ended with 0, but there is no final commit; end the script with ckpt.finish(step)",),
        )
    return None


def of_lost_pods(seen: Observations) -> Judgement | None:
    """Pods that left no word: taken away, out of memory, or with their node. None where there is none."""
    pods = pods_of(seen)
    lost = [pod for pod in pods if pod.phase == "gone" or (pod.phase == "failed" and not pod.farewell)]
    if not lost:
        return None
    taken = next((pod for pod in lost if pod.disrupted not in ("", DELETED)), None)
    # Where a pod fails the platform deletes the others: those that it did not delete tell why.
    lost = [pod for pod in lost if pod.disrupted != DELETED] or lost
    taken = taken or next((pod for pod in lost if pod.disrupted), None)
    if taken is not None:
        return _disrupted(taken)
    killed = next((pod for pod in lost if pod.reason == "OOMKilled"), None)
    if killed is not None:
        return Judgement(
            class_name="oom",
            scope="process",
            action="restart_app",
            cause="application",
            next="new-gang",
            node=killed.node,
            evidence=(f"pod {killed.name} was killed for memory",),
            failure=Failure(error=OUT_OF_MEMORY, step=None, nodes=tuple(dict.fromkeys(pod.node for pod in pods))),
        )
    first = next((pod for pod in lost if pod.node_ready is False), lost[0])
    others = [pod for pod in pods if pod.node == first.node and pod not in lost]
    # Where the platform tells which nodes report, losing every pod of one that does is no loss of the node.
    node_lost = not others if first.node_ready is None else not first.node_ready
    return Judgement(
        class_name="node-lost" if node_lost else "pod-lost",
        scope="node",
        action="investigate",
        cause="infrastructure",
        next="new-gang",
        node=first.node,
        exclude=node_lost,
        confidence=0.7,
        evidence=(f"every process of pod {first.name} on node {first.node} ended without a farewell",),
    )


def taken_away(seen: Observations) -> Judgement | None:
    """A gang of which pods are asked to leave by the platform, as an end; None where it takes none away."""
    pods = [pod for pod in pods_of(seen) if pod.disrupted]
    chosen = next((pod for pod in pods if pod.disrupted != DELETED), pods[0] if pods else None)
    return None if chosen is None else _disrupted(chosen)


def of_leaving(seen: Observations) -> Judgement | None:
    """Pods that are to go and have not ended yet: one is enough, and all ranks save and leave with it."""
    pods = [pod for pod in pods_of(seen) if pod.disrupted and pod.phase in ("pending", "running")]
    chosen = next((pod for pod in pods if pod.disrupted != DELETED), pods[0] if pods else None)
    if chosen is None or is_final(seen):
        return None
    what = f"pod {chosen.name} is being taken away from node {chosen.node or 'none'} ({chosen.disrupted})"
    return _disrupted(chosen).model_copy(update={"trusted": True, "evidence": (what,)})


def of_maintenance(state: RunState, seen: Observations, *, now_s: float) -> Judgement | None:
    """A node of the gang that somebody announced to take away soon: no fault, and nobody waits for it."""
    if is_final(seen):
        return None
    used = set(state.gang.nodes) if state.gang else set()
    for node in seen.nodes or ():
        if node.name in used and node.leaves is not None and node.leaves.is_due(now_s):
            return Judgement(
                class_name="maintenance",
                scope="node",
                action="none",
                cause="preemption",
                next="new-gang",
                trusted=True,
                node=node.name,
                evidence=(f"node {node.name} will be taken away ({node.leaves.source}: {node.leaves.what})",),
            )
    return None


def _disrupted(pod: PodView) -> Judgement:
    preempted = pod.disrupted.startswith("Preemption")
    return Judgement(
        class_name="preemption" if preempted else "evicted",
        scope="cluster",
        action="none",
        cause="preemption",
        next="new-gang",
        evidence=(f"pod {pod.name} was taken away from node {pod.node} ({pod.disrupted}) before it could save",),
    )


def of_absence(state: RunState, seen: Observations, policy: RecoveryPolicy) -> Judgement | None:
    """The platform's object of the gang is gone with its pods: somebody deleted it."""
    if state.gang is None or seen.gang is None or not seen.gang.absent or is_final(seen):
        return None
    if not state.gang.nodes and seen.heartbeat_age_s <= policy.node_lost_after_s:
        return None  # being created
    return Judgement(
        class_name="gang-deleted",
        scope="cluster",
        action="none",
        cause="infrastructure",
        next="new-gang",
        evidence=(f"gang {state.gang.name} was deleted by somebody else; to end a run, stop its supervisor",),
    )


def of_platform(state: RunState, seen: Observations, policy: RecoveryPolicy) -> Judgement | None:
    """A state of the platform that will not move, or a node that does not report while its ranks are silent."""
    gang = seen.gang
    if gang is None or is_final(seen):
        return None
    silent = [pod for pod in gang.pods if pod.node_ready is False and pod.phase == "running"]
    if silent and seen.heartbeat_age_s > policy.node_lost_after_s:
        first, age = silent[0], f"{seen.heartbeat_age_s:.1f} s"
        return Judgement(
            class_name="node-lost",
            scope="node",
            action="investigate",
            cause="infrastructure",
            next="new-gang",
            node=first.node,
            exclude=True,
            confidence=0.7,
            evidence=(f"node {first.node} of pod {first.name} does not report, and no step came for {age}",),
        )
    wait_s, field = room_wait(state, policy)
    if gang.waits and seen.waits_s > wait_s:
        return Judgement(
            class_name="not-placed",
            scope="cluster",
            action="none",
            cause="infrastructure",
            next="stop",
            evidence=(f"{gang.waits}, for {wait_s:g} s (policy {field})",),
        )
    return None if gang.stuck is None else _of_stuck(gang.stuck)


def _of_stuck(stuck: StuckView) -> Judgement:
    """What does not move: a mark that nobody follows up is answered by saving, the rest by a fresh gang or the end."""
    out = f"; {stuck.way_out}" if stuck.way_out else ""
    nobody_can = stuck.code in ("S7", "S8", "image")
    return Judgement(
        class_name=f"stuck-{stuck.code.lower()}",
        scope="cluster",
        action="none",
        cause="preemption" if stuck.code == "S6" else "infrastructure",
        next="stop" if nobody_can else "new-gang",
        trusted=stuck.code == "S6",
        evidence=(f"{stuck.why}{out}",),
    )


def pods_of(seen: Observations) -> tuple[PodView, ...]:
    """The pods that are seen."""
    return seen.gang.pods if seen.gang else ()


def is_final(seen: Observations) -> bool:
    """Whether the newest commit says that the work is done."""
    return seen.commit is not None and seen.commit.reason == "final"
