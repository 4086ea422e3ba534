"""A person runs a stopped run again. Pure."""

from rerail.policies.supervisor.advance import Decision
from rerail.policies.supervisor.state import RunState


def reopen(state: RunState, why: str) -> Decision:
    """Let a stopped run try again from its newest good checkpoint. Its history, and so its budgets, stay."""
    again = state.model_copy(
        update={
            "phase": "waiting",
            "phase_number": state.phase_number + 1,
            "reason": f"continued: {why}",
            "finished_at_s": None,
        }
    )
    return Decision(state=again, note=f"continued: {why}")
