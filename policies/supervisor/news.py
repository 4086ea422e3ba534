"""What of a decision is worth an Event: one per incident for its fault, its next attempt, and its end. Pure."""

from typing import Literal

from rerail.policies.documents import Value
from rerail.policies.supervisor.state import AttemptRecord, Incident, RunState

Reason = Literal["GangFaulted", "GangResumed", "GangRecovered", "GangGaveUp", "GangStopped"]
_OPEN = ("saving", "preparing", "ending")


class News(Value):
    """One thing that happened to a gang.

    Attributes:
        incident: Id of the incident, or of the run where there is none: with the reason it names the Event.
        gang: The gang that it happened to.
        node: The node that it happened on; empty where no node is accused.
        warning: Somebody may want to look.
    """

    reason: Reason
    incident: str
    text: str
    gang: str
    node: str = ""
    warning: bool = False


def news(before: RunState | None, after: RunState) -> tuple[News, ...]:
    """What happened between two states of a run.

    Args:
        before: The state before; None for whoever has just begun to look: then an incident that is still being
            answered is news, since whoever noted it may have gone before telling.
        after: The state after.
    """
    known = before or after
    old = {one.id: one for one in known.incidents}
    if before is None and after.phase in _OPEN:
        old = dict(list(old.items())[:-1])
    found = [_faulted(after, one) for one in after.incidents if one.id not in old]
    if known.phase == "opening" and after.phase == "running" and after.attempt > 1:
        found.append(_resumed(after, after.attempts[-1]))
    found += [
        _recovered(after, one)
        for one in after.incidents
        if one.recovered_at_s is not None and one.id in old and old[one.id].recovered_at_s is None
    ]
    if after.phase == "stopped" and known.phase != "stopped":
        found.append(_stopped(after))
    return tuple(found)


def _faulted(state: RunState, one: Incident) -> News:
    on = f" on {one.node}" if one.node else ""
    why = f": {one.evidence[0]}" if one.evidence else ""
    return News(
        reason="GangFaulted",
        incident=one.id,
        text=f"incident {one.id}: {one.class_name} ({one.scope}){on} in attempt {one.attempt} of run {state.run}{why}",
        gang=_gang_of(state, one.attempt),
        node=one.node,
        warning=True,
    )


def _resumed(state: RunState, record: AttemptRecord) -> News:
    last = state.incidents[-1].id if state.incidents else f"{state.run}-a{record.n - 1}"
    how = "in the same pods" if record.how == "in-place" else "in a new gang"
    where = f" on {', '.join(record.nodes)}" if record.nodes else ""
    step = record.started_from_step or 0
    return News(
        reason="GangResumed",
        incident=last,
        text=f"incident {last}: attempt {record.n} of run {state.run} goes on from step {step} {how}{where}",
        gang=record.gang,
    )


def _recovered(state: RunState, one: Incident) -> News:
    took_s = (one.recovered_at_s or 0.0) - one.detected_at_s
    lost = f", {one.lost_steps} steps were made again" if one.lost_steps else ""
    return News(
        reason="GangRecovered",
        incident=one.id,
        text=f"incident {one.id}: run {state.run} makes new steps, {took_s:.0f} s after the fault was seen{lost}",
        gang=_gang_of(state, state.attempt),
    )


def _stopped(state: RunState) -> News:
    asked = state.reason.startswith("asked to stop")
    last = state.incidents[-1].id if state.incidents else state.run
    return News(
        reason="GangStopped" if asked else "GangGaveUp",
        incident=last,
        text=f"incident {last}: run {state.run} stopped: {state.reason}"
        if not asked
        else f"run {state.run}: {state.reason}",
        gang=_gang_of(state, state.attempt),
        warning=not asked,
    )


def _gang_of(state: RunState, attempt: int) -> str:
    named = [record.gang for record in state.attempts if record.n == attempt]
    return named[-1] if named else (state.gang.name if state.gang else "")
