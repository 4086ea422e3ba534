"""What Rerail relies on of Volcano's scheduler. Written against the real one; the stand-in is held to it."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import yaml
from rig import layout, machines
from rig.gangs import DEAF, SLEEP, SLOT, Gangs, after, full, policy, victims

from rerail.plugins.kube.resources import EVENTS, PODS, PRIORITY_CLASSES
from rerail.plugins.volcano import PodGroup, Queue, VolcanoJob

LOSS = ["PodFailed", "PodEvicted"]
END_ALL = [policy("TerminateJob", *LOSS)]


def placed(gangs: Gangs, job: Any) -> list[str]:
    return [pod["spec"]["nodeName"] for pod in gangs.pods(job).values() if pod["spec"].get("nodeName")]


def nodes_of(gangs: Gangs) -> list[str]:
    return sorted(gangs.cluster.ready_nodes())[:2]


def test_a_gang_is_placed_whole_or_not_at_all(gangs):
    large = gangs.submit("large", 5)
    gangs.waits_for_room(large)
    group = gangs.group(large)
    assert group is not None
    assert (group.phase, group.unschedulable.reason) == ("Inqueue", "NotEnoughResources")
    gangs.cluster.wait("all are counted", lambda: gangs.job("large").status.pending == 5)
    assert gangs.job("large").phase == "Pending"

    small = gangs.run("small", 4)
    assert len(placed(gangs, small)) == 4
    assert placed(gangs, large) == []

    def told() -> bool:
        conditions = [c for pod in gangs.pods(large).values() for c in pod["status"].get("conditions", [])]
        return (
            sum((c["type"], c["status"], c["reason"]) == ("PodScheduled", "False", "Unschedulable") for c in conditions)
            > 0
        )

    gangs.cluster.wait("pods say why they wait", told)


@full
def test_room_that_comes_is_taken(gangs):
    gangs.run("first", 3, after(6, 0))
    second = gangs.submit("second", 2)
    gangs.waits_for_room(second)
    gangs.phase("first", "Completed")
    gangs.phase("second", "Running")

    conditions = {condition.type for condition in gangs.group(second).status.conditions}
    assert conditions == {"Unschedulable", "Scheduled"}
    assert gangs.group(second).unschedulable is None


@full
def test_gpus_are_counted_and_a_gang_may_be_elastic(gangs):
    here = nodes_of(gangs)[0]
    pinned = {"nodeSelector": {"kubernetes.io/hostname": here}}
    job = gangs.submit("gang", 3, min_available=2, pod=pinned)
    gangs.wait_pods(job, 2, "Running")
    gangs.phase("gang", "Running")
    gangs.holds("the third waits", lambda: len(gangs.in_phase(job, "Pending")) == 1, 2)
    too_many = gangs.container("pass", {machines.GPU: 1000})
    gangs.waits_for_room(gangs.submit("gpus", 1, pod={"containers": [too_many]}))


def affinity(operator: str, key: str, *values: str) -> dict[str, Any]:
    expression = {"key": key, "operator": operator, **({"values": list(values)} if values else {})}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}}


@full
def test_nodes_are_chosen_by_affinity(gangs):
    here, there = nodes_of(gangs)
    host = "kubernetes.io/hostname"
    cases = {
        "in": (affinity("In", host, there), {there}),
        "not-in": (affinity("NotIn", host, there), {here}),
        "exists": (affinity("Exists", f"{gangs.namespace}/mark"), {here}),
        "not-there": (affinity("DoesNotExist", f"{gangs.namespace}/mark"), {there}),
    }
    gangs.cluster.kubectl("label", "node", here, f"{gangs.namespace}/mark=yes")
    try:
        for name, (pod, expected) in cases.items():
            job = gangs.run(name, 1, pod=pod)
            assert set(placed(gangs, job)) == expected, name
    finally:
        gangs.cluster.kubectl("label", "node", here, f"{gangs.namespace}/mark-")


def test_a_cordoned_node_and_a_tainted_one_take_no_pods(gangs):
    there = nodes_of(gangs)[1]
    pinned = {"nodeSelector": {"kubernetes.io/hostname": there}}
    tolerant = {**pinned, "tolerations": [{"key": "rerail.test/fault", "operator": "Exists", "effect": "NoSchedule"}]}
    gangs.cluster.kubectl("cordon", there)
    try:
        cordoned = gangs.submit("cordoned", 1, pod=pinned)
        gangs.waits_for_room(cordoned)
        gangs.cluster.kubectl("taint", "node", there, "rerail.test/fault=gpu:NoSchedule")
        gangs.cluster.kubectl("uncordon", there)
        gangs.run("tolerant", 1, pod=tolerant)
        gangs.holds("the other waits", lambda: not placed(gangs, cordoned), 3)
    finally:
        gangs.cluster.kubectl("uncordon", there)
        gangs.cluster.kubectl("taint", "node", there, "rerail.test/fault-", check=False)
    gangs.phase("cordoned", "Running")


@pytest.fixture
def classes(gangs: Gangs) -> Iterator[dict[str, str]]:
    """Two priority classes, low and high."""
    names = {word: f"{gangs.namespace}-{word}" for word in ("low", "high")}
    for value, name in enumerate(names.values()):
        body = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": name}}
        gangs.api.create(PRIORITY_CLASSES, {**body, "value": 1000 + value, "description": "a test's"})
    yield names
    for name in names.values():
        gangs.api.delete(PRIORITY_CLASSES, name)


def test_a_gang_of_higher_priority_takes_the_room_of_a_lower_one(gangs, classes):
    low = gangs.run("low", 4, DEAF, policies=END_ALL, priorityClassName=classes["low"], grace_s=3)
    seen: dict[str, Any] = {}
    high = gangs.submit("high", 2, priorityClassName=classes["high"])

    def evicted() -> bool:
        seen.update({name: pod for name, pod in gangs.pods(low).items() if name in victims({name: pod})})
        return len(seen) >= 2

    gangs.cluster.wait("two are marked", evicted)
    gangs.phase("low", "Terminated")
    gangs.phase("high", "Running")

    for pod in seen.values():
        marks = {c["type"]: c for c in pod["status"]["conditions"]}
        assert marks["DisruptionTarget"]["reason"] == "PreemptionByScheduler"
        assert marks["DisruptionTarget"]["message"] == "volcano: preempting to accommodate a higher priority pod"
    assert len(placed(gangs, high)) == 2
    reasons = {event["reason"] for name in seen for event in gangs.events(name)}
    assert "Evict" in reasons
    assert "Evict" in {event["reason"] for event in gangs.events(low.pod_group_name)}


@full
def test_equal_priority_takes_nothing(gangs, classes):
    low = gangs.run("first", 4, policies=END_ALL, priorityClassName=classes["high"])
    gangs.waits_for_room(gangs.submit("second", 2, priorityClassName=classes["high"]))

    gangs.holds("nobody is evicted", lambda: len(gangs.in_phase(low, "Running")) == 4, 3)


@full
def test_what_may_not_be_preempted_stays(gangs, classes):
    keep = {"volcano.sh/preemptable": "false"}
    low = gangs.run("low", 4, policies=END_ALL, priorityClassName=classes["low"], annotations=keep)
    gangs.waits_for_room(gangs.submit("high", 2, priorityClassName=classes["high"]))

    gangs.holds("nobody is evicted", lambda: len(gangs.in_phase(low, "Running")) == 4)
    assert gangs.annotate(low, "volcano.sh/preemptable") == {"false"}


@full
def test_a_pod_that_is_marked_already_is_never_evicted(gangs, classes):
    low = gangs.run("low", 4, policies=END_ALL, priorityClassName=classes["low"])
    for name in gangs.pods(low):
        mark = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        # Without a fresh time, Kubernetes' own disruption controller takes the mark off again at once.
        mark["lastTransitionTime"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        mark["message"] = "volcano: preempting to accommodate a higher priority pod"
        gangs.api.patch(PODS, name, {"status": {"conditions": [mark]}}, kind="strategic", subresource="status")
    gangs.submit("high", 2, priorityClassName=classes["high"])

    gangs.holds("they are marked, and run on", lambda: len(gangs.in_phase(low, "Running")) == 4, 10)


@contextmanager
def extender(gangs: Gangs, answer: Callable[[Any], Any]) -> Iterator[list[Any]]:
    """An extender last in the scheduler's one tier, for our slots only; yields what it was asked."""
    asked: list[Any] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            question = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path, question))
            text = json.dumps(answer(question)).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer((layout.HOST, 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with changed(gangs, asks(f"http://{layout.HOST}:{server.server_port}")):
            yield asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@contextmanager
def changed(gangs: Gangs, change: Callable[[Any], None]) -> Iterator[None]:
    """The scheduler's configuration, changed for a while."""
    if not gangs.cluster.ours:
        pytest.skip("only the scheduler of our own cluster can be configured")
    before = layout.SCHEDULER_CONF.read_text()
    conf = yaml.safe_load(before)
    change(conf)
    layout.SCHEDULER_CONF.write_text(yaml.safe_dump(conf))
    try:
        gangs.api.sleep(1.5)
        yield
    finally:
        layout.SCHEDULER_CONF.write_text(before)


def asks(url: str, *, ignorable: bool = True) -> Callable[[Any], None]:
    """Puts an extender last into the one tier."""
    arguments = {
        "extender.urlPrefix": url,
        "extender.preemptableVerb": "preemptable",
        "extender.reclaimableVerb": "reclaimable",
        "extender.ignorable": ignorable,
        "extender.managedResources": [SLOT],
    }
    return lambda conf: conf["tiers"][-1]["plugins"].append({"name": "extender", "arguments": arguments})


def test_an_extender_holds_preemption_back_and_lets_it_go(gangs, classes):
    consent: list[bool] = []

    def answer(question: Any) -> Any:
        return {"status": 1, "victims": question["evictees"] if consent else []}

    low = gangs.run("low", 4, policies=END_ALL, priorityClassName=classes["low"])
    with extender(gangs, answer) as asked:
        gangs.submit("high", 2, priorityClassName=classes["high"])
        gangs.cluster.wait("it is asked", lambda: bool(asked))
        gangs.holds("nobody is evicted", lambda: len(gangs.in_phase(low, "Running")) == 4)
        path, question = asked[-1]
        consent.append(True)
        gangs.phase("low", "Terminated")
        gangs.phase("high", "Running")

    assert path == "/preemptable"
    assert question["evictor"]["Name"].startswith("high-rank-")
    assert question["evictor"]["Job"] == f"{gangs.namespace}/{gangs.job('high').pod_group_name}"
    evictee = question["evictees"][0]
    assert (evictee["Namespace"], evictee["Job"]) == (gangs.namespace, f"{gangs.namespace}/{low.pod_group_name}")
    assert evictee["Pod"]["metadata"]["name"] == evictee["Name"]
    assert evictee["Pod"]["metadata"]["uid"] == evictee["UID"]
    assert (evictee["Preemptable"], evictee["Status"], evictee["NodeName"] in nodes_of(gangs)) == (True, 32, True)


@full
def test_an_extender_that_abstains_leaves_the_choice_to_the_others(gangs, classes):
    gangs.run("low", 4, policies=END_ALL, priorityClassName=classes["low"])
    with extender(gangs, lambda _: {"status": 0, "victims": []}):
        gangs.submit("high", 2, priorityClassName=classes["high"])
        gangs.phase("low", "Terminated")
        gangs.phase("high", "Running")


@full
@pytest.mark.parametrize("ignorable", [True, False])
def test_an_extender_that_does_not_answer_holds_preemption_back(gangs, classes, ignorable):
    low = gangs.run("low", 4, policies=END_ALL, priorityClassName=classes["low"])
    with changed(gangs, asks(f"http://{layout.HOST}:9", ignorable=ignorable)):
        gangs.waits_for_room(gangs.submit("high", 2, priorityClassName=classes["high"]))
        gangs.holds("nobody is evicted", lambda: len(gangs.in_phase(low, "Running")) == 4)
    gangs.phase("high", "Running")


@pytest.fixture
def queues(gangs: Gangs) -> Iterator[dict[str, str]]:
    """Two queues of equal weight, and one that gives nothing back."""
    names = {word: f"{gangs.namespace}-{word}" for word in ("rich", "poor", "keeps")}
    for word, name in names.items():
        gangs.queue(name, weight=1, reclaimable=word != "keeps")
    yield names
    gangs.cluster.kubectl("delete", "vcjob", "--all", "-n", gangs.namespace)
    for name in names.values():
        gangs.client.delete(Queue, name, timeout_s=30)


def test_a_queue_takes_back_its_share_from_what_others_can_spare(gangs, queues):
    rich = gangs.run("rich", 4, DEAF, min_available=1, queue=queues["rich"], grace_s=3)
    seen: set[str] = set()
    poor = gangs.submit("poor", 2, queue=queues["poor"])

    def evicted() -> bool:
        seen.update(victims(gangs.pods(rich)))
        return len(seen) == 2

    gangs.cluster.wait("two are marked", evicted)
    gangs.phase("poor", "Running")

    assert len(placed(gangs, poor)) == 2
    gangs.cluster.wait("the other half runs on", lambda: len(gangs.in_phase(rich, "Running")) == 2)
    gangs.holds("and keeps its share", lambda: len(gangs.in_phase(rich, "Running")) == 2, 3)


@full
def test_a_full_gang_and_a_queue_that_keeps_give_nothing_back(gangs, queues):
    gang = gangs.run("gang", 2, queue=queues["rich"])
    keeps = gangs.run("keeps", 2, min_available=1, queue=queues["keeps"])
    gangs.waits_for_room(gangs.submit("poor", 1, queue=queues["poor"]))

    gangs.holds(
        "nobody is evicted",
        lambda: len(gangs.in_phase(gang, "Running")) == len(gangs.in_phase(keeps, "Running")) == 2,
    )


def split(conf: Any) -> None:
    """Two tiers, as Volcano is usually installed."""
    plugins = conf["tiers"][0]["plugins"]
    first = [plugin for plugin in plugins if plugin["name"] in ("priority", "gang", "conformance", "extender")]
    conf["tiers"] = [{"plugins": first}, {"plugins": [plugin for plugin in plugins if plugin not in first]}]


@full
def test_with_two_tiers_a_full_gang_is_broken_for_another_queue(gangs, queues):
    gangs.only_real("several tiers")
    gang = gangs.run("gang", 4, queue=queues["rich"])
    with changed(gangs, split):
        gangs.submit("poor", 1, queue=queues["poor"])
        gangs.cluster.wait("a rank is marked", lambda: bool(victims(gangs.pods(gang))))
        gangs.phase("poor", "Running")


def admits_first(conf: Any) -> None:
    conf["actions"] = "enqueue, allocate, preempt, backfill"


@full
def test_with_enqueue_a_full_queue_admits_nobody_so_that_preemption_is_not_tried(gangs, classes):
    asking = {**gangs.container(SLEEP, {}), "resources": {"requests": {SLOT: "1"}, "limits": {SLOT: "1"}}}
    low = gangs.run("low", 4, policies=END_ALL, priorityClassName=classes["low"])
    with changed(gangs, admits_first):
        high = gangs.submit("high", 2, priorityClassName=classes["high"], pod={"containers": [asking]})
        gangs.cluster.wait("there is a group", lambda: gangs.group(high) is not None)
        gangs.holds(
            "it waits outside, without pods", lambda: gangs.group(high).phase == "Pending" and not gangs.pods(high)
        )
        born = {"metadata": {"name": "born"}, "spec": {"minMember": 1, "minResources": {SLOT: "4"}}}
        gangs.client.create(PodGroup.from_dict({**born, "metadata": {"name": "asks"}}))
        # The typed client sends no status.
        gangs.api.create(PodGroup.RESOURCE, {**identity(born), "status": {"phase": "Inqueue"}})
        gangs.holds("it counts as admitted", lambda: gangs.client.get(PodGroup, "born").phase == "Inqueue")
        assert gangs.client.get(PodGroup, "asks").phase == "Pending"
        # A limit without a request is none in a template: this one asks for nothing, is admitted, and preempts.
        gangs.submit("sly", 2, priorityClassName=classes["high"])
        gangs.phase("sly", "Running")
    gangs.phase("low", "Terminated")
    assert low.name == "low"


def identity(body: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": PodGroup.RESOURCE.api_version, "kind": "PodGroup", **body}


def plain_pod(gangs: Gangs, name: str, **annotations: str) -> None:
    marks = {"annotations": {key.replace("__", "/").replace("_", "-"): value for key, value in annotations.items()}}
    spec = {"schedulerName": "volcano", "restartPolicy": "Never", "terminationGracePeriodSeconds": 1}
    spec["containers"] = [gangs.container(after(3, 0), {SLOT: 1})]
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": gangs.namespace, **marks}}
    gangs.api.create(PODS, {**body, "spec": spec})


def test_plain_pods_join_a_group_and_are_bound_together(gangs):
    group = PodGroup.from_dict({"metadata": {"name": "steps"}, "spec": {"minMember": 2, "queue": "default"}})
    gangs.client.create(group)
    gangs.client.wait(PodGroup, "steps", {"Inqueue"}, timeout_s=120, poll_s=1)
    plain_pod(gangs, "step-0", **{"scheduling.k8s.io__group_name": "steps"})
    gangs.cluster.wait("one is too few", lambda: gangs.client.get(PodGroup, "steps").phase == "Inqueue")
    gangs.holds("it waits", lambda: "nodeName" not in gangs.api.get(PODS, "step-0")["spec"], 3)
    plain_pod(gangs, "step-1", **{"scheduling.k8s.io__group_name": "steps"})
    gangs.client.wait(PodGroup, "steps", {"Running", "Completed"}, timeout_s=120, poll_s=1)
    done = gangs.client.wait(PodGroup, "steps", {"Completed"}, timeout_s=120, poll_s=1)

    assert done.status.succeeded == 2


@full
def test_a_plain_pod_without_a_group_gets_one_of_its_own(gangs):
    plain_pod(gangs, "alone")
    uid = gangs.api.get(PODS, "alone")["metadata"]["uid"]
    gangs.cluster.wait("it runs", lambda: gangs.api.get(PODS, "alone")["status"]["phase"] in {"Running", "Succeeded"})
    group = gangs.client.get(PodGroup, f"podgroup-{uid}")

    assert group.spec.min_member == 1
    assert gangs.api.get(PODS, "alone")["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == group.name


@full
@pytest.mark.alone
def test_a_pod_on_a_lost_node_keeps_its_slot_and_its_job_restarting(gangs):
    name = nodes_of(gangs)[1]
    node = gangs.cluster.node(name)
    job = gangs.run("gang", 4, policies=[policy("RestartJob", *LOSS)])
    ghosts = {pod["metadata"]["name"] for pod in gangs.pods(job).values() if pod["spec"]["nodeName"] == name}
    alive = min(set(gangs.pods(job)) - ghosts)
    machines.stop(node)
    try:
        gangs.cluster.wait("the node is lost", lambda: name not in gangs.cluster.ready_nodes())
        gangs.cluster.wait("its pods are told to go", lambda: all_told(gangs, ghosts))
        gangs.holds("nothing happens", lambda: gangs.job("gang").phase == "Running")
        assert gangs.job("gang").status.terminating == len(ghosts)
        gangs.delete_pod(alive)
        gangs.phase("gang", "Restarting")
        gangs.holds("it restarts for ever", lambda: gangs.job("gang").phase == "Restarting", 15)
        assert ghosts <= set(gangs.pods(job))
        gangs.waits_for_room(gangs.submit("other", 3))
        gangs.client.delete(VolcanoJob, "other", timeout_s=30)
    finally:
        machines.start_again(node)
    gangs.phase("gang", "Running", timeout_s=90)


def all_told(gangs: Gangs, names: set[str]) -> bool:
    pods = gangs.pods("gang")
    return all("deletionTimestamp" in pods[name]["metadata"] for name in names)


@full
def test_what_the_stand_in_does_not_schedule_it_refuses_by_name(gangs):
    if gangs.cluster.volcano != "stand-in":
        pytest.skip("the real one plays it")
    far = {"metadata": {"name": "far"}, "spec": {"minMember": 1, "networkTopology": {"mode": "hard"}}}
    gangs.client.create(PodGroup.from_dict(far))

    def said() -> bool:
        found = gangs.client.get(PodGroup, "far").unschedulable
        return found is not None and found.reason == "NotPlayed" and "networkTopology" in (found.message or "")

    gangs.cluster.wait("the group is refused", said)
    with changed(gangs, split):
        gangs.cluster.wait("the configuration is refused", lambda: "several tiers" in told_of_queue(gangs))
    gangs.run("gang", 1)


def told_of_queue(gangs: Gangs) -> str:
    events = gangs.api.list(EVENTS, namespace="default", fields="reason=NotPlayed").items
    return " ".join(event["message"] for event in events)
