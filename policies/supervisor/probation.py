"""Which nodes a new gang uses last: those that gave trouble lately, and of them those that did so most lately. Pure."""

from collections.abc import Sequence

from rerail.policies.offenders import OffenderPolicy, last_trouble_s
from rerail.policies.supervisor.observations import NodeView


def least_welcome(
    nodes: Sequence[NodeView], world_size: int, *, now_s: float, policy: OffenderPolicy | None = None
) -> frozenset[str]:
    """Nodes to avoid: everything with recent trouble, but for those that have been quiet longest and are needed.

    Args:
        nodes: What is there, with its ledger.
        world_size: Ranks to place; one rank takes one free slot.
        now_s: Epoch seconds.
        policy: Window and probation.

    Returns:
        Names. The others suffice for the gang, wherever any choice of usable nodes does.
    """
    free = 0
    troubled: list[tuple[float, str, int]] = []
    for node in nodes:
        if not node.usable or node.free <= 0:
            continue
        quiet_s = last_trouble_s(node.offences, node.released_at_s, now_s=now_s, policy=policy)
        if quiet_s is None:
            free += node.free
        else:
            troubled.append((quiet_s, node.name, node.free))
    avoided: set[str] = set()
    for _, name, slots in sorted(troubled):
        if free < world_size:
            free += slots
        else:
            avoided.add(name)
    return frozenset(avoided)
