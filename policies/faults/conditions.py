"""What the conditions of a node object tell about its accelerators.

Pure: the node and the table are given. ``rerail.policies.catalog`` holds the packaged table, ``conditions.yaml``.

Whether the node itself is there is not judged here. ``Ready`` at False or Unknown makes a node unusable in the view of
it, and a gang that had pods there is judged by the pods (class ``node-lost``): a kubelet that stopped reporting for a
while ends no gang whose ranks still take steps.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, Self

from pydantic import Field, field_validator, model_validator

from rerail.policies.faults import Action, Code, FaultSignal, FaultValue, Severity
from rerail.policies.faults.catalogue import parse_table
from rerail.policies.faults.kernel_lines import normal_pci

Standing = Literal["fault", "well", "unknown"]

_XID_REASON: Final = re.compile(r"NvidiaXID([0-9]{1,3})(?:Error|Warning)")
_XID_TEXT: Final = re.compile(r"\bxids?\b\D{0,12}([0-9]{1,3})\b", re.IGNORECASE)
_ERROR_CODE: Final = re.compile(r"ErrorCode:(\S+)")
_ADVICE: Final = re.compile(r"Recommended Action=(\w+)")
_UUID: Final = re.compile(r"\bGPU-[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")
_PCI: Final = re.compile(r"\bPCI:([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})")
_FIRST_SXID: Final = 10000  # XIDs have three digits, SXIDs five
_LONGEST_TEXT: Final = 500
_MOST_RECORDS: Final = 64

_ADVISED: Final[Mapping[str, Action]] = {
    "NONE": "none",
    "COMPONENT_RESET": "reset_gpu",
    "CONTACT_SUPPORT": "contact_support",
    "RUN_FIELDDIAG": "investigate",
    "RESTART_VM": "reboot_node",
    "RESTART_BM": "reboot_node",
    "REPLACE_VM": "replace_node",
    "RUN_DCGMEUD": "investigate",
    "CUSTOM": "investigate",
}
"""NVSentinel's recommended actions; UNKNOWN recommends nothing."""


class ConditionRow(FaultValue):
    """One row of ``conditions.yaml``, which says what its keys mean."""

    source: str = Field(min_length=1)
    types: tuple[str, ...] = ()
    pattern: str = ""
    fault_when: Literal["True", "False"]
    read: Literal["", "reason", "message", "records", "json"] = ""
    reasons: dict[str, Code] = Field(default_factory=dict)
    code: Code | None = None
    severity: Severity = "unknown"
    hint: Action | None = None
    boot_id: bool = False
    why: str = ""

    @field_validator("pattern")
    @classmethod
    def _one_group(cls, pattern: str) -> str:
        try:
            groups = re.compile(pattern).groups if pattern else 1
        except re.error as error:
            raise ValueError(f"{pattern!r} is no regular expression: {error}") from None
        if groups != 1:
            raise ValueError(f"{pattern!r} has {groups} groups; one is wanted, the number of the XID")
        return pattern

    @model_validator(mode="after")
    def _names_something(self) -> Self:
        if bool(self.types) == bool(self.pattern):
            raise ValueError("a row has either types or a pattern")
        if self.types and self.code is None:
            raise ValueError(f"{', '.join(self.types)}: code is missing, which says what the type alone means")
        return self


class _Rows(FaultValue):
    format: int
    provenance: str
    conditions: tuple[ConditionRow, ...]

    @model_validator(mode="after")
    def _once_each(self) -> Self:
        names = [name for row in self.conditions for name in row.types]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(f"{', '.join(twice)}: more than one row; a type has one polarity")
        return self


class ConditionTable:
    """Rows by condition type. Immutable. Exact names go before patterns, and patterns in their order."""

    def __init__(self, rows: Sequence[ConditionRow]) -> None:
        self.rows = tuple(rows)
        self._by_type = {name: row for row in rows for name in row.types}
        self._patterns = [(re.compile(row.pattern), row) for row in rows if row.pattern]

    def find(self, type_: str) -> tuple[ConditionRow, Code | None] | None:
        """The row of a condition type with the XID that its name carries; None for a type that no row knows."""
        row = self._by_type.get(type_)
        if row is not None:
            return row, None
        for pattern, row in self._patterns:
            found = pattern.fullmatch(type_)
            if found:
                return row, f"xid:{int(found[1])}"
        return None


@dataclass(frozen=True, slots=True)
class Reading:
    """What one condition tells.

    Attributes:
        type: Of the condition.
        standing: ``unknown`` where the agent itself does not know; that is neither a fault nor health.
        signals: One per fault; for ``well`` one that takes back what was told under its ``clears_key`` before.
    """

    type: str
    standing: Standing
    signals: tuple[FaultSignal, ...] = ()


def conditions_from_text(text: str, where: str) -> ConditionTable:
    """A table from YAML text.

    Raises:
        UsageError: It has not the form that it must have; says where.
    """
    return ConditionTable(parse_table(text, where, _Rows).conditions)


def read_conditions(node: Mapping[str, Any], table: ConditionTable, *, read_at_s: float) -> tuple[Reading, ...]:
    """What the conditions of a node object tell, in their order; those that the table does not know are passed over.

    A signal's ``raw_ref`` names node, condition, the time of its transition and the code, so it is the same from
    reading to reading and for every reader, and another one when the condition comes back or tells something else.

    Args:
        node: A Node as the API server gives it.
        table: Polarity and codes.
        read_at_s: Epoch seconds: the time of a condition that carries none.
    """
    name = str((node.get("metadata") or {}).get("name") or "")
    status = node.get("status") or {}
    boot_id = str((status.get("nodeInfo") or {}).get("bootID") or "")
    readings: list[Reading] = []
    for condition in status.get("conditions") or ():
        type_ = str(condition.get("type") or "")
        found = table.find(type_)
        if found is None:
            continue
        row, named = found
        if condition.get("status") not in ("True", "False"):
            readings.append(Reading(type_, "unknown"))
        elif condition["status"] != row.fault_when:
            readings.append(Reading(type_, "well", (_signal(name, condition, row, read_at_s, cleared=True),)))
        elif row.boot_id and boot_id and condition.get("message") not in (None, "", boot_id):
            readings.append(Reading(type_, "unknown"))  # of an earlier boot: nobody looked since
        else:
            told = tuple(_faults(name, condition, row, named, read_at_s))
            readings.append(Reading(type_, "fault", tuple({one.raw_ref: one for one in told}.values())))
    return tuple(readings)


@dataclass(frozen=True, slots=True)
class _Told:
    """One fault that a condition tells."""

    code: Code
    devices: tuple[str, ...] = ()
    hint: Action | None = None
    text: str = ""


def _faults(
    node: str, condition: Mapping[str, Any], row: ConditionRow, named: Code | None, read_at_s: float
) -> Iterator[FaultSignal]:
    reason, message = str(condition.get("reason") or ""), str(condition.get("message") or "")
    if named is not None:
        told = [_Told(named, _devices(message), row.hint)]
    elif row.read == "records":
        told = _of_records(message, row)
    else:
        codes = _codes(row, reason, message) or [row.reasons.get(reason) or row.code or ""]
        told = [_Told(code, _devices(message), row.hint) for code in codes]
    for one in told:
        yield _signal(node, condition, row, read_at_s, told=one)


def _codes(row: ConditionRow, reason: str, message: str) -> list[Code]:
    if row.read == "reason":
        found = _XID_REASON.fullmatch(reason)
        return [f"xid:{int(found[1])}"] if found else []
    if row.read == "message":
        texts = f"{reason} {message}"
        return list(dict.fromkeys(f"xid:{int(number)}" for number in _XID_TEXT.findall(texts)))[:_MOST_RECORDS]
    if row.read == "json":
        return _of_json(reason)
    return []


def _of_json(reason: str) -> list[Code]:
    """XIDs that are the keys of a JSON object with true values; none where it is anything else."""
    try:
        content = json.loads(reason)
    except ValueError:
        return []
    if not isinstance(content, dict):
        return []
    return [f"xid:{int(key)}" for key, on in content.items() if on and re.fullmatch(r"[0-9]{1,3}", key)]


def _of_records(message: str, row: ConditionRow) -> list[_Told]:
    """NVSentinel's records, each with codes, devices and a recommended action; one unnamed where there is none."""
    told: list[_Told] = []
    for record in [part.strip() for part in message.split(";") if part.strip()][:_MOST_RECORDS]:
        advice = _ADVICE.search(record)
        hint = (_ADVISED.get(advice[1]) if advice else None) or row.hint
        codes = [code for word in _ERROR_CODE.findall(record) if (code := _code_of(word)) is not None]
        told += [_Told(code, _devices(record), hint, record) for code in codes or [row.code or ""]]
    return told or [_Told(row.code or "", (), row.hint)]


def _code_of(word: str) -> Code | None:
    """An XID or SXID; DCGM's own names say no more than the condition's type."""
    if not re.fullmatch(r"[0-9]{1,9}", word):
        return None
    return f"sxid:{int(word)}" if int(word) >= _FIRST_SXID else f"xid:{int(word)}"


def _devices(text: str) -> tuple[str, ...]:
    """GPUs that a text names: PCI addresses, else UUIDs; an index is no name, it changes with a boot."""
    by_address = tuple(dict.fromkeys(normal_pci(address) for address in _PCI.findall(text)))
    return by_address or tuple(dict.fromkeys(_UUID.findall(text)))


def _signal(
    node: str,
    condition: Mapping[str, Any],
    row: ConditionRow,
    read_at_s: float,
    *,
    told: _Told | None = None,
    cleared: bool = False,
) -> FaultSignal:
    type_, stamp = str(condition["type"]), str(condition.get("lastTransitionTime") or "")
    at_s = _seconds(stamp)
    ref = f"node/{node}/condition/{type_}@{stamp or 'unknown'}"
    details: dict[str, Any] = {"condition": type_, "status": condition["status"]}
    if condition.get("reason"):
        details["reason"] = str(condition["reason"])[:_LONGEST_TEXT]
    text = (told.text if told else "") or str(condition.get("message") or "")
    if text:
        details["text"] = text[:_LONGEST_TEXT]
    if at_s is None:
        details["stamped_at_reading"] = True
    return FaultSignal(
        source=row.source,
        node=node,
        devices=told.devices if told else (),
        codes=(told.code,) if told else (),
        severity="info" if cleared else row.severity,
        action_hint=told.hint if told else None,
        first_seen_s=read_at_s if at_s is None else at_s,
        boot_id=str(condition.get("message") or "") or None if row.boot_id else None,
        raw_ref="#".join((ref, told.code, *told.devices)) if told else ref,
        clears_key=f"condition:{type_}",
        cleared=cleared,
        details=details,
    )


def _seconds(stamp: str) -> float | None:
    try:
        at = datetime.fromisoformat(stamp)
    except ValueError:
        return None
    return at.timestamp() if at.tzinfo is not None else None
