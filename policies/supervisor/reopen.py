"""Other beginnings than the first: a stopped run is run again, a run changes hands, or begins from another's commit."""

from rerail.policies.owners import called
from rerail.policies.supervisor.advance import Decision
from rerail.policies.supervisor.state import LedgerEntry, RunState


def reopen(state: RunState, why: str) -> Decision:
    """Let a stopped run try again from its newest good checkpoint. Its history, and so its budgets, stay."""
    again = state.model_copy(
        update={
            "phase": "waiting",
            "phase_number": state.phase_number + 1,
            "reason": f"continued: {why}",
            "stop_for": "",
            "finished_at_s": None,
        }
    )
    return Decision(state=again, note=f"continued: {why}")


def taken_over(entry: LedgerEntry, owner: str) -> Decision:
    """Another owner goes on with a run, and counts attempts anew: from the next one where it stopped, else from this.

    What was ordered stays ordered; but a gang that ends because the owner before asked for it is followed by another.
    """
    before = entry.state
    first = before.attempt + (before.phase == "stopped" and bool(before.attempts))
    reason = "" if before.phase == "ending" else before.reason
    state = before.model_copy(update={"owner": owner, "owned_from": first, "reason": reason})
    return Decision(state=state, effects=entry.effects, note=f"{called(owner)} goes on with the run")


def begin_forked(run: str, world_size: int, *, attempt: int, source: str) -> Decision:
    """The first decision of a run whose attempt ``attempt`` - 1 holds a copied commit and never runs."""
    reason = f"forked from {source}"
    state = RunState(run=run, world_size=world_size, phase="waiting", attempt=attempt, reason=reason)
    return Decision(state=state, note=reason)
