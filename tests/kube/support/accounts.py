"""Service accounts of a real API server with exactly the rights that a test gives them."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

from rerail.plugins.kube.api import KubeApi
from rerail.plugins.kube.errors import Call
from rerail.plugins.kube.resources import NAMESPACES, ResourceType
from rerail.plugins.kube.rights import cluster_role
from rerail.policies.errors import NotFoundError

Obj = dict[str, Any]
RBAC = "rbac.authorization.k8s.io"
ROLES = ResourceType(RBAC, "v1", "roles", "Role")
BINDINGS = ResourceType(RBAC, "v1", "rolebindings", "RoleBinding")
CLUSTER_ROLES = ResourceType(RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False)
CLUSTER_BINDINGS = ResourceType(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False)
ACCOUNTS = ResourceType("", "v1", "serviceaccounts", "ServiceAccount")


class Accounts:
    """Service accounts with exactly these rights."""

    def __init__(self, api: KubeApi, kubeconfig: Path, folder: Path) -> None:
        self.api, self.kubeconfig, self.folder = api, kubeconfig, folder
        self.id = uuid.uuid4().hex[:8]
        self.namespace = f"rerail-rights-{self.id}"
        self.cluster: list[str] = []
        self.open: list[KubeApi] = []
        api.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}})

    def make(self, name: str, in_cluster: Obj, in_namespace: Obj | None = None, *, of: str = "") -> KubeApi:
        """A client of an account with these roles; the second one in namespace ``of``, else in that of the account."""
        place = self.namespace
        self.api.create(
            ACCOUNTS, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}, namespace=place
        )
        subjects = [{"kind": "ServiceAccount", "name": name, "namespace": place}]
        full = f"rerail-rights-{self.id}-{name}"
        self.cluster.append(full)
        self.api.create(CLUSTER_ROLES, in_cluster | {"metadata": {"name": full}})
        self._bind(CLUSTER_BINDINGS, CLUSTER_ROLES, full, subjects, None)
        if in_namespace is not None:
            self.api.create(ROLES, in_namespace | {"metadata": {"name": name, "namespace": of or place}})
            self._bind(BINDINGS, ROLES, name, subjects, of or place)
        path = ACCOUNTS.path(place, name, "token")
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        answer = self.api._send(Call("create", ACCOUNTS, place, name, "token"), "POST", path, body=body)
        content = yaml.safe_load(self.kubeconfig.read_text())
        for user in content["users"]:
            user["user"] = {"token": answer["status"]["token"]}
        file = self.folder / f"{name}.yaml"
        file.write_text(yaml.safe_dump(content))
        self.open.append(KubeApi.connect(file, namespace=place))
        return self.open[-1]

    def _bind(self, bindings, roles, name, subjects, place):
        reference = {"apiGroup": RBAC, "kind": roles.kind, "name": name}
        body = {"metadata": {"name": name}, "roleRef": reference, "subjects": subjects}
        kind = {"apiVersion": f"{RBAC}/v1", "kind": bindings.kind}
        self.api.create(bindings, kind | body, namespace=place)

    def close(self) -> None:
        for one in self.open:
            one.close()
        for name in self.cluster:
            for kind in (CLUSTER_BINDINGS, CLUSTER_ROLES):
                with suppress(NotFoundError):
                    self.api.delete(kind, name)
        self.api.delete(NAMESPACES, self.namespace)


@contextmanager
def accounts_of(api: KubeApi, folder: Path, refuse: Any) -> Iterator[Accounts]:
    """Accounts that go with the block; ``refuse`` is called with the reason where rights mean nothing."""
    made = Accounts(api, Path(api.connection.origin), folder)
    try:
        if made.make("nobody", cluster_role("x", [])).may("get", NAMESPACES):
            refuse("this API server allows everything to everybody (no RBAC)")
        yield made
    finally:
        made.close()
