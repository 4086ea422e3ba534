"""How attempts and incidents are written down as the machine moves; the report is computed from nothing else."""

from typing import cast

from rerail.policies.documents import How, Start
from rerail.policies.faults import SCOPES, FaultSignal, Scope
from rerail.policies.recovery import RecoveryPolicy
from rerail.policies.supervisor.judge import incident_id, isolating, news, signal_key
from rerail.policies.supervisor.judgement import Judgement
from rerail.policies.supervisor.observations import Now, Observations
from rerail.policies.supervisor.state import AttemptRecord, Cause, Incident, RunState, Suspicion


def opened(state: RunState, *, how: How, now: Now) -> RunState:
    """Add the record of the attempt that is being opened."""
    gang = state.gang
    record = AttemptRecord(
        n=state.attempt,
        gang=gang.name if gang else "",
        nodes=gang.nodes if gang else (),
        how=how,
        opened_at_s=now.wall_s,
    )
    return state.model_copy(update={"attempts": (*state.attempts, record)})


def last_end(state: RunState) -> str:
    """How the newest attempt ended, in words; empty before the first end."""
    return state.attempts[-1].end_cause if state.attempts else ""


def started(state: RunState, start: Start, *, now: Now) -> RunState:
    """The start stands: the attempt may run."""
    state = _amend(
        state,
        how=start.how,
        started_at_s=now.wall_s,
        started_from_step=start.load.step if start.load else 0,
        skipped=tuple(f"step {skip.step} of attempt {skip.attempt}: {skip.why}" for skip in start.skipped),
    )
    return _amend_open_incidents(state, started_at_s=now.wall_s)


def progressed(state: RunState, seen: Observations, *, now: Now) -> RunState | None:
    """The attempt's first step, or the first step that the run had not made before, was reported; None: nothing new.

    A recovery is over when training makes new steps, not when processes run again.
    """
    beat = seen.heartbeat
    record = state.attempts[-1] if state.attempts else None
    if beat is None or record is None or beat.first_step_at_s is None or beat.attempt != state.attempt:
        return None
    changed = state
    if record.first_step_at_s is None:
        changed = _amend(state, loaded_at_s=beat.loaded_at_s, first_step_at_s=beat.first_step_at_s)
        changed = _amend_open_incidents(changed, loaded_at_s=beat.loaded_at_s)
    open_ones = [one for one in changed.incidents if one.recovered_at_s is None]
    furthest = max((one.lost_from_step or 0 for one in open_ones), default=0)
    if open_ones and beat.step > furthest:
        begun = record.started_from_step or 0
        changed = changed.model_copy(
            update={
                "incidents": tuple(
                    one
                    if one.recovered_at_s is not None
                    else one.model_copy(
                        update={
                            "recovered_at_s": min(beat.at_s, now.wall_s),
                            "lost_steps": max(0, (one.lost_from_step or begun) - begun),
                        }
                    )
                    for one in changed.incidents
                )
            }
        )
    return None if changed is state else changed


def incident(state: RunState, seen: Observations, found: Judgement, policy: RecoveryPolicy, *, now: Now) -> RunState:
    """Open the incident that ends the running attempt, and charge the attempt once."""
    new = Incident(
        id=incident_id(state),
        attempt=state.attempt,
        detected_at_s=now.wall_s,
        decided_at_s=now.wall_s,
        lost_from_step=_last_step(seen),
        signals=tuple(signal_key(signal) for signal in news(state, seen)),
        **_judged(found),
    )
    state = state.model_copy(update={"incidents": (*state.incidents, new)})
    return _consequences(_amend(state, **_snapshot(seen, state.attempt)), seen, found, policy)


def rejudged(state: RunState, seen: Observations, found: Judgement, policy: RecoveryPolicy, *, now: Now) -> RunState:
    """Better evidence for the open incident: the charge moves with the diagnosis. Weaker evidence changes nothing."""
    current = state.incidents[-1] if state.incidents else None
    if current is None or current.attempt != state.attempt:
        return incident(state, seen, found, policy, now=now)
    if _rank(found) <= _rank_of(current):
        state = _kept_away(isolated(state, news(state, seen), policy), found)
        return _amend(state, **_snapshot(seen, state.attempt))
    evidence = tuple(dict.fromkeys((*found.evidence, *current.evidence)))
    signals = tuple(dict.fromkeys((*current.signals, *(signal_key(signal) for signal in news(state, seen)))))
    better = current.model_copy(update={**_judged(found), "evidence": evidence, "signals": signals})
    if current.first_sign_s is not None:
        first = min(current.first_sign_s, better.first_sign_s or current.first_sign_s)
        better = better.model_copy(update={"first_sign_s": first})
    state = state.model_copy(update={"incidents": (*state.incidents[:-1], better)})
    return _consequences(_amend(state, **_snapshot(seen, state.attempt)), seen, found, policy)


def save_asked(state: RunState, *, now: Now) -> RunState:
    """The ranks were asked to save because of the open incident."""
    return _amend_open_incidents(state, save_asked_at_s=now.wall_s)


def saved(state: RunState, *, answered: bool, now: Now) -> RunState:
    """The save came, or its time is over."""
    return _amend_open_incidents(state, saved_at_s=now.wall_s) if answered else state


def ended(state: RunState, seen: Observations, *, now: Now) -> RunState:
    """The gang is gone."""
    state = _amend(state, ended_at_s=now.wall_s, **_snapshot(seen, state.attempt))
    return _amend_open_incidents(state, ended_at_s=now.wall_s)


def finished(state: RunState, seen: Observations, *, now: Now) -> RunState:
    """The run is done: its last attempt ends without an incident."""
    return _amend(state, ended_at_s=now.wall_s, end_cause="done", **_snapshot(seen, state.attempt))


def _judged(found: Judgement) -> dict[str, object]:
    return {
        "class_name": found.class_name,
        "scope": found.scope,
        "action": found.action,
        "cause": found.cause,
        "codes": found.codes,
        "node": found.node,
        "device": found.device,
        "confidence": found.confidence,
        "trusted": not found.suspects,
        "evidence": found.evidence,
        "first_sign_s": found.first_sign_s,
    }


# Evidence about a device outweighs how processes ended, and a named error outweighs a silent end.
_WEIGHTS = {"hardware": 5, "damage": 4, "application": 3, "preemption": 2, "infrastructure": 2, "unknown": 1}


def _rank(found: Judgement) -> tuple[int, int, int, bool]:
    return (_weight(found.cause, sure=found.sure), _width(found.cause, found.scope), len(found.codes), found.sure)


def _rank_of(current: Incident) -> tuple[int, int, int, bool]:
    # An unsure judgement has half of the confidence.
    sure = current.confidence > 0.5  # noqa: PLR2004
    return (_weight(current.cause, sure=sure), _width(current.cause, current.scope), len(current.codes), sure)


def _weight(cause: Cause, *, sure: bool) -> int:
    """A broken collective alone accuses the application no more than anything else."""
    return _WEIGHTS["unknown" if cause == "application" and not sure else cause]


def _width(cause: Cause, scope: str) -> int:
    """A second GPU makes a fault the node's; how widely processes ended says nothing."""
    return SCOPES.index(cast("Scope", scope)) if cause == "hardware" else 0


def _consequences(state: RunState, seen: Observations, found: Judgement, policy: RecoveryPolicy) -> RunState:
    """Keep away from what the evidence accuses, and charge the attempt."""
    signals = news(state, seen)
    state = _kept_away(isolated(state, signals, policy), found)
    state = _amend(
        state,
        end_cause=f"{found.class_name}: {found.evidence[0] if found.evidence else found.scope}",
        charged_to=found.cause,
        failure=found.failure,
    )
    return _noted(state, signals)


def _kept_away(state: RunState, found: Judgement) -> RunState:
    if not found.exclude or not found.node or found.node in state.quarantined:
        return state
    why = f"{found.class_name} in attempt {state.attempt}"
    return state.model_copy(update={"quarantined": state.quarantined | {found.node: why}})


def isolated(state: RunState, signals: tuple[FaultSignal, ...], policy: RecoveryPolicy) -> RunState:
    """Every node that the signals accuse: not to be used, and its commits suspect, of all attempts that ran on it.

    Stamps tell which commits those are, so an attempt that ended before the fault loses nothing. The same state where
    no node is accused.
    """
    accused = isolating(signals)
    if not accused:
        return state
    quarantined = dict(state.quarantined)
    suspicions = list(state.suspicions)
    used = state.gang.nodes if state.gang else ()
    for found in accused:
        when = f"in attempt {state.attempt}" if not used or found.node in used else "while it was not in use"
        quarantined.setdefault(found.node, f"{found.class_} {when}")
        if not found.suspects:
            continue
        since_s = None if found.first_seen_s is None else found.first_seen_s - policy.suspect_margin_s
        ran = [record.n for record in state.attempts if found.node in record.nodes or not record.nodes]
        suspicions += [
            Suspicion(attempt=attempt, node=found.node, since_s=since_s, why=f"{found.class_} on {found.node}")
            for attempt in (ran if since_s is not None else [state.attempt])
        ]
    return _noted(
        state.model_copy(update={"quarantined": quarantined, "suspicions": tuple(dict.fromkeys(suspicions))}), signals
    )


def _noted(state: RunState, signals: tuple[FaultSignal, ...]) -> RunState:
    """Signals that were acted on."""
    keys = (signal_key(signal) for signal in signals)
    return state.model_copy(update={"seen_signals": tuple(dict.fromkeys((*state.seen_signals, *keys)))})


def _snapshot(seen: Observations, attempt: int) -> dict[str, object]:
    """What the passing observations say about the attempt, for its record."""
    facts: dict[str, object] = {}
    last = _last_step(seen)
    if last is not None:
        facts["last_step"] = last
    beat = seen.heartbeat
    if beat is not None and beat.attempt == attempt:
        facts["saving_s"] = beat.saving_s
        facts["save_s"] = beat.save_s
        facts["step_time_s"] = beat.step_time_s
        if beat.first_step_at_s is not None:
            facts["first_step_at_s"] = beat.first_step_at_s
            facts["loaded_at_s"] = beat.loaded_at_s
    if seen.commit is not None and seen.commit.attempt == attempt:
        facts["last_commit_step"] = seen.commit.step
        facts["last_step"] = max(seen.commit.step, last or 0)
    codes = {f"rank-{end.rank}": end.exit_code for end in seen.exits}
    for pod in seen.gang.pods if seen.gang else ():
        if pod.exit_code is not None:
            codes[pod.name] = pod.exit_code
    if codes:
        facts["exit_codes"] = codes
    return facts


def _last_step(seen: Observations) -> int | None:
    steps = [end.step for end in seen.exits if end.step]
    if seen.heartbeat is not None and seen.heartbeat.first_step is not None:
        steps.append(seen.heartbeat.step)
    return max(steps, default=None)


def _amend(state: RunState, **changes: object) -> RunState:
    if not state.attempts:
        return state
    record = state.attempts[-1].model_copy(update=changes)
    return state.model_copy(update={"attempts": (*state.attempts[:-1], record)})


def _amend_open_incidents(state: RunState, **changes: object) -> RunState:
    """Change the incidents that are not recovered from: two faults in a row share the way back."""
    return state.model_copy(
        update={
            "incidents": tuple(
                one if one.recovered_at_s is not None else one.model_copy(update=changes) for one in state.incidents
            )
        }
    )
