"""The least that an account needs for each thing the client does."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rerail.plugins.kube.resources import EVENTS, NODES, PODS, ResourceType
from rerail.plugins.volcano.command import COMMANDS
from rerail.plugins.volcano.job import JOBS
from rerail.plugins.volcano.podgroup import POD_GROUPS
from rerail.plugins.volcano.queue import QUEUES

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


def rules(verbs: Mapping[ResourceType, Sequence[str]]) -> list[dict[str, Any]]:
    """RBAC rules."""
    return [
        {"apiGroups": [kind.group], "resources": [kind.plural], "verbs": list(allowed)}
        for kind, allowed in verbs.items()
    ]


def minimal_role(name: str, namespace: str) -> dict[str, Any]:
    """A Role with which everything in a namespace works."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": name, "namespace": namespace},
        "rules": rules(IN_NAMESPACE),
    }


def minimal_cluster_role(name: str) -> dict[str, Any]:
    """A ClusterRole for queues and nodes, which belong to no namespace."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": rules(IN_CLUSTER),
    }
