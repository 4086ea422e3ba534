"""What signals and exits mean together. Pure; ``now_s`` and history are given.

Order of trust, per GPU: the driver's own recovery action within 30 s, then what the source recommends, then the
catalogue, then the class's default. An unknown code is isolated and asked about. XID 45 follows its root, 171 and 172
follow 48, the application's faults follow a device's; 63 alone quarantines nothing; 13, 31 and 43 are the
application's until they repeat in distinct workloads on one unit. A pod's own log never quarantines a node.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pydantic import Field

from rerail.policies import errors
from rerail.policies.catalog import load_catalogue
from rerail.policies.catalogue import Catalogue
from rerail.policies.documents import RankExit
from rerail.policies.explain import Judgement
from rerail.policies.faults import (
    QUARANTINES,
    Action,
    Diagnosis,
    FaultSignal,
    FaultValue,
    Quarantine,
    Scope,
    Trust,
    strength,
)
from rerail.policies.kernel_signals import judgements_of
from rerail.policies.repeats import DEFAULT_RULES, Repeat, RepeatRule, find_repeat

POD_LOG_SOURCES: Final = frozenset({"podlog", "ranklog"})
NEVER_ALONE: Final = frozenset({"xid:13", "xid:31", "xid:43", "xid:45", "xid:63", "xid:92", "xid:94"})
"""Codes that must not lead to a quarantine by themselves, whatever a source recommends for its wrapper of them."""

_CONFIDENCE: Final[Mapping[Trust, float]] = {
    "recovery_action": 1.0,
    "source_hint": 0.9,
    "catalogue": 0.8,
    "repeat_rule": 0.7,
    "exit_code": 0.6,
    "class_default": 0.4,
}
_UNKNOWN_CONFIDENCE: Final = 0.2
_SCOPE_OF: Final[Mapping[Action, Scope]] = {
    "reset_gpu": "device",
    "investigate": "node",
    "reboot_node": "node",
    "power_cycle_node": "node",
    "replace_node": "node",
    "contact_support": "node",
}
_WIDTH: Final[Mapping[Scope | None, int]] = {None: 0, "process": 1, "device": 2, "node": 3, "fabric": 4, "cluster": 5}
_SIGKILL, _SIGTERM = 137, 143


class DiagnosisPolicy(FaultValue):
    """Windows and rules.

    Attributes:
        recovery_window_s: How far XID 154 or NVML's recovery action may lie from a signal of the same GPU to decide it.
        follow_window_s: How far a follower (45, 171, 172, an application's fault) may lie from its root.
        repeat_rules: When the application's faults become the device's.
    """

    recovery_window_s: float = Field(default=30.0, ge=0)
    follow_window_s: float = Field(default=30.0, ge=0)
    repeat_rules: tuple[RepeatRule, ...] = DEFAULT_RULES


@dataclass(frozen=True)
class Finding:
    """One code of one signal and what it means once the order of trust was applied.

    Attributes:
        own: What the code means by itself, before the order of trust.
        trust: Which rung decided.
        follows: The code that it is a consequence of, None where it stands for itself.
    """

    signal: FaultSignal
    code: str
    own: Judgement
    scope: Scope | None
    action: Action
    quarantine: Quarantine
    trust: Trust
    why: str
    follows: str | None = None

    @property
    def device(self) -> str:
        """The device that the signal names first; empty where it names none."""
        return self.signal.devices[0] if self.signal.devices else ""

    @property
    def weight(self) -> tuple[int, int, int, float]:
        """Order among findings: the worst, and of equals the earliest, is the root."""
        return (
            QUARANTINES.index(self.quarantine),
            strength(self.action),
            _WIDTH[self.scope],
            -self.signal.first_seen_s,
        )


def diagnose(
    signals: Sequence[FaultSignal],
    exits: Sequence[RankExit] = (),
    *,
    policy: DiagnosisPolicy | None = None,
    now_s: float,
    catalogue: Catalogue | None = None,
    history: Sequence[FaultSignal] = (),
) -> Diagnosis | None:
    """The worst of ``diagnose_nodes``; without any signal, what the exits say; None where nothing is wrong.

    Args:
        signals: Signals of one incident, of any nodes, in any order.
        exits: How ranks ended.
        policy: Windows and rules.
        now_s: Epoch seconds; signals stamped later than this are taken as of now.
        catalogue: What codes mean, with the overlays of this cluster; the packaged one by default.
        history: Earlier signals, for the repeat rules.
    """
    found = diagnose_nodes(signals, policy=policy, now_s=now_s, catalogue=catalogue, history=history)
    ended = diagnose_exits(exits)
    if not found:
        return ended
    if ended is not None and found[0].scope in (None, "process"):
        return found[0].model_copy(update={"evidence": (*found[0].evidence, *ended.evidence)})
    return found[0]


def diagnose_nodes(
    signals: Sequence[FaultSignal],
    *,
    policy: DiagnosisPolicy | None = None,
    now_s: float,
    catalogue: Catalogue | None = None,
    history: Sequence[FaultSignal] = (),
) -> tuple[Diagnosis, ...]:
    """One diagnosis per node that has a cause of its own, worst first; a node with followers only has none.

    If no node has a cause, the application's faults give one diagnosis.
    """
    rules = policy or DiagnosisPolicy()
    known = catalogue or load_catalogue()
    present = [_not_later(signal, now_s) for signal in _standing(signals)]
    findings = [finding for signal in present for finding in _judged(signal, present, known, rules)]
    findings = [_followed(finding, findings, rules) for finding in findings]
    roots = [finding for finding in findings if finding.follows is None]
    if not roots:
        return ()
    repeats = {
        index: repeat
        for index, finding in enumerate(roots)
        if finding.quarantine == "none" and (repeat := find_repeat(finding.signal, history, rules.repeat_rules))
    }
    if repeats:
        found = [_suspected(roots[index], repeat) for index, repeat in repeats.items()]
        roots = [root for index, root in enumerate(roots) if index not in repeats and root.quarantine != "none"]
    else:
        found = []
    by_node: dict[str, list[Finding]] = {}
    for root in roots:
        by_node.setdefault(root.signal.node, []).append(root)
    found += [_of_node(group, findings) for group in by_node.values()]
    isolating = [diagnosis for diagnosis in found if diagnosis.quarantine != "none"]
    ordered = sorted(isolating or found, key=_worst_first)
    return tuple(ordered) if isolating else tuple(ordered[:1])


def _worst_first(diagnosis: Diagnosis) -> tuple[int, int, int, float, str]:
    return (
        -QUARANTINES.index(diagnosis.quarantine),
        -strength(diagnosis.action),
        -_WIDTH[diagnosis.scope],
        diagnosis.first_seen_s or 0.0,
        diagnosis.node,
    )


def _standing(signals: Sequence[FaultSignal]) -> list[FaultSignal]:
    """Signals that no later one took back, and that are no clearing themselves."""
    cleared = {
        (signal.node, signal.clears_key): signal.first_seen_s
        for signal in sorted(signals, key=lambda signal: signal.first_seen_s)
        if signal.cleared and signal.clears_key
    }
    return [
        signal
        for signal in signals
        if not signal.cleared and signal.first_seen_s > cleared.get((signal.node, signal.clears_key), float("-inf"))
    ]


def _not_later(signal: FaultSignal, now_s: float) -> FaultSignal:
    return signal if signal.first_seen_s <= now_s else signal.model_copy(update={"first_seen_s": now_s})


def _judged(
    signal: FaultSignal, all_signals: Sequence[FaultSignal], catalogue: Catalogue, rules: DiagnosisPolicy
) -> list[Finding]:
    """The findings of one signal by the order of trust."""
    if not signal.codes:
        return [_by_default(signal)]
    judged = judgements_of(signal, catalogue)
    found = [_trusted(signal, code, own, all_signals, catalogue, rules) for code, own in judged]
    if signal.source in POD_LOG_SOURCES:
        return [_of_pod_log(finding) for finding in found]
    return found


def _trusted(
    signal: FaultSignal,
    code: str,
    own: Judgement,
    all_signals: Sequence[FaultSignal],
    catalogue: Catalogue,
    rules: DiagnosisPolicy,
) -> Finding:
    plain: dict[str, Any] = {"signal": signal, "code": code, "own": own}
    if own.recovery is not None:
        return Finding(
            **plain,
            scope=own.scope,
            action=own.action,
            quarantine=own.quarantine,
            trust="recovery_action",
            why=f"the driver's recovery action is {own.recovery.texts[0]!r}",
        )
    recovery = _recovery_near(signal, all_signals, catalogue, rules)
    if recovery is not None:
        return Finding(
            **plain,
            scope=recovery.scope,
            action=recovery.action,
            quarantine=recovery.quarantine,
            trust="recovery_action",
            why=f"{_told(code, signal)}; the driver's recovery action for this GPU decides: {recovery.marks['recovery']}",
        )
    hint = signal.action_hint
    if hint not in (None, "none", "follow_primary", "follow_xid_154") and code not in NEVER_ALONE:
        assert hint is not None
        isolates = strength(hint) >= strength("investigate")
        return Finding(
            **plain,
            scope=signal.scope or _SCOPE_OF.get(hint, own.scope),
            action=hint,
            quarantine="node" if isolates else own.quarantine,
            trust="source_hint",
            why=f"{_told(code, signal)}; {signal.source} recommends {hint}",
        )
    scope, action = own.scope, own.action
    if action == "follow_xid_154":  # no 154 came within the window
        action = "restart_app"
    return Finding(
        **plain,
        scope=scope,
        action=action,
        quarantine=own.quarantine,
        trust="catalogue" if own.entry is not None and own.class_ != "unknown" else "class_default",
        why=_told(code, signal) + ("; no table knows it: isolate and ask" if own.class_ == "unknown" else ""),
    )


def _told(code: str, signal: FaultSignal) -> str:
    where = f" on {signal.devices[0]}" if signal.devices else ""
    at = f" of node {signal.node}" if signal.node else ""
    return f"{signal.source}: {code}{where}{at}"


def _recovery_near(
    signal: FaultSignal, all_signals: Sequence[FaultSignal], catalogue: Catalogue, rules: DiagnosisPolicy
) -> Judgement | None:
    """The last recovery action of the same GPU within the window; the driver changes its mind, the last value wins."""
    if not signal.devices or signal.source in POD_LOG_SOURCES:
        return None
    near: list[tuple[float, int, Judgement]] = []
    for index, other in enumerate(all_signals):
        same = other.node == signal.node and not set(other.devices).isdisjoint(signal.devices)
        if not same or abs(other.first_seen_s - signal.first_seen_s) > rules.recovery_window_s:
            continue
        near += [
            (other.first_seen_s, index, own)
            for _, own in judgements_of(other, catalogue)
            if own.recovery is not None and not own.recovery.clears
        ]
    return max(near, key=lambda item: item[:2])[2] if near else None


def _by_default(signal: FaultSignal) -> Finding:
    """A signal without a code: by its hint, else by its scope. Without either nothing is isolated."""
    hint = signal.action_hint
    known = hint is not None and hint not in ("none", "follow_primary", "follow_xid_154")
    action: Action = (
        hint if known and hint is not None else "restart_app" if signal.scope == "process" else "investigate"
    )
    scope = signal.scope or (_SCOPE_OF.get(action) if known else None)
    isolates = scope not in (None, "process") and signal.severity != "info"
    pod_log = signal.source in POD_LOG_SOURCES
    return Finding(
        signal=signal,
        code="",
        own=Judgement("unknown", scope, action, "none"),
        scope="process" if pod_log else scope,
        action="restart_app" if pod_log else action,
        quarantine="node" if isolates and not pod_log else "none",
        trust="source_hint" if known else "class_default",
        why=f"{signal.source} reports a fault without a code" + (f" of node {signal.node}" if signal.node else ""),
    )


def _of_pod_log(finding: Finding) -> Finding:
    """A pod may print what it likes: its log tells of its own process and of nothing else."""
    action: Action = "restart_app" if strength(finding.action) > strength("restart_app") else finding.action
    return Finding(
        **{
            **finding.__dict__,
            "scope": "process" if finding.scope is not None else None,
            "action": action,
            "quarantine": "none",
            "own": Judgement(finding.own.class_, "process", action, "none", entry=finding.own.entry),
        }
    )


def _followed(finding: Finding, findings: Sequence[Finding], rules: DiagnosisPolicy) -> Finding:
    """Mark a finding that is the consequence of another one."""
    root = _root_of(finding, findings, rules)
    if root is None:
        return finding
    return Finding(**{**finding.__dict__, "follows": root.code or root.own.class_})


def _root_of(finding: Finding, findings: Sequence[Finding], rules: DiagnosisPolicy) -> Finding | None:
    others = [
        other
        for other in findings
        if other is not finding
        and abs(other.signal.first_seen_s - finding.signal.first_seen_s) <= rules.follow_window_s
    ]
    same_gpu = [
        other for other in others if other.signal.node == finding.signal.node and other.device == finding.device
    ]
    if finding.code == "xid:45":
        named = finding.signal.details.get("caused_by")
        causes = [other for other in others if other.code != "xid:45" and other.own.class_ != "sympathetic"]
        told = [other for other in causes if other.code == f"xid:{named}"]
        near = told or [other for other in same_gpu if other in causes] or [o for o in causes if o.quarantine != "none"]
        return max(near, key=lambda other: other.weight, default=None)
    companion = finding.own.marks.get("companion_of")
    if companion is not None:
        return next((other for other in same_gpu if other.code == f"xid:{companion}"), None)
    if finding.signal.details.get("continuation") is True or (finding.quarantine == "none" and finding.code):
        worse = [other for other in same_gpu if other.quarantine != "none" and not other.own.marks.get("companion_of")]
        return max(worse, key=lambda other: other.weight, default=None)
    return None


def _of_node(roots: Sequence[Finding], findings: Sequence[Finding]) -> Diagnosis:
    """The diagnosis of one node from its roots; the class and action of the worst one, widened to all it hits."""
    ordered = sorted(roots, key=lambda finding: finding.weight, reverse=True)
    # The driver's recovery action says what to do, the code that it belongs to says what is wrong.
    causes = [finding for finding in ordered if finding.own.recovery is None]
    root = ordered[0]
    cause = causes[0] if causes and (causes[0].device == root.device or not root.device) else root
    isolating = [finding for finding in ordered if finding.quarantine != "none"]
    devices = tuple(dict.fromkeys(device for finding in isolating or ordered for device in finding.signal.devices))
    scope = max((finding.scope for finding in isolating or [root]), key=lambda scope: _WIDTH[scope])
    if scope == "device" and len(devices) > 1:
        scope = "node"
    followers = [
        finding
        for finding in findings
        if finding.follows is not None and (finding.follows == root.code or finding.signal.node == root.signal.node)
    ]
    counting = [finding for finding in [cause, *ordered, *followers] if finding.code]
    notes = [finding.why for finding in ordered]
    notes += [f"{finding.code} follows {finding.follows}" for finding in followers]
    unknown = cause.own.class_ == "unknown" and root.trust in {"catalogue", "class_default"}
    action, own = root.action, cause.own
    if not own.entry and own.class_ == "unknown" and not root.code:
        own = root.own
    companion = own.marks.get("companion_of")
    if companion is not None and action == "follow_primary":  # 171 or 172 without the 48 that they annotate
        action, scope = "investigate", scope or "device"
    return Diagnosis(
        class_=own.class_,
        scope=scope,
        action=action,
        evidence=tuple(dict.fromkeys(notes)),
        confidence=_UNKNOWN_CONFIDENCE if unknown else _CONFIDENCE[root.trust],
        quarantine="node" if companion is not None and action == "investigate" else root.quarantine,
        suspects=any(finding.own.suspects for finding in [*ordered, *followers]),
        trust=root.trust,
        node=root.signal.node,
        devices=devices,
        codes=tuple(dict.fromkeys(finding.code for finding in counting)),
        first_seen_s=min(finding.signal.first_seen_s for finding in [*ordered, *followers]),
    )


def _suspected(finding: Finding, repeat: Repeat) -> Diagnosis:
    names = ", ".join(repeat.workloads)
    return Diagnosis(
        class_="suspect_hardware",
        scope=repeat.scope,
        action="investigate",
        evidence=(
            f"{finding.code} in {len(repeat.workloads)} distinct workloads ({names}) on one "
            f"{'node' if repeat.rule.whole_node else 'unit of one GPU'} within {repeat.rule.window_s:g} s",
            "run diagnostics (dcgmi diag); if they fail, the card is to be replaced",
        ),
        confidence=_CONFIDENCE["repeat_rule"],
        quarantine="node",
        suspects=False,
        trust="repeat_rule",
        node=finding.signal.node,
        devices=() if repeat.rule.whole_node else finding.signal.devices,
        codes=(finding.code,),
        first_seen_s=repeat.first_seen_s,
    )


_EXITS: Final[Mapping[int, tuple[str, Action, str]]] = {
    errors.SAVED_AND_LEFT: ("left_saved", "none", "left as asked, saved"),
    errors.LEFT_UNSAVED: ("left_unsaved", "none", "left as asked, without saving"),
    errors.DO_NOT_RETRY: ("do_not_retry", "none", "says that trying again is useless"),
    errors.NVRX_TERMINAL: ("do_not_retry", "none", "NVRx decided not to restart"),
    errors.DAMAGE_MET: ("damage_met", "restart_app", "met a damaged checkpoint, which the next attempt passes over"),
    _SIGKILL: ("killed", "restart_app", "ended by SIGKILL: memory, a person or the node; the code does not tell"),
    _SIGTERM: ("terminated", "restart_app", "ended by SIGTERM; the code does not tell by whom"),
}
_EXIT_ORDER: Final = (errors.DO_NOT_RETRY, errors.NVRX_TERMINAL, errors.DAMAGE_MET)


def diagnose_exits(exits: Sequence[RankExit]) -> Diagnosis | None:
    """What exit codes alone say: never more than a process, never sure. Who ended it is told by pods and nodes.

    ``policies.endings`` joins a code with the pod's own words; this is for what no signal explains.
    """
    bad = [end for end in exits if end.exit_code != errors.DONE]
    if not bad:
        return None

    def weight(end: RankExit) -> tuple[int, int]:
        if end.exit_code in _EXIT_ORDER:
            return _EXIT_ORDER.index(end.exit_code), end.rank
        known = end.exit_code in _EXITS
        return (len(_EXIT_ORDER) if end.error and not known else len(_EXIT_ORDER) + 1 + known), end.rank

    first = min(bad, key=weight)
    class_, action, why = _EXITS.get(first.exit_code, ("app", "restart_app", first.error or "the application failed"))
    at = "" if first.step is None else f" after step {first.step}"
    return Diagnosis(
        class_=class_,
        scope="process",
        action=action,
        evidence=(f"rank {first.rank} ended with exit code {first.exit_code}{at}: {why}",),
        confidence=_CONFIDENCE["exit_code"],
        trust="exit_code",
    )
