"""``scheduling.volcano.sh/v1beta1`` PodGroup: pods that are placed together or not at all."""

from typing import Annotated, ClassVar, Final

from pydantic import Field

from rerail.plugins.kube.resources import ResourceType
from rerail.plugins.volcano.base import (
    Count,
    Int32,
    Many,
    NamespacedObject,
    ObjectName,
    Opaque,
    Part,
    Quantities,
    ShortText,
    Table,
    Timestamp,
    crd,
)
from rerail.plugins.volcano.enums import GroupPhase, PodGroupPhase
from rerail.plugins.volcano.job import NetworkTopology

POD_GROUPS: Final = ResourceType("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup", product="Volcano")


class SubGroupPolicy(Part):
    """Groups within the group, each kept within its own part of the network."""

    name: ShortText | None = None
    network_topology: NetworkTopology | None = None
    sub_group_size: Annotated[int, crd(format="int32", minimum=1, default=1)] = 1
    min_sub_groups: Annotated[int, crd(format="int32", minimum=0, default=0)] = 0
    label_selector: Opaque | None = None
    match_label_keys: Many[str] = Field(default_factory=list)


class PodGroupSpec(Part):
    """What is wanted.

    Attributes:
        min_member: Size of the gang; absent means 0.
        min_task_member: Task -> its share of the gang; ``sub_group_policy`` is its successor.
        min_resources: What admission to the queue reserves, even before a pod exists.
    """

    min_member: Count = 0
    min_task_member: Table[Int32] = Field(default_factory=dict)
    queue: Annotated[ObjectName, crd(default="default")] = "default"
    priority_class_name: ShortText | None = None
    min_resources: Quantities = Field(default_factory=dict)
    network_topology: NetworkTopology | None = None
    sub_group_policy: Many[SubGroupPolicy] = Field(default_factory=list)


class PodGroupCondition(Part):
    """What a scheduling session found."""

    type: str | None = None
    status: str | None = None
    transition_id: Annotated[str | None, Field(alias="transitionID")] = None
    last_transition_time: Timestamp | None = None
    reason: str | None = None
    message: str | None = None


class PodGroupStatus(Part):
    """What the scheduler last wrote."""

    phase: GroupPhase | None = None
    conditions: Many[PodGroupCondition] = Field(default_factory=list)
    running: Count = 0
    succeeded: Count = 0
    failed: Count = 0


class PodGroup(NamespacedObject):
    """Pods that are placed together or not at all (short name pg).

    It has no status subresource: whoever updates the object writes the status too.
    """

    RESOURCE: ClassVar[ResourceType] = POD_GROUPS

    spec: PodGroupSpec = Field(default_factory=PodGroupSpec)
    status: PodGroupStatus = Field(default_factory=PodGroupStatus)

    @property
    def phase(self) -> PodGroupPhase | str:
        """Where the group stands; Pending where the scheduler has not written yet."""
        return self.status.phase or PodGroupPhase.PENDING

    @property
    def unschedulable(self) -> PodGroupCondition | None:
        """Why the group is not placed now: its newest true condition, where that is Unschedulable.

        Volcano never sets such a condition back to False; the newest true one tells the truth.
        """
        true = [one for one in self.status.conditions if one.status == "True"]
        newest = max(true, key=lambda one: one.last_transition_time or "", default=None)
        return newest if newest is not None and newest.type == "Unschedulable" else None
