"""``scheduling.volcano.sh/v1beta1`` Queue: a share of the cluster."""

from typing import Annotated, ClassVar, Final

from pydantic import Field

from rerail.plugins.kube.resources import ResourceType
from rerail.plugins.volcano.base import ClusterObject, Count, Int32, Many, ObjectName, Part, Quantities, ShortText, crd
from rerail.plugins.volcano.enums import Dequeue, QueueState, State

QUEUES: Final = ResourceType("scheduling.volcano.sh", "v1beta1", "queues", "Queue", namespaced=False, product="Volcano")


class Guarantee(Part):
    """What is kept free for the queue."""

    resource: Quantities = Field(default_factory=dict)


class NodeGroupAffinity(Part):
    """Groups of nodes that the queue uses, or avoids."""

    required_during_scheduling_ignored_during_execution: Many[str] = Field(default_factory=list)
    preferred_during_scheduling_ignored_during_execution: Many[str] = Field(default_factory=list)


class Affinity(Part):
    """Where the queue's pods may run."""

    node_group_affinity: NodeGroupAffinity | None = None
    node_group_anti_affinity: NodeGroupAffinity | None = None


class ClusterShare(Part):
    """Another cluster that jobs of the queue are sent to."""

    name: str | None = None
    weight: Int32 | None = None
    capacity: Quantities = Field(default_factory=dict)


class QueueSpec(Part):
    """What is wanted.

    Attributes:
        weight: Share, for the scheduler's plugin ``proportion``.
        capability: Upper limit.
        deserved: What others give back when the queue wants it; for the plugin ``capacity``.
        reclaimable: Whether others may take from it; absent means yes.
        parent: For queues in a tree; jobs go to leaves only.
    """

    weight: Annotated[int, crd(format="int32", minimum=1, maximum=65535, default=1)] = 1
    capability: Quantities = Field(default_factory=dict)
    deserved: Quantities = Field(default_factory=dict)
    guarantee: Guarantee | None = None
    reclaimable: bool | None = None
    parent: ObjectName | None = None
    priority: Count | None = None
    dequeue_strategy: Dequeue | None = None
    affinity: Affinity | None = None
    type: ShortText | None = None
    extend_clusters: Many[ClusterShare] = Field(default_factory=list)


class Reservation(Part):
    """Nodes that are locked for the queue."""

    nodes: Many[str] = Field(default_factory=list)
    resource: Quantities = Field(default_factory=dict)


class QueueStatus(Part):
    """What the queue controller and the scheduler last wrote."""

    state: State | None = None
    unknown: Count = 0
    pending: Count = 0
    running: Count = 0
    inqueue: Count = 0
    completed: Count = 0
    reservation: Reservation | None = None
    allocated: Quantities = Field(default_factory=dict)


class Queue(ClusterObject):
    """A share of the cluster (short name q). Only an open leaf takes jobs; the queue controller opens a new one."""

    RESOURCE: ClassVar[ResourceType] = QUEUES

    spec: QueueSpec = Field(default_factory=QueueSpec)
    status: QueueStatus = Field(default_factory=QueueStatus)

    @property
    def is_open(self) -> bool:
        """Whether jobs that name it are admitted."""
        return self.status.state == QueueState.OPEN
