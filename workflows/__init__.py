"""When, in Argo: Hera templates over the plugins. Imports plugins and policies; nothing imports it.

from rerail.workflows import resilient_gang

``resilient_gang``, ``guarded_step``, ``evict_gang`` and ``run_report`` are tasks for a DAG of your own;
``all_templates`` are the templates that `rerail render` writes. Hera is imported when one of them is first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rerail.workflows.compose import evict_gang, guarded_step, resilient_gang, run_report
    from rerail.workflows.library import all_templates

__all__ = [
    "all_templates",
    "evict_gang",
    "guarded_step",
    "resilient_gang",
    "run_report",
]

_IN = {
    "all_templates": "library",
    "evict_gang": "compose",
    "guarded_step": "compose",
    "resilient_gang": "compose",
    "run_report": "compose",
}


def __getattr__(name: str) -> Any:
    if name not in _IN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_IN[name]}"), name)
