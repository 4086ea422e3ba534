"""The rights are data, and each of them is what a call needs: against a real API server where there is one."""

import time
import uuid
from contextlib import suppress

import pytest
import yaml

from rerail.plugins.kube.resources import CONFIG_MAPS, NODES, PODS
from rerail.plugins.kube.rights import cluster_role, role, rules
from rerail.plugins.nodes.kube import KubeNodes
from rerail.plugins.nodes.kube_guard import KubeGuard
from rerail.plugins.nodes.rights import COUNT_PODS, LOOK_AND_MARK, guard_role, nodes_cluster_role
from rerail.policies.errors import ForbiddenError, NotFoundError


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


@pytest.fixture
def accounts(real_api, tmp_path, made):
    with made.load("accounts").accounts_of(real_api, tmp_path, pytest.skip) as found:
        yield found


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
