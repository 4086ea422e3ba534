"""Where a gang of local pods goes. In a cluster the scheduler decides this; here it is a small pure choice."""

from collections.abc import Collection, Sequence

from rerail.policies.supervisor.observations import NodeView
from rerail.policies.supervisor.state import GangSpec, PodSpec, RunState


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
