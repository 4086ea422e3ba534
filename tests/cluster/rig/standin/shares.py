"""How much each queue deserves: by weight, never more than it asks for, what one leaves goes to the others."""

from dataclasses import dataclass, field

from rig.standin.model import HOLDING, PENDING, PIPELINED, SLACK, Amounts, Task, fits, plus
from rig.standin.objects import Obj, quantity
from rig.standin.session import Session

HAS = HOLDING | {PIPELINED}


@dataclass(eq=False)
class Share:
    """A queue's part of the cluster."""

    queue: Obj
    limit: Amounts
    asked: Amounts
    tasks: list[Task]
    deserved: Amounts = field(default_factory=dict)

    @property
    def weight(self) -> int:
        return int(self.queue["spec"].get("weight", 1))

    @property
    def allocated(self) -> Amounts:
        """What its tasks have, or are promised, at this point of the session."""
        total: Amounts = {}
        for task in self.tasks:
            if task.status in HAS:
                total = plus(total, task.asked)
        return total

    @property
    def overused(self) -> bool:
        """Whether it has all that it deserves."""
        allocated = self.allocated
        return all(value <= allocated.get(name, 0.0) + SLACK for name, value in self.deserved.items())

    @property
    def served(self) -> float:
        """How far it has what it deserves; the queue with the least comes first."""
        allocated = self.allocated
        return max(
            (allocated.get(name, 0.0) / value for name, value in self.deserved.items() if value > 0), default=0.0
        )

    def admits(self, task: Task) -> bool:
        """Whether a task is within what the queue deserves."""
        if (self.queue.get("status") or {}).get("state") != "Open":
            return False
        allocated = self.allocated
        return fits({name: allocated.get(name, 0.0) + value for name, value in task.asked.items()}, self.deserved)


def shares_of(session: Session) -> dict[str, Share]:
    """The shares of all queues that have gangs."""
    capacity: Amounts = {}
    for machine in session.machines:
        capacity = plus(capacity, machine.capacity)
    shares: dict[str, Share] = {}
    for gang in session.gangs.values():
        queue = session.queues[gang.queue]
        capability = {name: quantity(value) for name, value in (queue["spec"].get("capability") or {}).items()}
        share = shares.setdefault(gang.queue, Share(queue, {**capacity, **capability}, {}, []))
        share.tasks += gang.tasks
        for task in gang.tasks:
            if task.status in HAS or task.status == PENDING:
                share.asked = plus(share.asked, task.asked)
    _divide(list(shares.values()), capacity)
    return shares


def _divide(shares: list[Share], capacity: Amounts) -> None:
    """Give each its part; what is left over goes round again among those that still want something."""
    left, hungry = capacity, shares
    while hungry and any(value > SLACK for value in left.values()):
        weights = sum(share.weight for share in hungry)
        given: Amounts = {}
        for share in hungry:
            part = {name: value * share.weight / weights for name, value in left.items()}
            before = share.deserved
            raised = plus(before, part)
            share.deserved = {
                name: min(value, share.limit.get(name, value), share.asked.get(name, 0.0))
                for name, value in raised.items()
            }
            given = plus(given, plus(share.deserved, before, -1))
        left = plus(left, given, -1)
        if not any(value > SLACK for value in given.values()):
            return
        hungry = [share for share in hungry if not fits(share.asked, share.deserved)]
