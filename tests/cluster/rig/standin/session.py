"""One session of the scheduler: what it sees, what it tries, and what it decides."""

from collections.abc import Callable
from dataclasses import dataclass, field

from rerail.plugins.volcano import PodGroup
from rig.standin.model import ALLOCATED, RELEASING, Gang, Machine, Task, status_of
from rig.standin.objects import Obj, name_of


class Trial:
    """Placements and evictions that are kept or taken back together."""

    def __init__(self) -> None:
        self._before: list[tuple[Task, str, str]] = []
        self.evicted: list[Task] = []
        self.bound: list[Task] = []

    def _set(self, task: Task, status: str, node: str) -> None:
        self._before.append((task, task.status, task.node))
        task.status, task.node = status, node

    def place(self, task: Task, machine: Machine, status: str) -> None:
        self._set(task, status, machine.name)
        if status == ALLOCATED:
            self.bound.append(task)

    def evict(self, task: Task) -> None:
        self._set(task, RELEASING, task.node)
        self.evicted.append(task)

    def undo(self) -> None:
        for task, status, node in reversed(self._before):
            task.status, task.node = status, node
        self._before, self.evicted, self.bound = [], [], []

    def join(self, other: "Trial") -> None:
        self._before += other._before
        self.evicted += other.evicted
        self.bound += other.bound


@dataclass(eq=False)
class Session:
    """One look at the cluster, and what is decided in it.

    Attributes:
        bindings: Tasks to bind to their nodes.
        evictions: Tasks to evict, and for which action.
        nominated: Tasks for which others were evicted.
    """

    uid: str
    gangs: dict[str, Gang]
    machines: list[Machine]
    queues: dict[str, Obj]
    tasks: list[Task]
    bindings: list[Task] = field(default_factory=list)
    evictions: list[tuple[Task, str]] = field(default_factory=list)
    nominated: set[str] = field(default_factory=set)

    def keep(self, trial: Trial, action: str = "") -> None:
        """Decide for what was tried."""
        self.bindings += trial.bound
        self.evictions += [(task, action) for task in trial.evicted]

    def ordered(self, chosen: Callable[[Gang], bool]) -> list[Gang]:
        """Gangs that are served, first ones first."""
        return sorted((gang for gang in self.gangs.values() if chosen(gang)), key=lambda gang: gang.order)


def open_session(
    uid: str, *, groups: list[Obj], nodes: list[Obj], queues: list[Obj], pods: list[Obj], priorities: dict[str, int]
) -> Session:
    """Take what is known as one session sees it."""
    tasks = [Task(pod, status_of(pod), str(pod["spec"].get("nodeName") or "")) for pod in pods]
    known = {name_of(queue): queue for queue in queues}
    gangs: dict[str, Gang] = {}
    for content in groups:
        group = PodGroup.from_dict(content)
        if group.spec.queue in known:
            value = priorities.get(group.spec.priority_class_name or "", 0)
            gang = Gang(content, group, value, [], str(group.status.phase or "Pending"))
            gangs[gang.key] = gang
    for task in tasks:
        if task.group in gangs:
            gangs[task.group].tasks.append(task)
    machines = [Machine(node, tasks) for node in nodes]
    return Session(uid, gangs, machines, known, tasks)
