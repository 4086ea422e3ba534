"""The vocabulary of faults: what a source saw (FaultSignal), what it means (Diagnosis), and how bad that is.

Codes are written ``xid:79``, ``sxid:20034`` or, where a fault has no number, ``name:oom_kill``. Every other module of
faults speaks these words; none of them is a decision yet.
"""

from collections.abc import Iterable
from typing import Annotated, Any, Final, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, JsonValue, StringConstraints

Scope = Literal["process", "device", "node", "fabric", "cluster"]
Quarantine = Literal["none", "device", "node"]
Severity = Literal["info", "warning", "fatal", "unknown"]
Action = Literal[
    "none",
    "follow_primary",
    "restart_app",
    "follow_xid_154",
    "investigate",
    "reset_gpu",
    "reboot_node",
    "power_cycle_node",
    "replace_node",
    "contact_support",
]
Trust = Literal["recovery_action", "source_hint", "catalogue", "class_default", "repeat_rule", "exit_code"]

ACTIONS: Final[tuple[Action, ...]] = get_args(Action)
QUARANTINES: Final[tuple[Quarantine, ...]] = get_args(Quarantine)
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)

Code = Annotated[str, StringConstraints(pattern=r"^(x|sx)id:[0-9]{1,9}$|^name:[a-z0-9_]{1,64}$")]

# How much each step disturbs, so that reports of one incident merge into the worst of them. ``investigate`` holds the
# node until somebody looked, so it stands above a restart and below a cure that is known.
_STRENGTH: Final[dict[Action, int]] = {
    "none": 0,
    "follow_primary": 10,
    "restart_app": 20,
    "follow_xid_154": 30,
    "investigate": 35,
    "reset_gpu": 40,
    "reboot_node": 50,
    "power_cycle_node": 60,
    "replace_node": 70,
    "contact_support": 80,
}


class FaultValue(BaseModel):
    """A frozen value of the fault vocabulary; unknown fields are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class FaultSignal(FaultValue):
    """One report of one source about one thing; polarity is already resolved (a signal says that something is wrong).

    Attributes:
        source: The adapter that read it, for example ``kernlog``, ``eks`` or ``nvml``.
        node: Name of the node that the source speaks about; never taken from the text of a log line.
        devices: PCI addresses (``0000:3b:00``) or ``GPU-`` UUIDs; empty where the source cannot say.
        scope: What is hit as far as the source knows, None where it cannot say.
        codes: ``xid:79``, ``sxid:20034``, ``name:oom_kill``; the first is the cause.
        severity: The source's own word, brought to four.
        action_hint: What the source itself recommends, as one of our actions.
        first_seen_s: Epoch seconds by that node's clock.
        boot_id: Boot of the node in which it was seen, where the source knows it.
        raw_ref: Where the raw record lies (file and offset, object and resource version), for people.
        clears_key: A later signal with ``clears_key`` equal to this one's and ``cleared`` set takes it back.
        cleared: This signal takes back what carried the same ``clears_key``.
        details: Fields that rules read and people want: pid, name, link, gpc, tpc, text, the workload.
    """

    source: str = Field(min_length=1)
    node: str = ""
    devices: tuple[str, ...] = ()
    scope: Scope | None = None
    codes: tuple[Code, ...] = ()
    severity: Severity = "unknown"
    action_hint: Action | None = None
    first_seen_s: float = Field(allow_inf_nan=False)
    boot_id: str | None = None
    raw_ref: str = ""
    clears_key: str | None = None
    cleared: bool = False
    details: dict[str, JsonValue] = Field(default_factory=dict)


class Diagnosis(FaultValue):
    """What a set of signals and exits means.

    Attributes:
        class_: The class of the fault (``class`` in JSON), for example ``gpu_lost`` or ``app``.
        scope: What is hit; None where nothing says it.
        action: The cure, in NVIDIA's order of strength.
        evidence: One sentence per fact that the verdict rests on, strongest first.
        confidence: 0 to 1: 1 is the driver's own recovery action, 0.2 an unknown code.
        quarantine: What new work must not use until it is released.
        suspects: Checkpoints taken on the device after the fault was first seen cannot be trusted.
        trust: Which rung of the order of trust decided.
        node: The node to act on, empty where there is none.
        devices: The devices to act on.
        codes: The codes that count for this incident, root first.
        first_seen_s: Earliest stamp of the incident by that node's clock; None without signals.
    """

    class_: str = Field(alias="class")
    scope: Scope | None
    action: Action
    evidence: tuple[str, ...]
    confidence: float = Field(ge=0, le=1)
    quarantine: Quarantine = "none"
    suspects: bool = False
    trust: Trust = "class_default"
    node: str = ""
    devices: tuple[str, ...] = ()
    codes: tuple[Code, ...] = ()
    first_seen_s: float | None = None

    def document(self) -> dict[str, Any]:
        """The diagnosis as a JSON document, with ``class`` as the key of the class."""
        return self.model_dump(mode="json", by_alias=True)


def strength(action: Action) -> int:
    """How much an action disturbs; the worst of several reports of one incident is the one that counts."""
    return _STRENGTH[action]


def strongest(actions: Iterable[Action]) -> Action:
    """The most disturbing of the actions; ``none`` where there are none."""
    return max(actions, key=strength, default="none")
