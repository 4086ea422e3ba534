"""The packaged tables of fault codes, and their one loader; ``policies.faults.catalogue`` says what they hold."""

from collections.abc import Sequence
from functools import lru_cache
from importlib.resources import files

from rerail.policies.errors import UsageError
from rerail.policies.faults.catalogue import Catalogue, Overlay, build_catalogue, overlay_from_text
from rerail.policies.faults.conditions import ConditionTable, conditions_from_text
from rerail.policies.faults.maintenance import AnnouncementRow, announcements_from_text

TABLES = ("xid", "sxid", "names", "nvlink5", "recovery_actions")
OVERLAYS = ("ack", "cce", "eks", "gpud", "tke")


@lru_cache(maxsize=1)
def _packaged() -> Catalogue:
    return build_catalogue({table: _text(f"{table}.yaml") for table in TABLES})


def _text(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


@lru_cache(maxsize=1)
def load_conditions() -> ConditionTable:
    """Which conditions of nodes tell of a fault, at which status, and as which code."""
    return conditions_from_text(_text("conditions.yaml"), "conditions.yaml")


@lru_cache(maxsize=1)
def load_announcements() -> tuple[AnnouncementRow, ...]:
    """What announces that a node will be taken away."""
    return announcements_from_text(_text("maintenance.yaml"), "maintenance.yaml")


def builtin_overlay(name: str) -> Overlay:
    """A shipped overlay: what one cloud or healer does where it differs.

    Raises:
        UsageError: No overlay of that name is shipped.
    """
    if name not in OVERLAYS:
        raise UsageError(
            f"overlay {name!r} is not shipped; shipped are {', '.join(OVERLAYS)}; a path to a YAML file works as well"
        )
    return overlay_from_text(_text(f"overlay_{name}.yaml"), f"overlay_{name}.yaml")


def load_catalogue(overlays: Sequence[Overlay] = ()) -> Catalogue:
    """The packaged catalogue, changed by ``overlays`` in their order; a later one wins."""
    catalogue = _packaged()
    for overlay in overlays:
        catalogue = catalogue.overlaid(overlay)
    return catalogue
