"""Reading a manifest field by field, so that every complaint names the field, its value and the way out."""

import copy
import re
from dataclasses import dataclass
from typing import Any

from rerail.policies.errors import UsageError

_SHOWN = 80
_SECRET_PART = re.compile(r"(?:^|\.)env(?:[.\[]|$)")


def shown_value(path: str, value: object) -> str:
    """A value for a complaint, cut; what stands in ``env``, or holds one, may be a secret and is not shown."""
    if _may_be_secret(path, value):
        return "a value that is not shown"
    text = repr(value)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def _may_be_secret(path: str, value: object) -> bool:
    return bool(_SECRET_PART.search(path)) or "'env'" in repr(value)


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a manifest; an absent one and ``null`` are the same, as they are to the cluster.

    Attributes:
        source: File, or what else the manifest came from.
        path: Path of the field, as ``spec.tasks[0].name``; empty for the whole document.
    """

    source: str
    path: str
    value: Any

    def error(self, problem: str, *, show: bool = True) -> UsageError:
        """The complaint; ``show`` says whether the value helps."""
        where = f"{self.source}: {self.path}" if self.path else self.source
        said = f" = {shown_value(self.path, self.value)}" if show else ""
        return UsageError(f"{where}{said}: {problem}")

    def at(self, key: str) -> "Field":
        """The field ``key`` below this one.

        Raises:
            UsageError: This field is there and is no mapping.
        """
        return Field(self.source, f"{self.path}.{key}" if self.path else key, self.mapping().get(key))

    def each(self) -> list["Field"]:
        """The items of a list; none where it is absent.

        Raises:
            UsageError: This field is there and is no list.
        """
        if self.value is None:
            return []
        if not isinstance(self.value, list):
            raise self.error("is not a list; begin each item with '- '")
        return [Field(self.source, f"{self.path}[{index}]", item) for index, item in enumerate(self.value)]

    def mapping(self) -> dict[str, Any]:
        """The value as a mapping; an empty one where it is absent.

        Raises:
            UsageError: It is something else.
        """
        if self.value is None:
            return {}
        if not isinstance(self.value, dict):
            raise self.error("is not a mapping of fields")
        return self.value

    def text(self, default: str = "") -> str:
        """The value as text.

        Raises:
            UsageError: It is something else; YAML reads 1, yes and 2026-11-30 as other things unless quoted.
        """
        if self.value is None:
            return default
        if not isinstance(self.value, str):
            quoted = "" if _may_be_secret(self.path, self.value) else f": '{self.value}'"
            raise self.error(f"is not text; write it in quotes{quoted}")
        return self.value

    def texts(self) -> list[str]:
        """The value as a list of texts; an empty one where it is absent."""
        return [item.text() for item in self.each()]

    def whole(self, default: int | None = None, *, least: int = 0) -> int:
        """The value as a whole number; ``default`` where it is absent.

        Raises:
            UsageError: It is something else, too small, or absent without a default.
        """
        value = default if self.value is None else self.value
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise self.error(f"is not a whole number of at least {least}")
        return value


def below(parent: dict[str, Any], key: str) -> dict[str, Any]:
    """The mapping at ``key`` of ``parent``, to be changed; made where it is absent or null."""
    found = parent.get(key)
    if not isinstance(found, dict):
        found = parent[key] = {}
    return found


def plain_copy(document: object, source: str) -> dict[str, Any]:
    """A deep copy of a document that JSON can carry.

    Raises:
        UsageError: It is no mapping, or a field holds what YAML made of unquoted text (a date, a key such as ``on``),
            or it is nested too deeply.
    """
    if not isinstance(document, dict):
        raise UsageError(f"{source} holds no object: apiVersion, kind, metadata and spec are wanted")
    try:
        _check_plain(Field(source, "", document))
        return copy.deepcopy(document)
    except RecursionError:
        raise UsageError(f"{source} is nested too deeply, or an alias in it holds itself: write it out") from None


def _check_plain(field: Field) -> None:
    if isinstance(field.value, dict):
        for key in field.value:
            if not isinstance(key, str):
                raise field.error(f"has the key {key!r}, which is not text; write it in quotes", show=False)
            _check_plain(field.at(key))
    elif isinstance(field.value, list):
        for item in field.each():
            _check_plain(item)
    elif not isinstance(field.value, str | int | float | bool | None):
        raise field.error("is neither text nor a number; write it in quotes")
