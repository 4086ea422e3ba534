"""Slots of other healers against their objects: on the fake API server, and on a real one (RERAIL_TEST_KUBECONFIG)."""

import json
import threading
import time
from contextlib import contextmanager

import pytest
import yaml
from typer.testing import CliRunner

from rerail.plugins.checkpoint.notes import read_requests
from rerail.plugins.cli.main import build
from rerail.plugins.evict.find import open_place
from rerail.plugins.evict.slots import ack, nvsentinel
from rerail.plugins.evict.slots.find import make_slots, parse_options
from rerail.plugins.evict.slots.manifests import rights
from rerail.plugins.evict.slots.owner import DrainOwner
from rerail.plugins.gang.ports import Clock
from rerail.plugins.kube.api import KubeApi
from rerail.plugins.kube.resources import NODES
from rerail.plugins.kube.transport import Transport
from rerail.policies import drains
from rerail.policies.drains import DrainNote
from rerail.policies.errors import UsageError

WAIT_S = 30.0
NEEDREPAIR = "alibabacloud.com/node-needrepair"
ACK_TAINT = {"key": NEEDREPAIR, "value": "Unschedulable", "effect": "NoSchedule"}


class World:
    """One API server with two nodes, gangs on them, and owners of drains."""

    def __init__(self, server, api, gangs):
        self.server, self.api, self.gang = server, api, gangs
        self.namespace = getattr(server, "namespace", "team")
        self.node, self.other = getattr(server, "nodes", ("n1", "n2"))
        self.ahead_s = 0.0
        self.said = []

    @contextmanager
    def owner(self, *names, deadline_s=60.0, save_within_s=30.0, open_store=open_place):
        """One process that serves slots, until the block ends."""
        options = {name: {"deadline": str(deadline_s)} for name in names or ("nvsentinel",)}
        if "nvsentinel" in options:
            options["nvsentinel"]["namespace"] = self.namespace
        owner = DrainOwner(
            self.api,
            make_slots(tuple(options), options),
            open_store,
            save_within_s=save_within_s,
            takeover_s=0.0,
            refused_for_s=0.5,
            clock=Clock(wall_s=lambda: time.time() + self.ahead_s),
            log=self.said.append,
        )
        stop = threading.Event()

        def serve():
            with owner:
                while not stop.wait(0.05):
                    owner.advance()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield owner
        stop.set()
        thread.join(10)

    def cordon(self, node=None):
        self.api.patch(NODES, node or self.node, {"spec": {"unschedulable": True}})

    def request(self, name="drain-1", *, node=None, pods=None, action="RESTART_VM", conditions=()):
        """A DrainRequest as node-drainer makes it."""
        spec = {"nodeName": node or self.node, "checkName": "GpuXid", "recommendedAction": action, "podsToDrain": pods}
        body = {
            "apiVersion": "nvsentinel.nvidia.com/v1alpha1",
            "kind": "DrainRequest",
            "metadata": {"name": name, "namespace": self.namespace},
            "spec": {key: value for key, value in spec.items() if value is not None},
        }
        self.server.put("drainrequests", body)
        if conditions:
            where = {"namespace": self.namespace, "subresource": "status"}
            self.api.patch(nvsentinel.DRAIN_REQUESTS, name, {"status": {"conditions": conditions}}, **where)

    def condition(self, name="drain-1"):
        for one in self.server.find("drainrequests"):
            if one["metadata"]["name"] == name:
                found = (one.get("status") or {}).get("conditions") or []
                return next((each for each in found if each["type"] == "DrainComplete"), None)
        return None

    def told(self, status, reason, name="drain-1"):
        def so():
            found = self.condition(name)
            return found if found and (found["status"], found["reason"]) == (status, reason) else None

        return self.until(so, lambda: self.condition(name))

    def note(self, name="drain-1"):
        one = next(each for each in self.server.find("drainrequests") if each["metadata"]["name"] == name)
        return DrainNote.of((one["metadata"].get("annotations") or {}).get(nvsentinel.NOTE))

    def metadata(self):
        return self.api.get(NODES, self.node)["metadata"]

    def inquire(self):
        """What ACK does to a node that it wants to repair."""
        self.server.change(
            "nodes",
            "",
            self.node,
            lambda node: node["spec"].update(taints=[*node["spec"].get("taints", []), ACK_TAINT]),
        )
        self.label("Inquiring")

    def label(self, value):
        self.api.patch(NODES, self.node, {"metadata": {"labels": {NEEDREPAIR: value}}})

    def until(self, test, shown=lambda: ""):
        end = time.monotonic() + WAIT_S
        while not (found := test()):
            assert time.monotonic() < end, (shown(), self.said)
            time.sleep(0.02)
        return found

    def asked(self, gang):
        return self.until(lambda: read_requests(gang.run, 1))


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.cluster)])
def world(request, tmp_path):
    server = request.getfixturevalue(request.param)
    gang_type = request.getfixturevalue("pod_gang_type")
    api = KubeApi.connect() if request.param == "fake" else server.api
    made = []

    def gang(name, *nodes):
        where = nodes or (one.node, one.other)
        made.append(gang_type(server, tmp_path, name, where, namespace=one.namespace).start())
        return made[-1]

    one = World(server, api, gang)
    yield one
    for each in made:
        each.over.set()
        each.thread.join(10)
    if request.param == "fake":
        api.close()


def plain_pod(world, name, node):
    containers = [{"name": "main", "image": "registry.invalid/x"}]
    world.server.put(
        "pods",
        {
            "metadata": {"name": name, "namespace": world.namespace},
            "spec": {"nodeName": node, "terminationGracePeriodSeconds": 1, "containers": containers},
            "status": {"phase": "Running"},
        },
    )


def pods(world):
    return {one["metadata"]["name"] for one in world.server.find("pods")}


def test_a_drain_request_is_complete_once_the_gang_saved_and_left(world):
    gang = world.gang("one")
    plain_pod(world, "web", world.node)
    plain_pod(world, "agent", world.node)
    world.cordon()
    pending = {"type": "DrainComplete", "status": "False", "reason": "Pending", "message": ""}
    stamped = {**pending, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    others = {**stamped, "type": "Other", "status": "True"}
    listed = {world.namespace: ["web", "one-a1-0", "moved-elsewhere"]}
    world.request(pods=listed, conditions=[others, stamped])
    with world.owner():
        world.asked(gang)
        draining = world.told("False", "Draining")
        assert world.said[0] == f"nvsentinel: node {world.node} is to be emptied within 60 s: GpuXid: RESTART_VM"
        assert world.note().deadline_at_s == pytest.approx(world.note().begun_at_s + 60.0)
        world.until(lambda: "web" not in pods(world))
        assert "one-a1-0" in pods(world), "it has not saved yet"
        gang.may_answer.set()
        done = world.told("True", "GangsSaved")
    assert "one-a1 saved step 7 and left" in done["message"]
    assert done["lastTransitionTime"] >= draining["lastTransitionTime"]
    assert pods(world) == {"agent"}, "what nobody named stays"
    assert not read_requests(gang.run, 1)[0][1].reason.startswith("drain of node"), "it says who asked"
    conditions = world.server.find("drainrequests")[0]["status"]["conditions"]
    assert [one["type"] for one in conditions] == ["Other", "DrainComplete"], "those of others stay"


def test_only_the_faulty_card_is_drained_where_only_it_is_reset(world):
    bystander, gang = world.gang("two", world.node), world.gang("one", world.node)
    world.cordon()
    world.request(pods={world.namespace: ["one-a1-0"]}, action="COMPONENT_RESET")
    gang.may_answer.set()
    with world.owner():
        world.told("True", "GangsSaved")
    assert pods(world) == {"two-a1-0"}
    assert not read_requests(bystander.run, 1)


def test_several_requests_for_a_node_are_one_drain(world):
    gang = world.gang("one")
    world.cordon()
    world.request("drain-1")
    world.request("drain-2")
    with world.owner(), world.owner():
        world.asked(gang)
        world.told("False", "Draining", "drain-2")
        world.request("drain-3")
        world.told("False", "Draining", "drain-3")
        gang.may_answer.set()
        for name in ("drain-1", "drain-2", "drain-3"):
            world.until(lambda name=name: (world.condition(name) or {}).get("status") == "True")
        world.request("drain-4")
        world.until(lambda: (world.condition("drain-4") or {}).get("status") == "True")
    assert len(read_requests(gang.run, 1)) == 1, "asked once"


def test_a_gang_that_does_not_answer_goes_as_a_whole_at_the_deadline(world, monkeypatch):
    monkeypatch.setattr(drains, "LEAST_SAVE_S", 0.5)
    world.gang("one")
    world.cordon()
    world.request()
    with world.owner(deadline_s=1.0):
        done = world.told("True", "LeftUnsaved")
    assert "goes on from step 0: no commit within 0.5 s of the request" in done["message"]
    world.until(lambda: sorted(set(world.server.evicted)) == ["one-a1-0", "one-a1-1"])


def test_a_gang_whose_store_is_out_of_reach_is_evicted_at_the_deadline_unasked(world, monkeypatch):
    monkeypatch.setattr(drains, "RETRY_S", 0.2)
    gang = world.gang("one")
    world.cordon()
    world.request()

    def nowhere(_place):
        raise UsageError("the store is mounted elsewhere")

    with world.owner(open_store=nowhere):
        assert "mounted elsewhere" in world.told("False", "Blocked")["message"]
        assert pods(world) == {"one-a1-0", "one-a1-1"}
        world.ahead_s = 61.0
        assert "mounted elsewhere" in world.told("True", "LeftUnsaved")["message"]
    world.until(lambda: sorted(set(world.server.evicted)) == ["one-a1-0", "one-a1-1"])
    assert not read_requests(gang.run, 1)


def test_a_budget_keeps_the_healer_waiting_until_it_lets_go(world, monkeypatch):
    monkeypatch.setattr(drains, "LEAST_SAVE_S", 0.2)
    monkeypatch.setattr(drains, "RETRY_S", 0.2)
    world.gang("one", world.node)
    world.server.keep("precious", "rerail.dev/run", "one")
    world.cordon()
    world.request()
    with world.owner(deadline_s=2.0):
        said = world.told("False", "DeadlineExceeded")
        assert "precious" in said["message"]
        assert f"still there: {world.namespace}/one-a1-0" in said["message"]
        assert pods(world) == {"one-a1-0"}
        if hasattr(world.server, "let_go"):
            world.server.let_go("precious")
        else:
            world.server.budgets.clear()
        world.until(lambda: (world.condition() or {}).get("status") == "True")
    assert pods(world) == set()


def test_a_node_that_takes_new_work_is_said_and_waited_for(world):
    gang = world.gang("one")
    gang.may_answer.set()
    if hasattr(world.server, "nodes"):  # the test's own taint keeps others off its nodes
        world.server.change("nodes", "", world.node, lambda node: node["spec"].update(taints=[]))
        world.until(lambda: not world.api.get(NODES, world.node)["spec"].get("taints"))
    world.request()
    with world.owner():
        assert "cordon it" in world.told("False", "NodeOpen")["message"]
        assert not read_requests(gang.run, 1)
        world.cordon()
        world.told("True", "GangsSaved")


def test_a_restart_goes_on_with_the_deadline_that_was_kept(world, monkeypatch):
    monkeypatch.setattr(drains, "LEAST_SAVE_S", 0.5)
    gang = world.gang("one")
    world.cordon()
    world.request()
    with world.owner(deadline_s=1000.0, save_within_s=1000.0):
        world.asked(gang)
        world.told("False", "Draining")
        kept = world.note()
    world.ahead_s = 1001.0
    with world.owner(deadline_s=1000.0, save_within_s=1000.0):
        world.told("True", "LeftUnsaved")
        assert world.note() == kept
    assert len(read_requests(gang.run, 1)) == 1


def test_a_healer_that_changed_its_mind_evicts_nobody(world):
    gang = world.gang("one")
    world.cordon()
    world.request()
    with world.owner() as owner:
        world.asked(gang)
        world.server.remove("drainrequests", world.namespace, "drain-1")
        world.until(lambda: not owner.busy())
        world.ahead_s = 61.0  # beyond the deadline that it had
        time.sleep(0.6)
        assert world.server.evicted == []
        assert pods(world) == {"one-a1-0", "one-a1-1"}


def test_an_api_server_that_does_not_answer_withdraws_nothing(world, monkeypatch):
    if hasattr(world.server, "nodes"):
        pytest.skip("a real API server does not fail on demand")
    gang = world.gang("one")
    world.cordon()
    world.request()
    with world.owner() as owner:
        world.asked(gang)
        monkeypatch.setattr(type(owner.slots[0]), "asks", failing)
        world.until(lambda: any("no answer" in line for line in world.said))
        end = time.monotonic() + 0.6  # three looks of an eviction
        while time.monotonic() < end:
            assert owner.busy()
        monkeypatch.undo()
        gang.may_answer.set()
        world.told("True", "GangsSaved")


def failing(_slot):
    from rerail.policies.errors import ClusterUnreachableError

    raise ClusterUnreachableError("no answer")


def test_pods_that_do_not_end_are_left_to_the_reboot(world, monkeypatch):
    if hasattr(world.server, "nodes"):
        pytest.skip("its kubelet is ours, and ends pods")
    monkeypatch.setattr(drains, "FORCE_MARGIN_S", 0.5)
    world.gang("one", world.node)
    world.server.dead.add(world.node)
    world.server.change(
        "pods",
        "team",
        "one-a1-0",
        lambda pod: pod["metadata"].update(deletionTimestamp="x", deletionGracePeriodSeconds=0),
    )
    world.cordon()
    world.request()
    with world.owner():
        assert "only a reboot ends them" in world.told("True", "PodsStuck")["message"]


def test_ack_gets_its_approval_once_the_gang_saved_and_left(world):
    gang = world.gang("one")
    plain_pod(world, "web", world.node)
    world.inquire()
    with world.owner("ack"):
        world.asked(gang)
        note = world.until(lambda: noted(world))
        world.until(lambda: noted(world).told is not None)
        assert (noted(world).told.done, noted(world).told.reason) == (False, "Draining")
        assert world.metadata()["labels"][NEEDREPAIR] == "Inquiring"
        gang.may_answer.set()
        world.until(lambda: world.metadata()["labels"][NEEDREPAIR] == "Approved")
        assert noted(world).told.reason == "GangsSaved"
        assert "one-a1 saved step 7 and left" in noted(world).told.message
        assert noted(world).deadline_at_s == note.deadline_at_s
        assert "web" in pods(world), "ACK drains the rest itself"
        # The next inquiry is another one, with a deadline of its own, and there is nothing left to save.
        world.label("Inquiring")
        world.until(lambda: world.metadata()["labels"][NEEDREPAIR] == "Approved")
        assert noted(world).begun_at_s > note.begun_at_s
        assert noted(world).told.reason in ("Drained", "GangsSaved")
    spec = world.api.get(NODES, world.node)["spec"]
    assert ACK_TAINT["key"] in {taint["key"] for taint in spec["taints"]}, "the provider's taint is the provider's"


def test_a_person_who_answers_ack_first_ends_the_request(world):
    gang = world.gang("one")
    world.inquire()
    with world.owner("ack") as owner:
        world.asked(gang)
        world.label(None)
        world.until(lambda: not owner.busy())
        world.until(lambda: noted(world) is None, lambda: noted(world))
    assert world.server.evicted == []
    assert NEEDREPAIR not in world.metadata().get("labels", {})


def test_a_note_of_another_boot_is_no_note(world, monkeypatch):
    monkeypatch.setattr(drains, "LEAST_SAVE_S", 0.1)
    gang = world.gang("one")
    old = DrainNote(begun_at_s=1.0, deadline_at_s=2.0, boot_id="before the repair")
    world.api.patch(NODES, world.node, {"metadata": {"annotations": {ack.NOTE: old.text()}}})
    world.inquire()
    with world.owner("ack", deadline_s=60.0):
        world.asked(gang)
        assert noted(world).deadline_at_s > time.time()
        gang.may_answer.set()
        world.until(lambda: world.metadata()["labels"][NEEDREPAIR] == "Approved")
    assert noted(world).told.reason == "GangsSaved"


def noted(world):
    return DrainNote.of((world.metadata().get("annotations") or {}).get(ack.NOTE))


def test_both_healers_at_once_are_one_drain(world):
    gang = world.gang("one")
    world.inquire()
    world.request()
    with world.owner("ack", "nvsentinel"):
        world.asked(gang)
        gang.may_answer.set()
        world.told("True", "GangsSaved")
        world.until(lambda: world.metadata()["labels"][NEEDREPAIR] == "Approved")
    assert len(read_requests(gang.run, 1)) == 1


def test_a_slot_without_its_resource_or_a_right_is_said_and_the_others_go_on(fake, pod_gang, wait_for):
    one = World(fake, KubeApi.connect(), None)
    gang = pod_gang("one", "n1")
    gang.may_answer.set()
    fake.uninstall("nvsentinel.nvidia.com")
    one.inquire()
    with one.owner("nvsentinel", "ack"):
        wait_for(lambda: one.metadata()["labels"][NEEDREPAIR] == "Approved")
        wait_for(lambda: any("NVSentinel's CRDs are not installed" in line for line in one.said))
    assert sum("NVSentinel's CRDs" in line for line in one.said) == 1, "said once"
    one.api.close()


@pytest.fixture
def asked(monkeypatch):
    """Verb and kind of every request to an API server."""
    found = set()
    for way in ("send", "stream"):
        inner = getattr(Transport, way)

        def record(self, call, *rest, inner=inner, **more):
            below = f"/{call.subresource}" if call.subresource else ""
            found.add((call.verb, f"{call.resource.plural}{below}"))
            return inner(self, call, *rest, **more)

        monkeypatch.setattr(Transport, way, record)
    return found


def test_exactly_the_rights_that_are_printed_are_used(fake, pod_gang, asked, monkeypatch):
    monkeypatch.setattr(drains, "LEAST_SAVE_S", 0.1)
    one = World(fake, KubeApi.connect(), None)
    pod_gang("one", "n1")
    one.inquire()
    one.request()
    with one.owner("nvsentinel", "ack", deadline_s=0.5):
        one.told("True", "LeftUnsaved")
        asked.discard(("get", "nodes"))  # the test's own
        one.request("drain-2")
        one.told("True", "LeftUnsaved", "drain-2")
    slots = make_slots(("nvsentinel", "ack"), {})
    wanted = {(verb, kind.plural) for kind, verbs in rights(slots).items() for verb in verbs}
    assert asked - {("create", "selfsubjectaccessreviews")} == wanted
    one.api.close()


def run(*words):
    return CliRunner().invoke(build(["serve"]), ["serve", "drains", *words], catch_exceptions=False)


def test_the_command_prints_what_a_cluster_needs():
    words = ("--slot", "nvsentinel", "--slot", "ack", "--set", "nvsentinel.deadline=25m", "--store-secret", "aws")
    documents = list(yaml.safe_load_all(run(*words, "--print", "manifests", "--namespace", "ops").stdout))
    by_kind = {one["kind"]: one for one in documents}
    assert set(by_kind) == {
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "CustomResourceDefinition",
        "ConfigMap",
        "Deployment",
    }
    arguments = by_kind["Deployment"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments == [
        "serve",
        "drains",
        "--slot=nvsentinel",
        "--slot=ack",
        "--set=nvsentinel.deadline=25m",
        "--save-within=15m",
    ]
    rules = {
        (resource, verb)
        for rule in by_kind["ClusterRole"]["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert {("pods/eviction", "create"), ("drainrequests/status", "patch"), ("nodes", "patch")} <= rules
    alone = list(yaml.safe_load_all(run("--slot", "nvsentinel", "--print", "manifests").stdout))
    role = next(one for one in alone if one["kind"] == "ClusterRole")
    nodes = next(rule for rule in role["rules"] if rule["resources"] == ["nodes"])
    assert nodes["verbs"] == ["get"], "no slot that needs it, no right to change nodes"
    assert "&id" not in run(*words, "--print", "manifests").stdout


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "name at least one slot with --slot; known: ack, nvsentinel"),
        (("--slot", "tke"), "slot 'tke' is not installed; known: ack, nvsentinel"),
        (("--slot", "ack", "--set", "ack.dead=1"), "slot 'ack' has no such option; known: deadline"),
        (("--slot", "ack", "--set", "ack.deadline=soon"), "--set ack.deadline"),
        (("--slot", "ack", "--set", "ack.deadline=0"), "a save takes time"),
        (("--slot", "ack", "--set", "nvsentinel.deadline=1m"), "add --slot nvsentinel"),
        (("--slot", "ack", "--set", "deadline=1m"), "write SLOT.NAME=VALUE"),
        (("--slot", "ack", "--save-within", "0"), "--save-within '0': a save takes time"),
    ],
)
def test_bad_words_are_refused_with_the_way_out(words, told):
    with pytest.raises(UsageError, match=told.replace("(", "\\(")):
        run(*words)


def test_a_package_of_yours_brings_a_slot(tmp_path, monkeypatch):
    (tmp_path / "plug_slot.py").write_text(
        "class Slot:\n    name, deadline_s, rights = 'mine', 5.0, {}\n"
        "    def objects(self, namespace): return ()\n"
        "def make(given):\n    slot = Slot()\n    slot.given = dict(given)\n    return slot\n"
    )
    info = tmp_path / "plug_slot-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plug-slot\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[rerail.drain_slots]\nmine = plug_slot:make\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    (slot,) = make_slots(("mine",), parse_options(["mine.colour=red=blue"]))
    assert (slot.name, slot.given) == ("mine", {"colour": "red=blue"})


def test_requests_without_sense_are_left_alone():
    metadata = {"namespace": "x", "name": "y", "uid": "z", "annotations": {nvsentinel.NOTE: json.dumps([1])}}
    found = nvsentinel.ask_of({"metadata": metadata, "spec": {"podsToDrain": ["a"]}}, "DrainComplete")
    assert (found.node, found.pods, found.note, found.told) == ("", (), None, None)
    status = {"conditions": ["x", {"type": "DrainComplete"}]}
    found = nvsentinel.ask_of({"metadata": metadata, "status": status}, "DrainComplete")
    assert found.told is not None
    assert not found.told.done
