"""What codes mean: the entries of the catalogue, overlays that change them, and the decode rows of NVLink5.

Pure: it turns YAML text into tables. ``rerail.policies.catalog`` holds the packaged text and loads it.
"""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final, Literal, Self, TypeVar

import yaml
from pydantic import BaseModel, Field, JsonValue, ValidationError, field_validator, model_validator

from rerail.policies.errors import UsageError
from rerail.policies.faults import ACTIONS, Action, FaultValue, Quarantine, Scope
from rerail.policies.yaml_text import read_yaml

FORMAT: Final = 1

Workflow = Literal["xid_45", "nvlink_registers", "nvlink5", "recovery_action"]

_CODE: Final = re.compile(r"(x|sx)id:[0-9]{1,9}|name:[a-z0-9_]{1,64}")
_NVLINK5_WORDS: Final = 2
_Table = TypeVar("_Table", bound=BaseModel)


class Entry(FaultValue):
    """One code: what NVIDIA says, what others do, and what Rerail does.

    Attributes:
        code: ``xid:79``, ``sxid:20034`` or ``name:oom_kill``.
        nvidia: NVIDIA's bucket of the immediate action and of the investigatory one (SXID: severity first).
        gate: Driver from which XID 154 accompanies the code.
        others: What other healers do with it; ``disagrees`` names those who differ from us.
        workflow: The code alone does not decide; the text or a table does.
        clears: The code that a line with this one takes back.
        marks: Facts for the incident, copied into its document.
        source: Who decided our row: ``nvidia``, ``case`` (a case from the field), or a project's name.
        provenance: Where the facts of the table come from.
        overlay: The overlay that changed the row last, None for the packaged one.
    """

    code: str
    means: str
    class_: str = Field(alias="class", pattern=r"^[a-z0-9_]+$")
    scope: Scope | None
    action: Action
    quarantine: Quarantine
    suspects: bool = False
    nvidia: tuple[str, ...] = ()
    gpus: str = ""
    gate: str = ""
    others: dict[str, str] = Field(default_factory=dict)
    disagrees: tuple[str, ...] = ()
    conflict: str = ""
    workflow: Workflow | None = None
    clears: str | None = None
    marks: dict[str, JsonValue] = Field(default_factory=dict)
    source: str
    provenance: str = ""
    why: str = ""
    overlay: str | None = None


class Row(FaultValue):
    """One row of the NVLink5 decode sheet."""

    bucket: Literal["IGNORE", "RESET_GPU", "XID_154_EVAL"]
    subcodes: tuple[int, ...]
    status: tuple[int, ...] | Literal["any"]
    promoted_to: Literal["RESET_GPU"] | None = None
    investigate: str = ""


class Unit(FaultValue):
    """The rows of one sub-unit. ``v1`` and ``v2`` are how intrInfo names it below and from driver R575."""

    xid: int
    unit: str
    v1: int
    v2: int
    promoted: tuple[int, int] | None = None
    rows: tuple[Row, ...]

    def is_named(self, unit: str) -> bool:
        """Whether a line's unit is this one; the sheet joins the names of two driver generations by a slash."""
        return not set(self.unit.lower().split("/")).isdisjoint(unit.lower().split("/"))

    def has(self, info: int) -> tuple[bool, bool]:
        """Whether intrInfo names this unit, and whether its promoting bit is set."""
        old, new = info & 0x3FF == self.v1, info & 0x7F == self.v2
        if self.promoted is None or not (old or new):
            return old or new, False
        bit = self.promoted[0] if old else self.promoted[1]
        return True, bool(info >> bit & 1)


class RecoveryAction(FaultValue):
    """One of the driver's own recovery actions: a text of XID 154, a value of NVML."""

    value: int
    texts: tuple[str, ...]
    scope: Scope | None
    action: Action
    quarantine: Quarantine
    clears: bool = False
    deferrable: bool = False
    why: str = ""


class Rule(FaultValue):
    """One rule of an overlay: what it sets for its codes. What it leaves out stays as it was."""

    codes: tuple[str, ...] = Field(min_length=1)
    class_: str | None = Field(default=None, alias="class", pattern=r"^[a-z0-9_]+$")
    scope: Scope | None = None
    action: Action | None = None
    quarantine: Quarantine | None = None
    suspects: bool | None = None
    means: str | None = None
    why: str = ""

    @field_validator("codes")
    @classmethod
    def _known_form(cls, codes: tuple[str, ...]) -> tuple[str, ...]:
        for code in codes:
            if not _CODE.fullmatch(code):
                raise ValueError(f"{code!r} is no code; write xid:79, sxid:20034 or name:oom_kill")
        return codes

    @model_validator(mode="after")
    def _nothing_emptied(self) -> Self:
        for name in self.model_fields_set - {"scope"}:
            if getattr(self, name) is None:
                raise ValueError(f"{name.rstrip('_')} is empty; leave the key out to keep what the table says")
        return self


class Overlay(FaultValue):
    """Changes to the catalogue that a cloud or a user wants: data, not code."""

    format: int
    overlay: str = Field(min_length=1)
    rules: tuple[Rule, ...]


class Catalogue:
    """All entries by code, with the decode tables. Immutable; an overlay gives a new one."""

    def __init__(
        self,
        entries: Mapping[str, Entry],
        units: Iterable[Unit],
        recovery: Iterable[RecoveryAction],
        ignorable_bits: Mapping[int, int],
        overlays: tuple[str, ...] = (),
    ) -> None:
        self._entries = dict(entries)
        self._units = tuple(units)
        self._recovery = tuple(recovery)
        self._by_text = {text.lower(): action for action in self._recovery for text in action.texts}
        self._ignorable_bits = dict(ignorable_bits)
        self.overlays = overlays

    def get(self, code: str) -> Entry | None:
        """The entry of a code, None where no table knows it."""
        return self._entries.get(code)

    def codes(self) -> tuple[str, ...]:
        """All known codes."""
        return tuple(self._entries)

    def overlaid(self, overlay: Overlay) -> "Catalogue":
        """This catalogue with an overlay on top.

        Raises:
            UsageError: A rule names a code that no table knows without saying all that a new entry needs.
        """
        entries = dict(self._entries)
        for rule in overlay.rules:
            for code in rule.codes:
                entries[code] = _changed(entries.get(code), code, rule, overlay.overlay)
        return Catalogue(entries, self._units, self._recovery, self._ignorable_bits, (*self.overlays, overlay.overlay))

    def recovery_action(self, text: str, value: int | None = None) -> RecoveryAction | None:
        """The recovery action of a text of XID 154 or a value of NVML; the text wins, unknown gives None.

        A text that a truncated line cut off counts where only one action begins with it.
        """
        wanted = text.strip().lower()
        if wanted in self._by_text:
            return self._by_text[wanted]
        if value is not None:
            by_value = [action for action in self._recovery if action.value == value]
            if by_value and (not wanted or any(known.lower().startswith(wanted) for known in by_value[0].texts)):
                return by_value[0]
        return None

    def decode_nvlink5(self, xid: int, unit: str, words: tuple[int, ...]) -> Row | None:
        """The decode row for one NVLink5 report; None where the sheet has no row for it.

        Args:
            xid: 144-150.
            unit: The sub-unit as the line writes it.
            words: intrInfo, errorStatus and what follows, as far as the line has them whole.
        """
        if not words:
            return None
        info, status = words[0], words[1] if len(words) >= _NVLINK5_WORDS else None
        found: list[Row] = []
        for candidate in self._units:
            if candidate.xid != xid or not candidate.is_named(unit):
                continue
            named, promoted = candidate.has(info)
            if named:
                found += _matching(candidate.rows, info >> 20 & 0x3F, status, promoted=promoted)
        return max(found, key=lambda row: _BUCKET_STRENGTH[row.bucket], default=None)

    def only_ignorable(self, registers: tuple[int, ...]) -> bool:
        """Whether XID 74's registers have bits set, and only such as NVIDIA says to ignore."""
        rest = [value & ~self._ignorable_bits.get(number, 0) for number, value in enumerate(registers, start=1)]
        return any(registers) and not any(rest)


_BUCKET_STRENGTH: Final = {"IGNORE": 0, "XID_154_EVAL": 1, "RESET_GPU": 2}


def _matching(rows: Iterable[Row], subcode: int, status: int | None, *, promoted: bool) -> list[Row]:
    """Rows for a subcode and a status; where several bits are set, every bit needs a row."""
    mine = [row for row in rows if subcode in row.subcodes]
    exact = [row for row in mine if row.status == "any" or (status is not None and status in row.status)]
    if not exact and status:
        bits = [1 << bit for bit in range(32) if status >> bit & 1]
        by_bit = [[row for row in mine if row.status != "any" and bit in row.status] for bit in bits]
        if all(by_bit):
            exact = [row for matches in by_bit for row in matches]
    if promoted:
        return [row.model_copy(update={"bucket": row.promoted_to or row.bucket}) for row in exact]
    return exact


def _changed(entry: Entry | None, code: str, rule: Rule, overlay: str) -> Entry:
    given = {name: getattr(rule, name) for name in rule.model_fields_set - {"codes"}}
    if entry is None:
        missing = [name for name in ("class_", "scope", "action", "quarantine") if name not in given]
        if missing:
            raise UsageError(
                f"overlay {overlay!r}: {code} is in no table, so a new entry is made, and that needs "
                f"{', '.join(name.rstrip('_') for name in missing)}; or correct the code"
            )
        new = {"code": code, "means": "added by an overlay", "source": overlay, "overlay": overlay, **given}
        return Entry.model_validate(new)
    decided = {"workflow": None} if rule.action is not None else {}
    return entry.model_copy(update={**decided, **given, "overlay": overlay})


def parse_table(text: str, where: str, model: type[_Table]) -> _Table:
    """YAML text as a model.

    Raises:
        UsageError: Not YAML, not a mapping, an unknown key or a value that the key does not take; says where.
    """
    # Both are safe loaders; the C one is 10 times faster.
    documents = read_yaml(text, where, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    content = documents[0] if len(documents) == 1 else None
    if not isinstance(content, dict):
        raise UsageError(f"{where}: a mapping with `format`, `overlay` and `rules` belongs here")
    if content.get("format") != FORMAT:
        raise UsageError(f"{where}: format {content.get('format')!r} is not {FORMAT}, the only one this Rerail reads")
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise UsageError(f"{where}: {_first_problem(error)}") from None


def overlay_from_text(text: str, where: str) -> Overlay:
    """An overlay from YAML text.

    Raises:
        UsageError: As ``parse_table``; the message names the place and, for a typo, the word that was meant.
    """
    return parse_table(text, where, Overlay)


def _first_problem(error: ValidationError) -> str:
    first = error.errors()[0]
    path = ".".join(str(part) for part in first["loc"])
    if "codes" in first["loc"] and first["type"] == "string_type":
        return f"{path}: {first['input']!r} is no code; write xid:79, sxid:20034 or name:oom_kill"
    if first["type"] == "extra_forbidden":
        known = [*Rule.model_fields, *Overlay.model_fields]
        return f"unknown key {path!r}{_meant(str(first['loc'][-1]), [name.rstrip('_') for name in known])}"
    if first["type"] == "literal_error":
        value = str(first["input"])
        choices = ACTIONS if first["loc"][-1] == "action" else ()
        return f"{path}: {value!r} is none of {first['ctx']['expected']}{_meant(value, choices)}"
    return f"{path}: {first['msg'].removeprefix('Value error, ')}"


def _meant(word: str, known: Iterable[str]) -> str:
    close = get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


class _CodeTable(BaseModel):
    """What the tables of XIDs, SXIDs and names share: rows of entries, each for several codes."""

    format: int
    provenance: str
    xids: list[dict[str, Any]] = Field(default_factory=list)
    sxids: list[dict[str, Any]] = Field(default_factory=list)
    names: list[dict[str, Any]] = Field(default_factory=list)


class _Bits(FaultValue):
    word: int
    bits: tuple[int, ...]


class _Nvlink(FaultValue):
    format: int
    units: tuple[Unit, ...]
    nvlink4_ignorable_bits: tuple[_Bits, ...]


class _Recovery(FaultValue):
    format: int
    recovery_actions: tuple[RecoveryAction, ...]


def build_catalogue(texts: Mapping[str, str]) -> Catalogue:
    """The catalogue from the texts of its five tables: ``xid``, ``sxid``, ``names``, ``nvlink5``, ``recovery_actions``.

    Raises:
        UsageError: A table does not have the form that it must have, or two rows have the same code.
    """
    entries: dict[str, Entry] = {}
    for kind, family, key in (("xid", "xids", "codes"), ("sxid", "sxids", "codes"), ("names", "names", "name")):
        table = parse_table(texts[kind], kind, _CodeTable)
        prefix = "name" if kind == "names" else kind
        for row in getattr(table, family):
            keys = row.pop(key)
            shared = {"class": "nvswitch", "scope": "fabric", **row} if kind == "sxid" else row
            for number in keys if isinstance(keys, list) else [keys]:
                code = f"{prefix}:{number}"
                if code in entries:
                    raise UsageError(f"table {kind}: {code} has two rows; keep one")
                entries[code] = Entry.model_validate({"code": code, "provenance": table.provenance, **shared})
    nvlink = parse_table(texts["nvlink5"], "nvlink5", _Nvlink)
    recovery = parse_table(texts["recovery_actions"], "recovery_actions", _Recovery)
    ignorable = {row.word: sum(1 << bit for bit in row.bits) for row in nvlink.nvlink4_ignorable_bits}
    return Catalogue(entries, nvlink.units, recovery.recovery_actions, ignorable)
