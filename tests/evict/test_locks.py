"""Locks of gangs, with a fake API server and a real store: opened after a save, for who starves, or at a deadline."""

import importlib.util
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rerail.plugins.checkpoint.notes import read_requests
from rerail.plugins.checkpoint.posix import PosixStore
from rerail.plugins.evict import extender_worker, locks
from rerail.plugins.evict.extender_manifests import manifests
from rerail.plugins.evict.extender_service import serving
from rerail.plugins.kube.api import KubeApi, Patience
from rerail.policies.errors import ForbiddenError

TESTS = Path(__file__).parents[1]
WAIT_S = 60.0
GPU = "nvidia.com/gpu"
KEY = "volcano.sh/preemptable"
LOCK = "rerail.dev/preemption-lock"


def load(name: str, path: Path) -> ModuleType:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec
        assert spec.loader
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


fake = load("rerail_test_fake_api", TESTS / "kube" / "support" / "fake_api.py")
scenes = load("rerail_test_scenes", TESTS / "checkpoint" / "conftest.py")
RUN = scenes.RUN
GANG = f"{RUN}-a1"
LABELS = {"rerail.dev/run": RUN, "rerail.dev/gang": GANG, "rerail.dev/attempt": "1"}


@pytest.fixture(autouse=True)
def _shorter(monkeypatch) -> None:
    monkeypatch.setitem(fake.KNOWN, "priorityclasses", ("scheduling.k8s.io", "PriorityClass"))
    monkeypatch.setattr(locks, "LIVE_S", 1.0)
    monkeypatch.setattr(locks, "LOOK_S", 0.1)
    monkeypatch.setattr(extender_worker, "RETRY_S", 0.2)


@pytest.fixture
def cluster() -> Iterator[Any]:
    api, stop = fake.serve()
    for name, value in (("high", 1000), ("low", 1)):
        api.put("priorityclasses", {"metadata": {"name": name}, "value": value})
    api.put("queues", {"metadata": {"name": "q"}, "spec": {"weight": 1}, "status": {"state": "Open"}})
    yield api
    stop()


@pytest.fixture
def api(cluster, tmp_path) -> Iterator[KubeApi]:
    path = tmp_path / "kubeconfig"
    path.write_text(fake.kubeconfig(cluster.url))
    client = KubeApi.connect(path, patience=Patience(request_s=2.0, total_s=0.0))
    yield client
    client.close()


@pytest.fixture
def scene(tmp_path) -> Any:
    (tmp_path / "store").mkdir()
    below = PosixStore(tmp_path / "store").below(RUN)
    made = scenes.Scene(scenes.RunStore(RUN, below, below))
    made.address = (tmp_path / "store").as_uri()
    made.submit()
    made.open(1)
    return made


def put_gang(cluster: Any, scene: Any, *, lock: bool = True, value: str = "false") -> None:
    """A gang of two pods as the backends and Volcano make it."""
    annotations = {KEY: value, **({LOCK: "true"} if lock else {})}
    metadata = {"name": "pg", "namespace": "team", "labels": LABELS, "annotations": dict(annotations)}
    spec = {"queue": "q", "priorityClassName": "low", "minResources": {GPU: "2"}}
    cluster.put("podgroups", {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}})
    for rank in range(2):
        env = [{"name": "RERAIL_RUN", "value": RUN}, {"name": "RERAIL_STORE", "value": scene.address}]
        container = {"name": "main", "env": env, "resources": {"limits": {GPU: "1"}}}
        cluster.put(
            "pods",
            {
                "metadata": {
                    "name": f"{GANG}-{rank}",
                    "namespace": "team",
                    "labels": LABELS,
                    "annotations": {**annotations, "scheduling.k8s.io/group-name": "pg"},
                },
                "spec": {"nodeName": "n1", "containers": [container]},
                "status": {"phase": "Running"},
            },
        )


def starve(cluster: Any, *, phase: str = "Inqueue", priority: str = "high", queue: str = "q") -> None:
    """Another group that waits for room."""
    condition = {
        "type": "Unschedulable",
        "status": "True",
        "reason": "NotEnoughResources",
        "lastTransitionTime": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    spec = {"queue": queue, "priorityClassName": priority, "minMember": 2, "minResources": {GPU: "2"}}
    cluster.put(
        "podgroups",
        {
            "metadata": {"name": "urgent", "namespace": "others"},
            "spec": spec,
            "status": {"phase": phase, "conditions": [condition]},
        },
    )


def stands(cluster: Any) -> set[str]:
    """What Volcano reads: of the group and of each pod."""
    found = [*cluster.find("pods"), *(one for one in cluster.find("podgroups") if one["metadata"]["name"] == "pg")]
    return {one["metadata"]["annotations"][KEY] for one in found}


def told(cluster: Any) -> list[str]:
    return [one["reason"] for one in cluster.find("events")]


def metrics(server: Any) -> str:
    connection = HTTPConnection("127.0.0.1", server.server_address[1], timeout=WAIT_S)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def until(what: str, condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < end, what
        time.sleep(0.02)
    return found


@pytest.fixture
def start(api) -> Iterator[Callable[..., Any]]:
    with ExitStack() as stack:

        def begin(**options: Any) -> Any:
            chosen = {"hold_s": 60.0, "starve_s": 0.3, "checkpoint_every_s": 60.0, **options}
            return stack.enter_context(serving(api, ("127.0.0.1", 0), **chosen))

        yield begin


def requests(scene: Any) -> list[Any]:
    return [request for _, request in read_requests(scene.store, 1)]


def test_a_lock_opens_after_a_save_and_closes_when_nobody_starves(cluster, scene, start):
    put_gang(cluster, scene)
    server = start()
    time.sleep(0.8)
    assert requests(scene) == [], "nobody starves"
    starve(cluster)
    request = until("the ranks are asked", lambda: requests(scene))[0]
    assert request.then == "stay"
    time.sleep(0.5)
    assert stands(cluster) == {"false"}, "not before the commit"
    scene.save(1, 20, reason="request", answers=(request.id,))
    until("it opens", lambda: stands(cluster) == {"true"})
    until("it is told", lambda: "PreemptionUnlocked" in told(cluster))
    assert told(cluster) == ["EvictionHeld", "EvictionAfterCommit", "PreemptionUnlocked"]
    assert 'rerail_extender_unlocks_total{by="commit"} 1' in metrics(server)
    assert len(requests(scene)) == 1

    cluster.change("podgroups", "others", "urgent", lambda one: one["status"].update(phase="Running", conditions=[]))
    until("it closes", lambda: stands(cluster) == {"false"})
    until("it is told", lambda: told(cluster)[-1] == "PreemptionLocked")
    assert "rerail_extender_relocks_total 1" in metrics(server)


def test_at_the_deadline_it_opens_all_the_same_and_says_so(cluster, scene, start):
    put_gang(cluster, scene)
    server = start(hold_s=2.0)
    begun = time.monotonic()
    starve(cluster)
    until("it opens", lambda: stands(cluster) == {"true"})
    assert time.monotonic() - begun >= 1.0
    until("it is told", lambda: "PreemptionUnlocked" in told(cluster))
    assert "EvictionAtDeadline" in told(cluster)
    event = next(one for one in cluster.find("events") if one["reason"] == "PreemptionUnlocked")
    assert (event["type"], "the deadline, without a commit" in event["message"]) == ("Warning", True)
    assert 'rerail_extender_unlocks_total{by="deadline"} 1' in metrics(server)


@pytest.mark.parametrize("waits", [{"phase": "Pending"}, {"phase": "Running"}, {"priority": "low"}])
def test_who_could_not_take_it_anyway_opens_nothing(cluster, scene, start, waits):
    put_gang(cluster, scene)
    start(hold_s=0.5)
    starve(cluster, **waits)
    time.sleep(1.5)
    assert (stands(cluster), requests(scene)) == ({"false"}, [])


def test_a_lock_of_somebody_elses_is_left_alone(cluster, scene, start):
    put_gang(cluster, scene, lock=False)
    start(hold_s=0.5)
    starve(cluster)
    time.sleep(1.5)
    assert stands(cluster) == {"false"}


def test_without_the_option_no_lock_is_opened(cluster, scene, start):
    put_gang(cluster, scene)
    start(hold_s=0.5, starve_s=None)
    starve(cluster)
    time.sleep(1.2)
    assert (stands(cluster), requests(scene)) == ({"false"}, [])


def test_a_restart_moves_no_deadline_and_closes_nothing_that_was_opened(cluster, scene, api, start, monkeypatch):
    monkeypatch.setattr(locks, "LIVE_S", 30.0)
    ahead = [0.0]
    put_gang(cluster, scene)
    starve(cluster)
    with serving(api, ("127.0.0.1", 0), hold_s=60.0, starve_s=0.3):
        request = until("the ranks are asked", lambda: requests(scene))[0]
        scene.save(1, 20, reason="request", answers=(request.id,))
        until("it opens", lambda: stands(cluster) == {"true"})
        until("it is noted", lambda: "rerail.dev/asked-to-leave-at" in json.dumps(cluster.find("podgroups")))
    closed = [body for method, _, body in cluster.bodies if method == "PATCH" and '"false"' in json.dumps(body)]
    server = start(starve_s=0.3, now=lambda: time.time() + ahead[0])
    until("it lets again", lambda: 'kind="consent",verb="lock"' in metrics(server))
    ahead[0] = 31.0
    time.sleep(1.0)
    assert [b for m, _, b in cluster.bodies if m == "PATCH" and '"false"' in json.dumps(b)] == closed
    assert stands(cluster) == {"true"}
    assert len(requests(scene)) == 1


def test_a_lock_that_stayed_open_while_nobody_looked_is_closed(cluster, scene, start):
    put_gang(cluster, scene, value="true")
    start()
    until("it closes", lambda: stands(cluster) == {"false"})


def test_while_nobody_can_tell_who_starves_locks_stay_as_they_are(cluster, scene, start, monkeypatch):
    put_gang(cluster, scene)
    start(hold_s=0.5)
    starve(cluster)
    until("it opens", lambda: stands(cluster) == {"true"})

    def blind(*_: Any) -> None:
        raise ForbiddenError("no right to list queues")

    monkeypatch.setattr(locks.Locks, "_waiting", blind)
    time.sleep(2.0)
    assert stands(cluster) == {"true"}


def test_a_right_that_is_missing_is_said_and_what_can_be_done_is_done(cluster, scene, start):
    put_gang(cluster, scene)
    cluster.deny("patch", "pods")
    server = start(hold_s=0.5)
    starve(cluster)
    until("it is counted", lambda: 'troubles_total{where="cluster"}' in metrics(server))
    assert stands(cluster) == {"false"}
    cluster.denied.clear()
    until("it opens", lambda: stands(cluster) == {"true"})


def test_the_printed_rights_are_those_of_locks_only_where_they_are_wanted():
    def patched(starve_s: float | None) -> list[str]:
        (role,) = [one for one in manifests("x", "i", hold_s=1, starve_s=starve_s) if one["kind"] == "ClusterRole"]
        return [rule["resources"][0] for rule in role["rules"] if "patch" in rule["verbs"]]

    assert patched(None) == ["podgroups"]
    assert patched(15.0) == ["pods", "podgroups"]
