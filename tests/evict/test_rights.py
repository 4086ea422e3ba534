"""The printed rights are what evictors and the extender ask for: all of it, nothing more, and on a real API server."""

import secrets
import time
from http.client import HTTPConnection

import pytest
import yaml
from typer.testing import CliRunner

from rerail.plugins.cli.main import build
from rerail.plugins.cli.rights import For
from rerail.plugins.evict.cluster import ClusterPods, refuse_without_rights
from rerail.plugins.evict.drain import Drain
from rerail.plugins.evict.extender_manifests import LOCK_RIGHTS, RIGHTS
from rerail.plugins.evict.extender_service import serving
from rerail.plugins.evict.find import in_cluster, open_place
from rerail.plugins.evict.preevict import PreEvict, live_gang
from rerail.plugins.evict.rights import DRAIN, EVICT, LOOK_AT_NODES
from rerail.plugins.kube.api import KubeApi, Patience
from rerail.plugins.kube.resources import EVENTS, NODES, PODS, PRIORITY_CLASSES
from rerail.plugins.kube.rights import cluster_role, role, rules
from rerail.plugins.kube.transport import Transport
from rerail.plugins.volcano.podgroup import POD_GROUPS
from rerail.policies.errors import ForbiddenError, RefusedError
from rerail.policies.eviction import EvictionBounds

WAIT_S = 20.0


@pytest.fixture
def asked(monkeypatch):
    """Verb and kind of every request to an API server, but the questions about our own rights."""
    found = set()
    for way in ("send", "stream"):
        inner = getattr(Transport, way)

        def record(self, call, *rest, inner=inner, **more):
            kind = call.resource.plural + (f"/{call.subresource}" if call.subresource else "")
            if kind != "selfsubjectaccessreviews":
                found.add((call.verb, kind))
            return inner(self, call, *rest, **more)

        monkeypatch.setattr(Transport, way, record)
    return found


def wanted(*rights):
    return {(verb, kind.plural) for one in rights for kind, verbs in one.items() for verb in verbs}


def until(test):
    end = time.monotonic() + WAIT_S
    while not (found := test()):
        assert time.monotonic() < end, "it did not come in time"
        time.sleep(0.02)
    return found


def evict(api, gang):
    """The library call: nobody answers, so that the pods are evicted at the deadline."""
    place = in_cluster(api, gang.name, gang.namespace)
    refuse_without_rights(api, place.namespace)
    target = live_gang(gang.run)
    with ClusterPods(api, gang.namespace, target.gang) as pods:
        bounds = EvictionBounds(deadline_s=0.3, grace_s=1.0)
        return PreEvict(gang.run, target, pods, bounds, "a test", takeover_s=0.0, poll_s=0.05).perform()


def drain(api, node):
    return Drain(api, node, 0.3, open_place, takeover_s=0.0, refused_for_s=0.5).perform()


def test_an_eviction_asks_for_exactly_its_rights(asked, fake, pod_gang):
    gang = pod_gang("one", "n1")
    assert fake.url
    api = KubeApi.connect()
    assert evict(api, gang).outcome == "deadline"
    api.close()
    assert asked == wanted(EVICT, LOOK_AT_NODES)


def test_a_drain_asks_for_exactly_its_rights(asked, pod_gang):
    gang = pod_gang("one", "n1")
    gang.may_answer.set()
    api = KubeApi.connect()
    pods = pod_gang("two", "n1")
    assert drain(api, "n1").drained, pods
    api.close()
    assert asked == wanted(DRAIN)


def printed(what, *options):
    done = CliRunner().invoke(build(["rights"]), ["rights", "--for", what, *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return list(yaml.safe_load_all(done.output))


def test_the_command_prints_who_needs_what():
    assert [one["kind"] for one in printed("evict", "--namespace", "team")] == ["Role", "ClusterRole"]
    assert printed("evict", "--namespace", "team")[0]["rules"] == rules(EVICT)
    assert printed("drain")[0]["rules"] == rules(DRAIN)
    assert printed("extender")[0]["rules"] == rules(RIGHTS)
    assert printed("locks")[0]["rules"] == rules(LOCK_RIGHTS)
    for what in set(For) - {For.RUN}:
        bound = printed(what, "--namespace", "team", "--account", "ops")
        bindings = [one for one in bound if one["kind"].endswith("Binding")]
        assert len(bindings) == len(bound) - len(bindings)
        assert {one["subjects"][0]["name"] for one in bindings} == {"ops"}


@pytest.fixture
def accounts(real, tmp_path, load_support):
    with load_support("accounts").accounts_of(real.api, tmp_path, pytest.skip) as made:
        yield made


@pytest.fixture
def gang(real, pod_gang_type, tmp_path):
    one = pod_gang_type(real, tmp_path, "one", real.nodes, namespace=real.namespace).start()
    yield one
    one.over.set()
    one.thread.join(10)
    one.leave()  # no kubelet ends what is left


def without(rights, kind, verb):
    return {one: [each for each in verbs if (one, each) != (kind, verb)] for one, verbs in rights.items()}


@pytest.mark.cluster
def test_with_its_rights_an_eviction_works_and_without_one_it_is_named(accounts, real, gang):
    short = accounts.make(
        "short", cluster_role("x", rules(LOOK_AT_NODES)), role("x", "y", rules({PODS: EVICT[PODS]})), of=real.namespace
    )
    until(lambda: short.may("watch", PODS, namespace=real.namespace))
    with pytest.raises(RefusedError, match=r'resources: \["pods/eviction"\]\n  verbs: \["create"\]'):
        evict(short, gang)
    blind = accounts.make(
        "blind", cluster_role("x", []), role("x", "y", rules(without(EVICT, PODS, "list"))), of=real.namespace
    )
    with pytest.raises(ForbiddenError, match=r'resources: \["pods"\]\n  verbs: \["list"\]'):
        evict(blind, gang)
    full = accounts.make(
        "full", cluster_role("x", rules(LOOK_AT_NODES)), role("x", "y", rules(EVICT)), of=real.namespace
    )
    until(lambda: full.may("create", PODS, namespace=real.namespace, subresource="eviction") and full.may("get", NODES))
    evicted = evict(full, gang)
    assert (evicted.outcome, evicted.left) == ("deadline", ()), evicted
    assert len(real.evicted) == len(real.nodes)


@pytest.mark.cluster
def test_with_its_rights_a_drain_works_and_without_one_it_is_named(accounts, real, gang):
    gang.may_answer.set()
    short = accounts.make("short", cluster_role("x", rules(without(DRAIN, NODES, "patch"))))
    until(lambda: short.may("list", PODS, namespace="*"))
    with pytest.raises(ForbiddenError, match=r'resources: \["nodes"\]\n  verbs: \["patch"\]'):
        drain(short, real.nodes[0])
    full = accounts.make("full", cluster_role("x", rules(DRAIN)))
    until(lambda: full.may("patch", NODES) and full.may("list", PODS, namespace="*"))
    drained = drain(full, real.nodes[0])
    assert drained.drained, drained


@pytest.mark.cluster
def test_with_its_rights_the_extender_opens_a_lock_and_without_one_it_says_which(accounts, real, gang, caplog):
    """Volcano's own objects, without a scheduler: what stands in them is what a test writes."""
    lock = {"volcano.sh/preemptable": "false", "rerail.dev/preemption-lock": "true"}
    labels = {"rerail.dev/run": gang.name, "rerail.dev/gang": gang.gang}
    high = f"high-{secrets.token_hex(3)}"
    real.api.create(PRIORITY_CLASSES, {"metadata": {"name": high}, "value": 1000})
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    condition = {"type": "Unschedulable", "status": "True", "reason": "NotEnoughResources", "lastTransitionTime": stamp}

    def group(name, status, **metadata):
        spec = {"minMember": 1, "queue": real.namespace}
        if name == "urgent":
            spec["priorityClassName"] = high
        kind = {"apiVersion": POD_GROUPS.api_version, "kind": POD_GROUPS.kind}
        one = {**kind, "metadata": {"name": name, **metadata}, "spec": spec, "status": status}
        real.api.create(POD_GROUPS, one, namespace=real.namespace)

    group("pg", {"phase": "Running"}, labels=labels, annotations=lock)
    for pod in real.find("pods"):
        notes = {**lock, "scheduling.k8s.io/group-name": "pg"}
        real.api.patch(PODS, pod["metadata"]["name"], {"metadata": {"annotations": notes}}, namespace=real.namespace)
    group("urgent", {"phase": "Inqueue", "conditions": [condition]})

    def served(api):
        quick = KubeApi(api.connection, patience=Patience(request_s=5.0, total_s=0.0))
        return serving(quick, ("127.0.0.1", 0), hold_s=1.0, starve_s=0.5, checkpoint_every_s=60.0)

    def stands():
        found = real.api.get(POD_GROUPS, "pg", namespace=real.namespace)
        return {one["metadata"]["annotations"]["volcano.sh/preemptable"] for one in (found, *real.find("pods"))}

    try:
        short = accounts.make("short", cluster_role("x", rules(without(LOCK_RIGHTS, PODS, "patch"))))
        until(lambda: short.may("watch", PODS, namespace="*") and short.may("patch", POD_GROUPS, namespace="*"))
        with caplog.at_level("WARNING", "rerail"), served(short):
            until(lambda: "patch pods" in caplog.text or 'verbs: ["patch"]' in caplog.text)
        assert stands() == {"false"}
        full = accounts.make("full", cluster_role("x", rules(LOCK_RIGHTS)))
        until(lambda: full.may("watch", PODS, namespace="*") and full.may("patch", PODS, namespace="*"))
        with served(full) as server:
            connection = HTTPConnection("127.0.0.1", server.server_address[1], timeout=10)
            connection.request("GET", "/healthz")
            assert connection.getresponse().status == 200
            connection.close()
            until(lambda: stands() == {"true"})
            until(
                lambda: (
                    "PreemptionUnlocked"
                    in {one["reason"] for one in real.api.list(EVENTS, namespace=real.namespace).items}
                )
            )
    finally:
        real.api.delete(PRIORITY_CLASSES, high)
