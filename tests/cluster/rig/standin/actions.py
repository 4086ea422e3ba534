"""The scheduler's actions on a session: enqueue, allocate, preempt, reclaim, backfill."""

from collections.abc import Callable

from rig.standin import refusals
from rig.standin.conf import Conf
from rig.standin.model import (
    ALLOCATED,
    BOUND,
    HOLDING,
    PENDING,
    PIPELINED,
    RUNNING,
    Amounts,
    Gang,
    Machine,
    Task,
    fits,
    plus,
)
from rig.standin.nodefit import lacking, misfit
from rig.standin.objects import quantity
from rig.standin.session import Session, Trial
from rig.standin.shares import Share, shares_of
from rig.standin.victims import Jury

OVERCOMMIT = 1.2
WAITING = ("", "Pending")


def play(session: Session, conf: Conf) -> None:
    """Run the configured actions; what is decided stands in the session."""
    _Actions(session, conf).play()


class _Actions:
    def __init__(self, session: Session, conf: Conf) -> None:
        self._session = session
        self._conf = conf
        self._shares = shares_of(session)
        self._jury = Jury(session, conf, self._shares)

    def play(self) -> None:
        plays: dict[str, Callable[[], None]] = {
            "enqueue": self._enqueue,
            "allocate": self._allocate,
            "preempt": self._preempt,
            "reclaim": self._reclaim,
            "backfill": self._backfill,
        }
        for action in self._conf.actions:
            plays[action]()

    def _served(self, gang: Gang) -> bool:
        played = not refusals.of_group(gang.content["spec"]) and not any(
            refusals.of_pod(t.pod["spec"]) for t in gang.tasks
        )
        return gang.phase not in WAITING and not gang.invalid and played

    def _enqueue(self) -> None:
        """Admit waiting groups as long as a fifth more than there is would be used, and their queue has room."""
        capacity: Amounts = {}
        for machine in self._session.machines:
            capacity = plus(capacity, machine.capacity)
        used: Amounts = {}
        for task in self._session.tasks:
            used = plus(used, task.asked if task.status in HOLDING else {})
        promised: Amounts = {}
        for gang in self._session.gangs.values():
            promised = plus(promised, _least(gang) if gang.phase == "Inqueue" else {})
        for gang in self._session.ordered(lambda gang: gang.phase in WAITING):
            share, least = self._shares[gang.queue], _least(gang)
            total = plus(plus(used, promised), least)
            room = {name: value * OVERCOMMIT for name, value in capacity.items()}
            own = plus(plus(share.allocated, promised), least)
            is_open = (share.queue.get("status") or {}).get("state") == "Open"
            if is_open and fits(_only(total, least), room) and fits(_only(own, least), share.limit):
                gang.phase = "Inqueue"
                promised = plus(promised, least)

    def _allocate(self) -> None:
        if "enqueue" not in self._conf.actions:
            for gang in self._session.gangs.values():
                gang.phase = "Inqueue" if gang.phase in WAITING else gang.phase
        waiting = self._session.ordered(lambda gang: self._served(gang) and bool(_open(gang)))
        while waiting:
            live = [gang for gang in waiting if not self._shares[gang.queue].overused]
            if not live:
                return
            gang = min(live, key=lambda gang: (self._shares[gang.queue].served, gang.queue, gang.order))
            waiting.remove(gang)
            if self._place(gang) and _open(gang):
                waiting.append(gang)

    def _place(self, gang: Gang) -> bool:
        """Place a gang, or one more task of it where it is large enough; whether something was decided."""
        trial = Trial()
        for task in sorted(_open(gang), key=lambda task: task.order):
            if not self._shares[gang.queue].admits(task):
                continue
            fit, reasons = self._fit(task, lambda machine: machine.idle_soon)
            now = [machine for machine in fit if not lacking(task, machine.idle)]
            if not fit:
                gang.why[task.uid] = reasons
                break
            machine = max(now or fit, key=lambda machine: (_emptiness(machine), machine.name))
            trial.place(task, machine, ALLOCATED if now else PIPELINED)
            if gang.ready:
                break
        if gang.ready and trial.bound:
            self._session.keep(trial)
            return True
        if not gang.pipelined:
            trial.undo()
        return False

    def _fit(self, task: Task, free: Callable[[Machine], Amounts]) -> tuple[list[Machine], str]:
        """Nodes for a task, and why the others are none."""
        found: list[Machine] = []
        reasons: dict[str, int] = {}
        for machine in self._session.machines:
            why = misfit(task, machine) or lacking(task, free(machine))
            if why:
                reasons[why] = reasons.get(why, 0) + 1
            else:
                found.append(machine)
        words = ", ".join(f"{count} {why}" for why, count in sorted(reasons.items()))
        return found, f"0/{len(self._session.machines)} nodes are unavailable: {words}."

    def _preempt(self) -> None:
        hungry = self._session.ordered(lambda gang: self._served(gang) and gang.starving)
        for gang in hungry:

            def mine(task: Task, gang: Gang = gang) -> bool:
                other = self._session.gangs.get(task.group)
                inside = other is not None and other.queue == gang.queue and other is not gang
                return inside and task.status in (BOUND, RUNNING) and task.preemptable

            self._evict_for(gang, "preempt", "preemptable", mine)
            for task in sorted(_open(gang), key=lambda task: task.order):
                trial = Trial()
                own = [one for one in gang.tasks if one.status in (BOUND, RUNNING) and one.preemptable]
                if not self._evict_on_a_node(trial, task, "preemptable", own.__contains__, gang):
                    break
                self._session.keep(trial, "preempt")

    def _reclaim(self) -> None:
        for gang in self._session.ordered(lambda gang: self._served(gang) and gang.starving):
            if self._shares[gang.queue].overused:
                continue

            def theirs(task: Task, gang: Gang = gang) -> bool:
                other = self._session.gangs.get(task.group)
                if other is None or other.queue == gang.queue or task.status != RUNNING or not task.preemptable:
                    return False
                return bool(self._session.queues[other.queue]["spec"].get("reclaimable", True))

            self._evict_for(gang, "reclaim", "reclaimable", theirs)

    def _evict_for(self, gang: Gang, action: str, question: str, chosen: Callable[[Task], bool]) -> None:
        """Make room for a whole gang by evicting others, or evict nobody."""
        trial = Trial()
        for task in sorted(_open(gang), key=lambda task: task.order):
            if not gang.starving:
                break
            if task.pod["spec"].get("preemptionPolicy") != "Never":
                self._evict_on_a_node(trial, task, question, chosen, gang)
        if gang.pipelined:
            self._session.keep(trial, action)
        else:
            trial.undo()

    def _evict_on_a_node(
        self, trial: Trial, task: Task, question: str, chosen: Callable[[Task], bool], gang: Gang
    ) -> bool:
        """Promise a task a node, after evicting as few as it takes there."""
        share = self._shares[gang.queue]
        if question == "reclaimable" and not share.admits(task):
            return False
        for machine in self._session.machines:
            there = [one for one in self._session.tasks if one.node == machine.name and chosen(one)]
            if misfit(task, machine) or (question == "reclaimable" and not there):
                continue
            part = Trial()
            if not self._clear(part, task, machine, self._jury.victims(question, task, there), share):
                part.undo()
                continue
            if part.evicted:
                self._session.nominated.add(task.uid)
            part.place(task, machine, PIPELINED)
            trial.join(part)
            return True
        return False

    def _clear(self, part: Trial, task: Task, machine: Machine, victims: list[Task], share: Share) -> bool:
        """Evict the cheapest victims on a node until a task fits there; whether it does."""
        for victim in sorted(victims, key=self._cheapness):
            if not lacking(task, machine.idle_soon) and share.admits(task):
                return True
            part.evict(victim)
        return not lacking(task, machine.idle_soon) and share.admits(task)

    def _cheapness(self, task: Task) -> tuple[object, ...]:
        """Smaller is evicted first: a gang of low priority, one that is ready, a task that came late."""
        gang = self._session.gangs[task.group]
        return (
            gang.priority,
            not gang.ready,
            task.priority,
            _Late(task.pod["metadata"]["creationTimestamp"], task.uid),
        )

    def _backfill(self) -> None:
        """Place what asks for nothing."""
        for gang in self._session.ordered(self._served):
            for task in [task for task in gang.tasks if task.status == PENDING and not task.asked]:
                fit, reasons = self._fit(task, lambda machine: machine.idle)
                if not fit:
                    gang.why[task.uid] = reasons
                    continue
                trial = Trial()
                trial.place(task, max(fit, key=lambda machine: (_emptiness(machine), machine.name)), ALLOCATED)
                self._session.keep(trial)


class _Late:
    """Sorts the later one first."""

    def __init__(self, *values: str) -> None:
        self._values = values

    def __lt__(self, other: "_Late") -> bool:
        return self._values > other._values

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Late) and self._values == other._values

    __hash__ = None  # type: ignore[assignment]


def _open(gang: Gang) -> list[Task]:
    return [task for task in gang.tasks if task.status == PENDING and task.asked]


def _emptiness(machine: Machine) -> float:
    """How much of the node is free, on average over what pods use there."""
    idle = machine.idle
    parts = [idle[name] / value for name, value in machine.capacity.items() if value > 0]
    return sum(parts) / len(parts) if parts else 0.0


def _least(gang: Gang) -> Amounts:
    return {name: quantity(value) for name, value in gang.group.spec.min_resources.items()}


def _only(total: Amounts, asked: Amounts) -> Amounts:
    return {name: value for name, value in total.items() if name in asked}
