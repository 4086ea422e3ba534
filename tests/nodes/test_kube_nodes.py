"""Marks, views and requests of ``KubeNodes`` against an API server that misbehaves as told."""

import json
import threading
from urllib.parse import parse_qs, urlsplit

import pytest

from rerail.plugins.kube.api import Patience
from rerail.plugins.nodes.marks import MOST_OFFENCES, label_value
from rerail.policies.errors import ClusterUnreachableError, ForbiddenError, NotFoundError, RefusedError, TransientError

QUARANTINED, INCIDENT, INCIDENTS = "rerail.dev/quarantined", "rerail.dev/incident", "rerail.dev/incidents"
KEEP = {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"}


@pytest.fixture
def cluster(fake_api, made):
    """Two nodes; the first carries a taint and an annotation of others."""
    node = made.gpu_node("n1")
    node["metadata"]["annotations"] = {"example.com/own": "kept"}
    node["spec"]["taints"] = [KEEP]
    fake_api.put("nodes", node)
    fake_api.put("nodes", made.gpu_node("n2"))
    return fake_api


def node_of(cluster, name):
    return next(one for one in cluster.find("nodes") if one["metadata"]["name"] == name)


def views(nodes):
    return {one.name: one for one in nodes.views()}


def asked(cluster):
    """Methods of all requests that are no watches."""
    return [method for method, path in cluster.requests if "watch=true" not in path]


def lists(cluster):
    return [path for method, path in cluster.requests if method == "GET" and "watch=true" not in path]


def test_a_mark_is_one_patch_that_keeps_what_others_wrote(cluster, start):
    nodes = start()
    nodes.views()
    before = len(asked(cluster))
    nodes.mark("n1", "run-a1", "gpu_lost: off the bus", device="0000:3b:00")
    assert asked(cluster)[before:] == ["PATCH"]
    node = node_of(cluster, "n1")
    ours = {"key": QUARANTINED, "value": "gpu_lost-off-the-bus", "effect": "NoSchedule"}
    assert node["spec"]["taints"] == [KEEP, ours]
    notes = node["metadata"]["annotations"]
    assert (notes["example.com/own"], notes[INCIDENT]) == ("kept", "run-a1")
    assert [(one["incident"], one["device"], one["reason"]) for one in json.loads(notes[INCIDENTS])] == [
        ("run-a1", "0000:3b:00", "gpu_lost: off the bus")
    ]
    nodes.mark("n1", "run-a1", "gpu_lost")
    assert len(asked(cluster)) == before + 1, "what is known costs no request"
    nodes.release("n1")
    node = node_of(cluster, "n1")
    assert node["spec"]["taints"] == [KEEP]
    assert INCIDENT not in node["metadata"]["annotations"]
    assert json.loads(node["metadata"]["annotations"][INCIDENTS])[0]["incident"] == "run-a1"


def test_who_released_a_repeat_offender_is_noted(cluster, start):
    nodes = start()
    nodes.mark("n1", "run-a1", "gpu_lost")
    nodes.release("n1", by="ada")
    assert node_of(cluster, "n1")["metadata"]["annotations"]["rerail.dev/released-by"] == "ada"
    nodes.release("n1")
    assert "rerail.dev/released-by" not in node_of(cluster, "n1")["metadata"]["annotations"]


def test_a_node_that_changed_meanwhile_is_read_again(cluster, start):
    nodes = start()
    nodes.views()
    other = {"key": "example.com/other", "effect": "NoSchedule"}
    cluster.change("nodes", "", "n1", lambda node: node["spec"]["taints"].append(other), quiet=True)
    nodes.mark("n1", "run-a1", "gpu_lost")
    assert [taint["key"] for taint in node_of(cluster, "n1")["spec"]["taints"]] == [
        "dedicated",
        "example.com/other",
        QUARANTINED,
    ]


def test_a_node_that_always_changes_is_given_up_after_a_bounded_time(cluster, start, kube):
    pauses_s: list[float] = []
    kube.sleep = pauses_s.append
    nodes = start()
    cluster.fail("PATCH", "/nodes/n1", 409, times=99)
    with pytest.raises(TransientError, match="changed between reading and writing 8 times"):
        nodes.mark("n1", "run-a1", "gpu_lost")
    assert cluster.asked("PATCH", "/nodes/n1") == 8
    assert 1.0 < sum(pauses_s) < 8.0


def test_a_mark_whose_answer_was_lost_is_made_once(cluster, start):
    nodes = start()
    cluster.lose_reply("PATCH", "/nodes/n1")
    nodes.mark("n1", "run-a1", "gpu_lost")
    notes = node_of(cluster, "n1")["metadata"]["annotations"]
    assert [one["incident"] for one in json.loads(notes[INCIDENTS])] == ["run-a1"]


def test_a_mark_is_seen_before_its_event_comes(cluster, start, fake_module):
    cluster.streams.append(fake_module.Stream(silent=True))
    nodes = start(count_pods=False)
    assert views(nodes)["n2"].usable
    nodes.mark("n2", "run-a1", "gpu_lost")
    assert not views(nodes)["n2"].usable
    assert [one.incident for one in views(nodes)["n2"].offences] == ["run-a1"]


def test_an_api_server_that_does_not_answer_is_transient(cluster, start, kube):
    kube.patience = Patience(total_s=0.1, first_pause_s=0.01)
    nodes = start()
    cluster.fail("PATCH", "/nodes/n1", 503, times=9999)
    with pytest.raises(ClusterUnreachableError):
        nodes.mark("n1", "run-a1", "gpu_lost")


def test_a_missing_right_names_its_rule(cluster, start):
    nodes = start()
    nodes.views()
    cluster.deny("patch", "nodes")
    with pytest.raises(ForbiddenError) as caught:
        nodes.mark("n1", "run-a1", "gpu_lost")
    assert caught.value.rule == '- apiGroups: [""]\n  resources: ["nodes"]\n  verbs: ["patch"]'


def test_where_nodes_may_not_be_listed_nothing_is_known_and_that_is_said_once(cluster, start):
    cluster.deny("list", "nodes")
    said: list[str] = []
    nodes = start(log=said.append)
    assert nodes.views() is None
    assert nodes.views() is None
    assert nodes.signals() == ()
    (line,) = said
    assert 'resources: ["nodes"]\n  verbs: ["list"]' in line
    nodes.mark("n1", "run-a1", "gpu_lost")
    assert node_of(cluster, "n1")["metadata"]["annotations"][INCIDENT] == "run-a1"
    with pytest.raises(NotFoundError, match=r"'n9' is not in the cluster \(its nodes cannot be listed"):
        nodes.mark("n9", "run-a1", "gpu_lost")


def test_where_pods_may_not_be_listed_every_slot_is_free_and_that_is_said_once(cluster, start, made):
    cluster.put("pods", made.gpu_pod("p", "n2"))
    cluster.deny("list", "pods")
    said: list[str] = []
    nodes = start(log=said.append)
    assert [(one.slots, one.free) for one in nodes.views()] == [(2, 2), (2, 2)]
    nodes.views()
    (line,) = said
    assert "every slot counts as free" in line
    assert 'resources: ["pods"]' in line


def test_looking_costs_no_request_and_no_list_goes_without_a_selector(cluster, start):
    nodes = start(node_selector={"pool": "a"})
    nodes.views()
    before = len(cluster.requests)
    for _ in range(50):
        nodes.views()
        nodes.signals()
    assert len(cluster.requests) - before <= 2, "the watches that follow the lists"
    asked = [parse_qs(urlsplit(path).query) for path in lists(cluster)]
    assert sorted(query.get("labelSelector", query.get("fieldSelector"))[0] for query in asked) == [
        "kubernetes.io/os=linux,pool=a",
        "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed",
    ]


def test_only_nodes_for_this_run_are_there(cluster, start, made, until):
    cluster.put("nodes", made.gpu_node("pool-a", pool="a"))
    plain = made.gpu_node("no-gpu", pool="a")
    del plain["status"]["capacity"]["nvidia.com/gpu"], plain["status"]["allocatable"]["nvidia.com/gpu"]
    cluster.put("nodes", plain)
    master = made.gpu_node("master", pool="a")
    master["spec"]["taints"] = [{"key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule"}]
    cluster.put("nodes", master)
    nodes = start(node_selector={"pool": "a"})
    assert [one.name for one in nodes.views()] == ["pool-a"]
    cluster.change("nodes", "", "n2", lambda node: node["metadata"]["labels"].update(pool="a"))
    until(lambda: [one.name for one in nodes.views()] == ["n2", "pool-a"])
    assert [one.name for one in start(resource=None, node_selector={"pool": "a"}).views()] == ["n2", "no-gpu", "pool-a"]
    everywhere = start(node_selector={"pool": "a"}, tolerations=[{"operator": "Exists"}])
    assert [one.name for one in everywhere.views()] == ["master", "n2", "pool-a"]


def test_slots_are_pods_that_fit_times_their_ranks(cluster, start, made, until):
    cluster.put("nodes", made.gpu_node("n3", gpus=8))
    cluster.put("pods", made.gpu_pod("p", "n3", gpus=3))
    nodes = start(per_pod=2, ranks_per_pod=2)
    assert (views(nodes)["n3"].slots, views(nodes)["n3"].free) == (8, 4)
    cluster.change("pods", "default", "p", lambda pod: pod["status"].update(phase="Succeeded"))
    until(lambda: views(nodes)["n3"].free == 8)
    cluster.put("pods", made.gpu_pod("q", "", gpus=8))
    cluster.put("pods", made.gpu_pod("r", "n3", gpus=8))
    until(lambda: views(nodes)["n3"].free == 0)
    cluster.remove("pods", "default", "r")
    until(lambda: views(nodes)["n3"].free == 8)
    plain = start(resource=None, ranks_per_pod=2)
    assert (views(plain)["n3"].slots, views(plain)["n3"].free) == (220, 220)
    cluster.put("pods", made.gpu_pod("s", "n3", gpus=1))
    until(lambda: views(plain)["n3"].free == 218)


def test_a_card_that_its_agent_took_out_lowers_the_slots(cluster, start, until):
    nodes = start()
    assert views(nodes)["n2"].slots == 2
    cluster.change("nodes", "", "n2", lambda node: node["status"]["allocatable"].update({"nvidia.com/gpu": "1"}))
    until(lambda: views(nodes)["n2"].slots == 1)
    cluster.change("nodes", "", "n2", lambda node: node["status"]["allocatable"].pop("nvidia.com/gpu"))
    until(lambda: views(nodes)["n2"].slots == 0)


def test_a_node_that_does_not_report_is_shown_and_is_no_fault_of_a_gpu(cluster, start, made, until):
    nodes = start(tolerations=[{"key": "dedicated", "operator": "Exists"}])
    assert views(nodes)["n1"].usable

    def lose(node):
        node["status"]["conditions"] = [
            made.condition("Ready", "Unknown", "NodeStatusUnknown", "Kubelet stopped posting")
        ]
        node["spec"]["taints"].append({"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"})

    cluster.change("nodes", "", "n1", lose)
    until(lambda: not views(nodes)["n1"].usable)
    assert views(nodes)["n1"].why == (
        "node.kubernetes.io/unreachable; not Ready (NodeStatusUnknown: Kubelet stopped posting)"
    )
    assert nodes.signals() == ()
    cluster.remove("nodes", "", "n1")
    until(lambda: list(views(nodes)) == ["n2"])


def test_a_node_is_ready_or_not_or_gone_and_is_asked_for_where_it_is_not_watched(cluster, start, made, until):
    nodes = start(node_selector={"pool": "a"}, count_pods=False)
    cluster.put("nodes", made.gpu_node("here", pool="a"))
    until(lambda: nodes.ready("here"))
    before = len(asked(cluster))
    cluster.change(
        "nodes", "", "here", lambda one: one["status"].update(conditions=[made.condition("Ready", "Unknown")])
    )
    until(lambda: nodes.ready("here") is False)
    assert len(asked(cluster)) == before
    assert nodes.ready("n1") is True, "another pool's"
    assert nodes.ready("n9") is False
    before = len(asked(cluster))
    assert nodes.ready("n9") is False
    assert len(asked(cluster)) == before, "gone is known"
    cluster.put("nodes", made.gpu_node("n9", pool="a"))
    until(lambda: nodes.ready("n9"))
    cluster.remove("nodes", "", "n9")
    until(lambda: nodes.ready("n9") is False)
    cluster.deny("get", "nodes")
    assert nodes.ready("n2") is None
    assert nodes.hostnames(["here", "n1"]) == {"here": "here"}


def test_who_announces_a_nodes_end_is_shown_until_it_is_taken_back(cluster, start, until):
    nodes = start()
    assert views(nodes)["n1"].leaves is None
    cluster.change("nodes", "", "n1", lambda one: one["metadata"]["labels"].update({"rerail.dev/maintenance": "now"}))
    until(lambda: views(nodes)["n1"].leaves)
    assert views(nodes)["n1"].leaves.what == "rerail.dev/maintenance=now"
    assert nodes.signals() == (), "no fault"
    cluster.change("nodes", "", "n1", lambda one: one["metadata"]["labels"].pop("rerail.dev/maintenance"))
    until(lambda: not views(nodes)["n1"].leaves)


@pytest.mark.usefixtures("cluster")
def test_our_quarantine_is_tolerated_by_nobody(start):
    nodes = start(tolerations=[{"operator": "Exists"}])
    assert views(nodes)["n1"].usable
    nodes.mark("n1", "run-a1", "gpu_lost")
    assert not views(nodes)["n1"].usable


def test_a_condition_that_went_back_is_taken_back_and_one_that_comes_again_is_new(cluster, start, made, until):
    nodes = start()

    def tell(status, at):
        told = made.condition("NvidiaXID79Error", status, at=at)
        cluster.change("nodes", "", "n1", lambda node: node["status"].update(conditions=[told]))

    tell("False", "2026-11-30T09:00:00Z")
    assert nodes.signals() == (), "what nobody saw broken needs no taking back"
    tell("True", "2026-11-30T10:00:00Z")
    (first,) = until(nodes.signals)
    tell("Unknown", "2026-11-30T10:00:30Z")
    tell("False", "2026-11-30T10:01:00Z")
    first_again, taken_back = until(lambda: len(nodes.signals()) == 2 and nodes.signals())
    assert first_again == first
    assert (taken_back.cleared, taken_back.clears_key, taken_back.node) == (True, first.clears_key, "n1")
    tell("True", "2026-11-30T10:02:00Z")
    *_, second = until(lambda: len(nodes.signals()) == 3 and nodes.signals())
    assert second.codes == first.codes
    assert second.raw_ref != first.raw_ref


def test_signals_between_two_looks_are_not_lost(cluster, start, made, until):
    nodes = start()
    nodes.views()
    for number, status in enumerate(("True", "False")):
        told = made.condition("GPUDeviceLost", status, at=f"2026-11-30T10:00:0{number}Z")
        cluster.change("nodes", "", "n2", lambda node, told=told: node["status"]["conditions"].append(told))
        cluster.change(
            "nodes", "", "n2", lambda node: node["status"].update(conditions=node["status"]["conditions"][-1:])
        )
    assert [one.cleared for one in until(lambda: len(nodes.signals()) == 2 and nodes.signals())] == [False, True]


def test_the_ledger_of_a_node_is_bounded_and_keeps_the_newest(cluster, start):
    nodes = start()
    nodes.views()
    for number in range(MOST_OFFENCES + 3):
        nodes.mark("n1", f"run-a{number}", "x" * 500, device=f"d{number}")
    text = node_of(cluster, "n1")["metadata"]["annotations"][INCIDENTS]
    noted = [one["incident"] for one in json.loads(text)]
    assert noted == [f"run-a{number}" for number in range(3, MOST_OFFENCES + 3)]
    assert len(text) < 16 << 10
    assert len(node_of(cluster, "n1")["spec"]["taints"][-1]["value"]) == 63


@pytest.mark.parametrize("text", ["{", '["run-a1"]', '[{"incident": 1}]'])
def test_notes_that_nobody_can_read_keep_no_sick_node_in_use_and_no_machine_releases_it(cluster, start, text):
    cluster.change("nodes", "", "n1", lambda node: node["metadata"]["annotations"].update({INCIDENTS: text}))
    said: list[str] = []
    nodes = start(log=said.append)
    assert views(nodes)["n1"].offences == ()
    nodes.views()
    assert ["cannot be read" in line for line in said] == [True]
    with pytest.raises(RefusedError, match="cannot be read"):
        nodes.release("n1")
    nodes.mark("n1", "run-a7", "gpu_lost")
    assert [one.incident for one in views(nodes)["n1"].offences] == ["run-a7"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("gpu_lost", "gpu_lost"),
        ("xid 79: off!", "xid-79-off"),
        ("", ""),
        ("...", ""),
        ("ü" * 9, ""),
        ("a" * 62 + ".b", "a" * 62),
    ],
)
def test_reasons_become_values_that_a_taint_takes(text, value):
    assert label_value(text) == value


@pytest.mark.usefixtures("cluster")
def test_threads_end_with_it(start):
    nodes = start()
    nodes.views()
    running = [one.name for one in threading.enumerate() if one.name.startswith("rerail-watch-")]
    assert len(running) == 2
    nodes.close()
    assert not [one for one in threading.enumerate() if one.name.startswith("rerail-watch-")]
    with pytest.raises(ClusterUnreachableError, match="was stopped"):
        nodes.views()


def test_a_fault_that_was_not_known_wakes_whoever_waits_for_it(cluster, start, until, made):
    woken: list[str] = []
    nodes = start()
    nodes.on_signal = lambda: woken.append("now")
    nodes.views()
    fault = made.condition("GPUDeviceLost", "True", "x", "gone")
    cluster.change("nodes", "", "n1", lambda one: one["status"]["conditions"].append(fault))
    until(lambda: woken)
    assert [one.node for one in nodes.signals()] == ["n1"]
