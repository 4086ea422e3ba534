"""The machine while a person holds the run: it looks, notes, finishes what was begun, and recovers nothing. Pure.

What still happens while paused: an attempt that was opened starts; a gang that was told to leave is ended, and its end
is noted; a run that is done is done; a person's stop stops it. What does not: no new attempt, in new pods or the same,
no save asked for, no gang ended for a fault, no node marked. A fault is noted in the ledger, and judged again once the
run goes on: its evidence is not used up.
"""

from rerail.policies.recovery import RecoveryPolicy
from rerail.policies.supervisor import advance as machine
from rerail.policies.supervisor.advance import Decision
from rerail.policies.supervisor.effects import (
    Effect,
    EndGang,
    MarkNode,
    RequestSave,
    SealAttempt,
    StartAttempt,
    SubmitGang,
)
from rerail.policies.supervisor.observations import Now, Observations
from rerail.policies.supervisor.state import PodShape, RunState

_RECOVERS = (EndGang, MarkNode, RequestSave, SealAttempt, StartAttempt)


def begin_paused(
    run: str, world_size: int, why: str, *, layout: tuple[PodShape, ...] = (), owner: str = ""
) -> Decision:
    """The first decision of a run that is held before its first attempt."""
    state = RunState(run=run, owner=owner, world_size=world_size, phase="waiting", attempt=1, layout=layout, paused=why)
    return Decision(state=state, note=f"paused: {why}")


def advance(state: RunState, seen: Observations, policy: RecoveryPolicy, now: Now) -> Decision | None:
    """As ``advance.advance``, which decides wherever nobody holds the run."""
    if not seen.paused or seen.stop_asked or state.phase in ("done", "stopped"):
        if state.paused and not seen.paused and state.phase in ("running", "waiting"):
            return _resumed(state)
        return machine.advance(state, seen, policy, now)
    match state.phase:
        case "running":
            return _running(state, seen, policy, now)
        case "waiting":
            return _noted(state, seen.paused)
        case "preparing":
            return None  # launches hold the pods; their ranks have ended already
        case "ending":
            # Signals stay new until the run goes on: then they keep it away from nodes, and mark them.
            held = seen.model_copy(update={"signals": (), "hold": f"paused: {seen.paused}"})
            return machine.advance(state, held, policy, now)
        case _:
            return machine.advance(state, seen, policy, now)


def _running(state: RunState, seen: Observations, policy: RecoveryPolicy, now: Now) -> Decision | None:
    wanted = machine.advance(state, seen, policy, now)
    recovers = wanted is not None and any(isinstance(effect, _RECOVERS) for effect in wanted.effects)
    if wanted is not None and recovers:
        return _noted(state, f"{seen.paused}; held back: {wanted.note}")
    return _noted(state, seen.paused) or wanted


def _noted(state: RunState, why: str) -> Decision | None:
    """Note why the run is held; None where it stands there already."""
    if state.paused == why:
        return None
    return Decision(state=state.model_copy(update={"paused": why}), effects=_standing(state), note=f"paused: {why}")


def _resumed(state: RunState) -> Decision:
    """Go on. A run that waited has its whole time to wait again."""
    number = state.phase_number + (state.phase == "waiting")
    again = state.model_copy(update={"paused": "", "phase_number": number})
    return Decision(state=again, effects=_standing(state), note="goes on after a pause")


def _standing(state: RunState) -> tuple[Effect, ...]:
    """The effects of the phase, which a new entry must carry on."""
    return (SubmitGang(gang=state.gang.name),) if state.phase == "running" and state.gang is not None else ()
