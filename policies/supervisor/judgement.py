"""How an attempt ended, or is about to, and what may follow."""

from typing import Literal

from rerail.policies.documents import Value
from rerail.policies.supervisor.state import Cause, Failure

Next = Literal["in-place", "new-gang", "stop"]


class Judgement(Value):
    """What happened to the attempt, and what may follow.

    Attributes:
        next: The cheapest answer that the evidence allows; ``stop`` where trying again is known to be of no use.
        sure: False while evidence that would change the scope may still arrive.
        trusted: Whether a save may be asked for: no faulty device and the ranks can still answer.
        exclude: Node that the next attempt must not use.
        step: Last step of the rank that ended first, where one did.
        suspect_since_s: Snapshots on ``node`` later than this (its clock, margin not yet taken off) are suspect.
    """

    class_name: str
    scope: str
    action: str
    cause: Cause
    next: Next
    sure: bool = True
    trusted: bool = False
    node: str = ""
    exclude: bool = False
    device: str = ""
    codes: tuple[str, ...] = ()
    confidence: float = 1.0
    evidence: tuple[str, ...] = ()
    suspects: bool = False
    suspect_since_s: float | None = None
    first_sign_s: float | None = None
    failure: Failure | None = None
    step: int | None = None
