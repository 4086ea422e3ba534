"""``batch.volcano.sh/v1alpha1`` Job: a gang of pods under one lifecycle."""

from typing import Annotated, ClassVar, Final

from pydantic import Field

from rerail.plugins.kube.resources import ResourceType
from rerail.plugins.volcano.base import (
    DNS_LABEL,
    Count,
    Crd,
    Int32,
    Many,
    NamespacedObject,
    ObjectName,
    Opaque,
    Part,
    Positive,
    ShortText,
    Table,
    Timestamp,
    crd,
)
from rerail.plugins.volcano.enums import FINAL_PHASES, Action, Dependency, Event, JobPhase, Mode, Numa, Phase

JOBS: Final = ResourceType("batch.volcano.sh", "v1alpha1", "jobs", "Job", product="Volcano")

JOB_NAME_LABEL: Final = "volcano.sh/job-name"
JOB_NAMESPACE_LABEL: Final = "volcano.sh/job-namespace"
TASK_LABEL: Final = "volcano.sh/task-spec"
TASK_INDEX_LABEL: Final = "volcano.sh/task-index"
GROUP_ANNOTATION: Final = "scheduling.k8s.io/group-name"
"""The one key by which the scheduler finds a pod's PodGroup; ``scheduling.volcano.sh/group-name`` is not read."""

_TASK_NAME: Final[Crd] = crd(maxLength=63, pattern=DNS_LABEL)


class NetworkTopology(Part):
    """How far apart, in tiers of HyperNodes, the pods may lie. Tier and tier name exclude each other."""

    mode: Mode | None = None
    highest_tier_allowed: Annotated[int | None, crd(minimum=0)] = None
    highest_tier_name: ShortText | None = None


class LifecyclePolicy(Part):
    """What to do on an event or an exit code.

    Policies are edge-triggered and can be lost (a controller restart, a job that failed before): treat them as a fast
    path, never as the recovery.

    Attributes:
        action: What is done.
        event: On this event; or
        events: on any of these; or
        exit_code: when a pod's first container leaves with this code (never 0).
        timeout: A delay before the action, as a Go duration ("10m0s"); kept in the controller's memory only.
    """

    action: Action | None = None
    event: Event | None = None
    events: Many[Event] = Field(default_factory=list)
    exit_code: Int32 | None = None
    timeout: str | None = None


class DependsOn(Part):
    """Tasks that must run first."""

    name: Many[str] = Field(default_factory=list)
    iteration: Dependency | None = None


class PartitionPolicy(Part):
    """Cuts a task's pods into partitions; replicas must be ``total_partitions * partition_size``."""

    total_partitions: Annotated[int, crd(required=True, format="int32", minimum=1)]
    partition_size: Annotated[int, crd(required=True, format="int32", minimum=1)]
    min_partitions: Annotated[int, crd(format="int32", minimum=0, default=0)] = 0
    network_topology: NetworkTopology | None = None


class Task(Part):
    """Pods that are alike.

    Attributes:
        name: A DNS label; part of the pods' names ``<job>-<task>-<index>``.
        replicas: Number of pods.
        min_available: How many of them the gang needs; Volcano's webhook makes it ``replicas``.
        template: The pod template, as a plain dict.
        max_retry: Restarts of containers before the event TaskFailed; 0 is read as 3.
    """

    name: Annotated[str | None, _TASK_NAME] = None
    replicas: Count = 0
    min_available: Count | None = None
    template: Opaque = Field(default_factory=dict)
    policies: Many[LifecyclePolicy] = Field(default_factory=list)
    topology_policy: Numa | None = None
    max_retry: Count | None = None
    depends_on: DependsOn | None = None
    partition_policy: PartitionPolicy | None = None


class Volume(Part):
    """A volume that every pod mounts: an existing claim by name, or one made from a spec."""

    mount_path: Annotated[str, crd(required=True, minLength=1, pattern="^[^:]+$")]
    volume_claim_name: ShortText | None = None
    volume_claim: Opaque | None = None


class JobSpec(Part):
    """What is wanted.

    On a live job only ``minAvailable``, ``tasks[*].replicas``, ``tasks[*].minAvailable`` and ``priorityClassName`` may
    change (Volcano's webhook).

    Attributes:
        scheduler_name: ``volcano``; where no webhook runs it has no default, and pods go to the default scheduler.
        min_available: Size of the gang; where no webhook runs, absent means 0, which is no gang.
        plugins: Job plugin -> arguments, for example {"svc": ["--publish-not-ready-addresses=true"]}.
        max_retry: Whole-life count of restarts, evictions included: N allows N - 1. The webhook turns 0 into 3.
        ttl_seconds_after_finished: When a finished job, with its pods, is deleted.
        running_estimate: Expected run time, as a Go duration.
    """

    scheduler_name: Annotated[str | None, crd(maxLength=63)] = None
    min_available: Count | None = None
    volumes: Many[Volume] = Field(default_factory=list)
    tasks: Annotated[Many[Task], crd(minItems=1)] = Field(default_factory=list)
    policies: Many[LifecyclePolicy] = Field(default_factory=list)
    plugins: Table[Many[str]] = Field(default_factory=dict)
    running_estimate: str | None = None
    queue: Annotated[ObjectName, crd(default="default")] = "default"
    max_retry: Annotated[int, crd(format="int32", minimum=0, default=3)] = 3
    ttl_seconds_after_finished: Count | None = None
    priority_class_name: ObjectName | None = None
    min_success: Positive | None = None
    network_topology: NetworkTopology | None = None


class JobState(Part):
    """The phase. The controller writes no reason and no message."""

    phase: Phase | None = None
    reason: str | None = None
    message: str | None = None
    last_transition_time: Timestamp | None = None


class TaskState(Part):
    """Pods of one task by pod phase."""

    phase: Table[Int32] = Field(default_factory=dict)


class JobCondition(Part):
    """A phase that the job was in."""

    status: Annotated[Phase, crd(required=True, closed=False)]
    last_transition_time: Timestamp | None = None


class JobStatus(Part):
    """What the controller last wrote.

    Never judge by the counts: after a kill they are rebuilt from killed pods only, so that a Completed job shows
    0 succeeded. Count pods.

    Attributes:
        version: Grows with each kill of the whole job.
        retry_count: Grows with each restart, whatever its cause, and is never reset.
        running_duration: Since creation, as a Go duration.
    """

    state: JobState = Field(default_factory=JobState)
    min_available: Count = 0
    task_status_count: Table[TaskState] = Field(default_factory=dict)
    pending: Count = 0
    running: Count = 0
    succeeded: Count = 0
    failed: Count = 0
    terminating: Count = 0
    unknown: Count = 0
    version: Count = 0
    retry_count: Count = 0
    running_duration: str | None = None
    controlled_resources: Table[str] = Field(default_factory=dict)
    conditions: Many[JobCondition] = Field(default_factory=list)


class VolcanoJob(NamespacedObject):
    """A gang of pods under one lifecycle (short names vcjob, vj)."""

    RESOURCE: ClassVar[ResourceType] = JOBS

    spec: JobSpec = Field(default_factory=JobSpec)
    status: JobStatus = Field(default_factory=JobStatus)

    @property
    def phase(self) -> JobPhase | str:
        """Where the job stands; Pending where the controller has not written yet."""
        return self.status.state.phase or JobPhase.PENDING

    @property
    def finished(self) -> bool:
        """Whether it is in a phase that it never leaves. Says nothing about success."""
        return self.phase in FINAL_PHASES

    @property
    def pod_group_name(self) -> str:
        """Name of the PodGroup that the controller makes for it."""
        return f"{self.name}-{self.uid}"

    @property
    def pod_labels(self) -> dict[str, str]:
        """Labels that its pods, and those of every other job of its name there, carry."""
        return {JOB_NAME_LABEL: self.name, JOB_NAMESPACE_LABEL: self.metadata.namespace or ""}
