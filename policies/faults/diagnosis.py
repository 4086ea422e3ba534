"""What signals and exits mean together. Pure; ``now_s`` and history are given.

Order of trust, per GPU: the driver's own recovery action within 30 s, then what the source recommends, then the
catalogue, then the class's default. An unknown code is isolated and asked about. XID 45 follows its root, 171 and 172
follow 48, the application's faults follow a device's; 63 alone quarantines nothing; 13, 31 and 43 are the
application's until they repeat in distinct workloads on one unit. A pod's own log never quarantines a node.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from rerail.policies.catalog import load_catalogue
from rerail.policies.documents import RankExit
from rerail.policies.faults import QUARANTINES, Action, Diagnosis, FaultSignal, Quarantine, Scope, Trust, strength
from rerail.policies.faults.catalogue import Catalogue
from rerail.policies.faults.exit_codes import diagnose_exits
from rerail.policies.faults.findings import WIDTH, DiagnosisPolicy, Finding, find
from rerail.policies.faults.repeats import Repeat, find_repeat

__all__ = ["DiagnosisPolicy", "diagnose", "diagnose_exits", "diagnose_nodes"]

_STRETCH_S: Final = 10.0
_TELLING: Final = frozenset(
    ("caused_by", "recovery", "unit", "registers", "severity_word", "gpc", "tpc", "workload", "job", "pod")
)
_CONFIDENCE: Final[Mapping[Trust, float]] = {
    "recovery_action": 1.0,
    "source_hint": 0.9,
    "catalogue": 0.8,
    "repeat_rule": 0.7,
    "exit_code": 0.6,
    "class_default": 0.2,
}


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
    """One diagnosis per node that is to be isolated, worst first; a node with followers only gets none.

    If no node is to be isolated, the worst of the rest is the only one. For the arguments see ``diagnose``.
    """
    rules = policy or DiagnosisPolicy()
    findings = find(_distinct(_standing(signals, now_s)), catalogue or load_catalogue(), rules)
    roots = [finding for finding in findings if finding.follows is None]
    found: list[Diagnosis] = []
    by_node: dict[str, list[Finding]] = {}
    for root in roots:
        repeat = find_repeat(root.signal, history, rules.repeat_rules) if root.quarantine == "none" else None
        if repeat is not None:
            found.append(_suspected(root, repeat))
        else:
            by_node.setdefault(root.signal.node, []).append(root)
    found += [_of_node(group, findings) for group in by_node.values()]
    isolating = sorted((one for one in found if one.quarantine != "none"), key=_worst_first)
    return tuple(isolating) or tuple(sorted(found, key=_worst_first)[:1])


def _worst_first(diagnosis: Diagnosis) -> tuple[int, int, int, float, str]:
    return (
        -QUARANTINES.index(diagnosis.quarantine),
        -strength(diagnosis.action),
        -WIDTH[diagnosis.scope],
        diagnosis.first_seen_s or 0.0,
        diagnosis.node,
    )


def _standing(signals: Sequence[FaultSignal], now_s: float) -> list[FaultSignal]:
    """Signals that no later one took back, and that take nothing back themselves; none is later than now."""
    cleared: dict[tuple[str, str | None], float] = {}
    for signal in signals:
        if signal.cleared and signal.clears_key:
            key = signal.node, signal.clears_key
            cleared[key] = max(signal.first_seen_s, cleared.get(key, float("-inf")))
    return [
        signal if signal.first_seen_s <= now_s else signal.model_copy(update={"first_seen_s": now_s})
        for signal in signals
        if not signal.cleared and signal.first_seen_s > cleared.get((signal.node, signal.clears_key), float("-inf"))
    ]


def _distinct(signals: Sequence[FaultSignal]) -> list[FaultSignal]:
    """One of each thing in each stretch of time: a storm repeats itself, and followers are sought in pairs."""
    kept: dict[tuple[object, ...], FaultSignal] = {}
    for signal in signals:
        told = tuple(sorted((key, str(value)) for key, value in signal.details.items() if key in _TELLING))
        where = signal.source, signal.node, signal.devices, signal.codes, signal.action_hint, signal.scope
        kept.setdefault((*where, told, signal.first_seen_s // _STRETCH_S), signal)
    return list(kept.values())


def _of_node(roots: Sequence[Finding], findings: Sequence[Finding]) -> Diagnosis:
    """The diagnosis of one node: what the worst root says, widened to all devices that are hit."""
    ordered = sorted(roots, key=lambda finding: finding.weight, reverse=True)
    root = ordered[0]
    # The recovery action says what to do; the code that it belongs to says what is wrong.
    cause = next((one for one in ordered if one.own.recovery is None and one.device == root.device), root)
    followers = [one for one in findings if one.follows in {root.code, cause.code} - {""}]
    isolating = [one for one in ordered if one.quarantine != "none"]
    devices = tuple(dict.fromkeys(device for one in isolating or ordered for device in one.signal.devices))
    scope, action, quarantine = _widened(cause, isolating or [root], devices)
    counted = [cause, *ordered, *followers]
    notes = [one.why for one in ordered] + [f"{one.code} follows {one.follows}" for one in followers]
    return Diagnosis(
        class_=cause.own.class_,
        scope=scope,
        action=action,
        evidence=tuple(dict.fromkeys(notes)),
        confidence=_CONFIDENCE[root.trust],
        quarantine=quarantine,
        suspects=any(one.own.suspects for one in counted),
        trust=root.trust,
        node=root.signal.node,
        devices=devices,
        codes=tuple(dict.fromkeys(one.code for one in counted if one.code)),
        first_seen_s=min(one.signal.first_seen_s for one in counted),
    )


def _widened(
    cause: Finding, hit: Sequence[Finding], devices: tuple[str, ...]
) -> tuple[Scope | None, Action, Quarantine]:
    """Scope, action and quarantine where several things are hit, or where a follower stands alone."""
    worst = hit[0]
    scope = max((one.scope for one in hit), key=lambda one: WIDTH[one])
    if worst.action == "follow_primary":  # what it should follow did not come
        return (scope, "investigate", "node") if "companion_of" in cause.own.marks else (scope, "restart_app", "none")
    if scope == "device" and len(devices) > 1:
        return "node", worst.action, worst.quarantine  # several cards at once: the node, its power or its driver
    return scope, worst.action, worst.quarantine


def _suspected(finding: Finding, repeat: Repeat) -> Diagnosis:
    unit = "node" if repeat.rule.whole_node else "GPU" if not repeat.rule.by else f"{'/'.join(repeat.rule.by)} of a GPU"
    return Diagnosis(
        class_="suspect_hardware",
        scope=repeat.scope,
        action="investigate",
        evidence=(
            f"{finding.code} on one {unit} in distinct workloads: {', '.join(repeat.workloads)}",
            "run diagnostics (dcgmi diag); if they fail, the card is to be replaced",
        ),
        confidence=_CONFIDENCE["repeat_rule"],
        quarantine="node",
        trust="repeat_rule",
        node=finding.signal.node,
        devices=() if repeat.rule.whole_node else finding.signal.devices,
        codes=(finding.code,),
        first_seen_s=repeat.first_seen_s,
    )
