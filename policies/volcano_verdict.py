"""What became of a Volcano gang: a verdict from its phase, its pods and its group; never from counts in its status.

After a kill Volcano rebuilds the counts from killed pods only, ``Completed`` may hide evicted ranks, and a job whose
rank died may say ``Running`` for ever. So pods are judged one by one, success is the caller's own marker, and states
that no phase names are told as stuck, by the codes S1 to S8. How long a state has held is the caller's to know: the
cluster's own times are not written when only the time changes.
"""

from collections.abc import Mapping
from typing import Final, Literal

from pydantic import Field

from rerail.policies.documents import Value
from rerail.policies.endings import Cause, Ending, judge_ending

StuckCode = Literal["S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8"]

State = Literal[
    "succeeded",
    "incomplete",
    "completed",
    "failed",
    "retry_exhausted",
    "controller_gave_up",
    "terminated",
    "suspended",
    "deleted",
    "stuck",
    "ending",
    "restarting",
    "running",
    "pending",
    "unknown",
]

GHOST_AFTER_S: Final = 60.0
"""How long after the end of its grace period a pod that is still there, on a node that is not ready, is a ghost."""

QUEUE_MISSING: Final = "missing"
"""In place of a queue's state: there is no such queue."""

_PRECEDENCE: Final[tuple[StuckCode, ...]] = ("S3", "S2", "S1", "S6", "S8", "S7", "S4", "S5")
_NOT_ENOUGH_PODS: Final = frozenset({"NotEnoughTasks", "NotEnoughPodsOfTask"})
_LIVE: Final = frozenset({"Pending", "Running"})

_MEANING: Final[Mapping[StuckCode, tuple[str, str]]] = {
    "S1": (
        "stranded: fewer ranks than the gang needs, and no room for the rest",
        "resume from the newest commit: end the whole gang, free its GPUs and submit it again with a higher priority",
    ),
    "S2": (
        "a dead rank that Volcano does not act on",
        "end the whole gang and resume from the newest commit",
    ),
    "S3": (
        "a ghost: a pod whose grace period is over, on a node that does not answer",
        "make sure that the node is off, then delete the pod with grace period 0; next attempts need another name",
    ),
    "S4": (
        "Restarting does not end",
        "delete the job and submit the next attempt under another name",
    ),
    "S5": (
        "admitted to its queue, but not placed: it reserves quota without running",
        "delete it, wait, and submit it again",
    ),
    "S6": (
        "marked for eviction, but not deleted: the deletion failed once and will not be tried again",
        "save, then delete the marked pods yourself",
    ),
    "S7": (
        "pods are missing that the gang needs: quota, admission or a limit on parallelism keeps them from being made",
        "read the job's events (kubectl describe vcjob) and remove the limit",
    ),
    "S8": (
        "its queue takes no jobs",
        "open the queue, or name another one",
    ),
}


class StuckTimers(Value):
    """How long, in seconds, a state must hold before it counts as stuck."""

    stranded_s: float = Field(default=30.0, ge=0)
    dead_rank_s: float = Field(default=10.0, ge=0)
    ghost_s: float = Field(default=0.0, ge=0)
    restarting_s: float = Field(default=120.0, ge=0)
    inqueue_s: float = Field(default=120.0, ge=0)
    unevictable_s: float = Field(default=120.0, ge=0)
    never_valid_s: float = Field(default=60.0, ge=0)
    no_queue_s: float = Field(default=5.0, ge=0)

    def of(self, code: StuckCode) -> float:
        """Seconds for one code."""
        return {
            "S1": self.stranded_s,
            "S2": self.dead_rank_s,
            "S3": self.ghost_s,
            "S4": self.restarting_s,
            "S5": self.inqueue_s,
            "S6": self.unevictable_s,
            "S7": self.never_valid_s,
            "S8": self.no_queue_s,
        }[code]


class PodFacts(Value):
    """What counts about one pod.

    Attributes:
        phase: The pod's own phase.
        ready: Whether its condition Ready is true.
        node: Where it was bound; None before.
        node_ready: False also where the node object is gone; None where nobody may look.
        overdue_s: Seconds since the end of its grace period; negative within it, None while nobody wants it gone.
        exit_code: Of the first container that failed.
        container_reason: Why that container ended, for example OOMKilled.
        pod_reason: ``status.reason`` of the pod.
        conditions: Types of the pod's conditions that are true.
        disruption: Reason of the condition DisruptionTarget, for example PreemptionByScheduler.
        ended_s: When the failed container ended, in seconds of any one clock of the cluster.
    """

    name: str
    phase: str
    ready: bool = False
    node: str | None = None
    node_ready: bool | None = None
    overdue_s: float | None = None
    exit_code: int | None = None
    container_reason: str | None = None
    pod_reason: str | None = None
    conditions: frozenset[str] = frozenset()
    disruption: str | None = None
    ended_s: float | None = None

    @property
    def ending(self) -> Ending:
        """Whose fault its end is."""
        return judge_ending(
            self.exit_code,
            pod_reason=self.pod_reason,
            conditions=self.conditions,
            container_reason=self.container_reason,
        )


class GangFacts(Value):
    """What counts about one gang.

    Attributes:
        name: Its name, for messages.
        found: False where the job is gone.
        phase: The vcjob's phase.
        deleting: Whether its deletion was asked for.
        min_available: Pods that the gang needs.
        retry_count: Restarts so far, as the controller counts them: every one, whatever its cause.
        max_retry: From this many on the job fails.
        pods: All pods of this job.
        group_phase: Phase of its PodGroup; None where there is none.
        unschedulable: Reason of the group's newest condition, where that says that it is not placed.
        message: That condition's message.
        queue: Name of its queue.
        queue_state: The queue's state, or ``missing``; None where nobody may look.
        gave_up: Whether the controller reported that its retry limit was reached.
        final_commit: Whether the run's own marker says that the work is done; None where there is no such marker.
    """

    name: str
    found: bool = True
    phase: str = "Pending"
    deleting: bool = False
    min_available: int = 0
    retry_count: int = 0
    max_retry: int = 3
    pods: tuple[PodFacts, ...] = ()
    group_phase: str | None = None
    unschedulable: str | None = None
    message: str = ""
    queue: str = "default"
    queue_state: str | None = None
    gave_up: bool = False
    final_commit: bool | None = None


class Verdict(Value):
    """What became of a gang.

    Attributes:
        state: The answer. ``completed`` claims no success: nobody said how the work marks its end.
        final: Whether it will not change by itself any more.
        stuck: Which state does not move, for ``stuck``.
        cause: Whose fault a failure is, where pods tell.
        why: The facts that decided.
        way_out: What to do; empty where nothing is to be done.
        pods: Names of the pods that decided.
    """

    state: State
    final: bool
    stuck: StuckCode | None = None
    cause: Cause = "none"
    why: str
    way_out: str = ""
    pods: tuple[str, ...] = ()


def stuck_states(facts: GangFacts) -> dict[StuckCode, tuple[str, ...]]:
    """The states that hold now and would be stuck if they lasted, each with the pods that show it."""
    if not facts.found or facts.phase in ("Completed", "Failed", "Terminated", "Aborted"):
        return {"S3": ghosts} if (ghosts := _ghosts(facts)) else {}
    live = [pod for pod in facts.pods if pod.phase in _LIVE and pod.overdue_s is None]
    running = [pod for pod in live if pod.phase == "Running"]
    ready = [pod for pod in running if pod.ready]
    unplaced = tuple(pod.name for pod in live if pod.node is None)
    failed = tuple(pod.name for pod in facts.pods if pod.phase == "Failed")
    marked = tuple(pod.name for pod in live if pod.disruption is not None)
    short = 0 < len(ready) < facts.min_available
    no_room = facts.group_phase == "Unknown" or facts.unschedulable is not None or facts.phase == "Pending"
    states: dict[StuckCode, tuple[str, ...]] = {}
    if short and no_room:
        states["S1"] = unplaced
    if failed and facts.phase == "Running":
        states["S2"] = failed
    if ghosts := _ghosts(facts):
        states["S3"] = ghosts
    if facts.phase == "Restarting":
        states["S4"] = tuple(pod.name for pod in facts.pods if pod.overdue_s is not None)
    if facts.group_phase == "Inqueue" and len(running) < facts.min_available:
        states["S5"] = unplaced
    if marked:
        states["S6"] = marked
    if facts.unschedulable in _NOT_ENOUGH_PODS and len(live) < facts.min_available:
        states["S7"] = ()
    if facts.phase == "Pending" and facts.queue_state not in (None, "Open"):
        states["S8"] = ()
    return states


def judge_gang(facts: GangFacts, held_s: Mapping[StuckCode, float], timers: StuckTimers | None = None) -> Verdict:
    """Judge a gang.

    Args:
        facts: What is known now.
        held_s: Seconds for which each state of ``stuck_states`` has held, by the caller's own clock.
        timers: From when on a state is stuck.
    """
    if not facts.found:
        return Verdict(state="deleted", final=True, why=f"job {facts.name!r} is gone", way_out=_RESUBMIT)
    ended = _ended(facts)
    if ended is not None:
        return ended
    times = timers or StuckTimers()
    states = stuck_states(facts)
    for code in _PRECEDENCE:
        if code in states and held_s.get(code, 0.0) >= times.of(code):
            meaning, way_out = _MEANING[code]
            why = f"{meaning} (for {held_s.get(code, 0.0):.0f} s; {_seen(facts)})"
            return Verdict(state="stuck", final=False, stuck=code, why=why, way_out=way_out, pods=states[code])
    return _moving(facts)


_RESUBMIT: Final = "submit the next attempt under a new name"


def _ended(facts: GangFacts) -> Verdict | None:
    """The verdict on a phase that ends a job."""
    if facts.phase == "Completed":
        return _completed(facts)
    if facts.phase == "Aborted":
        return Verdict(
            state="suspended",
            final=False,
            why="the job was aborted: a policy, or the command AbortJob",
            way_out="ResumeJob starts it again and counts as a retry; a new attempt does not",
        )
    if facts.phase == "Terminated" and facts.gave_up:
        return Verdict(
            state="controller_gave_up",
            final=True,
            cause="infrastructure",
            why="the controller could not carry out an action and gave the job up: a missing queue or claim, a quota, "
            "or an admission that refuses pods",
            way_out=f"read the job's events, remove the obstacle, then {_RESUBMIT}",
        )
    if facts.phase not in ("Failed", "Terminated"):
        return None
    decided = _decisive(facts)
    used_up = facts.retry_count >= facts.max_retry > 0
    if decided is None and facts.phase == "Failed" and used_up:
        return Verdict(
            state="retry_exhausted",
            final=True,
            cause="unknown",
            why=f"{facts.retry_count} of maxRetry {facts.max_retry} used up, evictions included; no failed pod left",
            way_out=f"{_RESUBMIT}; keep the count of failures outside Volcano",
        )
    why = "the job failed" if facts.phase == "Failed" else "the job was terminated by a policy or a command"
    if decided is None:
        state: State = "failed" if facts.phase == "Failed" else "terminated"
        cause: Cause = "unknown" if facts.phase == "Failed" else "none"
        return Verdict(state=state, final=True, cause=cause, why=f"{why}; no failed pod left", way_out=_RESUBMIT)
    ending = decided.ending
    by = f" ({decided.disruption})" if decided.disruption else ""
    return Verdict(
        state="failed" if facts.phase == "Failed" else "terminated",
        final=True,
        cause=ending.cause,
        why=f"{why}; pod {decided.name} on node {decided.node}: {ending.why}{by}",
        way_out="" if ending.retry == "no" else _RESUBMIT,
        pods=(decided.name,),
    )


def _completed(facts: GangFacts) -> Verdict:
    failed = tuple(pod.name for pod in facts.pods if pod.phase == "Failed")
    if facts.final_commit:
        return Verdict(state="succeeded", final=True, why="Completed, and the final commit is there")
    if facts.final_commit is None:
        hidden = f"; {len(failed)} failed pods are hidden by it" if failed else ""
        return Verdict(
            state="completed",
            final=True,
            why=f"Volcano says Completed{hidden}; no marker of the work itself was asked for",
            pods=failed,
        )
    return Verdict(
        state="incomplete",
        final=True,
        why="Volcano says Completed, but the final commit is not there: a rank left with 0 when it was evicted, or the "
        "job was completed by a policy or a command",
        way_out=f"never leave with 0 on SIGTERM; {_RESUBMIT}",
        pods=failed,
    )


def _decisive(facts: GangFacts) -> PodFacts | None:
    """The pod whose end explains the gang's: others fail because it did, and later."""
    failed = [pod for pod in facts.pods if pod.phase == "Failed" or pod.disruption is not None]
    weight = {"hardware": 0, "infrastructure": 1}
    return min(
        failed,
        key=lambda pod: (weight.get(pod.ending.cause, 2), pod.ended_s if pod.ended_s is not None else float("inf")),
        default=None,
    )


def _moving(facts: GangFacts) -> Verdict:
    seen = _seen(facts)
    if facts.deleting or facts.phase in ("Aborting", "Completing", "Terminating"):
        return Verdict(state="ending", final=False, why=f"{'being deleted' if facts.deleting else facts.phase}; {seen}")
    if facts.phase == "Restarting":
        return Verdict(state="restarting", final=False, why=f"Restarting; {seen}")
    if facts.phase == "Running":
        return Verdict(state="running", final=False, why=seen)
    if facts.phase == "Pending":
        waits = f"; {facts.unschedulable}: {facts.message}" if facts.unschedulable else ""
        return Verdict(state="pending", final=False, why=f"{seen}{waits}")
    return Verdict(
        state="unknown",
        final=False,
        why=f"phase {facts.phase!r} is not known here; {seen}",
        way_out="a newer Volcano: upgrade this client",
    )


def _ghosts(facts: GangFacts) -> tuple[str, ...]:
    return tuple(
        pod.name
        for pod in facts.pods
        if pod.overdue_s is not None and pod.overdue_s > GHOST_AFTER_S and pod.node_ready is not True
    )


def _seen(facts: GangFacts) -> str:
    running = sum(pod.phase == "Running" and pod.overdue_s is None for pod in facts.pods)
    going = sum(pod.overdue_s is not None for pod in facts.pods)
    leaving = f", {going} leaving" if going else ""
    group = f", group {facts.group_phase}" if facts.group_phase else ""
    queue = f", queue {facts.queue!r} {facts.queue_state}" if facts.queue_state not in (None, "Open") else ""
    return f"{running} of {facts.min_available} running{leaving}{group}{queue}"
