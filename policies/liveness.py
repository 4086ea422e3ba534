"""Whether a gang lives: verdicts from step reports and deadlines, since a pod's phase says nothing about progress."""

from collections.abc import Sequence
from typing import Final, Literal

from rerail.policies.documents import Value
from rerail.policies.recovery import RecoveryPolicy

FORCE_MARGIN_S: Final = 10.0
"""How long after its deadline an eviction waits for the last process before it is forced."""

Progress = Literal["progressing", "gang stalled", "gang incomplete"]
Applied = Literal["resume_applied", "resume_not_applied", "no_report_yet"]

_LOADING: Final = frozenset({"loading", "load", "compile", "compiling", "warm-up", "warmup", "restore", "init"})
_STEPPING: Final = frozenset({"", "training", "train", "step"})


def stall_limit_s(step_time_p99_s: float, *, phase: str = "training", policy: RecoveryPolicy) -> float:
    """The longest silence, in seconds, that is not yet a stall.

    Between steps it follows the measured step time; evaluation, saving, loading and compiling have limits of their own.
    """
    lowered = phase.lower()
    if lowered in _LOADING:
        return policy.load_within_s
    if lowered not in _STEPPING:
        return policy.phase_within_s
    return max(policy.hang_after_s, policy.hang_factor * step_time_p99_s)


def judge_progress(
    report_age_s: float, limit_s: float, *, running: int | None = None, wanted: int | None = None
) -> Progress:
    """Judge a gang by the age of its last step report; ranks that are gone are named even while reports are fresh."""
    if report_age_s > limit_s:
        return "gang stalled"
    if running is not None and wanted is not None and running < wanted:
        return "gang incomplete"
    return "progressing"


def judge_resume(resume_step: int, reported: Sequence[int]) -> Applied:
    """Whether training really went on from the step it was handed: its first report must be the step after it.

    Args:
        resume_step: Completed steps of the checkpoint that the attempt was given; 0 for a fresh start.
        reported: Steps that the attempt reported, the first one first.
    """
    if not reported:
        return "no_report_yet"
    return "resume_applied" if reported[0] == resume_step + 1 else "resume_not_applied"


class RequestOutcome(Value):
    """What became of a request to save before a deadline."""

    saved: bool
    resume_step: int
    lost_steps: int


def request_outcome(
    *, until_boundary_s: float, save_s: float, deadline_s: float, now_step: int, last_commit_step: int
) -> RequestOutcome:
    """Whether a save that was asked for becomes a commit in time; the eviction does not wait beyond its deadline.

    Args:
        until_boundary_s: Seconds until the loop looks at requests again, for example the rest of an evaluation.
        save_s: Seconds that a save takes.
        deadline_s: Seconds from the request on.
        now_step: Completed steps.
        last_commit_step: Step of the newest commit.
    """
    if until_boundary_s + save_s <= deadline_s:
        return RequestOutcome(saved=True, resume_step=now_step, lost_steps=0)
    return RequestOutcome(saved=False, resume_step=last_commit_step, lost_steps=now_step - last_commit_step)


class EvictionEnd(Value):
    """How an eviction ends, and after how many seconds at the latest."""

    forced: bool
    at_s: float


def eviction_end(deadline_s: float, *, leaves_after_s: float | None, margin_s: float = FORCE_MARGIN_S) -> EvictionEnd:
    """Bound an eviction: processes that are still there at the deadline are forced a margin later.

    Args:
        deadline_s: Seconds from the eviction's begin.
        leaves_after_s: When the container leaves by itself; None if it ignores SIGTERM.
        margin_s: Seconds between the deadline and force.
    """
    if leaves_after_s is not None and leaves_after_s <= deadline_s:
        return EvictionEnd(forced=False, at_s=leaves_after_s)
    return EvictionEnd(forced=True, at_s=deadline_s + margin_s)


StuckStep = Literal["wait", "kill", "reboot", "fence"]


def stuck_deletion(age_s: float, grace_s: float, *, kubelet_ready: bool, uninterruptible: bool) -> StuckStep:
    """The next step for a pod that does not go away.

    Deleting the object by force frees a name, not a device: whatever still holds the GPU has to be gone first.

    Args:
        age_s: Seconds since the deletion was asked for.
        grace_s: The pod's grace period in seconds.
        kubelet_ready: Whether the node's kubelet reports.
        uninterruptible: Whether a process of the pod is in state D, which no signal ends.
    """
    if age_s <= grace_s + FORCE_MARGIN_S:
        return "wait"
    if not kubelet_ready:
        return "fence"
    return "reboot" if uninterruptible else "kill"
