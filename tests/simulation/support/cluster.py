"""A backend of gangs and a set of nodes, each as one supervisor sees them: with its own failures."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rerail_simulation.kernel import Actor
from rerail_simulation.ranks import Pod

from rerail.policies.documents import Rendezvous
from rerail.policies.errors import NotFoundError
from rerail.policies.faults import FaultSignal
from rerail.policies.supervisor.observations import GangView, NodeView
from rerail.policies.supervisor.state import GangSpec

if TYPE_CHECKING:
    from rerail_simulation.world import World


@dataclass
class Node:
    """One node.

    Attributes:
        taken: Slots that others use.
        offset_s: Its wall clock minus virtual time.
    """

    name: str
    slots: int
    offset_s: float
    taken: int = 0
    down: bool = False
    taint: str = ""


@dataclass
class SimBackend:
    """The GangBackend port for one supervisor."""

    world: "World"
    actor: Actor

    def view(self, gang: str) -> GangView:
        self.world.cluster_op(self.actor, "view")
        return GangView(name=gang, pods=tuple(pod.view() for pod in self.world.pods_of(gang)))

    def gangs(self, run: str) -> tuple[str, ...]:
        self.world.cluster_op(self.actor, "gangs")
        assert run == self.world.run
        return tuple(sorted(name for name, pods in self.world.gangs.items() if any(not pod.swept for pod in pods)))

    def submit(self, gang: GangSpec) -> None:
        self.world.cluster_op(self.actor, "submit")
        world = self.world
        pods = world.gangs.setdefault(gang.name, [])
        known = {pod.spec.name for pod in pods}
        for spec in gang.pods:
            if spec.name not in known:
                pod = Pod(world, spec, gang, Actor(f"launch-{spec.name}"))
                pods.append(pod)
                world.submitted(self.actor, gang, pod)
                if not world.nodes[spec.node].down:
                    world.kernel.after(world.rng.uniform(0.1, 0.5), pod.begin)
                else:
                    pod.kill()
        self.world.cluster_done(self.actor, "submit")

    def end(self, gang: str, grace_s: float) -> bool:
        self.world.cluster_op(self.actor, "end")
        self.world.ends(self.actor, gang)
        left = [pod for pod in self.world.pods_of(gang) if not self._end(pod, grace_s)]
        self.world.cluster_done(self.actor, "end")
        return not left

    def _end(self, pod: Pod, grace_s: float) -> bool:
        if pod.swept or pod.lost:
            pod.swept = True
            return True
        now_s = self.world.kernel.t
        if not pod.running and not pod.over:
            pod.kill()
        if not pod.over:
            if pod.term_at_s is None:
                pod.term_at_s = now_s
                self.world.kernel.after(pod.deaf_s, pod.term)
            if now_s - pod.term_at_s < grace_s + pod.deaf_s:
                return False
            pod.kill()
        pod.swept = True
        return True

    def rendezvous(self, gang: GangSpec) -> Rendezvous:
        self.world.cluster_op(self.actor, "rendezvous")
        assert gang.name in self.world.checks.ordered_gangs()
        return Rendezvous(id=self.world.new_id(), host="127.0.0.1", port=1)


@dataclass
class SimNodes:
    """The Nodes port for one supervisor."""

    world: "World"
    actor: Actor

    def views(self) -> tuple[NodeView, ...]:
        self.world.cluster_op(self.actor, "views")
        used: dict[str, int] = {}
        for pods in self.world.gangs.values():
            for pod in pods:
                if not pod.over and not pod.lost and not pod.swept:
                    used[pod.spec.node] = used.get(pod.spec.node, 0) + pod.spec.ranks
        return tuple(
            NodeView(
                name=node.name,
                slots=node.slots,
                free=max(0, node.slots - node.taken - used.get(node.name, 0)),
                usable=not node.down and not node.taint,
                why=node.taint or ("down" if node.down else ""),
            )
            for node in self.world.nodes.values()
        )

    def mark(self, node: str, incident: str, reason: str, *, device: str = "") -> None:
        self.world.cluster_op(self.actor, "mark")
        if node not in self.world.nodes:
            raise NotFoundError(f"node {node!r}")
        self.world.marked(node, f"{incident} {device}")
        self.world.nodes[node].taint = reason

    def signals(self) -> tuple[FaultSignal, ...]:
        self.world.cluster_op(self.actor, "signals")
        return tuple(signal for at_s, signal in self.world.signals if at_s <= self.world.kernel.t)
