"""Which lines belong together: one incident per boot, GPU and cause, with a counter, followers beside it."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from rerail.policies.faults import FaultSignal
from rerail.policies.faults.catalogue import Catalogue
from rerail.policies.faults.diagnosis import diagnose
from rerail.policies.faults.explain import Judgement, judge
from rerail.policies.faults.findings import DiagnosisPolicy
from rerail.policies.faults.kernel_envelope import Stamp
from rerail.policies.faults.kernel_lines import Event, events_of, is_worth_parsing
from rerail.policies.faults.kernel_signals import signal_of

_BOOT_BASE_S: Final = 1e9  # stamps since boot, on a line of time of their own; only distances matter here
_FOLLOWER: Final = "xid:45"
_NEWEST: Final = 64  # reports of an incident that are looked at for nearness: a storm must not cost its square


@dataclass
class _Report:
    """One event of one line."""

    line: int
    at_s: float
    event: Event
    judged: Judgement
    boot: str


@dataclass
class _Incident:
    reports: list[_Report] = field(default_factory=list)
    things: set[tuple[str, str | None, str]] = field(default_factory=set)

    def add(self, report: _Report) -> None:
        """Take a report in."""
        self.reports.append(report)
        self.things.add(_thing(report))

    def near(self, report: _Report, window_s: float) -> bool:
        """Whether one of its newest reports lies within the window."""
        return any(abs(other.at_s - report.at_s) <= window_s for other in self.reports[-_NEWEST:])

    def has(self, report: _Report) -> bool:
        """Whether it holds the same code of the same device and boot: that is the same thing again, at any distance."""
        return _thing(report) in self.things


def _thing(report: _Report) -> tuple[str, str | None, str]:
    return report.event.code, report.event.pci, report.boot


def correlate(
    lines: Iterable[str], catalogue: Catalogue, *, policy: DiagnosisPolicy | None = None
) -> list[dict[str, Any]]:
    """One document per incident, in order of the first line of each; lines that tell nothing belong to none.

    Args:
        lines: A log, in order. A line without a stamp counts as written with the one before it.
        catalogue: What codes mean.
        policy: Windows.
    """
    rules = policy or DiagnosisPolicy()
    incidents: list[_Incident] = []
    for report in _reports(lines, catalogue):
        home = _home_of(report, incidents, rules)
        if home is None:
            incidents.append(home := _Incident())
        home.add(report)
    _adopt_roots(incidents, rules)
    return [_document(incident, catalogue, rules) for incident in incidents if incident.reports]


def _reports(lines: Iterable[str], catalogue: Catalogue) -> Iterable[_Report]:
    at_s, boots, newest_s = _BOOT_BASE_S, 0, float("-inf")
    for number, line in enumerate(lines, start=1):
        if not is_worth_parsing(line):
            continue
        seen, events = events_of(line)
        at_s = _seconds(seen.stamp, at_s)
        if seen.stamp is not None and seen.stamp.kind == "monotonic":
            boots += seen.stamp.value_s < newest_s - 1  # the clock since boot went back: another boot
            newest_s = seen.stamp.value_s
        boot = str(seen.facts.get("boot_id", boots))
        for event in events:
            if event.kind != "mapping":
                yield _Report(number, at_s, event, judge(event, catalogue), boot)


def _seconds(stamp: Stamp | None, before_s: float) -> float:
    if stamp is None:
        return before_s
    return stamp.value_s + _BOOT_BASE_S if stamp.kind == "monotonic" else stamp.value_s


def _home_of(report: _Report, incidents: list[_Incident], rules: DiagnosisPolicy) -> _Incident | None:
    """The incident that a report belongs to: the same thing again, the same GPU soon after, or the root it names."""
    newest_first = [incident for incident in reversed(incidents) if incident.reports[-1].boot == report.boot]
    if report.event.code == _FOLLOWER:
        return _root_home(report, newest_first, rules)
    for incident in newest_first:
        if incident.has(report):
            return incident
    for incident in newest_first:
        if not incident.near(report, rules.follow_window_s):
            continue
        if report.event.pci is None or any(
            other.event.pci in (report.event.pci, None) for other in incident.reports[-_NEWEST:]
        ):
            if _same_kind(report, incident):
                return incident
        elif _fabric(report) and any(_fabric(other) for other in incident.reports[-_NEWEST:]):
            return incident
    return None


def _root_home(report: _Report, newest_first: list[_Incident], rules: DiagnosisPolicy) -> _Incident | None:
    """XID 45 goes to the code it names, else to its GPU's, else to one that isolates a node, else to other 45s."""
    near = [incident for incident in newest_first if incident.near(report, rules.follow_window_s)]
    named = f"xid:{report.event.facts.get('caused_by')}"
    tests: tuple[Callable[[_Report], bool], ...] = (
        lambda other: other.event.code == named,
        lambda other: other.event.code != _FOLLOWER and other.event.pci == report.event.pci,
        lambda other: other.judged.quarantine != "none",
        lambda other: other.event.code == _FOLLOWER,
    )
    for test in tests:
        for incident in near:
            if any(test(other) for other in incident.reports[-_NEWEST:]):
                return incident
    return None


def _same_kind(report: _Report, incident: _Incident) -> bool:
    """A report without an address joins what is of its class; one with an address joins everything of its GPU."""
    if report.event.pci is not None and any(
        other.event.pci == report.event.pci for other in incident.reports[-_NEWEST:]
    ):
        return True
    return any(other.judged.class_ == report.judged.class_ for other in incident.reports)


def _fabric(report: _Report) -> bool:
    return report.judged.scope == "fabric" or report.judged.class_ == "nvlink"


def _adopt_roots(incidents: list[_Incident], rules: DiagnosisPolicy) -> None:
    """Teardown that was logged before its root goes over to it."""
    for incident in incidents:
        if any(report.event.code != _FOLLOWER for report in incident.reports):
            continue
        first = incident.reports[0]
        others = [other for other in incidents if other is not incident and other.reports]
        home = _root_home(first, [other for other in others if other.reports[-1].boot == first.boot], rules)
        if home is not None and any(report.event.code != _FOLLOWER for report in home.reports):
            for report in incident.reports:
                home.add(report)
            incident.reports = []


def _document(incident: _Incident, catalogue: Catalogue, rules: DiagnosisPolicy) -> dict[str, Any]:
    reports = incident.reports
    signals: list[FaultSignal] = [
        signal_of(report.event, report.judged, node="", at_s=report.at_s, boot_id=report.boot) for report in reports
    ]
    found = diagnose(signals, policy=rules, now_s=float("inf"), catalogue=catalogue)
    root = _primary(reports, found.codes[0] if found and found.codes else "")
    same = [report for report in reports if report.event.code == root.event.code and report.event.pci == root.event.pci]
    rest = Counter(report.event.code for report in reports if report not in same and not report.event.continuation)
    lines = [report.line for report in reports]
    named = _numbered(root.event)
    document: dict[str, Any] = {
        "class": found.class_ if found else root.judged.class_,
        "scope": found.scope if found else None,
        "action": found.action if found else "none",
        "quarantine": found.quarantine if found else "none",
        "suspects": found.suspects if found else False,
        **named,
        "pci": root.event.pci,
        "primary": {**named, "pci": root.event.pci},
        "count": len(same),
        "followers": [
            {**_numbered_code(code), "count": count, "action": "follow_primary"} for code, count in rest.items()
        ],
        "nodes_quarantined": int(found is not None and found.quarantine != "none"),
        "lines": [min(lines), max(lines)],
    }
    for report in same:
        for key in ("device_minor", "link", "severity"):
            if key in report.event.facts:
                document.setdefault(key, report.event.facts[key])
    document |= {key: value for key, value in root.judged.marks.items() if key != "merge_with_previous"}
    if found is None:
        document["cleared"] = True
    else:
        document |= {"evidence": list(found.evidence), "confidence": found.confidence, "trust": found.trust}
    return document


def _primary(reports: list[_Report], code: str) -> _Report:
    """The report that the incident is named after: the diagnosis's first code, else the worst of its own."""
    named = [report for report in reports if report.event.code == code and not report.event.continuation]
    return max(named or reports, key=lambda report: report.judged.rank)


def _numbered(event: Event) -> dict[str, Any]:
    return _numbered_code(event.code)


def _numbered_code(code: str) -> dict[str, Any]:
    kind, _, word = code.partition(":")
    return {"code": code} if kind == "name" else {kind: int(word)}
