"""What each code of each signal means by the order of trust, and which of them are consequences of others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pydantic import Field

from rerail.policies.faults import QUARANTINES, Action, FaultSignal, FaultValue, Quarantine, Scope, Trust, strength
from rerail.policies.faults.catalogue import Catalogue
from rerail.policies.faults.explain import Judgement
from rerail.policies.faults.kernel_signals import judgements_of
from rerail.policies.faults.repeats import DEFAULT_RULES, RepeatRule

POD_LOG_SOURCES: Final = frozenset({"podlog", "ranklog"})
"""Sources whose text a user's process writes: it tells of that process and of nothing else."""

NEVER_ALONE: Final = frozenset({"xid:13", "xid:31", "xid:43", "xid:45", "xid:63", "xid:92", "xid:94"})
"""Codes that no source's recommendation makes a quarantine: it wraps them, and they accuse no device by themselves."""

WIDTH: Final[Mapping[Scope | None, int]] = {None: 0, "process": 1, "device": 2, "node": 3, "fabric": 4, "cluster": 5}
_SCOPE_OF: Final[Mapping[Action, Scope]] = {
    "restart_app": "process",
    "reset_gpu": "device",
    "investigate": "node",
    "reboot_node": "node",
    "power_cycle_node": "node",
    "replace_node": "node",
    "contact_support": "node",
}


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
    """One code of one signal.

    Attributes:
        code: Empty where the source gives none.
        own: What the code means by itself, before the order of trust.
        trust: Which rung decided scope, action and quarantine.
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
        return QUARANTINES.index(self.quarantine), strength(self.action), WIDTH[self.scope], -self.signal.first_seen_s


def find(signals: Sequence[FaultSignal], catalogue: Catalogue, rules: DiagnosisPolicy) -> list[Finding]:
    """All findings of one incident's signals, followers marked.

    Args:
        signals: None of them taken back.
        catalogue: What codes mean here.
        rules: Windows.
    """
    judged = [(signal, judgements_of(signal, catalogue)) for signal in signals]
    recoveries = [
        (signal, own)
        for signal, codes in judged
        if signal.source not in POD_LOG_SOURCES
        for _, own in codes
        if own.recovery is not None and not own.recovery.clears
    ]
    findings: list[Finding] = []
    for signal, codes in judged:
        recovery = _recovery_near(signal, recoveries, rules)
        found = [_trusted(signal, code, own, recovery) for code, own in codes] or [_without_code(signal)]
        findings += [_of_pod_log(finding) for finding in found] if signal.source in POD_LOG_SOURCES else found
    roots = {id(finding): _root_of(finding, findings, rules) for finding in findings}
    return [
        finding if (root := roots[id(finding)]) is None else replace(finding, follows=root.code or root.own.class_)
        for finding in findings
    ]


def _recovery_near(
    signal: FaultSignal, recoveries: Sequence[tuple[FaultSignal, Judgement]], rules: DiagnosisPolicy
) -> Judgement | None:
    """The last recovery action of the same GPU within the window: the driver changes its mind, the last value wins."""
    if signal.source in POD_LOG_SOURCES:
        return None
    near = [
        (other.first_seen_s, index)
        for index, (other, _) in enumerate(recoveries)
        if other.node == signal.node
        and not set(other.devices).isdisjoint(signal.devices)
        and abs(other.first_seen_s - signal.first_seen_s) <= rules.recovery_window_s
    ]
    return recoveries[max(near)[1]][1] if near else None


def _trusted(signal: FaultSignal, code: str, own: Judgement, recovery: Judgement | None) -> Finding:
    """The order of trust for one code."""
    told = _told(code, signal)
    plain = Finding(
        signal=signal,
        code=code,
        own=own,
        scope=own.scope,
        # Where a code says to follow XID 154 and none came, the application is restarted.
        action="restart_app" if own.action == "follow_xid_154" else own.action,
        quarantine=own.quarantine,
        trust="class_default" if own.class_ == "unknown" else "catalogue",
        why=f"{told}; no table knows it: isolate and ask" if own.class_ == "unknown" else told,
    )
    if recovery is not None:
        said = recovery.marks["recovery"]
        return replace(
            plain,
            scope=recovery.scope,
            action=recovery.action,
            quarantine=recovery.quarantine,
            trust="recovery_action",
            why=f"{told}; the driver's recovery action for this GPU: {said}",
        )
    hint = _hint(signal)
    if hint is None or code in NEVER_ALONE or own.recovery is not None:
        return plain
    return replace(
        plain,
        scope=_scope_of(hint, signal.scope),
        action=hint,
        quarantine="node" if strength(hint) >= strength("investigate") else "none",
        trust="source_hint",
        why=f"{told}; {signal.source} recommends {hint}",
    )


def _scope_of(hint: Action, said: Scope | None) -> Scope:
    """What a recommended action is about; a source may know that what stands behind it is wider."""
    own = _SCOPE_OF[hint]
    return said if said is not None and own == "node" and WIDTH[said] >= WIDTH["device"] else own


def _hint(signal: FaultSignal) -> Action | None:
    """A recommendation that says to do something; none, or pointing elsewhere, is no recommendation."""
    hint = signal.action_hint
    return None if hint in (None, "none", "follow_primary", "follow_xid_154") else hint


def _told(what: str, signal: FaultSignal) -> str:
    where = f" on {signal.devices[0]}" if signal.devices else ""
    at = f" of node {signal.node}" if signal.node else ""
    return f"{signal.source}: {what}{where}{at}"


def _without_code(signal: FaultSignal) -> Finding:
    """A signal without a code: by its hint, else by its scope. Without either it isolates nothing."""
    hint = _hint(signal)
    action: Action = hint or ("restart_app" if signal.scope == "process" else "investigate")
    scope = _scope_of(hint, signal.scope) if hint else signal.scope
    isolates = scope not in (None, "process") and signal.severity != "info"
    return Finding(
        signal=signal,
        code="",
        own=Judgement("unknown", scope, action, "none"),
        scope=scope,
        action=action,
        quarantine="node" if isolates else "none",
        trust="source_hint" if hint else "class_default",
        why=_told("a fault without a code", signal),
    )


def _of_pod_log(finding: Finding) -> Finding:
    action: Action = "restart_app" if strength(finding.action) > strength("restart_app") else finding.action
    own = Judgement(finding.own.class_, "process", action, "none", entry=finding.own.entry)
    return replace(finding, scope="process" if finding.scope else None, action=action, quarantine="none", own=own)


def _root_of(finding: Finding, findings: Sequence[Finding], rules: DiagnosisPolicy) -> Finding | None:
    """The finding that this one is a consequence of, None where it stands for itself."""
    companion = finding.own.marks.get("companion_of")
    harmless = finding.quarantine == "none" and bool(finding.code)
    if not (finding.code == "xid:45" or companion is not None or harmless):
        return None
    signal = finding.signal
    near = [
        other
        for other in findings
        if other is not finding and abs(other.signal.first_seen_s - signal.first_seen_s) <= rules.follow_window_s
    ]
    same_gpu = [other for other in near if other.signal.node == signal.node and other.device == finding.device]
    if finding.code == "xid:45":
        causes = [other for other in near if other.code != "xid:45"]
        named = [other for other in causes if other.code == f"xid:{signal.details.get('caused_by')}"]
        here = [other for other in same_gpu if other.code != "xid:45"]
        causes = named or here or [other for other in causes if other.quarantine != "none"]
        return max(causes, key=lambda other: other.weight, default=None)
    if companion is not None:
        return next((other for other in same_gpu if other.code == f"xid:{companion}"), None)
    worse = [other for other in same_gpu if other.quarantine != "none" and other.code != "xid:45"]
    return max(worse, key=lambda other: other.weight, default=None)
