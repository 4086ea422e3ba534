"""The rights are data, and each of them is what a call needs: against a real API server where there is one."""

import time
import uuid
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from rerail.plugins.kube.api import KubeApi
from rerail.plugins.kube.errors import Call
from rerail.plugins.kube.resources import CONFIG_MAPS, NAMESPACES, NODES, PODS, ResourceType
from rerail.plugins.kube.rights import cluster_role, role, rules
from rerail.plugins.nodes.kube import KubeNodes
from rerail.plugins.nodes.kube_guard import KubeGuard
from rerail.plugins.nodes.rights import COUNT_PODS, LOOK_AND_MARK, guard_role, nodes_cluster_role
from rerail.policies.errors import ForbiddenError, NotFoundError

RBAC = "rbac.authorization.k8s.io"
ROLES = ResourceType(RBAC, "v1", "roles", "Role")
BINDINGS = ResourceType(RBAC, "v1", "rolebindings", "RoleBinding")
CLUSTER_ROLES = ResourceType(RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False)
CLUSTER_BINDINGS = ResourceType(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False)
ACCOUNTS = ResourceType("", "v1", "serviceaccounts", "ServiceAccount")


def test_roles_are_rendered_from_the_data():
    text = yaml.safe_dump(guard_role("guard", "rerail", config_map="g"))
    assert yaml.safe_load(text)["rules"] == [
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get", "update"], "resourceNames": ["g"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]},
    ]
    assert nodes_cluster_role("nodes")["rules"] == [
        {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
    ]
    assert nodes_cluster_role("nodes", count_pods=False)["rules"] == rules(LOOK_AND_MARK)


class Accounts:
    """Service accounts with exactly these rights."""

    def __init__(self, api: KubeApi, kubeconfig: Path, folder: Path) -> None:
        self.api, self.kubeconfig, self.folder = api, kubeconfig, folder
        self.id = uuid.uuid4().hex[:8]
        self.namespace = f"rerail-rights-{self.id}"
        self.cluster: list[str] = []
        self.open: list[KubeApi] = []
        api.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}})

    def make(self, name: str, in_cluster: dict, in_namespace: dict | None = None) -> KubeApi:
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
            self.api.create(ROLES, in_namespace | {"metadata": {"name": name, "namespace": place}})
            self._bind(BINDINGS, ROLES, name, subjects, place)
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


@pytest.fixture
def accounts(real_api, tmp_path):
    made = Accounts(real_api, Path(real_api.connection.origin), tmp_path)
    if made.make("nobody", cluster_role("x", [])).may("get", NAMESPACES):
        made.close()
        pytest.skip("this API server allows everything to everybody (no RBAC)")
    yield made
    made.close()


@pytest.fixture
def a_node(real_api, made):
    name = f"rerail-test-{uuid.uuid4().hex[:8]}"
    node = made.gpu_node(name, **{"rerail.dev/test": name})
    node["spec"]["taints"] = [made.NOT_FOR_OTHERS]
    real_api.create(NODES, node)
    yield name
    with suppress(NotFoundError):
        real_api.delete(NODES, name)


def test_with_the_minimal_roles_everything_works(accounts, a_node, until):
    api = accounts.make("full", nodes_cluster_role("x"), guard_role("x", accounts.namespace))
    said: list[str] = []
    # Rights take a moment to reach the API server's own caches.
    until(lambda: api.may("patch", NODES) and api.may("list", PODS, namespace="*") and api.may("create", CONFIG_MAPS))
    with KubeNodes(api, resource=None, node_selector={"rerail.dev/test": a_node}, log=said.append) as nodes:
        assert [one.name for one in nodes.views()] == [a_node]
        nodes.mark(a_node, "run-a1", "gpu_lost")
        nodes.release(a_node)
        assert nodes.signals() == ()
    guard = KubeGuard(api)
    assert guard.ask_submission("a", 2) == ""
    assert guard.ask_submission("b", 2) == ""
    assert not said


def test_without_a_right_its_rule_is_named(accounts, a_node, until):
    selected = {"node_selector": {"rerail.dev/test": a_node}, "resource": None}
    short = accounts.make("short", cluster_role("x", rules({NODES: ("get", "list", "watch")})))
    until(lambda: short.may("watch", NODES))
    said: list[str] = []
    with KubeNodes(short, log=said.append, **selected) as nodes:
        assert [one.usable for one in nodes.views()] == [False], "the kubelet of this node never reported"
        assert 'resources: ["pods"]\n  verbs: ["list"]' in said[0]
        with pytest.raises(ForbiddenError) as caught:
            nodes.mark(a_node, "run-a1", "gpu_lost")
        assert caught.value.rule == '- apiGroups: [""]\n  resources: ["nodes"]\n  verbs: ["patch"]'
    blind = accounts.make("blind", cluster_role("x", rules(COUNT_PODS)), role("x", "y", rules({CONFIG_MAPS: ("get",)})))
    until(lambda: blind.may("get", CONFIG_MAPS))
    with KubeNodes(blind, log=said.append, count_pods=False, **selected) as nodes:
        assert nodes.views() is None
        assert 'resources: ["nodes"]\n  verbs: ["list"]' in said[1]
    with pytest.raises(ForbiddenError, match=r'verbs: \["create"\]'):
        KubeGuard(blind).ask_submission("a", 2)


def test_a_real_watch_costs_two_lists_and_a_mark_one_patch(real_api, a_node, monkeypatch):
    asked: list[str] = []
    send, stream = real_api.connection.transport.send, real_api.connection.transport.stream
    monkeypatch.setattr(
        real_api.connection.transport,
        "send",
        lambda call, *rest, **more: (asked.append(call.verb), send(call, *rest, **more))[1],
    )
    monkeypatch.setattr(
        real_api.connection.transport,
        "stream",
        lambda call, *rest, **more: (asked.append(call.verb), stream(call, *rest, **more))[1],
    )
    with KubeNodes(real_api, resource=None, node_selector={"rerail.dev/test": a_node}) as nodes:
        nodes.views()
        end = time.monotonic() + 2.0
        while time.monotonic() < end:
            nodes.views()
            nodes.signals()
            time.sleep(0.05)
        assert sorted(asked) == ["list", "list", "watch", "watch"]
        nodes.mark(a_node, "run-a1", "gpu_lost")
        assert not nodes.views()[0].usable
    assert sorted(asked)[2:] in (["patch", "watch", "watch"], ["patch", "patch", "watch", "watch"])
