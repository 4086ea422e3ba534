"""The ledger's content: the whole state of a run and the effects still to perform."""

from typing import Literal

from pydantic import Field

from rerail.policies.documents import Document, How, Value
from rerail.policies.supervisor.effects import Effect

Phase = Literal[
    "opening",  # the next attempt is sealed and its start is being written; its gang may be submitted already
    "running",  # a gang trains
    "saving",  # the ranks were asked to save before the gang ends
    "preparing",  # an in-place attempt is sealed; launches end their ranks and say ready
    "ending",  # the gang is being ended
    "waiting",  # for back-off, capacity, or the store
    "done",  # the newest commit of the chain is final
    "stopped",  # given up; the reason says why and what to do
]

Cause = Literal["application", "hardware", "infrastructure", "unknown", "preemption", "damage"]
"""What an attempt's end is charged to; preemption and damage are free."""


OUT_OF_MEMORY = "OOMKilled"
"""The error of a ``Failure`` for lack of memory: the same pods would meet it again, so it is never tried in place."""


class PodSpec(Value):
    """One pod of a gang: one launch with its ranks.

    Attributes:
        name: ``<gang>-<index>``.
        node: Where it has to run; empty lets the scheduler choose.
        first_rank: Its ranks are ``first_rank .. first_rank + ranks - 1``.
    """

    name: str
    node: str
    first_rank: int = Field(ge=0)
    ranks: int = Field(ge=1)


class PodShape(Value):
    """One pod of every gang of a run, where a scheduler chooses its node.

    Attributes:
        suffix: The pod is called ``<gang>-<suffix>``.
        first_rank: Its ranks are ``first_rank .. first_rank + ranks - 1``.
    """

    suffix: str
    first_rank: int = Field(ge=0)
    ranks: int = Field(ge=1)


class GangSpec(Value):
    """The exact gang of one attempt, so that whoever repeats its submission submits the same.

    Attributes:
        grace_s: Between the request to a pod to leave and its kill, at least; 0 leaves that to the backend.
    """

    name: str
    world_size: int = Field(ge=1)
    pods: tuple[PodSpec, ...]
    excluded_nodes: tuple[str, ...] = ()
    grace_s: float = 0.0

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that the gang was placed on, in order, without repeats."""
        return tuple(dict.fromkeys(pod.node for pod in self.pods if pod.node))


class Failure(Value):
    """What identifies a failure of the application: the same error at the same step is the same failure."""

    error: str
    step: int | None
    nodes: tuple[str, ...]


class Suspicion(Value):
    """Commits that a faulty device took part in: of ``attempt``, with a snapshot on ``node`` later than ``since_s``.

    Attributes:
        since_s: First sign of the fault minus the margin, by that node's clock; None suspects every commit.
    """

    attempt: int
    node: str
    since_s: float | None
    why: str


class AttemptRecord(Value):
    """One attempt, as people read it in the report. Times are the supervisor's wall clock, epoch seconds."""

    n: int
    gang: str
    nodes: tuple[str, ...]
    how: How
    opened_at_s: float
    started_at_s: float | None = None
    started_from_step: int | None = None
    skipped: tuple[str, ...] = ()
    loaded_at_s: float | None = None
    first_step_at_s: float | None = None
    last_step: int | None = None
    last_commit_step: int | None = None
    saving_s: float = 0.0
    save_s: float | None = None
    step_time_s: float | None = None
    ended_at_s: float | None = None
    end_cause: str = ""
    charged_to: Cause | None = None
    failure: Failure | None = None
    exit_codes: dict[str, int] = Field(default_factory=dict)


class Incident(Value):
    """One incident: all signals of one fault, one recovery. Its id is the run and the attempt that it ended.

    Attributes:
        class_name: Diagnosis in one word, for example ``xid-79`` or ``hang``.
        first_sign_s: When the fault was first seen to have an effect, by the node's stamp where there is one.
        signals: Keys of the fault signals that belong to it; what comes later is judged together with them.
        detected_at_s: When the supervisor first saw it; the other times follow the order of recovery.
    """

    id: str
    attempt: int
    class_name: str
    scope: str
    action: str
    cause: Cause
    codes: tuple[str, ...] = ()
    node: str = ""
    device: str = ""
    confidence: float = 1.0
    trusted: bool = True
    evidence: tuple[str, ...] = ()
    signals: tuple[str, ...] = ()
    first_sign_s: float | None = None
    detected_at_s: float
    decided_at_s: float
    save_asked_at_s: float | None = None
    saved_at_s: float | None = None
    ended_at_s: float | None = None
    started_at_s: float | None = None
    loaded_at_s: float | None = None
    recovered_at_s: float | None = None
    lost_from_step: int | None = None
    lost_steps: int | None = None


class RunState(Value):
    """Everything the supervisor knows. Observations come fresh each pass; only this is remembered.

    Attributes:
        phase_number: Grows with each change of phase; timers of a phase run on the watcher's own monotonic clock.
        attempt: The attempt that runs or ran last; in phase ``opening`` the one being opened. In ``preparing`` the next
            attempt (this plus one) is sealed, but this is still the one that ended.
        next_how: How the attempt being opened is meant to run.
        gang: Gang of ``attempt``.
        layout: The pods of every gang, where a scheduler places them; empty where this machine does.
        save_request: Id of the save that is waited for in phase ``saving``.
        seen_signals: Keys of fault signals that were acted on, so that a repeated report is no second incident.
        quarantined: Nodes that this run keeps away from, with the reason.
        stop_for: Why the run stops once its gang is ended, where its end is known to come again; empty otherwise.
        reason: Why the run waits or stopped, in words for people, with the way out.
        paused: Why a person holds the run, and what is held back; empty while it goes on.
        owner: Who drives the run, where that is known here: ``run.json`` names who created it, this who took it over.
        owned_from: The first attempt of that owner; earlier ones do not count towards the owner's ``max_attempts``.
    """

    run: str
    owner: str = ""
    owned_from: int = Field(1, ge=1)
    world_size: int = Field(ge=1)
    phase: Phase
    phase_number: int = 0
    attempt: int = Field(ge=1)
    next_how: How = "fresh"
    gang: GangSpec | None = None
    layout: tuple[PodShape, ...] = ()
    save_request: str = ""
    attempts: tuple[AttemptRecord, ...] = ()
    incidents: tuple[Incident, ...] = ()
    suspicions: tuple[Suspicion, ...] = ()
    seen_signals: tuple[str, ...] = ()
    quarantined: dict[str, str] = Field(default_factory=dict)
    stop_for: str = ""
    reason: str = ""
    paused: str = ""
    finished_at_s: float | None = None


class LedgerEntry(Document):
    """One decision: the state after it, the effects that follow from it, and a line for people.

    Attributes:
        at_s: Wall clock of the deciding supervisor, epoch seconds; for people and windows, never for order.
    """

    KIND = "rerail.ledger"

    number: int = Field(ge=0)
    at_s: float
    note: str
    state: RunState
    effects: tuple[Effect, ...] = ()
