"""Where a gang goes: chosen here for local pods, asked of a scheduler in a cluster."""

from collections.abc import Collection, Sequence

from rerail.policies.supervisor.observations import GangView, NodeView
from rerail.policies.supervisor.state import GangSpec, PodSpec, RunState

GRACE_FACTOR = 2.0
"""A gang is given this many times its longest measured save between being asked to leave and being killed."""


def still_excluded(state: RunState, nodes: Sequence[NodeView] | None) -> dict[str, str]:
    """Nodes that the run still keeps away from: those that were released after its own incidents may be used again.

    A node's note of an incident and its taint are written as one, so a node that knows the incident and carries no
    taint was released, and not forgotten.
    """
    free = {node.name: {one.incident for one in node.offences} for node in nodes or () if node.usable}
    kept = {}
    for name, why in state.quarantined.items():
        own = {one.id for one in state.incidents if one.node == name}
        if not own or not own <= free.get(name, set()):
            kept[name] = why
    return kept


def leaving(nodes: Sequence[NodeView] | None, *, now_s: float) -> dict[str, str]:
    """Nodes that will be taken away soon: no gang is placed there, and nothing is held against them."""
    return {
        node.name: node.leaves.what for node in nodes or () if node.leaves is not None and node.leaves.is_due(now_s)
    }


def place(
    name: str,
    world_size: int,
    nodes: Sequence[NodeView],
    *,
    excluded: Collection[str] = (),
    avoid: Collection[str] = (),
) -> GangSpec | None:
    """Place ``world_size`` ranks on free slots, one pod per node, all or nothing.

    Args:
        name: The gang's name.
        world_size: Ranks to place; one rank takes one slot.
        nodes: What is there.
        excluded: Nodes that must not be used (quarantined).
        avoid: Nodes to use only when the others do not suffice, least wanted first in the result's order.

    Returns:
        The gang, its pods in node order, or None where there is not enough room.
    """
    usable = [node for node in nodes if node.usable and node.free > 0 and node.name not in excluded]
    usable.sort(key=lambda node: (node.name in avoid, node.name))
    pods: list[PodSpec] = []
    rank = 0
    for node in usable:
        if rank == world_size:
            break
        ranks = min(node.free, world_size - rank)
        pods.append(PodSpec(name=f"{name}-{len(pods)}", node=node.name, first_rank=rank, ranks=ranks))
        rank += ranks
    if rank < world_size:
        return None
    return GangSpec(name=name, world_size=world_size, pods=tuple(pods), excluded_nodes=tuple(sorted(excluded)))


def request(
    name: str,
    state: RunState,
    nodes: Sequence[NodeView] | None,
    *,
    excluded: Collection[str] = (),
    avoid: Collection[str] = (),
) -> GangSpec | None:
    """Describe a gang for a scheduler, which chooses the nodes; None where it could never place it.

    Slots in use count as room: waiting for them in the queue's order is the scheduler's business. Nodes to avoid are
    excluded as well where the others suffice.
    """
    away = frozenset(excluded)
    if nodes is not None:
        if room(nodes, away, scheduled=True) < state.world_size:
            return None
        wider = away | frozenset(avoid)
        away = wider if room(nodes, wider, scheduled=True) >= state.world_size else away
    pods = tuple(
        PodSpec(name=f"{name}-{shape.suffix}", node="", first_rank=shape.first_rank, ranks=shape.ranks)
        for shape in state.layout
    )
    return GangSpec(
        name=name,
        world_size=state.world_size,
        pods=pods,
        excluded_nodes=tuple(sorted(away)),
        grace_s=save_grace_s(state),
    )


def save_grace_s(state: RunState) -> float:
    """Seconds that a save of this run may need: a multiple of the longest one that was measured; 0 before the first."""
    return GRACE_FACTOR * max((record.save_s or 0.0 for record in state.attempts), default=0.0)


def room(nodes: Sequence[NodeView], away: Collection[str], *, scheduled: bool) -> int:
    """Slots that a gang may hope for: those of usable nodes where a scheduler queues, else those that are free."""
    return sum((node.slots if scheduled else node.free) for node in nodes if node.usable and node.name not in away)


def located(state: RunState, gang: GangView | None) -> RunState:
    """The state with the nodes that the scheduler chose; the same state where nothing new is known."""
    known = state.gang
    if known is None or gang is None or gang.name != known.name or not state.layout:
        return state
    where = {pod.name: pod.node for pod in gang.pods if pod.node}
    pods = tuple(
        pod if pod.node or pod.name not in where else pod.model_copy(update={"node": where[pod.name]})
        for pod in known.pods
    )
    if pods == known.pods:
        return state
    found = known.model_copy(update={"pods": pods})
    attempts = state.attempts
    if attempts and attempts[-1].gang == found.name:
        attempts = (*attempts[:-1], attempts[-1].model_copy(update={"nodes": found.nodes}))
    return state.model_copy(update={"gang": found, "attempts": attempts})
