"""Decisions in words, for people who watch a run that somebody else drives. Pure."""

from rerail.policies.supervisor.advance import Decision
from rerail.policies.supervisor.effects import (
    Effect,
    EndGang,
    MarkNode,
    RequestSave,
    Retain,
    SealAttempt,
    StartAttempt,
    SubmitGang,
)


def would(decision: Decision) -> str:
    """What a supervisor would decide and do, in one line."""
    opens = any(isinstance(effect, StartAttempt) for effect in decision.effects)
    deeds = [words for effect in decision.effects if (words := _deed(effect, opens=opens))]
    return decision.note + (f": would {', '.join(deeds)}" if deeds else "")


def _deed(effect: Effect, *, opens: bool) -> str:
    match effect:
        case SealAttempt():
            return f"open attempt {effect.attempt} in the same pods"
        case StartAttempt():
            return f"start attempt {effect.attempt} ({effect.how})"
        case SubmitGang():
            return f"create gang {effect.gang}" if opens else ""  # else it is there already
        case RequestSave():
            return f"ask the ranks of attempt {effect.attempt} to save within {effect.within_s:g} s and {effect.then}"
        case EndGang():
            return f"end gang {effect.gang} with {effect.grace_s:g} s of grace"
        case MarkNode():
            return f"keep new work off node {effect.node} ({effect.reason})"
        case Retain():
            return "remove old checkpoints"
