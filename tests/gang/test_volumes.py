"""Volumes that one node mounts at a time: what holds the next gang, and what does not. API objects on a fake server."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from rerail.plugins.cli.rights import documents
from rerail.plugins.gang.ports import Clock, GangBackend, HoldsVolumes
from rerail.plugins.gang.volumes import LIST_EVERY_S, READ_ATTACHMENTS, READ_CLAIMS, Volumes
from rerail.plugins.gang.watch import Watch
from rerail.plugins.kube.api import KubeApi, Patience
from rerail.plugins.kube.rights import rules
from rerail.policies.errors import TransientError
from rerail.policies.supervisor.observations import GangView
from rerail.policies.supervisor.state import AttemptRecord, GangSpec, RunState
from rerail.policies.workloads.reading import read_workload

TEAM = "team"


@dataclass
class World:
    """The claim ``data`` on volume ``pv-1``, and what nodes say."""

    server: Any
    kube: KubeApi
    at_s: float = 1000.0
    ready: dict[str, bool] = field(default_factory=lambda: {"n1": True, "n2": True})
    said: list[str] = field(default_factory=list)

    def volumes(self, *claims: str) -> Volumes:
        self.kube.clock = lambda: self.at_s
        return Volumes(self.kube, claims or ("data",), self.ready.get, self.said.append)

    def claim(self, *modes: str, name: str = "data", volume: str = "pv-1") -> None:
        spec = {"volumeName": volume} if volume else {}
        self.server.put("persistentvolumeclaims", {"metadata": {"name": name, "namespace": TEAM}, "spec": spec})
        if volume:
            self.server.put(
                "persistentvolumes", {"metadata": {"name": volume}, "spec": {"accessModes": modes or ["ReadWriteOnce"]}}
            )

    def attach(self, node: str, volume: str = "pv-1", *, attached: bool = True) -> None:
        spec = {"attacher": "csi.test", "nodeName": node, "source": {"persistentVolumeName": volume}}
        name = f"csi-{node}-{volume}"
        self.server.put(
            "volumeattachments", {"metadata": {"name": name}, "spec": spec, "status": {"attached": attached}}
        )

    def detach(self, node: str, volume: str = "pv-1") -> None:
        self.server.remove("volumeattachments", "", f"csi-{node}-{volume}")


@pytest.fixture
def world(cluster_api, tmp_path, monkeypatch) -> Iterator[World]:
    fake = sys.modules["rerail_test_fake_api"]
    for plural, group, kind in (
        ("persistentvolumeclaims", "", "PersistentVolumeClaim"),
        ("persistentvolumes", "", "PersistentVolume"),
        ("volumeattachments", "storage.k8s.io", "VolumeAttachment"),
    ):
        monkeypatch.setitem(fake.KNOWN, plural, (group, kind))
    path = tmp_path / "kubeconfig"
    path.write_text(fake.kubeconfig(cluster_api.url))
    patience = Patience(request_s=20.0, total_s=0.2, first_pause_s=0.01, longest_pause_s=0.05)
    kube = KubeApi.connect(path, namespace=TEAM, patience=patience)
    yield World(cluster_api, kube)
    kube.close()


@pytest.mark.parametrize("mode", ["ReadWriteOnce", "ReadWriteOncePod"])
def test_a_volume_at_an_excluded_node_holds_until_it_is_detached(world, mode):
    world.claim(mode)
    world.attach("n1")
    volumes = world.volumes()
    held = volumes.why_hold({"n1"})
    assert held == ("claim data (volume pv-1) is still attached to node n1, which this run keeps away from")
    world.detach("n1")
    world.at_s += LIST_EVERY_S
    assert volumes.why_hold({"n1"}) == ""


def test_a_volume_at_a_node_that_does_not_report_holds_and_says_the_way_out(world):
    world.claim()
    world.attach("n1")
    world.ready["n1"] = False
    held = world.volumes().why_hold(())
    assert "attached to node n1, which does not report" in held
    assert "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute" in held


@pytest.mark.parametrize(
    "change",
    [
        lambda world: world.ready.update(n1=True),
        lambda world: world.ready.clear(),  # nobody tells
        lambda world: world.attach("n1", attached=False),
        lambda world: (world.detach("n1"), world.attach("n1", "pv-of-others")),
        lambda world: world.claim("ReadWriteOnce", "ReadWriteMany"),
        lambda world: world.claim("ReadOnlyMany"),
        lambda world: world.claim(volume=""),
        lambda world: world.server.remove("persistentvolumeclaims", TEAM, "data"),
        lambda world: world.server.remove("persistentvolumes", "", "pv-1"),
    ],
)
def test_what_is_no_reason_to_wait(world, change):
    world.claim()
    world.attach("n1")
    world.ready["n1"] = False
    assert world.volumes().why_hold({"n2"}), "the reason is there"
    change(world)
    assert world.volumes().why_hold({"n2"}) == ""
    assert world.said == []


def test_looking_costs_two_requests_per_claim_once_and_one_list_every_few_seconds(world):
    world.claim()
    world.claim("ReadWriteMany", name="shared", volume="pv-2")
    world.attach("n2")
    volumes = world.volumes("data", "shared")
    for _ in range(5):
        assert volumes.why_hold({"n2"})
    assert [path.rsplit("/", 1)[1].split("?")[0] for _, path in world.server.requests] == [
        "data",
        "pv-1",
        "shared",
        "pv-2",
        "volumeattachments",
    ]
    world.at_s += LIST_EVERY_S
    assert volumes.why_hold({"n2"})
    assert world.server.asked("GET", "volumeattachments") == 2
    volumes = world.volumes("shared")
    assert volumes.why_hold({"n2"}) == ""
    assert world.server.asked("GET", "volumeattachments") == 2, "nothing to look for"


def test_a_claim_that_is_bound_later_is_found(world):
    world.claim(volume="")
    volumes = world.volumes()
    assert volumes.why_hold({"n1"}) == ""
    world.claim()
    world.attach("n1")
    assert "attached to node n1" in volumes.why_hold({"n1"})


@pytest.mark.parametrize(
    ("verb", "plural"),
    [("get", "persistentvolumeclaims"), ("get", "persistentvolumes"), ("list", "volumeattachments")],
)
def test_missing_rights_are_told_once_and_hold_nothing(world, verb, plural):
    world.claim()
    world.attach("n1")
    world.server.deny(verb, plural)
    volumes = world.volumes()
    assert [volumes.why_hold({"n1"}) for _ in range(3)] == ["", "", ""]
    assert len(world.said) == 1
    assert plural in world.said[0]
    assert "does not wait until its volumes are detached" in world.said[0]


def test_no_answer_is_no_permission(world):
    world.claim()
    world.server.fail("GET", "/volumeattachments", 500, times=99)
    with pytest.raises(TransientError):
        Volumes(world.kube, ("data",), world.ready.get).why_hold({"n1"})  # on a clock that goes on


def test_the_claims_of_a_workload(vcjob):
    document = vcjob.backend.workload.document
    assert vcjob.backend.workload.claims == ()
    document["spec"]["volumes"] = [{"mountPath": "/a", "volumeClaimName": "a"}, {"mountPath": "/b"}]
    pod = document["spec"]["tasks"][0]["template"]["spec"]
    pod["volumes"] = [
        {"name": "c", "persistentVolumeClaim": {"claimName": "c"}},
        {"name": "again", "persistentVolumeClaim": {"claimName": "a"}},
        {"name": "tmp", "emptyDir": {}},
    ]
    assert read_workload(document, "job.yaml").claims == ("a", "c")
    assert isinstance(vcjob.backend, GangBackend)
    assert isinstance(vcjob.backend, HoldsVolumes)
    assert vcjob.backend.why_hold({"n1"}) == ""


# In a pass of the supervisor.


class Backend:
    """A gang that is over, and a volume that is in the way."""

    def __init__(self) -> None:
        self.excluded: list[frozenset[str]] = []
        self.hold: Callable[[], str] = lambda: "the volume is away"
        self.alive = False

    def view(self, gang: str) -> GangView:
        pods = [{"name": "p", "node": "n1", "phase": "running" if self.alive else "failed"}]
        return GangView.model_validate({"name": gang, "pods": pods})

    def why_hold(self, excluded: Any) -> str:
        self.excluded.append(excluded)
        return self.hold()


class Nodes:
    def views(self) -> None:
        return None

    def signals(self) -> tuple[()]:
        return ()


class Guard:
    def __init__(self) -> None:
        self.asked: list[int] = []

    def ask_submission(self, run: str, attempt: int, *, since_s: float | None = None) -> str:
        assert since_s is None
        assert run == "run"
        self.asked.append(attempt)
        return "the guard holds"


def state(phase: str, *, attempts: int = 1) -> RunState:
    gang = GangSpec(name="run-a1", world_size=1, pods=())
    records = tuple(
        AttemptRecord.model_validate({"n": n + 1, "gang": "run-a1", "nodes": ["n1"], "how": "fresh", "opened_at_s": 0})
        for n in range(attempts)
    )
    return RunState.model_validate(
        {"run": "run", "world_size": 1, "phase": phase, "attempt": 1, "gang": gang, "attempts": records}
        | {"quarantined": {"n1": "xid:79"}}
    )


def look(backend: Any, guard: Guard, where: RunState) -> str:
    return Watch(None, backend, Nodes(), Clock(), guard).look_without_store(where).hold  # type: ignore[arg-type]


def test_the_volume_is_asked_about_before_the_guard_gives_a_token():
    backend, guard = Backend(), Guard()
    for phase in ("ending", "waiting"):
        assert look(backend, guard, state(phase)) == "the volume is away"
    assert guard.asked == []
    assert backend.excluded == [frozenset({"n1"})] * 2
    backend.hold = lambda: ""
    assert look(backend, guard, state("waiting")) == "the guard holds"
    assert guard.asked == [2]


def test_nobody_asks_about_volumes_while_a_gang_is_needed_or_alive():
    backend, guard = Backend(), Guard()
    for phase in ("opening", "running", "saving", "preparing"):
        assert look(backend, guard, state(phase)) == ""
    backend.alive = True
    assert look(backend, guard, state("ending")) == ""
    backend.alive = False
    assert look(backend, guard, state("waiting", attempts=0)) == "the guard holds"
    assert backend.excluded == []


def test_no_answer_about_volumes_holds_in_words():
    backend, guard = Backend(), Guard()

    def fails() -> str:
        raise TransientError("the API server is away")

    backend.hold = fails
    held = look(backend, guard, state("waiting"))
    assert "a volume" in held
    assert "the API server is away" in held
    assert guard.asked == []


def test_the_rights_are_among_those_that_are_printed():
    in_namespace, *_, in_cluster = documents("vcjob", "team", account="", guard_namespace="team")
    assert rules(READ_CLAIMS)[0] in in_namespace["rules"]
    assert all(rule in in_cluster["rules"] for rule in rules(READ_ATTACHMENTS))
