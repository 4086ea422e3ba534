"""What the executor saw in one pass; nothing here is remembered unless ``advance`` puts it into the state."""

from typing import Literal

from rerail.policies.documents import Heartbeat, RankExit, Start, Value
from rerail.policies.faults import FaultSignal
from rerail.policies.faults.maintenance import Announcement
from rerail.policies.offenders import Offence


class PodView(Value):
    """One pod as its backend sees it.

    Attributes:
        phase: ``gone`` = the object or process is no more and left no word.
        exit_code: Of launch, when it ended; 128 + n for signal n.
        farewell: Launch itself said how it ended; false after SIGKILL or a lost node.
        reason: The platform's own words (OOMKilled, NodeShutdown, Evicted, ImagePullBackOff …).
        disrupted: Why the platform takes it away (PreemptionByScheduler, EvictionByEvictionAPI, or just ``deleted``);
            empty while nobody does.
        node_ready: Whether its node reports; None where nobody tells.
    """

    name: str
    node: str
    phase: Literal["pending", "running", "succeeded", "failed", "gone"]
    exit_code: int | None = None
    farewell: bool = True
    reason: str = ""
    disrupted: str = ""
    node_ready: bool | None = None


class StuckView(Value):
    """A state of the platform that does not move, held longer than its timer.

    Attributes:
        code: S1 to S8 as in ``volcano_verdict``, or ``image``.
        why: The facts.
        way_out: What a person may do.
        pods: The pods that show it.
    """

    code: str
    why: str
    way_out: str = ""
    pods: tuple[str, ...] = ()


class GangView(Value):
    """All pods of one gang that exist or left word.

    Attributes:
        waits: Why the scheduler has not placed every pod yet; empty once it has. Ranks are silent until then.
        stuck: What does not move, if anything.
        absent: The platform has no object of this gang: it was not submitted yet, or somebody deleted it.
    """

    name: str
    pods: tuple[PodView, ...] = ()
    waits: str = ""
    stuck: StuckView | None = None
    absent: bool = False

    @property
    def alive(self) -> bool:
        """Whether any pod may still run."""
        return any(pod.phase in ("pending", "running") for pod in self.pods)


class NodeView(Value):
    """One node and the GPU slots that are free on it for this run.

    Attributes:
        offences: Incidents that ever fenced it.
        leaves: Who announced that it will be taken away, where anybody did.
        released_at_s: When it was last given back to work, by its own clock; what was reported before is over.
    """

    name: str
    slots: int
    free: int
    usable: bool = True
    why: str = ""
    offences: tuple[Offence, ...] = ()
    leaves: Announcement | None = None
    released_at_s: float | None = None


class CommitView(Value):
    """The newest commit of the newest attempt that has one."""

    attempt: int
    step: int
    reason: str
    answers: tuple[str, ...] = ()


class Blocked(Value):
    """The start could not be written.

    Attributes:
        transient: Waiting may help (the store is unreachable); else a person has to act.
    """

    attempt: int
    reason: str
    transient: bool


class Observations(Value):
    """One pass.

    Attributes:
        gang: The state's current gang; None when its backend does not answer (then nothing is concluded from it).
        other_gangs: Gangs of this run that are not the current one; every pass ends them.
        start: Start document of the state's attempt, once it stands (in phase ``opening`` that is the new attempt).
        exits: Ranks of the state's attempt that launch reported as ended.
        ready: Pods whose launch reported ``ready_for`` the attempt after the state's (in phase ``preparing``).
        heartbeat: Newest hint about the state's attempt.
        heartbeat_age_s: How long, on this watcher's monotonic clock, the heartbeat of the state's attempt has shown no
            new step, counted from when the attempt began to run.
        waits_s: How long, on this watcher's monotonic clock, the gang has waited for its scheduler.
        signals: Fault signals about any node, each with a key of its own.
        nodes: None where nobody may look at nodes (then capacity is the scheduler's business alone).
        hold: Why the guard across runs lets no further gang start now; empty while one may.
        paused: Why nothing may be recovered now: a person's pause, of this run or of all; empty while it goes on.
        stop_asked: A person or the owner asked for the run's end, with their reason.
    """

    gang: GangView | None = None
    other_gangs: tuple[str, ...] = ()
    start: Start | None = None
    blocked: Blocked | None = None
    exits: tuple[RankExit, ...] = ()
    ready: tuple[str, ...] = ()
    heartbeat: Heartbeat | None = None
    heartbeat_age_s: float = 0.0
    waits_s: float = 0.0
    commit: CommitView | None = None
    signals: tuple[FaultSignal, ...] = ()
    nodes: tuple[NodeView, ...] | None = None
    hold: str = ""
    paused: str = ""
    stop_asked: str = ""


class Now(Value):
    """Time as the machine may use it.

    Attributes:
        wall_s: Epoch seconds; for records and budget windows.
        phase_s: Seconds that this watcher has seen the current phase, on its monotonic clock; a restart begins anew.
    """

    wall_s: float
    phase_s: float
