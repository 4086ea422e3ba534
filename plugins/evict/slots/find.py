"""Slots by their names, from the entry points ``rerail.drain_slots``."""

from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from typing import Final

from rerail.plugins.evict.slots.ports import Slot
from rerail.policies.errors import UsageError

GROUP: Final = "rerail.drain_slots"


def known() -> tuple[str, ...]:
    """Names of all slots that are installed."""
    return tuple(sorted({point.name for point in entry_points(group=GROUP)}))


def make_slots(names: Sequence[str], options: Mapping[str, Mapping[str, str]]) -> tuple[Slot, ...]:
    """The slots with these names.

    Args:
        names: At least one.
        options: By slot, then by name, as a person wrote them.

    Raises:
        UsageError: No such slot, none at all, or an option that cannot be used.
    """
    there = {point.name: point for point in entry_points(group=GROUP)}
    for name in (*names, *options):
        if name not in there:
            raise UsageError(f"slot {name!r} is not installed; known: {', '.join(sorted(there))}")
    if not names:
        raise UsageError(f"name at least one slot with --slot; known: {', '.join(sorted(there))}")
    for name in options:
        if name not in names:
            raise UsageError(f"--set {name}.…: slot {name!r} is not served; add --slot {name}")
    return tuple(there[name].load()(options.get(name, {})) for name in dict.fromkeys(names))


def parse_options(given: Sequence[str]) -> dict[str, dict[str, str]]:
    """``SLOT.NAME=VALUE``, each.

    Raises:
        UsageError: It is something else.
    """
    found: dict[str, dict[str, str]] = {}
    for text in given:
        where, equals, value = text.partition("=")
        slot, dot, name = where.partition(".")
        if not (equals and dot and slot and name):
            raise UsageError(
                f"--set {text!r} is not usable: write SLOT.NAME=VALUE, for example nvsentinel.deadline=20m"
            )
        found.setdefault(slot, {})[name] = value
    return found
