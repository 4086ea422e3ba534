"""What one line, or one code, means: the judgement of a single event, and its document.

Each line is judged alone here. What several lines mean together is in ``correlation`` and ``diagnosis``.
"""

import re
from dataclasses import dataclass, field
from typing import Any, Final

from rerail.policies.errors import UsageError
from rerail.policies.faults import QUARANTINES, Action, Quarantine, Scope, strength
from rerail.policies.faults.catalogue import Catalogue, Entry, RecoveryAction
from rerail.policies.faults.kernel_envelope import Envelope
from rerail.policies.faults.kernel_lines import Event, events_of, is_worth_parsing

NO_MATCH: Final[dict[str, Any]] = {"class": "no_match", "scope": None, "action": "none", "quarantine": "none"}
_FIRST_SXID: Final = 10000  # XIDs have three digits, SXIDs five
_ALWAYS_FATAL: Final = "always-fatal"
_CODE: Final = re.compile(r"\s*(?:(s?xid|name)\s*[:= -]?\s*)?([a-z0-9_]{1,64})\s*", re.IGNORECASE)
_IF_TOLD: Final = ("gpus", "gate", "workflow", "clears", "others", "disagrees", "conflict")
_KEEP_OUT: Final = frozenset({"recovery", "recovery_text", "recovery_value", "registers"})


@dataclass(frozen=True)
class Judgement:
    """What one event alone means.

    Attributes:
        entry: The row of the catalogue, None for an unknown code.
        recovery: The driver's own recovery action, where the event tells it.
        marks: Facts for the document.
    """

    class_: str
    scope: Scope | None
    action: Action
    quarantine: Quarantine
    suspects: bool = False
    entry: Entry | None = None
    recovery: RecoveryAction | None = None
    marks: dict[str, Any] = field(default_factory=dict)

    @property
    def rank(self) -> tuple[int, int]:
        """Order among judgements: the worst one counts."""
        return QUARANTINES.index(self.quarantine), strength(self.action)


def judge(event: Event, catalogue: Catalogue) -> Judgement:
    """What an event alone means. An unknown code is isolated and asked about; it never passes as harmless."""
    if event.kind == "mapping":
        return Judgement("mapping", None, "none", "none")
    entry = catalogue.get(event.code)
    if event.kind == "sxid":
        return _judge_sxid(event, entry)
    if entry is None:
        return Judgement("unknown", "device", "investigate", "node")
    if entry.workflow == "nvlink5":
        return _judge_nvlink5(event, entry, catalogue)
    if entry.workflow == "recovery_action":
        return _judge_recovery(event, entry, catalogue)
    found = _as_tabled(event, entry)
    if entry.workflow == "xid_45":
        alone = "caused_by" not in event.facts
        return _with(found, action="restart_app" if alone else "follow_primary")
    if entry.workflow == "nvlink_registers" and catalogue.only_ignorable(tuple(event.facts.get("registers", ()))):
        return _with(found, scope=None, action="none", quarantine="none")
    return found


def _as_tabled(event: Event, entry: Entry) -> Judgement:
    marks = dict(entry.marks)
    if entry.clears:
        marks["clears"] = entry.clears
    if event.continuation:
        marks["merge_with_previous"] = True
    return Judgement(
        entry.class_, entry.scope, entry.action, entry.quarantine, suspects=entry.suspects, entry=entry, marks=marks
    )


def _with(found: Judgement, **changes: Any) -> Judgement:
    return Judgement(**{**found.__dict__, **changes})


def _judge_sxid(event: Event, entry: Entry | None) -> Judgement:
    """The severity word stands above the table: the switch's driver knows the port, the table does not."""
    fatal = (event.severity or "").lower() == "fatal"
    overlaid = entry is not None and entry.overlay is not None
    if event.continuation:
        unknown = entry is None
        return Judgement(
            "unknown" if unknown else "nvswitch",
            "fabric",
            "investigate" if unknown else "none",
            "none",
            entry=entry,
            marks={"merge_with_previous": True},
        )
    if entry is not None and (event.severity is None or overlaid):
        return _as_tabled(event, entry)
    if fatal:
        found = _as_tabled(event, entry) if entry else Judgement("nvswitch", "fabric", "reboot_node", "node")
        action = found.action if strength(found.action) > strength("reboot_node") else "reboot_node"
        return _with(found, action=action, quarantine="node", suspects=True)
    if entry is None:
        return Judgement("unknown", "fabric", "investigate", "none" if event.severity else "node")
    if entry.nvidia[:1] == (_ALWAYS_FATAL,):
        marks = {**entry.marks, "conflict": "the line says Non-fatal, NVIDIA's table always fatal"}
        return _with(_as_tabled(event, entry), action="investigate", quarantine="node", marks=marks)
    return _with(_as_tabled(event, entry), action="none", quarantine="none", suspects=False)


def _judge_nvlink5(event: Event, entry: Entry, catalogue: Catalogue) -> Judgement:
    """By the decode row; a report without one is unknown, and is isolated unless the driver calls it non-fatal."""
    number, facts = event.number, event.facts
    assert number is not None
    row = catalogue.decode_nvlink5(number, str(facts.get("unit", "")), tuple(facts.get("registers", ())))
    severity = (event.severity or "").lower().replace("-", "")
    if row is None:
        harmless = severity == "nonfatal"
        return Judgement(
            "unknown",
            None if harmless else "device",
            "investigate",
            "none" if harmless else "node",
            entry=entry,
            marks={"decoded": False},
        )
    marks: dict[str, Any] = {"decoded": True, "resolution": row.bucket}
    if row.investigate:
        marks["hint" if row.investigate.startswith("software") else "investigate"] = row.investigate
    if (row.bucket == "IGNORE") == severity.endswith("fatal") and severity != "nonfatal":
        marks["conflict"] = f"line says {event.severity}, the decode row says {row.bucket}; XID 154 decides"
    found = _with(_as_tabled(event, entry), marks={**entry.marks, **marks})
    if row.bucket == "RESET_GPU":
        return _with(found, scope="device", action="reset_gpu", quarantine="node")
    if row.bucket == "XID_154_EVAL":
        return _with(found, scope="process", action="follow_xid_154", quarantine="none")
    return _with(found, scope=None, action="none", quarantine="none")


def _judge_recovery(event: Event, entry: Entry, catalogue: Catalogue) -> Judgement:
    """The driver's own word; a text that nobody knows is isolated and asked about."""
    facts = event.facts
    recovery = None
    if "recovery_text" in facts:
        recovery = catalogue.recovery_action(facts["recovery_text"], facts["recovery_value"])
    marks: dict[str, Any] = {"overrides_table": True, "effective": "last value wins"}
    if recovery is None:
        marks["recovery"] = facts.get("recovery", "")
        return Judgement(entry.class_, "device", "investigate", "node", entry=entry, marks=marks)
    marks["recovery"] = recovery.texts[0]
    if recovery.deferrable:
        marks["deferrable"] = True
    if recovery.clears:
        marks["clears"] = "recovery action"
    return Judgement(
        entry.class_, recovery.scope, recovery.action, recovery.quarantine, entry=entry, recovery=recovery, marks=marks
    )


def explain_line(line: str, catalogue: Catalogue) -> dict[str, Any]:
    """The document for one line, judged alone. Several records give ``events`` and the worst one's keys on top."""
    if not is_worth_parsing(line):
        return dict(NO_MATCH)
    seen, events = events_of(line)
    if not events:
        return dict(NO_MATCH)
    judged = [(event, judge(event, catalogue)) for event in events]
    documents = [document_of(event, found, seen) for event, found in judged]
    if len(documents) == 1:
        return documents[0]
    worst = max(range(len(judged)), key=lambda n: judged[n][1].rank)
    return {**documents[worst], "class": "multiple", "worst": judged[worst][0].number, "events": documents}


def document_of(event: Event, found: Judgement, seen: Envelope) -> dict[str, Any]:
    """One event's document, with the keys of data/cases/README.md."""
    document: dict[str, Any] = {
        "class": found.class_,
        "scope": found.scope,
        "action": found.action,
        "quarantine": found.quarantine,
        "suspects": found.suspects,
    }
    if event.number is not None:
        document[event.kind] = event.number
    elif event.kind == "name":
        document["code"] = event.code
    document["pci"] = event.pci
    if event.severity:
        document["severity"] = event.severity
    document |= {key: value for key, value in event.facts.items() if key not in _KEEP_OUT}
    if registers := event.facts.get("registers"):
        document["registers"] = [f"0x{value:08x}" for value in registers]
    document |= found.marks
    if found.entry is not None:
        document |= _of_entry(found.entry, document)
    if seen.container:
        document["node_from"] = "pod spec, not from text"
    if seen.partial:
        document["partial"] = True
    return document | seen.facts


def _of_entry(entry: Entry, document: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {"nvidia": _nvidia(entry)} if entry.nvidia else {}
    if entry.conflict and "conflict" not in document:
        told["conflict"] = entry.conflict
    if entry.overlay:
        told["overlay"] = entry.overlay
    return told


def _nvidia(entry: Entry) -> dict[str, str]:
    """NVIDIA's own words for a code, beside ours."""
    if entry.code.startswith("sxid:"):
        return dict(zip(("severity", "action", "note"), entry.nvidia, strict=False))
    return dict(zip(("immediate", "investigatory"), entry.nvidia, strict=False))


def code_of(text: str) -> str:
    """A code as people write it, in our form: ``79``, ``XID 79`` and ``xid:79`` are ``xid:79``; ``20034`` is an SXID.

    Raises:
        UsageError: It has no such form.
    """
    found = _CODE.fullmatch(text)
    if found:
        kind, word = (found[1] or "").lower(), found[2].lower()
        if word.isascii() and word.isdecimal() and kind != "name" and len(word) <= len("999999999"):
            number = int(word)
            return f"{kind or ('sxid' if number >= _FIRST_SXID else 'xid')}:{number}"
        if kind in {"", "name"} and not word[0].isdecimal():
            return f"name:{word}"
    raise UsageError(f"code {text!r} is neither a number nor of the form xid:79, sxid:20034 or name:oom_kill")


def explain_code(text: str, catalogue: Catalogue) -> dict[str, Any]:
    """The document for a code: our verdict, NVIDIA's buckets beside it, and who disagrees.

    Raises:
        UsageError: ``text`` is no code at all; an unknown code is a document with class ``unknown``.
    """
    code = code_of(text)
    kind, _, word = code.partition(":")
    entry = catalogue.get(code)
    number = {kind: int(word)} if kind != "name" else {}
    if entry is None:
        scope = {"xid": "device", "sxid": "fabric"}.get(kind)
        return {
            "code": code,
            **number,
            "class": "unknown",
            "scope": scope,
            "action": "investigate",
            "quarantine": "node" if scope else "none",
            "suspects": False,
            "why": "No table knows it: isolate and ask, unless XID 154 says what to do.",
            "overlays": list(catalogue.overlays),
        }
    row = entry.model_dump(mode="json", by_alias=True)
    return {
        "code": code,
        **number,
        **{key: row.pop(key) for key in ("class", "scope", "action", "quarantine", "suspects", "means")},
        "nvidia": _nvidia(entry),
        **{
            key: row[key]
            for key in ("gpus", "gate", "workflow", "clears", "others", "disagrees", "conflict")
            if row[key]
        },
        **entry.marks,
        "why": entry.why,
        "source": entry.source,
        "provenance": entry.provenance,
        "overlay": entry.overlay,
        "overlays": list(catalogue.overlays),
    }
