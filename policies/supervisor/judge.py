"""From one pass's observations to a judgement of how the attempt ended, or is about to."""

import signal

from rerail.policies import errors
from rerail.policies.documents import RankExit
from rerail.policies.endings import EVIDENCE_WINDOW_S
from rerail.policies.faults import Diagnosis, FaultSignal
from rerail.policies.faults.diagnosis import diagnose_nodes
from rerail.policies.liveness import judge_progress, judge_resume, stall_limit_s
from rerail.policies.offenders import cure, escalated
from rerail.policies.recovery import RecoveryPolicy
from rerail.policies.supervisor.judgement import Judgement
from rerail.policies.supervisor.observations import Observations
from rerail.policies.supervisor.platform import (
    is_final,
    of_absence,
    of_leaving,
    of_lost_pods,
    of_maintenance,
    of_platform,
    of_pods,
    pods_of,
    taken_away,
)
from rerail.policies.supervisor.state import OUT_OF_MEMORY, Failure, RunState

_SIGNALLED = 128

# A rank whose peer died reports the broken collective, not the cause: it names no failure while another error does.
_COLLECTIVE = (
    "ConnectionError",
    "ConnectionResetError",
    "ConnectionAbortedError",
    "ConnectionRefusedError",
    "BrokenPipeError",
    "EOFError",
    "DistBackendError",
    "DistNetworkError",
)


def incident_id(state: RunState) -> str:
    """The incident that ends the running attempt."""
    return f"{state.run}-a{state.attempt}"


def signal_key(signal: FaultSignal) -> str:
    """What makes a repeated report of one thing one report."""
    where = signal.raw_ref or f"{signal.first_seen_s}|{','.join(signal.codes)}"
    return f"{signal.source}|{signal.node}|{where}"


def news(state: RunState, seen: Observations) -> tuple[FaultSignal, ...]:
    """Signals about the gang's nodes that were not acted on yet."""
    nodes = set(state.gang.nodes) if state.gang else set()
    if not nodes and state.layout:
        return ()  # its scheduler has not placed it yet
    return tuple(signal for signal in _unseen(state, seen) if not nodes or signal.node in nodes)


def late_news(state: RunState, seen: Observations) -> tuple[FaultSignal, ...]:
    """Signals not acted on yet about any node, before a gang is placed anew and its start resolved.

    Reports come late: about a node that the run left already, whose commits the next attempt must not load.
    """
    return tuple(signal for signal in _unseen(state, seen) if signal.node)


def bystander_news(state: RunState, seen: Observations) -> tuple[FaultSignal, ...]:
    """Signals not acted on yet about nodes outside the gang; none where nobody knows which nodes those are."""
    if state.gang is None or state.phase == "waiting":
        return late_news(state, seen)
    used = set(state.gang.nodes)
    if not used and not state.layout:
        return ()
    return tuple(signal for signal in _unseen(state, seen) if signal.node and signal.node not in used)


def _unseen(state: RunState, seen: Observations) -> tuple[FaultSignal, ...]:
    known = set(state.seen_signals)
    over = {node.name: node.released_at_s for node in seen.nodes or () if node.released_at_s is not None}
    return tuple(
        signal
        for signal in seen.signals
        if signal_key(signal) not in known
        and not signal.cleared
        and signal.first_seen_s > over.get(signal.node, float("-inf"))
    )


def _of_incident(state: RunState, seen: Observations) -> tuple[FaultSignal, ...]:
    """What is new about the gang's nodes, with what the open incident was judged by: one fault has many reports."""
    new = news(state, seen)
    last = state.incidents[-1] if state.incidents else None
    if not new or last is None or last.attempt != state.attempt:
        return new
    known = set(last.signals)
    fresh = {signal_key(signal) for signal in new}
    return (*(one for one in seen.signals if signal_key(one) in known and signal_key(one) not in fresh), *new)


def root_exit(exits: tuple[RankExit, ...]) -> RankExit | None:
    """The exit that the others follow from: an error of its own before a broken collective, then the lowest rank."""

    def weight(end: RankExit) -> tuple[int, int]:
        name = end.error.split(":", maxsplit=1)[0].rsplit(".", maxsplit=1)[-1]
        if end.error and name not in _COLLECTIVE:
            return (0, end.rank)
        if end.exit_code >= _SIGNALLED and not end.error:
            return (1, end.rank)
        return (2 if not end.error else 3, end.rank)

    own = [end for end in exits if end.exit_code != errors.DONE]
    return min(own, key=weight, default=None)


def judge(state: RunState, seen: Observations, policy: RecoveryPolicy, *, now_s: float) -> Judgement | None:
    """Judge the running attempt; None while it is well."""
    diagnosis = _of_signals(state, seen, now_s=now_s)
    if diagnosis is not None:
        return diagnosis
    ended = _of_exits(state, seen)
    if ended is None or not ended.sure:
        # A lost pod explains the broken collectives of the others.
        ended = of_lost_pods(seen) or ended or of_pods(seen)
    if ended is not None:
        return _explained(state, seen, ended, now_s=now_s)
    return (
        _of_resume(state, seen)
        or of_absence(state, seen, policy)
        or of_leaving(seen)
        or of_platform(state, seen, policy)
        or of_maintenance(state, seen, now_s=now_s)
        or _of_silence(state, seen, policy)
    )


def judge_meanwhile(state: RunState, seen: Observations, *, now_s: float) -> Judgement | None:
    """What is still to be learned while a gang is being ended; None if nothing.

    Its processes end by our own signals now, so how they end says nothing: not that a node was lost, nor that somebody
    asked them to leave. A device's signals speak, and errors that have a name.
    """
    diagnosis = _of_signals(state, seen, now_s=now_s)
    if diagnosis is not None:
        return diagnosis
    found = _of_exits(state, seen)
    found = found and _explained(state, seen, found, now_s=now_s)
    return found if found is not None and found.sure and found.cause in ("application", "damage") else None


def _of_resume(state: RunState, seen: Observations) -> Judgement | None:
    """Being handed a checkpoint is not resuming: the first step must be the one after it."""
    beat, start = seen.heartbeat, seen.start
    if beat is None or beat.first_step is None or start is None or beat.attempt != state.attempt:
        return None
    loaded = start.load.step if start.load else 0
    if judge_resume(loaded, (beat.first_step,)) != "resume_not_applied":
        return None
    what = (
        f"step {loaded} was loaded, but the first step was {beat.first_step}; the script does not go on from what "
        "ckpt.restore() returns. The checkpoints are kept"
    )
    return Judgement(
        class_name="resume-not-applied",
        scope="process",
        action="none",
        cause="application",
        next="stop",
        evidence=(what,),
    )


def _of_signals(state: RunState, seen: Observations, *, now_s: float) -> Judgement | None:
    found = next(iter(isolating(_of_incident(state, seen))), None)
    return None if found is None else _of_offender(state, seen, _hardware(found), found, now_s=now_s)


def _of_offender(
    state: RunState, seen: Observations, judged: Judgement, found: Diagnosis, *, now_s: float
) -> Judgement:
    """A fault that came back on its device is cured more strongly."""
    history = next((node.offences for node in seen.nodes or () if node.name == found.node), ())
    step = cure(history, judged.device, incident_id(state), now_s=now_s)
    if step == "reset":
        return judged
    what = f"GPU {judged.device}" if judged.device else "the node itself"
    asked = "; replace it, and ask a person" if step == "replace-and-ask" else ""
    evidence = (*judged.evidence, f"{what} of {found.node} has failed before: {step}{asked}")
    return judged.model_copy(update={"action": escalated(found.action, step), "evidence": evidence})


def _explained(state: RunState, seen: Observations, ended: Judgement, *, now_s: float) -> Judgement:
    """The same end with what the kernel said about it: a fault of process scope accuses no device, but has a name."""
    if ended.class_name not in ("killed", "app-error", "oom"):
        return ended
    near = [
        signal
        for signal in _of_incident(state, seen)
        if signal.node == ended.node and now_s - signal.first_seen_s <= EVIDENCE_WINDOW_S
    ]
    found = next(iter(diagnose_nodes(near, now_s=now_s)), None)
    if found is None or found.scope != "process":
        return ended
    told = ended.model_copy(
        update={
            "codes": found.codes,
            "device": found.devices[0] if found.devices else "",
            "evidence": (*ended.evidence, *found.evidence),
            "first_sign_s": found.first_seen_s,
        }
    )
    if found.class_ == "sympathetic":  # teardown; what it follows from is not known
        return told
    sure: dict[str, object] = {"class_name": found.class_, "action": found.action, "sure": True, "confidence": 0.8}
    if found.class_ == "oom":
        nodes = state.gang.nodes if state.gang else ()
        failure = Failure(error=OUT_OF_MEMORY, step=ended.step, nodes=nodes)
        sure |= {"cause": "application", "next": "new-gang", "failure": failure}
    elif found.class_ == "app":
        sure |= {"cause": "application"}
    else:
        sure |= {"cause": "hardware", "next": "in-place", "failure": None}
    return told.model_copy(update=sure)


def isolating(signals: tuple[FaultSignal, ...]) -> tuple[Diagnosis, ...]:
    """What the signals say about nodes that must not be used any more, the worst first; one diagnosis per node.

    Stamps stay as the node's own clock gave them, even where ours is behind it: they are compared with snapshots of
    that node, and taken back to our time they would make good commits suspect.
    """
    by_time = sorted(signals, key=lambda one: one.first_seen_s)
    found = diagnose_nodes(by_time, now_s=float("inf")) if signals else ()
    return tuple(one for one in found if one.scope not in (None, "process") and one.quarantine != "none")


def _hardware(found: Diagnosis) -> Judgement:
    return Judgement(
        class_name=found.class_,
        scope=found.scope or "node",
        action=found.action,
        cause="hardware",
        next="new-gang",
        trusted=not found.suspects,
        node=found.node,
        exclude=found.quarantine != "none",
        device=found.devices[0] if found.devices else "",
        codes=found.codes,
        confidence=found.confidence,
        evidence=found.evidence,
        suspects=found.suspects,
        suspect_since_s=found.first_seen_s,
        first_sign_s=found.first_seen_s,
    )


def _of_exits(state: RunState, seen: Observations) -> Judgement | None:
    codes = {end.exit_code for end in seen.exits} | {
        pod.exit_code for pod in pods_of(seen) if pod.exit_code is not None and pod.farewell
    }
    root = root_exit(seen.exits)
    if errors.DAMAGE_MET in codes:
        return Judgement(
            class_name="checkpoint-damage",
            scope="cluster",
            action="none",
            cause="damage",
            next="new-gang",
            evidence=("a rank met a damaged checkpoint while loading and marked it bad (exit code 88)",),
        )
    if codes & {errors.DO_NOT_RETRY, errors.NVRX_TERMINAL}:
        code = min(codes & {errors.DO_NOT_RETRY, errors.NVRX_TERMINAL})
        said = f": {root.error}" if root and root.error else ""
        return Judgement(
            class_name="do-not-retry",
            scope="process",
            action="none",
            cause="application",
            next="stop",
            evidence=(f"a rank left with exit code {code}, which asks for no retry{said}",),
        )
    if root is not None and root.exit_code not in (errors.SAVED_AND_LEFT, errors.LEFT_UNSAVED):
        return _of_root(state, seen, root)
    if codes & {errors.SAVED_AND_LEFT, errors.LEFT_UNSAVED}:
        saved = errors.SAVED_AND_LEFT in codes
        return Judgement(
            class_name="preemption",
            scope="cluster",
            action="none",
            cause="preemption",
            next="new-gang",
            evidence=(
                "the ranks were asked to leave and saved first (exit code 85)"
                if saved
                else "the ranks were asked to leave and could not save (exit code 86)",
            ),
        )
    return None


def _of_root(state: RunState, seen: Observations, root: RankExit) -> Judgement:
    nodes = state.gang.nodes if state.gang else ()
    node = _node_of(state, root.rank)
    if any(pod.reason == "OOMKilled" for pod in pods_of(seen)):
        return Judgement(
            class_name="oom",
            scope="process",
            action="restart_app",
            cause="application",
            next="new-gang",
            node=node,
            evidence=(f"rank {root.rank} was killed for memory at step {root.step}",),
            failure=Failure(error=OUT_OF_MEMORY, step=root.step, nodes=nodes),
            step=root.step,
        )
    if root.exit_code == _SIGNALLED + signal.SIGTERM and not root.error:
        # Its script had not begun to listen to requests yet, or does not.
        taken = taken_away(seen)
        if taken is not None:
            return taken
    if root.exit_code >= _SIGNALLED and not root.error:
        return Judgement(
            class_name="killed",
            scope="process",
            action="restart_app",
            cause="unknown",
            next="in-place",
            sure=False,
            node=node,
            confidence=0.5,
            evidence=(f"rank {root.rank} was ended by signal {root.exit_code - _SIGNALLED} at step {root.step}",),
            step=root.step,
        )
    error = root.error or f"exit code {root.exit_code}"
    sure = bool(root.error) and root.error.split(":", maxsplit=1)[0] not in _COLLECTIVE
    return Judgement(
        class_name="app-error",
        scope="process",
        action="restart_app",
        cause="application",
        next="in-place",
        sure=sure,
        confidence=1.0 if sure else 0.5,
        node=node,
        evidence=(f"rank {root.rank} ended after step {root.step} with {error}",),
        step=root.step,
        failure=Failure(error=error, step=root.step, nodes=nodes),
    )


def _of_silence(state: RunState, seen: Observations, policy: RecoveryPolicy) -> Judgement | None:
    beat = seen.heartbeat
    age_s = seen.heartbeat_age_s
    if seen.gang is None or seen.gang.waits or (seen.gang.pods and not seen.gang.alive) or is_final(seen):
        return None
    doing = "loading" if beat is None or beat.first_step is None else beat.phase or "training"
    limit_s = stall_limit_s((beat.step_time_s if beat else None) or 0.0, phase=doing, policy=policy)
    if judge_progress(age_s, limit_s) != "gang stalled":
        return None
    step = beat.step if beat else None
    what = f"no step after step {step} for {age_s:.1f} s while {doing} (limit {limit_s:.1f} s)"
    pending = [pod for pod in seen.gang.pods if pod.phase == "pending"]
    if pending:
        return Judgement(
            class_name="not-started",
            scope="cluster",
            action="none",
            cause="infrastructure",
            next="new-gang",
            evidence=(f"{what}: {len(pending)} pods do not begin, the first {pending[0].name}: {pending[0].reason}",),
        )
    return Judgement(
        class_name="hang",
        scope="process",
        action="restart_app",
        cause="unknown",
        next="in-place",
        confidence=0.6,
        evidence=(f"{what}, though {'every process lives' if seen.gang.pods else 'no pod of it was ever seen'}",),
        failure=Failure(error="hang", step=step, nodes=state.gang.nodes if state.gang else ()),
    )


def _node_of(state: RunState, rank: int) -> str:
    for pod in state.gang.pods if state.gang else ():
        if pod.first_rank <= rank < pod.first_rank + pod.ranks:
            return pod.node
    return ""
