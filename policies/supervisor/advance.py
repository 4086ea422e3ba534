"""The machine: from a state and one pass of observations to the next state and its effects. Pure.

opening -> running -> (saving) -> ending -> (waiting) -> opening …      a new gang elsewhere
                   -> preparing -> opening …                            the same pods again
running -> done                                                          the newest commit is final
any     -> stopped                                                       given up, with the reason
"""

from rerail.policies.documents import How, Value
from rerail.policies.recovery import RecoveryPolicy
from rerail.policies.supervisor import records
from rerail.policies.supervisor.budgets import backoff_s, nodes_to_avoid, room_wait, same_failures, why_stop
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
from rerail.policies.supervisor.judge import bystander_news, judge, judge_meanwhile, late_news
from rerail.policies.supervisor.judgement import Judgement
from rerail.policies.supervisor.observations import NodeView, Now, Observations
from rerail.policies.supervisor.placement import (
    leaving,
    located,
    place,
    request,
    room,
    save_grace_s,
    still_excluded,
)
from rerail.policies.supervisor.platform import of_lost_pods
from rerail.policies.supervisor.probation import least_welcome
from rerail.policies.supervisor.state import Phase, PodShape, RunState


class Decision(Value):
    """What ``advance`` decided.

    Attributes:
        note: One line for people; it becomes the ledger entry's note and the live progress.
    """

    state: RunState
    effects: tuple[Effect, ...] = ()
    note: str


def gang_name(run: str, attempt: int) -> str:
    """The name of the fresh gang of an attempt."""
    return f"{run}-a{attempt}"


def begin(
    run: str,
    world_size: int,
    *,
    nodes: tuple[NodeView, ...] | None,
    now: Now,
    layout: tuple[PodShape, ...] = (),
    owner: str = "",
) -> Decision:
    """The first decision of a run: open attempt 1, or wait for capacity.

    Args:
        run: Its name.
        world_size: Ranks of every gang.
        nodes: What there is; None where nobody may look.
        now: Time.
        layout: The pods of every gang, where a scheduler places them.
        owner: Who drives the run.
    """
    state = RunState(run=run, owner=owner, world_size=world_size, phase="waiting", attempt=1, layout=layout)
    opened = _open(state, nodes=nodes, now=now, attempt=1, how="fresh")
    return opened or Decision(state=state, note="waiting for capacity for the first attempt")


def advance(state: RunState, seen: Observations, policy: RecoveryPolicy, now: Now) -> Decision | None:
    """Decide the next step of a run.

    Args:
        state: The newest ledger entry's state.
        seen: This pass's observations.
        policy: The run's policy.
        now: Time, as ``Now`` explains.

    Returns:
        The decision, or None where nothing changes.
    """
    if state.phase in ("done", "stopped"):
        return None
    found = located(state, seen.gang)
    decision = _decided(found, seen, policy, now)
    gang = found.gang
    if decision is None and gang and found != state and found.phase == "running" and all(pod.node for pod in gang.pods):
        return Decision(
            state=found.model_copy(update={"reason": ""}),
            effects=(SubmitGang(gang=gang.name),),
            note=f"gang {gang.name} is on {', '.join(gang.nodes)}",
        )
    if decision is None and found.phase == "running" and not found.reason and seen.gang and seen.gang.waits:
        return Decision(
            state=found.model_copy(update={"reason": seen.gang.waits}),
            effects=(SubmitGang(gang=seen.gang.name),),
            note=f"gang {seen.gang.name} waits for its scheduler: {seen.gang.waits}",
        )
    return decision


def _decided(state: RunState, seen: Observations, policy: RecoveryPolicy, now: Now) -> Decision | None:
    if seen.stop_asked and state.phase != "ending":
        return _stop_on_request(state, seen, policy, now)
    if state.phase in ("running", "waiting"):
        kept_away = _bystanders(state, seen, policy)
        if kept_away is not None:
            return kept_away
    match state.phase:
        case "opening":
            return _opening(state, seen, policy, now)
        case "running":
            return _running(state, seen, policy, now)
        case "saving":
            return _saving(state, seen, policy, now)
        case "preparing":
            return _preparing(state, seen, policy, now)
        case "ending":
            return _ending(state, seen, policy, now)
        case _:
            return _waiting(state, seen, policy, now)


def _bystanders(state: RunState, seen: Observations, policy: RecoveryPolicy) -> Decision | None:
    """Mark sick nodes that the gang does not use; a waiting run needs no room on them, a running one may later."""
    known = records.isolated(state, bystander_news(state, seen), policy)
    if known == state:
        return None
    new = {node: why for node, why in known.quarantined.items() if node not in state.quarantined}
    effects: list[Effect] = [
        MarkNode(node=node, incident=f"{state.run}-{node}", reason=why) for node, why in new.items()
    ]
    if state.phase == "running" and state.gang is not None:
        effects.append(SubmitGang(gang=state.gang.name))
    what = "; ".join(f"{node}: {why}" for node, why in new.items()) or "nodes that are marked already"
    return Decision(state=known, effects=tuple(effects), note=f"keeping away from {what}")


def _enter(state: RunState, phase: Phase, **changes: object) -> RunState:
    return state.model_copy(update={"phase": phase, "phase_number": state.phase_number + 1, **changes})


def _stopped(state: RunState, reason: str, now: Now) -> Decision:
    ended = _enter(state, "stopped", reason=reason, finished_at_s=now.wall_s)
    effects: tuple[Effect, ...] = ()
    if state.gang is not None:
        effects = (EndGang(gang=state.gang.name, grace_s=0.0, reason=reason),)
    return Decision(state=ended, effects=effects, note=f"stopped: {reason}")


def _is_final(seen: Observations) -> bool:
    return seen.commit is not None and seen.commit.reason == "final"


def _done(state: RunState, seen: Observations, now: Now, effects: tuple[Effect, ...]) -> Decision:
    assert seen.commit is not None
    finished = records.finished(_enter(state, "done", finished_at_s=now.wall_s), seen, now=now)
    return Decision(state=finished, effects=effects, note=f"done at step {seen.commit.step}")


def _stop_on_request(state: RunState, seen: Observations, policy: RecoveryPolicy, now: Now) -> Decision:
    reason = f"asked to stop: {seen.stop_asked}"
    # A gang that nobody can see now may live, and has its grace; in phase ``waiting`` its end was ordered before.
    gone = state.phase == "waiting" if seen.gang is None else not seen.gang.alive
    if state.gang is None or gone:
        if _is_final(seen):
            return _done(state, seen, now, (_retain(policy),))
        went = state.phase in ("running", "saving", "preparing")
        return _stopped(records.ended(state, seen, now=now) if went else state, reason, now)
    ended = _enter(state, "ending", reason=reason)
    effect = EndGang(gang=state.gang.name, grace_s=policy.end_grace_s, reason=reason)
    return Decision(state=ended, effects=(effect,), note=f"ending gang {state.gang.name}: {reason}")


def _open(state: RunState, *, nodes: tuple[NodeView, ...] | None, now: Now, attempt: int, how: How) -> Decision | None:
    """Open ``attempt`` with a new gang; None where there is no room."""
    name = gang_name(state.run, attempt)
    state = state.model_copy(update={"quarantined": still_excluded(state, nodes)})
    excluded = frozenset(state.quarantined) | leaving(nodes, now_s=now.wall_s).keys()
    avoid = nodes_to_avoid(state)
    if state.layout:
        gang = request(name, state, nodes, excluded=excluded, avoid=avoid)
    else:
        others = [node for node in nodes or () if node.name not in excluded | avoid]
        avoid |= least_welcome(others, state.world_size, now_s=now.wall_s)
        gang = place(name, state.world_size, nodes or (), excluded=excluded, avoid=avoid)
    if gang is None:
        return None
    opened = _enter(state, "opening", attempt=attempt, next_how=how, gang=gang, reason="")
    opened = records.opened(opened, how=how, now=now)
    effects: tuple[Effect, ...] = (
        StartAttempt(attempt=attempt, how=how, gang=name, reason=records.last_end(state)),
        SubmitGang(gang=name),
    )
    where = f" on {', '.join(gang.nodes)}" if gang.nodes else ""
    return Decision(state=opened, effects=effects, note=f"opening attempt {attempt}: gang {name}{where}")


def _opening(state: RunState, seen: Observations, policy: RecoveryPolicy, now: Now) -> Decision | None:
    start = seen.start
    if start is not None and start.attempt == state.attempt:
        if state.gang is None or start.gang != state.gang.name:
            return _stopped(
                state,
                f"attempt {state.attempt} was started for gang {start.gang!r}, which this ledger does not know; "
                "another controller writes to this run, or entries of ledger/ were removed: restore them, or begin a "
                "new run (`rerail run --from RUN@STEP`)",
                now,
            )
        running = records.started(_enter(state, "running", reason=""), start, now=now)
        from_step = start.load.step if start.load else 0
        skipped = f", skipped {len(start.skipped)}" if start.skipped else ""
        what = f"resumes from step {from_step}{skipped}" if start.load else "starts fresh"
        return Decision(
            state=running, effects=(SubmitGang(gang=start.gang),), note=f"attempt {state.attempt} ({start.how}) {what}"
        )
    if seen.blocked is not None and seen.blocked.attempt == state.attempt:
        reason = f"resume blocked: {seen.blocked.reason}"
        if not seen.blocked.transient or now.phase_s > policy.store_wait_s:
            return _stopped(state, reason, now)
        if state.reason != reason:
            return Decision(state=state.model_copy(update={"reason": reason}), effects=_again(state), note=reason)
    if now.phase_s > policy.store_wait_s:
        reason = (
            f"attempt {state.attempt} did not start within {policy.store_wait_s:g} s (policy store_wait_s); "
            "somebody else opened a newer attempt of this run: find that controller, or begin under a new run name"
        )
        return _stopped(state, reason, now)
    return None


def _again(state: RunState) -> tuple[Effect, ...]:
    """The effects of phase ``opening``, which a new entry must carry on."""
    assert state.gang is not None
    start = StartAttempt(
        attempt=state.attempt, how=state.next_how, gang=state.gang.name, reason=records.last_end(state)
    )
    return (start, SubmitGang(gang=state.gang.name))


def _running(state: RunState, seen: Observations, policy: RecoveryPolicy, now: Now) -> Decision | None:
    assert state.gang is not None
    # Of whichever attempt: one that loads the final commit has nothing to train, and commits nothing.
    if _is_final(seen):
        if seen.gang is None:
            return None
        if not seen.gang.alive:
            return _done(state, seen, now, (_retain(policy),))
        if seen.heartbeat_age_s > policy.end_wait_s:
            ending = EndGang(gang=state.gang.name, grace_s=policy.end_grace_s, reason="the final commit stands")
            return Decision(
                state=_enter(state, "running"), effects=(ending,), note="final commit stands; ending the gang"
            )
        return None
    found = judge(state, seen, policy, now_s=now.wall_s)
    if found is not None:
        return _fault(state, seen, policy, now, found)
    progressed = records.progressed(state, seen, now=now)
    if progressed is not None:
        beat = seen.heartbeat
        return Decision(
            state=progressed,
            effects=(SubmitGang(gang=state.gang.name), _retain(policy)),
            note=_progress_note(state, progressed, beat.step if beat else 0),
        )
    return None


def _progress_note(before: RunState, after: RunState, step: int) -> str:
    recovered = any(
        old.recovered_at_s is None and new.recovered_at_s is not None
        for old, new in zip(before.incidents, after.incidents, strict=True)
    )
    new = "makes new steps again" if recovered else "trains"
    return f"attempt {after.attempt} {new}, at step {step}"


def _retain(policy: RecoveryPolicy) -> Retain:
    return Retain(
        keep_last=policy.keep_last, keep_clean_s=policy.keep_clean_s, keep_every_steps=policy.keep_every_steps
    )


def _fault(state: RunState, seen: Observations, policy: RecoveryPolicy, now: Now, found: Judgement) -> Decision:
    """Act on the first sign that suffices: mark, save if it can be trusted, then end the gang or restart in place."""
    assert state.gang is not None
    known = records.incident(state, seen, found, policy, now=now)
    if found.next == "stop":
        known = known.model_copy(update={"stop_for": f"{found.class_name}: {'; '.join(found.evidence)}"})
    marks = _marks(state, known)
    headline = f"{found.class_name} ({found.scope}) in attempt {state.attempt}"
    if found.node:
        headline += f" on {found.node}"
    if found.next == "in-place" and policy.in_place and not _repeats(known) and _may_stay(seen):
        seal = SealAttempt(
            attempt=state.attempt + 1, how="in-place", gang=state.gang.name, reason=records.last_end(known)
        )
        return Decision(
            state=_enter(known, "preparing"), effects=(*marks, seal), note=f"{headline}: restarting the same pods"
        )
    if found.trusted and _healthy(seen):
        asked = f"{state.run}-a{state.attempt}-{found.class_name}"
        save = RequestSave(
            attempt=state.attempt, id=asked, reason=found.class_name, within_s=policy.save_within_s, then="leave"
        )
        known = records.save_asked(_enter(known, "saving", save_request=asked), now=now)
        return Decision(state=known, effects=(*marks, save), note=f"{headline}: asking all ranks to save and leave")
    end = EndGang(gang=state.gang.name, grace_s=_grace_s(known, found, policy), reason=found.class_name)
    save_or_not = "" if not found.suspects else "; no save is asked for, the device is not trusted"
    return Decision(
        state=_enter(known, "ending"), effects=(*marks, end), note=f"{headline}: ending the gang{save_or_not}"
    )


def _grace_s(state: RunState, found: Judgement, policy: RecoveryPolicy) -> float:
    """How long ranks may take to leave.

    Those that were asked to save get their full time, broken ones as long as a commit under way may need to finish.
    """
    if found.cause == "preemption":
        return policy.end_grace_s
    if found.suspects:
        return policy.end_grace_untrusted_s
    return min(policy.end_grace_s, max(policy.end_grace_untrusted_s, save_grace_s(state)))


def _marks(before: RunState, after: RunState) -> tuple[Effect, ...]:
    """Marks for the nodes that a decision keeps away from, and the one before did not."""
    if not after.incidents:
        return ()
    last = after.incidents[-1]
    return tuple(
        MarkNode(node=node, incident=last.id, reason=why, device=last.device if last.node == node else "")
        for node, why in after.quarantined.items()
        if node not in before.quarantined
    )


def _repeats(state: RunState) -> bool:
    """Whether the newest failure happened before: then other devices are tried, not the same pods."""
    failure = state.attempts[-1].failure
    return failure is not None and len(same_failures(state, failure)) > 1


def _launches_alive(seen: Observations) -> bool:
    return seen.gang is not None and bool(seen.gang.pods) and all(pod.phase == "running" for pod in seen.gang.pods)


def _may_stay(seen: Observations) -> bool:
    """Whether the same pods may be used again: all live, and the platform takes none away."""
    return _launches_alive(seen) and seen.gang is not None and not any(pod.disrupted for pod in seen.gang.pods)


def _healthy(seen: Observations) -> bool:
    return _launches_alive(seen) and not seen.exits and seen.heartbeat is not None


def _saving(state: RunState, seen: Observations, policy: RecoveryPolicy, now: Now) -> Decision | None:
    assert state.gang is not None
    answered = seen.commit is not None and state.save_request in seen.commit.answers
    gone = seen.gang is not None and not seen.gang.alive
    # Without one of its ranks no save comes, however long it is waited for.
    lost = of_lost_pods(seen) is not None
    if not (answered or gone or lost) and now.phase_s <= policy.save_within_s:
        return None
    kept = records.saved(state, answered=answered, now=now)
    end = EndGang(gang=state.gang.name, grace_s=policy.end_grace_s, reason=state.save_request)
    said = f"saved step {seen.commit.step}" if answered and seen.commit else "no save came in time"
    return Decision(state=_enter(kept, "ending"), effects=(end,), note=f"{said}; ending gang {state.gang.name}")


def _preparing(state: RunState, seen: Observations, policy: RecoveryPolicy, now: Now) -> Decision | None:
    assert state.gang is not None
    worse = judge(state, seen, policy, now_s=now.wall_s)
    # Launches end their ranks one after the other now: silence and broken collectives are our own doing.
    if worse is not None and (worse.class_name == "hang" or (worse.class_name == "app-error" and not worse.sure)):
        worse = None
    known = state
    if worse is not None:
        known = records.rejudged(state, seen, worse, policy, now=now)
    if worse is not None and (worse.next != "in-place" or _repeats(known)):
        marks = _marks(state, known)
        end = EndGang(gang=state.gang.name, grace_s=_grace_s(known, worse, policy), reason=worse.class_name)
        return Decision(
            state=_enter(known, "ending"),
            effects=(*marks, end),
            note=f"{worse.class_name} joins the incident: a new gang instead of the same pods",
        )
    reason = why_stop(known, policy, now_s=now.wall_s)
    if reason is not None and now.phase_s >= policy.settle_s:
        return _stopped(known, reason, now)
    ready = {pod.name for pod in state.gang.pods} if state.gang.pods else _pod_names(seen)
    settled = now.phase_s >= policy.settle_s or (worse is not None and worse.sure)
    if ready and ready <= set(seen.ready) and settled:
        if backoff_s(known, policy) > now.phase_s:
            return None
        attempt = state.attempt + 1
        opened = records.opened(_enter(known, "opening", attempt=attempt, next_how="in-place"), how="in-place", now=now)
        start = StartAttempt(attempt=attempt, how="in-place", gang=state.gang.name, reason=records.last_end(known))
        return Decision(state=opened, effects=(start,), note=f"all pods ready: starting attempt {attempt} in place")
    if now.phase_s > policy.prepare_s + backoff_s(known, policy):
        end = EndGang(gang=state.gang.name, grace_s=policy.end_grace_untrusted_s, reason="not ready in place")
        missing = ", ".join(sorted(ready - set(seen.ready)))
        return Decision(
            state=_enter(known, "ending"),
            effects=(end,),
            note=f"pods not ready in place ({missing}): a new gang instead",
        )
    return None


def _pod_names(seen: Observations) -> set[str]:
    return {pod.name for pod in seen.gang.pods} if seen.gang else set()


def _ending(state: RunState, seen: Observations, policy: RecoveryPolicy, now: Now) -> Decision | None:
    if seen.gang is None and now.phase_s <= policy.end_wait_s:
        return None
    if seen.gang is not None and seen.gang.alive and now.phase_s <= policy.end_grace_s + policy.end_wait_s:
        return None
    known = state
    more = judge_meanwhile(state, seen, now_s=now.wall_s)
    if more is not None:
        known = records.rejudged(state, seen, more, policy, now=now)
    known = records.ended(known, seen, now=now)
    known = records.isolated(known, late_news(known, seen), policy)
    marks = _marks(state, known)
    if _is_final(seen):
        return _done(known, seen, now, marks)
    reason = _why_not_again(known, seen, policy, more, now)
    if reason is not None:
        return _stopped(known, reason, now)
    delay_s = backoff_s(known, policy)
    opened = None
    if delay_s == 0 and not seen.hold:
        opened = _open(known, nodes=seen.nodes, now=now, attempt=state.attempt + 1, how="new-gang")
    if opened is not None:
        return opened.model_copy(update={"effects": (*marks, *opened.effects)})
    reason = f"back-off of {delay_s:g} s" if delay_s else seen.hold or _no_room(known, seen, now)
    return Decision(state=_enter(known, "waiting", reason=reason), effects=marks, note=f"waiting: {reason}")


def _why_not_again(
    state: RunState, seen: Observations, policy: RecoveryPolicy, found: Judgement | None, now: Now
) -> str | None:
    if state.reason.startswith("asked to stop") or seen.stop_asked:
        return state.reason or f"asked to stop: {seen.stop_asked}"
    if found is not None and found.next == "stop" and state.incidents[-1].class_name == found.class_name:
        return f"{found.class_name}: {'; '.join(found.evidence)}"
    if state.stop_for and state.incidents[-1].class_name == state.stop_for.split(":", maxsplit=1)[0]:
        return state.stop_for
    return why_stop(state, policy, now_s=now.wall_s)


def _no_room(state: RunState, seen: Observations, now: Now) -> str:
    away = {**leaving(seen.nodes, now_s=now.wall_s), **still_excluded(state, seen.nodes)}
    free = room(seen.nodes or (), away, scheduled=bool(state.layout))
    kept = f"; kept away from {', '.join(sorted(away))}" if away else ""
    return f"no capacity: {state.world_size} slots wanted, {free} free{kept}"


def _waiting(state: RunState, seen: Observations, policy: RecoveryPolicy, now: Now) -> Decision | None:
    if now.phase_s < backoff_s(state, policy):
        return None
    first = not state.attempts
    attempt = state.attempt if first else state.attempt + 1
    opened = None
    if not seen.hold:
        opened = _open(state, nodes=seen.nodes, now=now, attempt=attempt, how="fresh" if first else "new-gang")
    if opened is not None:
        return opened
    reason = seen.hold or _no_room(state, seen, now)
    wait_s, field = room_wait(state, policy)
    if now.phase_s > wait_s:
        return _stopped(state, f"{reason} for {wait_s:g} s (policy {field})", now)
    if reason != state.reason:
        return Decision(state=state.model_copy(update={"reason": reason}), note=f"waiting: {reason}")
    return None
