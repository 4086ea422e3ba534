"""``rerail rights``: the Roles that an account needs in a cluster, as YAML for kubectl."""

import sys
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final

import typer

from rerail.plugins.evict.rights import EVICT, IN_CLUSTER, LOOK_AT_NODES
from rerail.plugins.gang.rights import LOOK_AT_QUEUES, OF_BACKEND, TELL
from rerail.plugins.gang.volumes import READ_ATTACHMENTS, READ_CLAIMS
from rerail.plugins.kube.events import NAMESPACE_OF_CLUSTER
from rerail.plugins.kube.rights import cluster_role, role, rules
from rerail.plugins.nodes.rights import LOOK_AND_MARK, guard_role
from rerail.policies.errors import UsageError

NAME: Final = "rerail-run"

_RBAC: Final = "rbac.authorization.k8s.io"


class For(StrEnum):
    """Who needs them."""

    RUN = "run"
    EVICT = "evict"
    DRAIN = "drain"
    EXTENDER = "extender"
    LOCKS = "locks"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("rights")(rights)


def rights(
    *,
    what: Annotated[
        For, typer.Option("--for", help="The command: rerail run, evict, drain, serve extender (locks: with --locks).")
    ] = For.RUN,
    namespace: Annotated[str, typer.Option("--namespace", help="Of the gangs, and of the account.")] = "default",
    backend: Annotated[str, typer.Option("--backend", help="Of the gangs: vcjob or podgroup.")] = "vcjob",
    account: Annotated[
        str, typer.Option("--account", help="Bind them to this ServiceAccount of the namespace. [default: to nobody]")
    ] = "",
    guard_namespace: Annotated[
        str | None, typer.Option("--guard-namespace", help="Of the guard's ConfigMap. [default: the gangs']")
    ] = None,
) -> None:
    """Print the least that a command needs in a cluster: rerail rights --namespace team | kubectl apply -f -."""
    import yaml

    if backend not in OF_BACKEND:
        raise UsageError(f"--backend {backend!r} is not known; use one of: {', '.join(OF_BACKEND)}")
    if what is For.RUN:
        printed = documents(backend, namespace, account=account, guard_namespace=guard_namespace or namespace)
    else:
        printed = evictors(what, namespace, account=account)
    yaml.safe_dump_all(printed, sys.stdout, sort_keys=False)


def documents(backend: str, namespace: str, *, account: str, guard_namespace: str) -> list[dict[str, Any]]:
    """The Roles, and with an account their bindings."""
    roles = [
        role(NAME, namespace, rules(OF_BACKEND[backend]) + rules(READ_CLAIMS) + rules(TELL)),
        role(f"{NAME}-events", NAMESPACE_OF_CLUSTER, rules(TELL)),
        guard_role(f"{NAME}-guard", guard_namespace),
        cluster_role(NAME, rules(LOOK_AT_QUEUES) + rules(LOOK_AND_MARK) + rules(READ_ATTACHMENTS)),
    ]
    return [*roles, *(_binding(one, account, namespace) for one in roles if account)]


def evictors(what: str, namespace: str, *, account: str) -> list[dict[str, Any]]:
    """The same for whoever evicts: ``evict`` in one namespace, the others of ``IN_CLUSTER`` in all of them."""
    name = f"rerail-{what}"
    if what == For.EVICT:
        roles = [role(name, namespace, rules(EVICT)), cluster_role(name, rules(LOOK_AT_NODES))]
    else:
        roles = [cluster_role(name, rules(IN_CLUSTER[what]))]
    return [*roles, *(_binding(one, account, namespace) for one in roles if account)]


def _binding(bound: Mapping[str, Any], account: str, namespace: str) -> dict[str, Any]:
    kind, metadata = str(bound["kind"]), dict(bound["metadata"])
    name = metadata["name"]
    if metadata.get("namespace") != namespace:
        metadata["name"] = f"{name}-{namespace}-{account}"  # others bind theirs there as well
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": f"{kind}Binding",
        "metadata": metadata,
        "roleRef": {"apiGroup": _RBAC, "kind": kind, "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }
