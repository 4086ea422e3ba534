"""The least that an account needs for each thing the client does."""

from collections.abc import Mapping
from typing import Any, Final

from rerail.plugins.kube.resources import EVENTS, NODES, PODS, ResourceType
from rerail.plugins.kube.rights import cluster_role, role, rules
from rerail.plugins.volcano.command import COMMANDS
from rerail.plugins.volcano.job import JOBS
from rerail.plugins.volcano.podgroup import POD_GROUPS
from rerail.plugins.volcano.queue import QUEUES

__all__ = ["IN_CLUSTER", "IN_NAMESPACE", "minimal_cluster_role", "minimal_role", "rules"]

IN_NAMESPACE: Final[Mapping[ResourceType, tuple[str, ...]]] = {
    JOBS: ("get", "list", "watch", "create", "update", "patch", "delete"),
    POD_GROUPS: ("get", "list", "watch", "create", "update", "patch", "delete"),
    COMMANDS: ("get", "create", "delete"),
    PODS: ("list",),
    EVENTS: ("list",),
}
"""Verbs by kind; ``update`` only for ``replace``. Without ``events`` a job that the controller gave up is told as
terminated."""

IN_CLUSTER: Final[Mapping[ResourceType, tuple[str, ...]]] = {QUEUES: ("get", "list", "watch"), NODES: ("get",)}
"""May be left out: then nothing is said about queues, and nodes that went away are not known as such."""


def minimal_role(name: str, namespace: str) -> dict[str, Any]:
    """A Role with which everything in a namespace works."""
    return role(name, namespace, rules(IN_NAMESPACE))


def minimal_cluster_role(name: str) -> dict[str, Any]:
    """A ClusterRole for queues and nodes, which belong to no namespace."""
    return cluster_role(name, rules(IN_CLUSTER))
