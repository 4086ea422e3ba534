"""Who drives a run: this machine, somebody with a login to a cluster, or an Argo Workflow. Pure."""

from typing import Final, Self

from rerail.policies.documents import Value

_CLUSTER: Final = "cluster"
_WORKFLOW: Final = "workflow"
_WORKFLOW_PARTS: Final = 4


class WorkflowRef(Value):
    """One Argo Workflow.

    Attributes:
        uid: Its identity: another Workflow may bear the same name later.
    """

    namespace: str
    name: str
    uid: str

    @property
    def owner(self) -> str:
        """As an owner of runs: ``workflow/<namespace>/<name>/<uid>``."""
        return f"{_WORKFLOW}/{self.namespace}/{self.name}/{self.uid}"

    def __str__(self) -> str:
        return f"Workflow {self.namespace}/{self.name}"

    @classmethod
    def of(cls, owner: str) -> Self | None:
        """The Workflow that ``owner`` names; None where it is somebody else."""
        parts = owner.split("/")
        if len(parts) != _WORKFLOW_PARTS or parts[0] != _WORKFLOW or not all(parts):
            return None
        return cls(namespace=parts[1], name=parts[2], uid=parts[3])


def cluster_owner(namespace: str) -> str:
    """Whoever runs ``rerail run`` for gangs in a namespace."""
    return f"{_CLUSTER}/{namespace}"


def namespace_of(owner: str) -> str:
    """The namespace of the gangs of an owner's runs; empty where they are on a machine."""
    workflow = WorkflowRef.of(owner)
    if workflow is not None:
        return workflow.namespace
    kind, _, namespace = owner.partition("/")
    return namespace if kind == _CLUSTER else ""


def called(owner: str) -> str:
    """An owner as people call it."""
    workflow = WorkflowRef.of(owner)
    return repr(owner) if workflow is None else str(workflow)


def not_yours(run: str, *, owner: str, asked: str, had: bool = False) -> str:
    """Why ``asked`` may not drive a run of ``owner``, with the ways out.

    Args:
        run: Its name.
        owner: Who drives it.
        asked: Who would.
        had: The Workflow ``asked`` drove it before, and may not take it over a second time.
    """
    who, you = called(owner), called(asked)
    if who == you:  # a Workflow of the same name, made again
        who, you = f"{who} (uid {owner.rpartition('/')[2]})", f"{you} (uid {asked.rpartition('/')[2]})"
    if had:
        return (
            f"run {run!r} was taken over from {you} and belongs to {who}; if that owner is gone, submit a new Workflow "
            "with the parameter take-over=true"
        )
    option = "--take-over" if WorkflowRef.of(asked) is None else "the parameter take-over=true"
    return (
        f"run {run!r} belongs to {who}, not to {you}; choose another run name, or pass {option} if that owner is gone"
    )
