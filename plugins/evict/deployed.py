"""What a program of ours that stays needs in a cluster, as data: its account, its rights and its Deployment."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rerail.plugins.kube.resources import ResourceType
from rerail.plugins.kube.rights import cluster_role, rules

_RBAC: Final = "rbac.authorization.k8s.io"


def labels(name: str) -> dict[str, str]:
    """Of the pods of the program."""
    return {"app.kubernetes.io/name": name}


def account(name: str, namespace: str, rights: Mapping[ResourceType, Sequence[str]]) -> list[dict[str, Any]]:
    """A ServiceAccount, and its rights in every namespace."""
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace}},
        cluster_role(name, rules(rights)),
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": name},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        },
    ]


def deployment(
    name: str, namespace: str, image: str, arguments: Sequence[str], *, store_secret: str = "", **container: Any
) -> dict[str, Any]:
    """One pod of ``rerail`` with these arguments, replaced and never doubled.

    Args:
        name: Of the Deployment, and of its account.
        namespace: Where it runs.
        image: An image with ``rerail[cli,control]``.
        arguments: Of the command.
        store_secret: A Secret with the usual AWS variables, for stores on S3; empty for none.
        container: Further fields of the container.
    """
    main: dict[str, Any] = {
        "name": name.removeprefix("rerail-"),
        "image": image,
        "args": list(arguments),
        "command": ["rerail"],
        **container,
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
            "readOnlyRootFilesystem": True,
        },
    }
    if store_secret:
        main["envFrom"] = [{"secretRef": {"name": store_secret}}]
    spec = {
        "serviceAccountName": name,
        "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [main],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": labels(name)},
            "template": {"metadata": {"labels": labels(name)}, "spec": spec},
        },
    }
