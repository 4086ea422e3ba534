"""The least that an account needs to look at nodes, mark them, and ask the guard."""

from collections.abc import Mapping
from typing import Any, Final

from rerail.plugins.kube.resources import CONFIG_MAPS, NODES, PODS, ResourceType
from rerail.plugins.kube.rights import cluster_role, role, rules
from rerail.plugins.nodes.kube_guard import NAME

LOOK_AND_MARK: Final[Mapping[ResourceType, tuple[str, ...]]] = {NODES: ("get", "list", "watch", "patch")}
"""In the whole cluster. Without ``list`` and ``watch`` no fault of a node and no capacity is known; without ``patch``
a sick node is avoided by its own run only."""

COUNT_PODS: Final[Mapping[ResourceType, tuple[str, ...]]] = {PODS: ("list", "watch")}
"""In the whole cluster; may be left out: then every slot of a node counts as free."""

GUARD: Final[Mapping[ResourceType, tuple[str, ...]]] = {CONFIG_MAPS: ("get", "update")}
"""On the guard's ConfigMap, by its name."""

MAKE_GUARD: Final[Mapping[ResourceType, tuple[str, ...]]] = {CONFIG_MAPS: ("create",)}
"""In the guard's namespace; RBAC cannot bind ``create`` to a name. May be left out where somebody else makes it."""


def nodes_cluster_role(name: str, *, count_pods: bool = True) -> dict[str, Any]:
    """A ClusterRole for ``KubeNodes``."""
    return cluster_role(name, rules(LOOK_AND_MARK) + (rules(COUNT_PODS) if count_pods else []))


def guard_role(name: str, namespace: str, *, config_map: str = NAME) -> dict[str, Any]:
    """A Role for ``KubeGuard``, in the namespace of its ConfigMap."""
    return role(name, namespace, rules(GUARD, names=[config_map]) + rules(MAKE_GUARD))
