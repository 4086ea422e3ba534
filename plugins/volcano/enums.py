"""Volcano's own words. Fields that hold them also take a word that is not listed here: a newer Volcano's."""

from enum import StrEnum
from typing import Annotated, Final

from pydantic import Field

from rerail.plugins.volcano.base import crd


class JobPhase(StrEnum):
    """Where a vcjob stands. It says little about its pods: a job with a failed rank may stay Running."""

    PENDING = "Pending"
    ABORTING = "Aborting"
    ABORTED = "Aborted"
    RUNNING = "Running"
    RESTARTING = "Restarting"
    COMPLETING = "Completing"
    COMPLETED = "Completed"
    TERMINATING = "Terminating"
    TERMINATED = "Terminated"
    FAILED = "Failed"


FINAL_PHASES: Final = frozenset({JobPhase.COMPLETED, JobPhase.FAILED, JobPhase.TERMINATED})
"""Phases that a job never leaves. Aborted is parked: ResumeJob leaves it."""


class JobEvent(StrEnum):
    """What a lifecycle policy may answer to. Volcano's webhook rejects PodRunning, OutOfSync and CommandIssued."""

    ANY = "*"
    POD_PENDING = "PodPending"
    POD_RUNNING = "PodRunning"
    POD_FAILED = "PodFailed"
    POD_EVICTED = "PodEvicted"
    UNKNOWN = "Unknown"
    TASK_COMPLETED = "TaskCompleted"
    OUT_OF_SYNC = "OutOfSync"
    COMMAND_ISSUED = "CommandIssued"
    JOB_UPDATED = "JobUpdated"
    TASK_FAILED = "TaskFailed"


class JobAction(StrEnum):
    """What a policy or a Command does."""

    ABORT_JOB = "AbortJob"
    RESTART_JOB = "RestartJob"
    RESTART_TASK = "RestartTask"
    RESTART_POD = "RestartPod"
    RESTART_PARTITION = "RestartPartition"
    TERMINATE_JOB = "TerminateJob"
    COMPLETE_JOB = "CompleteJob"
    RESUME_JOB = "ResumeJob"
    SYNC_JOB = "SyncJob"


class TopologyPolicy(StrEnum):
    """NUMA policy of a task."""

    NONE = "none"
    BEST_EFFORT = "best-effort"
    RESTRICTED = "restricted"
    SINGLE_NUMA_NODE = "single-numa-node"


class TopologyMode(StrEnum):
    """Whether a network topology must, or should, be kept."""

    HARD = "hard"
    SOFT = "soft"


class Iteration(StrEnum):
    """How many of the named tasks a task waits for."""

    ANY = "any"
    ALL = "all"


class PodGroupPhase(StrEnum):
    """Where a PodGroup stands; recomputed by the scheduler in each session."""

    PENDING = "Pending"
    RUNNING = "Running"
    UNKNOWN = "Unknown"
    INQUEUE = "Inqueue"
    COMPLETED = "Completed"


class QueueState(StrEnum):
    """Only an open queue takes jobs."""

    OPEN = "Open"
    CLOSED = "Closed"
    CLOSING = "Closing"
    UNKNOWN = "Unknown"


class DequeueStrategy(StrEnum):
    """Whether a job that does not fit holds up those behind it (fifo) or not (traverse)."""

    FIFO = "fifo"
    TRAVERSE = "traverse"


_OPEN = Field(union_mode="left_to_right")

Phase = Annotated[JobPhase | str, _OPEN]
Event = Annotated[JobEvent | str, _OPEN]
Action = Annotated[JobAction | str, _OPEN, crd(closed=False)]
Numa = Annotated[TopologyPolicy | str, _OPEN]
Mode = Annotated[TopologyMode | str, _OPEN, crd(default="hard")]
Dependency = Annotated[Iteration | str, _OPEN, crd(closed=False)]
GroupPhase = Annotated[PodGroupPhase | str, _OPEN]
State = Annotated[QueueState | str, _OPEN]
Dequeue = Annotated[DequeueStrategy | str, _OPEN, crd(default="traverse")]
