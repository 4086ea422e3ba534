"""What one session of the scheduler sees, and tries out: tasks, gangs, nodes and queues."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from rerail.plugins.volcano import PodGroup
from rig.standin.objects import (
    PREEMPTABLE,
    Obj,
    annotations_of,
    group_of,
    labels_of,
    leaving,
    name_of,
    namespace_of,
    phase_of,
    quantity,
    requests_of,
    uid_of,
)

Amounts = dict[str, float]

PENDING, ALLOCATED, PIPELINED, BOUND = "Pending", "Allocated", "Pipelined", "Bound"
RUNNING, RELEASING, SUCCEEDED, FAILED = "Running", "Releasing", "Succeeded", "Failed"
BITS: Final = {
    PENDING: 1,
    ALLOCATED: 2,
    PIPELINED: 4,
    BOUND: 16,
    RUNNING: 32,
    RELEASING: 64,
    SUCCEEDED: 128,
    FAILED: 256,
}
"""How an extender reads a status."""
HOLDING: Final = frozenset({BOUND, RUNNING, ALLOCATED})
"""Has its resources, and keeps them."""
ENDED_NOW: Final = frozenset({SUCCEEDED, FAILED})
READY: Final = HOLDING | {SUCCEEDED}
SCHEDULED: Final = frozenset({RUNNING, BOUND, FAILED, SUCCEEDED})
SLACK: Final = 1e-6


def fits(asked: Amounts, idle: Amounts) -> bool:
    """Whether there is enough of everything that is asked for."""
    return all(value <= idle.get(resource, 0.0) + SLACK for resource, value in asked.items())


def plus(total: Amounts, more: Amounts, sign: int = 1) -> Amounts:
    """A sum, resource by resource."""
    return {name: total.get(name, 0.0) + sign * more.get(name, 0.0) for name in total.keys() | more.keys()}


@dataclass(eq=False)
class Task:
    """A pod in a session; status and node change while placements are tried."""

    pod: Obj
    status: str
    node: str
    asked: Amounts = field(init=False)
    group: str = field(init=False)

    def __post_init__(self) -> None:
        self.asked = requests_of(self.pod["spec"])
        self.group = group_of(self.pod)

    @property
    def uid(self) -> str:
        return uid_of(self.pod)

    @property
    def name(self) -> str:
        return name_of(self.pod)

    @property
    def role(self) -> str:
        return annotations_of(self.pod).get("volcano.sh/task-spec", "")

    @property
    def priority(self) -> int:
        return int(self.pod["spec"].get("priority", 1))

    @property
    def preemptable(self) -> bool:
        said = annotations_of(self.pod).get(PREEMPTABLE, labels_of(self.pod).get(PREEMPTABLE, "true"))
        return said.lower() in ("true", "t", "1")

    @property
    def order(self) -> tuple[Any, ...]:
        """Smaller is served first."""
        return (-self.priority, self.pod["metadata"]["creationTimestamp"], self.uid)

    def described(self) -> Obj:
        """As an extender is shown it."""
        return {
            "UID": self.uid,
            "Job": self.group,
            "Name": self.name,
            "Namespace": namespace_of(self.pod),
            "TaskRole": self.role,
            "Status": BITS.get(self.status, 0),
            "NodeName": self.node,
            "Priority": self.priority,
            "Preemptable": self.preemptable,
            "Pod": self.pod,
        }


def status_of(pod: Obj) -> str:
    """A task's status, from its pod."""
    phase = phase_of(pod) or "Pending"
    if phase in ("Pending", "Running"):
        if leaving(pod):
            return RELEASING
        if phase == "Pending":
            return BOUND if pod["spec"].get("nodeName") else PENDING
    return phase


@dataclass(eq=False)
class Gang:
    """A PodGroup with its tasks.

    Attributes:
        content: The group as the API server has it.
        phase: As this session makes it.
        why: For people, why a task is not placed, by its uid.
    """

    content: Obj
    group: PodGroup
    priority: int
    tasks: list[Task]
    phase: str
    why: dict[str, str] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.group.metadata.namespace}/{self.group.name}"

    @property
    def queue(self) -> str:
        return self.group.spec.queue

    @property
    def least(self) -> int:
        return self.group.spec.min_member

    def count(self, statuses: Iterable[str]) -> int:
        found = frozenset(statuses)
        return sum(task.status in found for task in self.tasks)

    def _free(self) -> int:
        """Pending tasks that ask for nothing: they are placed at any time."""
        return sum(task.status == PENDING and not task.asked for task in self.tasks)

    @property
    def ready(self) -> bool:
        return self.count(READY) + self._free() >= self.least and self._roles(READY)

    @property
    def pipelined(self) -> bool:
        return self.count(READY | {PIPELINED}) + self._free() >= self.least and self._roles(READY | {PIPELINED})

    @property
    def starving(self) -> bool:
        served = self.count(READY | {PIPELINED})
        return served < self.least and served < len(self.tasks)

    @property
    def invalid(self) -> bool:
        """Whether pods are missing that the gang needs; failed ones do not count."""
        there = READY | {PIPELINED, PENDING}
        return self.count(there) < self.least or not self._roles(there)

    def _roles(self, statuses: frozenset[str]) -> bool:
        needed = self.group.spec.min_task_member
        if self.least < sum(needed.values()):
            return True
        have = Counter(task.role for task in self.tasks if task.status in statuses)
        free = Counter(task.role for task in self.tasks if task.status == PENDING and not task.asked)
        return all(have[role] + free[role] >= count for role, count in needed.items())

    @property
    def order(self) -> tuple[Any, ...]:
        """Smaller is served first."""
        return (-self.priority, self.ready, self.content["metadata"]["creationTimestamp"], self.key)


@dataclass(eq=False)
class Machine:
    """A node.

    Attributes:
        tasks: All tasks of the session; those on the node count.
    """

    content: Obj
    tasks: list[Task]
    capacity: Amounts = field(init=False)

    def __post_init__(self) -> None:
        offered = (self.content.get("status") or {}).get("allocatable") or {}
        self.capacity = {resource: quantity(value) for resource, value in offered.items()}

    @property
    def name(self) -> str:
        return name_of(self.content)

    def _used(self, statuses: frozenset[str]) -> Amounts:
        total: Amounts = {}
        for task in self.tasks:
            if task.node == self.name and task.status in statuses:
                total = plus(total, plus(task.asked, {"pods": 1.0}))
        return total

    @property
    def idle(self) -> Amounts:
        """What is free now; a pod that is leaving holds its resources until it is gone."""
        return plus(self.capacity, self._used(HOLDING | {RELEASING, "Unknown"}), -1)

    @property
    def idle_soon(self) -> Amounts:
        """What is free when those have left, and what was promised was given."""
        return plus(self.capacity, self._used(HOLDING | {PIPELINED, "Unknown"}), -1)
