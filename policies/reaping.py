"""Which gangs outlived their Workflow, and what is done about it. Pure.

Gangs are not owned by the Workflow's object: a recovery must survive Argo. So somebody looks for those that are left.
"""

from typing import Final, Literal

from rerail.policies.documents import Value
from rerail.policies.owners import WorkflowRef
from rerail.policies.supervisor.state import Phase

FINAL: Final = frozenset({"Succeeded", "Failed", "Error"})
"""Phases of a Workflow that is over; its exit hook has run."""

Reaping = Literal["leave", "end"]


class WorkflowView(Value):
    """A Workflow as the API server has it.

    Attributes:
        found: It is there, and is the one that was meant.
        shutdown: ``Stop`` or ``Terminate`` where a person asked for it.
        deleting: It was deleted, and something keeps it for now.
        reason: What it was told about a run that was given up; empty otherwise.
        run: The run that it was told is its own; empty otherwise.
    """

    found: bool
    phase: str = ""
    shutdown: str = ""
    deleting: bool = False
    reason: str = ""
    run: str = ""


def ends(view: WorkflowView) -> bool:
    """Whether a runner that is told to go should end its gang: the Workflow is being stopped or deleted, or is gone."""
    return not view.found or view.deleting or bool(view.shutdown) or view.phase in FINAL


def why_reap(workflow: WorkflowRef, view: WorkflowView) -> str:
    """Why nobody will supervise the gangs of a Workflow any more; empty while somebody does, or may.

    One that is being stopped has a runner, whose task it is, until it is over.
    """
    if not view.found:
        return f"{workflow} is gone"
    if view.phase in FINAL:
        asked = {"Stop": ", stopped by a person", "Terminate": ", terminated by a person"}.get(view.shutdown, "")
        return f"{workflow} is over ({view.phase}{asked})"
    if view.deleting:
        return f"{workflow} is being deleted"
    return ""


def reaping(why: str, *, phase: Phase | None, left: bool) -> Reaping:
    """What to do with a run's gangs.

    Args:
        why: From ``why_reap``; empty where it has an owner that is no Workflow.
        phase: Of the ledger; None before its first decision.
        left: Anything of its gangs is left in the cluster.
    """
    if not why or phase is None:
        return "leave"
    return "end" if left or phase not in ("done", "stopped") else "leave"
