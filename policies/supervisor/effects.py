"""What the executor has to do after a decision. Every effect names its object and may be repeated."""

from typing import Annotated, Literal

from pydantic import Field

from rerail.policies.documents import How, Value


class SealAttempt(Value):
    """Seal ``attempt``, so that attempts below are closed; first half of an in-place attempt."""

    do: Literal["seal"] = "seal"
    attempt: int
    how: How
    gang: str
    reason: str


class StartAttempt(Value):
    """Seal ``attempt`` if it is not sealed, resolve, and write its start; what forbids it is seen as ``blocked``."""

    do: Literal["start"] = "start"
    attempt: int
    how: How
    gang: str
    reason: str


class SubmitGang(Value):
    """Create the pods of the state's gang that do not exist; adopt those that carry our run and gang."""

    do: Literal["submit"] = "submit"
    gang: str


class RequestSave(Value):
    """Ask all ranks of ``attempt`` to save."""

    do: Literal["request-save"] = "request-save"
    attempt: int
    id: str
    reason: str
    within_s: float
    then: Literal["stay", "leave"]


class EndGang(Value):
    """End every process of ``gang``: SIGTERM, then SIGKILL after ``grace_s``."""

    do: Literal["end"] = "end"
    gang: str
    grace_s: float
    reason: str


class MarkNode(Value):
    """Keep new work off ``node`` (NoSchedule; never NoExecute) and note the incident, and the device, on it."""

    do: Literal["mark-node"] = "mark-node"
    node: str
    incident: str
    reason: str
    device: str = ""


class Retain(Value):
    """Delete checkpoints that the policy does not keep."""

    do: Literal["retain"] = "retain"
    keep_last: int
    keep_clean_s: float
    keep_every_steps: int


Effect = Annotated[
    SealAttempt | StartAttempt | SubmitGang | RequestSave | EndGang | MarkNode | Retain, Field(discriminator="do")
]
