"""What recovery changes in a user's manifest, field by field with the reason, and as a unified diff."""

import difflib
import re
from collections.abc import Iterator
from typing import Any, Final, TypeGuard

import yaml
from pydantic import JsonValue

from rerail.policies.documents import Value
from rerail.policies.workloads.vcjob import REASONS

_OTHER: Final = "differs from the manifest"


class Change(Value):
    """One field that differs.

    Attributes:
        path: Items of lists that have names are called by them, as ``spec.tasks[worker].template``.
        before: None where the field was not there.
        after: None where it is gone.
        why: The reason, in a few words.
    """

    path: str
    before: JsonValue = None
    after: JsonValue = None
    why: str


def difference(
    before: dict[str, Any], after: dict[str, Any], reasons: tuple[tuple[str, str], ...] = REASONS
) -> tuple[Change, ...]:
    """Every field in which two documents differ, in the order of ``after``.

    Args:
        before: The user's document.
        after: The rendered one.
        reasons: Pattern of a path, reason. The first whose pattern matches the path or a part that it begins with.
    """
    return tuple(
        Change(path=path, before=old, after=new, why=_why(path, reasons)) for path, old, new in _walk(before, after, "")
    )


def unified(before: dict[str, Any], after: dict[str, Any], source: str) -> str:
    """The same as a unified diff of YAML. Fields keep their order; comments of the user's file do not show.

    Args:
        before: The user's document.
        after: The rendered one.
        source: Name of the user's file.
    """
    return "".join(
        difflib.unified_diff(
            _lines(before), _lines(after), fromfile=source, tofile=f"{source} (as attempt {_name(after)})"
        )
    )


def reasons_text(changes: tuple[Change, ...]) -> str:
    """Every reason once, with the fields that differ for it; goes beside the unified diff, which has the values."""
    paths: dict[str, list[str]] = {}
    for change in changes:
        paths.setdefault(change.why, []).append(change.path)
    return "".join(f"{why}:\n" + "".join(f"    {path}\n" for path in found) for why, found in paths.items())


def _walk(before: object, after: object, path: str) -> Iterator[tuple[str, Any, Any]]:
    if before == after and type(before) is type(after):
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*after, *(key for key in before if key not in after)]:
            yield from _walk(before.get(key), after.get(key), _below(path, key))
    elif _holds_mappings(before) and _holds_mappings(after):
        old, new = _keyed(before, after)
        for key in [*new, *(key for key in old if key not in new)]:
            yield from _walk(old.get(key), new.get(key), f"{path}[{key}]")
    else:
        yield path, before, after


def _holds_mappings(value: object) -> TypeGuard[list[dict[str, Any]]]:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _keyed(
    before: list[dict[str, Any]], after: list[dict[str, Any]]
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Both lists by name where all their items have one of their own, else by position."""
    if all(len({item.get("name") for item in items} - {None}) == len(items) for items in (before, after)):
        return {str(item["name"]): item for item in before}, {str(item["name"]): item for item in after}
    return {str(key): item for key, item in enumerate(before)}, {str(key): item for key, item in enumerate(after)}


def _below(path: str, key: str) -> str:
    if not path:
        return key
    return f"{path}.{key}" if re.fullmatch(r"[A-Za-z0-9_-]+", key) else f"{path}[{key}]"


def _why(path: str, reasons: tuple[tuple[str, str], ...]) -> str:
    return next((why for pattern, why in reasons if re.match(rf"(?:{pattern})(?![A-Za-z0-9_-])", path)), _OTHER)


def _lines(document: dict[str, Any]) -> list[str]:
    return yaml.safe_dump(document, sort_keys=False, width=1000, allow_unicode=True).splitlines(keepends=True)


def _name(document: dict[str, Any]) -> str:
    return str((document.get("metadata") or {}).get("name", ""))
