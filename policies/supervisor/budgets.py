"""Whether a run may go on: budgets per cause and window, the progress rule, identical failures, and the back-off."""

from rerail.policies.recovery import RecoveryPolicy
from rerail.policies.supervisor.state import OUT_OF_MEMORY, AttemptRecord, Cause, Failure, RunState

_BUDGETED: tuple[Cause, ...] = ("application", "hardware", "infrastructure", "unknown")


def progressed(record: AttemptRecord) -> bool:
    """Whether an attempt committed a step beyond its own start."""
    return record.last_commit_step is not None and record.last_commit_step > (record.started_from_step or 0)


def attempts_without_progress(state: RunState) -> int:
    """How many budgeted attempts in a row, newest first, committed nothing new. Free attempts are passed over."""
    count = 0
    for record in reversed(state.attempts):
        if progressed(record):
            break
        if record.charged_to in _BUDGETED:
            count += 1
    return count


def same_failures(state: RunState, failure: Failure) -> tuple[AttemptRecord, ...]:
    """Attempts that ended with the same error at the same step."""
    return tuple(
        record
        for record in state.attempts
        if record.failure is not None and (record.failure.error, record.failure.step) == (failure.error, failure.step)
    )


def why_stop(state: RunState, policy: RecoveryPolicy, *, now_s: float) -> str | None:
    """The reason why no further attempt may start, with the way out; None while one may."""
    last = state.attempts[-1] if state.attempts else None
    if last is not None and last.failure is not None and last.failure.error != "hang":
        same = same_failures(state, last.failure)
        memory = last.failure.error == OUT_OF_MEMORY
        if memory and last.failure.step is not None and len(same) >= policy.budgets.out_of_memory:
            return (
                f"out of memory at the same step {last.failure.step} in {len(same)} attempts: the same again would end "
                "the same. Give it more memory or a smaller batch, then run the same command again; the newest good "
                "checkpoint is kept"
            )
        if len(same) >= policy.budgets.identical:
            nodes = " | ".join(",".join(record.nodes) for record in same)
            return (
                f"the same failure at the same step {last.failure.step} in {len(same)} attempts on nodes {nodes}: "
                f"{last.failure.error}. It follows the application, not a device: fix it, then run the same command "
                "again; the newest good checkpoint is kept"
            )
    budgets = policy.budgets
    for cause in _BUDGETED:
        limit = int(getattr(budgets, cause))
        used = [
            record
            for record in state.attempts
            if record.charged_to == cause and (record.ended_at_s or now_s) > now_s - budgets.window_s
        ]
        if len(used) > limit:
            return (
                f"the budget of cause {cause!r} is used up: {len(used)} attempts in {budgets.window_s / 3600:g} h, "
                f"{limit} allowed (policy budgets.{cause}); last: {used[-1].end_cause}"
            )
    stuck = attempts_without_progress(state)
    if stuck >= budgets.without_progress:
        return (
            f"{stuck} attempts in a row committed nothing new (policy budgets.without_progress); "
            f"last: {last.end_cause if last else ''}"
        )
    made = state.attempt - state.owned_from + 1
    if made >= policy.max_attempts:
        since = f" since attempt {state.owned_from}, the first of this owner" if state.owned_from > 1 else ""
        return f"{made} attempts were made{since} (policy max_attempts, or a Workflow's max-attempts)"
    return None


def backoff_s(state: RunState, policy: RecoveryPolicy) -> float:
    """Seconds to wait before the next attempt: none after progress, a free end or one failure, then doubling."""
    last = state.attempts[-1] if state.attempts else None
    stuck = attempts_without_progress(state)
    if last is None or stuck <= 1 or last.charged_to not in _BUDGETED:
        return 0.0
    return float(min(policy.backoff_s * 2 ** (stuck - 2), policy.backoff_max_s))


def nodes_to_avoid(state: RunState) -> frozenset[str]:
    """Nodes where the newest failure already happened, once it repeats: an identical failure first tries others."""
    last = state.attempts[-1] if state.attempts else None
    if last is None or last.failure is None:
        return frozenset()
    same = same_failures(state, last.failure)
    return frozenset(node for record in same for node in record.nodes) if len(same) > 1 else frozenset()


def gave_way(state: RunState) -> bool:
    """Whether the newest gang that ended was taken away to give room, by whomever, and did not fail."""
    causes = (record.charged_to for record in reversed(state.attempts))
    return next((cause for cause in causes if cause is not None), None) == "preemption"


def in_line_since_s(state: RunState) -> float | None:
    """The place of a run whose gang was taken away in the order of coming back: when it asked for its first gang.

    None for one that failed: it waits for nobody.
    """
    return state.attempts[0].opened_at_s if gave_way(state) else None


def room_wait(state: RunState, policy: RecoveryPolicy) -> tuple[float, str]:
    """How long the run waits for room before it stops, in seconds, and the field of the policy that says so."""
    name = "yielded_wait_s" if gave_way(state) else "capacity_wait_s"
    return float(getattr(policy, name)), name
