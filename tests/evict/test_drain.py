"""Drains and evictions of pods, on an API server that refuses as a test tells it to."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from typer.testing import CliRunner

from rerail.plugins.checkpoint.notes import read_requests
from rerail.plugins.cli.main import build
from rerail.plugins.evict.cluster import ClusterPods
from rerail.plugins.evict.drain import Drain
from rerail.plugins.evict.find import in_cluster, open_place
from rerail.plugins.evict.preevict import PreEvict, live_gang
from rerail.plugins.kube.api import KubeApi
from rerail.policies.errors import NotFoundError, RefusedError, UsageError
from rerail.policies.eviction import EvictionBounds


@pytest.fixture
def api(fake):
    assert fake.url
    one = KubeApi.connect()
    yield one
    one.close()


@pytest.fixture
def drain(api):
    def make(deadline_s=20.0, *, refused_for_s=0.3, **more):
        return Drain(api, "n1", deadline_s, open_place, takeover_s=0.0, refused_for_s=refused_for_s, **more)

    return make


def plain_pod(fake, name, *, node="n1", owner="ReplicaSet", phase="Running", **metadata):
    owners = [{"kind": owner, "name": "x", "uid": "u", "controller": True}] if owner else []
    fake.put(
        "pods",
        {
            "metadata": {"name": name, "namespace": "other", "ownerReferences": owners, **metadata},
            "spec": {"nodeName": node, "terminationGracePeriodSeconds": 1},
            "status": {"phase": phase},
        },
    )


def names(fake):
    return {one["metadata"]["name"] for one in fake.find("pods")}


def test_a_node_is_emptied_gangs_after_their_commit_and_the_rest_at_once(fake, pod_gang, drain, wait_for):
    one, two = pod_gang("one", "n1", "n2"), pod_gang("two", "n1")
    pod_gang("elsewhere", "n2")
    plain_pod(fake, "web")
    plain_pod(fake, "agent", owner="DaemonSet")
    plain_pod(fake, "static", owner="", annotations={"kubernetes.io/config.mirror": "x"})
    plain_pod(fake, "alone", owner="")
    plain_pod(fake, "over", phase="Succeeded")
    with ThreadPoolExecutor() as pool:
        running = pool.submit(drain().perform)
        # Both are asked, and the rest has gone, before anybody has saved.
        wait_for(lambda: read_requests(one.run, 1) and read_requests(two.run, 1) and "web" not in names(fake))
        assert names(fake) >= {"one-a1-0", "one-a1-1", "two-a1-0"}
        one.may_answer.set()
        two.may_answer.set()
        found = running.result(timeout=30)

    assert [(gang.gang, gang.eviction.outcome, gang.eviction.step) for gang in found.gangs] == [
        ("one-a1", "committed", 7),
        ("two-a1", "committed", 7),
    ]
    assert found.committed
    assert found.evicted == ("other/web",)
    assert fake.evicted == ["web"], "gangs left by themselves"
    assert {stay.pod for stay in found.stays} == {"other/agent", "other/static", "other/alone"}
    assert not found.drained, "a pod that nobody would make again stays"
    assert names(fake) == {"elsewhere-a1-0", "agent", "static", "alone", "over"}
    node = next(one for one in fake.find("nodes") if one["metadata"]["name"] == "n1")
    assert node["spec"]["unschedulable"] is True
    assert drain(force=True).perform().drained
    assert "alone" not in names(fake)


def test_a_gang_that_does_not_answer_goes_as_a_whole_at_the_deadline(fake, pod_gang, drain):
    pod_gang("one", "n1", "n2")
    found = drain(0.4).perform()

    eviction = found.gangs[0].eviction
    assert eviction.outcome == "deadline"
    assert "nothing was heard of the ranks" in eviction.why
    assert eviction.step == 0
    assert (found.drained, found.committed) == (True, False)
    assert sorted(fake.evicted) == ["one-a1-0", "one-a1-1"], "also the pod on the other node"
    assert fake.asked("DELETE", "/pods") == 0


def test_a_budget_keeps_the_whole_gang_and_is_named(fake, pod_gang, drain):
    pod_gang("one", "n1", "n2")
    fake.change("pods", "team", "one-a1-1", lambda pod: pod["metadata"]["labels"].update(keep="yes"))
    fake.keep("precious", "keep", "yes")
    found = drain(0.2, refused_for_s=0.5).perform()

    eviction = found.gangs[0].eviction
    assert eviction.outcome == "deadline"
    assert eviction.left == ("team/one-a1-0", "team/one-a1-1"), "all or none"
    assert eviction.evicted_at_s is None
    assert "The disruption budget precious needs 4 healthy pods" in eviction.why
    assert fake.evicted == []
    assert found.training_left == ("team/one-a1-0",)
    assert not found.drained


def test_a_budget_that_lets_go_in_time_is_waited_for(fake, drain):
    plain_pod(fake, "web", labels={"app": "web"})
    fake.keep("web", "app", "web")
    told = []

    def log(line):
        told.append(line)
        if "disruption budget" in line:
            fake.budgets.clear()

    found = drain(refused_for_s=20.0, log=log).perform()

    assert found.drained
    assert found.evicted == ("other/web",)
    assert sum("disruption budget web" in line for line in told) == 1, "said once"


def test_a_budget_does_not_matter_to_a_gang_that_leaves_by_itself(fake, pod_gang, drain):
    gang = pod_gang("one", "n1")
    fake.keep("all", "rerail.dev/run", "one")
    gang.may_answer.set()
    found = drain().perform()
    assert (found.drained, found.committed) == (True, True)
    assert fake.asked("POST", "/eviction") == 0


def test_pods_on_a_dead_node_are_named_and_never_deleted_by_force(fake, pod_gang, api):
    pod_gang("one", "n1", "n2")
    fake.dead.add("n2")
    fake.change("nodes", "", "n2", lambda node: node["status"]["conditions"][0].update(status="Unknown"))
    place = in_cluster(api, "one", None)
    run = open_place(place)
    with ClusterPods(api, "team", "one-a1") as pods:
        bounds = EvictionBounds(deadline_s=0.3, grace_s=1.0)
        found = PreEvict(run, live_gang(run), pods, bounds, "a test", takeover_s=0.0).perform()

    assert found.outcome == "deadline"
    assert found.unreachable == ("team/one-a1-1",)
    assert found.left == ()
    assert "not deleted by force: team/one-a1-1" in found.why
    assert fake.asked("DELETE", "/pods") == 0
    assert "one-a1-1" in names(fake)


def pre_evict(api, gang):
    run = open_place(in_cluster(api, gang.name, None))
    target = live_gang(run)

    def perform():
        with ClusterPods(api, "team", gang.gang) as pods:
            return PreEvict(run, target, pods, EvictionBounds(deadline_s=20.0), "a test", takeover_s=0.0).perform()

    return perform


def test_a_commit_that_the_next_attempt_does_not_know_is_none(pod_gang, api):
    gang = pod_gang("one", "n1")
    perform = pre_evict(api, gang)
    gang.open(2, "new-gang", "one-a2")
    gang.may_answer.set()
    found = perform()

    assert found.outcome == "unsaved"
    assert "step 7 of attempt 1 is not on the chain of attempt 2" in found.why
    assert found.step == 0


def test_ranks_that_start_again_in_their_pods_are_asked_again(pod_gang, api, wait_for):
    gang = pod_gang("one", "n1")
    with ThreadPoolExecutor() as pool:
        running = pool.submit(pre_evict(api, gang))
        wait_for(lambda: read_requests(gang.run, 1))
        gang.open(2, "in-place", gang.gang)
        wait_for(lambda: read_requests(gang.run, 2))
        gang.commit(read_requests(gang.run, 2)[0][1].id, attempt=2)
        gang.leave()
        found = running.result(timeout=30)
    assert (found.outcome, found.attempt, found.step) == ("committed", 2, 7)


def test_two_drains_at_once_are_one(pod_gang, drain):
    gang = pod_gang("one", "n1", "n2")
    gang.may_answer.set()
    with ThreadPoolExecutor() as pool:
        found = list(pool.map(lambda one: one.perform(), [drain(), drain()]))
    assert [(one.drained, one.committed) for one in found] == [(True, True)] * 2
    assert len(read_requests(gang.run, 1)) == 1


def test_a_pod_that_comes_while_the_node_is_drained_is_seen(fake, pod_gang, drain):
    gang = pod_gang("one", "n1")

    def late(method, path):
        if method == "PATCH" and path.endswith("/nodes/n1"):
            fake.hooks.clear()
            fake.hooks.append(later)

    def later(method, path):
        if method == "GET" and path.endswith("/pods"):
            fake.hooks.clear()
            plain_pod(fake, "late")

    fake.hooks.append(late)
    gang.may_answer.set()
    found = drain().perform()
    assert found.drained
    assert found.evicted == ("other/late",)


def test_a_right_that_is_missing_is_named_before_anybody_is_asked(fake, pod_gang, drain):
    gang = pod_gang("one", "n1")
    fake.deny("create", "pods")
    found = drain(0.3).perform()
    assert 'resources: ["pods/eviction"]' in found.gangs[0].error
    assert not read_requests(gang.run, 1)
    assert found.training_left == ("team/one-a1-0",)
    with pytest.raises(RefusedError, match="pods/eviction"):
        CliRunner().invoke(build(["evict"]), ["evict", "--gang", "one"], catch_exceptions=False)


def test_the_commands_find_gangs_by_their_pods(pod_gang, as_json):
    gang = pod_gang("one", "n1")
    gang.may_answer.set()
    words = ["evict", "--gang", "one", "--deadline", "20s", "--takeover", "0s", "-o", "json"]
    done = CliRunner().invoke(build(["evict"]), words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    document = as_json(done.stdout)
    assert (document["gang"], document["outcome"], document["step"]) == ("one-a1", "committed", 7)

    with pytest.raises(NotFoundError, match="no living pod in the cluster is of a run or gang 'one'"):
        CliRunner().invoke(build(["evict"]), words, catch_exceptions=False)
    two = pod_gang("two", "n1")
    done = CliRunner().invoke(
        build(["drain"]), ["drain", "n1", "--deadline", "0.2s", "--takeover", "0", "-o", "json"], catch_exceptions=False
    )
    assert done.exit_code == 1
    assert as_json(done.stdout)["gangs"][0]["gang"] == two.gang
    with pytest.raises(NotFoundError, match="'n9'"):
        CliRunner().invoke(build(["drain"]), ["drain", "n9"], catch_exceptions=False)
    with pytest.raises(UsageError, match="--deadline '0': a save takes time"):
        CliRunner().invoke(build(["drain"]), ["drain", "n1", "--deadline", "0"], catch_exceptions=False)


def test_a_name_in_two_namespaces_asks_which(fake, pod_gang, api):
    pod_gang("one", "n1")
    pod = next(one for one in fake.find("pods") if one["metadata"]["name"] == "one-a1-0")
    fake.put("pods", {**pod, "metadata": {**pod["metadata"], "namespace": "more", "uid": "another"}})
    with pytest.raises(UsageError, match="in several namespaces \\(more, team\\); pass --namespace"):
        in_cluster(api, "one-a1", None)
    assert in_cluster(api, "one-a1", "team").namespace == "team"
