"""What a node object tells about its end: an announcement by whoever will take it away, while it still works.

Pure: the node and the table are given. ``rerail.policies.catalog`` holds the packaged table, ``maintenance.yaml``.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Literal, Self

from pydantic import Field, model_validator

from rerail.policies.documents import Value
from rerail.policies.faults import FaultValue
from rerail.policies.faults.catalogue import parse_table

LEAD_S: Final = 600.0
"""How long before its time an announcement counts: time for a save, and for whoever comes after on the node."""

_LONGEST: Final = 200
_EPOCH: Final = re.compile(r"\d{9,11}(\.\d+)?")
_STAMP: Final = re.compile(r"(\d{4}-\d{2}-\d{2}T\d{2})[.:-](\d{2})[.:-](\d{2})(?:Z|[.+]00[.:-]?00)?")


class AnnouncementRow(FaultValue):
    """One row of ``maintenance.yaml``, which says what its keys mean."""

    source: str = Field(min_length=1)
    condition: str = ""
    when: Literal["True", "False"] | None = None
    label: str = ""
    taint: str = ""
    why: str = ""

    @model_validator(mode="after")
    def _names_one(self) -> Self:
        if sum(map(bool, (self.condition, self.label, self.taint))) != 1:
            raise ValueError("a row has one of condition, label and taint")
        if bool(self.condition) != (self.when is not None):
            raise ValueError("`when` is the status of a condition, and each condition needs it")
        return self


class _Rows(FaultValue):
    format: int
    provenance: str
    announcements: tuple[AnnouncementRow, ...]


class Announcement(Value):
    """A node is to be taken away.

    Attributes:
        what: The words, for people.
        at_s: When, epoch seconds; None is soon.
    """

    source: str
    what: str
    at_s: float | None = None

    def is_due(self, now_s: float) -> bool:
        """Whether it is time to leave."""
        return self.at_s is None or now_s >= self.at_s - LEAD_S


def announcements_from_text(text: str, where: str) -> tuple[AnnouncementRow, ...]:
    """Rows from YAML text.

    Raises:
        UsageError: It has not the form that it must have; says where.
    """
    return parse_table(text, where, _Rows).announcements


def read_announcement(node: Mapping[str, Any], rows: Sequence[AnnouncementRow]) -> Announcement | None:
    """The announcement of a node that comes first; None where there is none."""
    found = [one for row in rows for one in _told(node, row)]
    return min(found, key=lambda one: one.at_s or float("-inf"), default=None)


def _told(node: Mapping[str, Any], row: AnnouncementRow) -> Iterator[Announcement]:
    metadata, spec, status = (node.get(part) or {} for part in ("metadata", "spec", "status"))
    if row.label and row.label in (metadata.get("labels") or {}):
        value = str(metadata["labels"][row.label])
        yield Announcement(source=row.source, what=_words(row.label, value), at_s=_time(value))
    for taint in spec.get("taints") or () if row.taint else ():
        if taint.get("key") == row.taint:
            yield Announcement(source=row.source, what=_words(f"taint {row.taint}", str(taint.get("value") or "")))
    for condition in status.get("conditions") or () if row.condition else ():
        if condition.get("type") == row.condition and condition.get("status") == row.when:
            said = ": ".join(str(condition[key]) for key in ("reason", "message") if condition.get(key))
            yield Announcement(source=row.source, what=_words(row.condition, said))


def _words(name: str, value: str) -> str:
    return (f"{name}={value}" if value else name)[:_LONGEST]


def _time(value: str) -> float | None:
    """A label's value as a time; label values hold no colon, so points and dashes may stand for it."""
    if _EPOCH.fullmatch(value):
        return float(value)
    found = _STAMP.fullmatch(value)
    if found is None:
        return None
    try:
        return datetime.fromisoformat(":".join(found.groups()[:3])).replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None
