"""Rights as data: what an account needs, from which Roles and ClusterRoles are rendered."""

from collections.abc import Mapping, Sequence
from typing import Any

from rerail.plugins.kube.resources import ResourceType


def rules(verbs: Mapping[ResourceType, Sequence[str]], *, names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """RBAC rules, one per kind.

    Args:
        verbs: Verbs by kind.
        names: Only for objects of these names; ``create`` and lists cannot be bound to names.
    """
    bound = {"resourceNames": list(names)} if names else {}
    return [
        {"apiGroups": [kind.group], "resources": [kind.plural], "verbs": list(allowed), **bound}
        for kind, allowed in verbs.items()
    ]


def role(name: str, namespace: str, allowed: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A Role with these rules."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "Role",
        "metadata": {"name": name, "namespace": namespace},
        "rules": [dict(rule) for rule in allowed],
    }


def cluster_role(name: str, allowed: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A ClusterRole with these rules."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": name},
        "rules": [dict(rule) for rule in allowed],
    }
