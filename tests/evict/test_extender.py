"""The extender over HTTP, with a fake API server and a real store on a folder."""

import importlib.util
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rerail.plugins.checkpoint.attempts import seal_attempt
from rerail.plugins.checkpoint.notes import read_requests
from rerail.plugins.checkpoint.posix import PosixStore
from rerail.plugins.evict import extender as module
from rerail.plugins.evict import extender_worker
from rerail.plugins.evict.extender_gangs import ASKED_ANNOTATION, CHECKPOINT_ANNOTATION
from rerail.plugins.evict.extender_service import serving
from rerail.plugins.kube.api import KubeApi, Patience
from rerail.policies import consent
from rerail.policies.documents import Seal
from rerail.policies.errors import CommitFencedError, StoreUnreachableError

TESTS = Path(__file__).parents[1]
WAIT_S = 60.0

only_ci = pytest.mark.skipif(os.environ.get("CI") != "true", reason="only where CI=true")


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
LABELS = {"rerail.dev/run": RUN, "rerail.dev/gang": f"{RUN}-a1", "rerail.dev/attempt": "1"}


@pytest.fixture
def cluster() -> Iterator[Any]:
    api, stop = fake.serve()
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
    """A run in a store on a folder, with attempt 1 started."""
    (tmp_path / "store").mkdir()
    below = PosixStore(tmp_path / "store").below(RUN)
    made = scenes.Scene(scenes.RunStore(RUN, below, below))
    made.address = (tmp_path / "store").as_uri()
    made.submit()
    made.open(1)
    return made


def pod(name: str, *, store: str = "", labels: dict[str, str] | None = None, group: str = "run-a1-uid") -> Any:
    variables = {"RERAIL_RUN": RUN, "RERAIL_STORE": store} if store else {}
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-of-{name}",
            "labels": LABELS if labels is None else labels,
            "annotations": {"scheduling.k8s.io/group-name": group},
        },
        "spec": {"containers": [{"name": "main", "env": [{"name": k, "value": v} for k, v in variables.items()]}]},
        "status": {"phase": "Running"},
    }


def task(one: Any) -> Any:
    """A pod as the scheduler's questions have it, seen on Volcano of August 2026."""
    metadata = one["metadata"]
    group = metadata["annotations"]["scheduling.k8s.io/group-name"]
    return {
        "UID": metadata["uid"],
        "Job": f"{metadata['namespace']}/{group}",
        "Name": metadata["name"],
        "Namespace": metadata["namespace"],
        "Status": 32,
        "Preemptable": True,
        "Pod": one,
    }


def question(*pods: Any, evictor: str = "urgent") -> Any:
    asking = pod(f"{evictor}-0", labels={}, group=evictor)
    return {"evictor": task(asking), "evictees": [task(one) for one in pods]}


class Asker:
    """What the scheduler does."""

    def __init__(self, server: Any, cluster: Any) -> None:
        self.port = server.server_address[1]
        self.server = server
        self.cluster = cluster

    def send(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        with closing(HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)) as connection:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def ask(self, asked: Any, verb: str = "preemptable") -> list[str]:
        """Names of the pods that may be taken."""
        code, data = self.send("POST", f"/{verb}", json.dumps(asked).encode())
        assert code == 200, data
        answer = json.loads(data)
        assert answer["status"] == 1
        return [one["Name"] for one in answer["victims"]]

    def metrics(self) -> str:
        return self.send("GET", "/metrics")[1].decode()

    def events(self) -> list[tuple[str, str]]:
        return [(one["reason"], one["involvedObject"]["name"]) for one in self.cluster.find("events")]

    def group(self, name: str = "run-a1-uid") -> dict[str, str]:
        found = [one for one in self.cluster.find("podgroups") if one["metadata"]["name"] == name]
        return dict(found[0]["metadata"].get("annotations") or {}) if found else {}


def until(what: str, condition: Callable[[], Any]) -> Any:
    end = time.monotonic() + WAIT_S
    while not (found := condition()):
        assert time.monotonic() < end, what
        time.sleep(0.02)
    return found


def put_gang(cluster: Any, scene: Any, *, group: str = "run-a1-uid", store: str | None = None, ranks: int = 2) -> Any:
    address = scene.address if store is None else store
    cluster.put("podgroups", {"metadata": {"name": group, "namespace": "team", "labels": LABELS}})
    pods = [pod(f"{group}-{rank}", store=address, group=group) for rank in range(ranks)]
    for one in pods:
        cluster.put("pods", one)
    return pods


@pytest.fixture(autouse=True)
def _shorter(monkeypatch) -> None:
    monkeypatch.setattr(consent, "SETTLE_S", 0.5)
    monkeypatch.setattr(extender_worker, "RETRY_S", 0.2)


@pytest.fixture
def start(api, cluster, scene) -> Iterator[Callable[..., Asker]]:
    """Starts extenders; every one of them ends with the test."""
    assert scene
    with ExitStack() as stack:

        def begin(**options: Any) -> Asker:
            chosen = {"hold_s": 60.0, "checkpoint_every_s": 0.3, **options}
            return Asker(stack.enter_context(serving(api, ("127.0.0.1", 0), **chosen)), cluster)

        yield begin


def test_a_gang_saves_before_it_may_be_taken(cluster, scene, start):
    ours = put_gang(cluster, scene)
    other = pod("other", labels={})
    asker = start()

    assert asker.ask(question(*ours, other)) == ["other"], "who is not ours may go at once"
    (_, request) = until("the ranks are asked", lambda: read_requests(scene.store, 1))[0]
    assert (request.then, request.within_s <= 60.0) == ("leave", True)
    scene.save(1, 10)
    time.sleep(4 * extender_worker.TICK_S)
    assert asker.ask(question(*ours)) == [], "a commit that does not answer the request"
    scene.save(1, 20, reason="request", answers=(request.id,))
    until("consent", lambda: asker.ask(question(*ours)) == ["run-a1-uid-0", "run-a1-uid-1"])
    assert asker.ask(question(ours[1]), "reclaimable") == ["run-a1-uid-1"], "nobody but who was asked about"

    until("both are told", lambda: len(asker.events()) == 2)
    assert asker.events() == [("EvictionHeld", "run-a1-uid"), ("EvictionAfterCommit", "run-a1-uid")]
    text = asker.metrics()
    assert 'rerail_extender_consents_total{by="commit"} 1' in text
    assert "rerail_extender_holds_total 1" in text
    assert "rerail_extender_gangs_held 0" in text
    assert 'rerail_extender_request_seconds_bucket{le="+Inf"}' in text


@only_ci
@pytest.mark.slow
def test_a_save_that_a_newer_attempt_left_out_is_no_commit(cluster, scene, start):
    """Whether it counts is for the start to say that is to come: nothing is told before it."""
    ours = put_gang(cluster, scene)
    asker = start()
    asker.ask(question(*ours))
    request = until("the ranks are asked", lambda: read_requests(scene.store, 1))[0][1]
    seal_attempt(scene.store, Seal(writer="supervisor", run=RUN, attempt=2, how="in-place", gang=f"{RUN}-a1"))
    with pytest.raises(CommitFencedError):
        scene.save(1, 20, reason="request", answers=(request.id,), deadline_s=0.2)
    time.sleep(0.6)
    assert asker.ask(question(*ours)) == []


@only_ci
@pytest.mark.slow
def test_gangs_in_one_question_are_judged_each_by_itself(cluster, scene, start):
    first = put_gang(cluster, scene)
    labels = {**LABELS, "rerail.dev/gang": "second-a1", "rerail.dev/run": "second"}
    second = [pod("second-0", labels=labels, group="second")]
    cluster.put("podgroups", {"metadata": {"name": "second", "namespace": "team", "labels": labels}})
    cluster.put("pods", second[0])
    asker = start()
    asker.ask(question(*first, *second))
    request = until("the ranks are asked", lambda: read_requests(scene.store, 1))[0][1]
    scene.save(1, 20, reason="request", answers=(request.id,))
    until("consent", lambda: asker.ask(question(*first, second[0])) == ["run-a1-uid-0", "run-a1-uid-1"])
    assert asker.ask(question(second[0], *first)) == ["run-a1-uid-0", "run-a1-uid-1"]


def test_at_the_deadline_it_may_be_taken_without_a_commit(cluster, scene, start):
    ours = put_gang(cluster, scene)
    at = [time.time()]
    asker = start(hold_s=10.0, now=lambda: at[0])
    assert asker.ask(question(*ours)) == []
    at[0] += 9.9
    assert asker.ask(question(*ours)) == []
    at[0] += 0.2
    until("consent", lambda: asker.ask(question(*ours)))
    until("it is told", lambda: ("EvictionAtDeadline", "run-a1-uid") in asker.events())
    assert 'rerail_extender_consents_total{by="deadline"} 1' in asker.metrics()


@pytest.mark.parametrize(
    "store",
    [
        pytest.param("file:///not/mounted/here", marks=[only_ci, pytest.mark.slow]),
        pytest.param("nonsense", marks=[only_ci, pytest.mark.slow]),
        "down",
    ],
)
def test_a_store_that_cannot_be_reached_holds_until_the_deadline_and_no_longer(cluster, scene, start, store):
    ours = put_gang(cluster, scene, store="file:///x" if store == "down" else store)

    def down(run: str, *_: Any) -> Any:
        raise StoreUnreachableError(f"{run}: no answer")

    at = [time.time()]
    asker = start(hold_s=10.0, now=lambda: at[0], **({"opened": down} if store == "down" else {}))
    assert asker.ask(question(*ours)) == []
    until("it is counted", lambda: 'troubles_total{where="store"}' in asker.metrics())
    assert asker.ask(question(*ours)) == []
    at[0] += 10.1
    until("consent", lambda: asker.ask(question(*ours)))


@only_ci
@pytest.mark.slow
def test_a_store_that_hangs_keeps_no_answer_waiting(cluster, scene, start):
    ours = put_gang(cluster, scene)
    release = threading.Event()

    def hangs(*_: Any) -> Any:
        release.wait(WAIT_S)
        raise StoreUnreachableError("at last")

    at = [time.time()]
    asker = start(hold_s=10.0, now=lambda: at[0], opened=hangs)
    try:
        begun = time.monotonic()
        assert asker.ask(question(*ours)) == []
        assert time.monotonic() - begun < WAIT_S / 2
        at[0] += 10.1
        until("consent", lambda: asker.ask(question(*ours)))
    finally:
        release.set()


def test_a_restart_keeps_the_deadline_and_asks_the_ranks_once(cluster, scene, api, start):
    ours = put_gang(cluster, scene)
    at = [time.time()]
    with serving(api, ("127.0.0.1", 0), hold_s=20.0, now=lambda: at[0]) as server:
        asker = Asker(server, cluster)
        asker.ask(question(*ours))
        note = until("it is noted", lambda: json.loads(asker.group().get(ASKED_ANNOTATION, "{}")).get("save") and 1)
        assert note
        until("the ranks are asked", lambda: read_requests(scene.store, 1))
    at[0] += 12.0
    asker = start(hold_s=20.0, now=lambda: at[0])
    assert asker.ask(question(*ours)) == []
    at[0] += 8.1
    until("consent", lambda: asker.ask(question(*ours)))
    assert len(read_requests(scene.store, 1)) == 1


@only_ci
@pytest.mark.slow
def test_a_restart_finds_the_commit_that_came_meanwhile(cluster, scene, api, start):
    ours = put_gang(cluster, scene)
    with serving(api, ("127.0.0.1", 0), hold_s=60.0) as server:
        asker = Asker(server, cluster)
        asker.ask(question(*ours))
        until("it is noted", lambda: json.loads(asker.group().get(ASKED_ANNOTATION, "{}")).get("save"))
        request = until("the ranks are asked", lambda: read_requests(scene.store, 1))[0][1]
    scene.save(1, 20, reason="request", answers=(request.id,))
    asker = start()
    until("consent", lambda: asker.ask(question(*ours)))


@only_ci
@pytest.mark.slow
def test_a_gang_that_starts_again_in_place_is_asked_again(cluster, scene, start):
    ours = put_gang(cluster, scene)
    asker = start()
    asker.ask(question(*ours))
    until("the ranks are asked", lambda: read_requests(scene.store, 1))
    scene.open(2, how="in-place", gang=f"{RUN}-a1")
    request = until("they are asked again", lambda: read_requests(scene.store, 2))[0][1]
    scene.save(2, 30, reason="request", answers=(request.id,))
    until("consent", lambda: asker.ask(question(*ours)))


def test_a_run_that_left_in_vain_saves_and_stays(cluster, scene, start):
    ours = put_gang(cluster, scene)
    asker = start()
    asker.ask(question(*ours))
    request = until("the ranks are asked", lambda: read_requests(scene.store, 1))[0][1]
    scene.save(1, 20, reason="request", answers=(request.id,))
    until("consent", lambda: asker.ask(question(*ours)))
    scene.open(2)
    for one in ours:
        cluster.remove("pods", "team", one["metadata"]["name"])
    cluster.remove("podgroups", "team", "run-a1-uid")
    labels = {**LABELS, "rerail.dev/gang": f"{RUN}-a2"}
    cluster.put("podgroups", {"metadata": {"name": "run-a2-uid", "namespace": "team", "labels": labels}})
    second = pod("second-0", store=scene.address, labels=labels, group="run-a2-uid")
    cluster.put("pods", second)
    until("the gang is known", lambda: asker.server.decider.gangs.group("team/run-a2-uid"))

    def asked() -> Any:
        asker.ask(question(second))
        return read_requests(scene.store, 2)

    assert until("the ranks are asked", asked)[0][1].then == "stay"


@only_ci
@pytest.mark.slow
def test_a_gang_that_another_one_replaced_is_not_waited_for(cluster, scene, start):
    ours = put_gang(cluster, scene)
    asker = start()
    asker.ask(question(*ours))
    until("the ranks are asked", lambda: read_requests(scene.store, 1))
    scene.open(2)
    until("consent", lambda: asker.ask(question(*ours)))


def test_a_run_that_is_complete_is_not_waited_for(cluster, scene, start):
    ours = put_gang(cluster, scene)
    scene.save(1, 100, reason="final")
    asker = start()
    asker.ask(question(*ours))
    until("consent", lambda: asker.ask(question(*ours)))


def test_a_pod_that_is_too_new_to_be_known_is_held_as_well(cluster, scene, start):
    asker = start()
    assert asker.ask(question(pod("new", group="new"))) == []
    stranger = pod("new", labels={}, group="new")
    assert asker.ask(question(stranger)) == ["new"]
    (known, _) = put_gang(cluster, scene)
    until("it is known", lambda: asker.ask(question({**known, "metadata": {**known["metadata"], "labels": {}}})) == [])
    successor = pod(known["metadata"]["name"], labels={})
    successor["metadata"]["uid"] = "another"
    assert asker.ask(question(successor)) == ["run-a1-uid-0"]


@only_ci
@pytest.mark.slow
def test_a_gang_does_not_break_itself(cluster, scene, start):
    ours = put_gang(cluster, scene)
    asker = start(hold_s=0.2)
    for _ in range(5):
        assert asker.ask(question(*ours, evictor="run-a1-uid")) == []
        time.sleep(0.1)
    assert read_requests(scene.store, 1) == []


@only_ci
@pytest.mark.slow
def test_the_annotation_of_the_last_checkpoint_follows(cluster, scene, start):
    put_gang(cluster, scene)
    asker = start()
    scene.save(1, 10, at_s=1_700_000_000.0)
    until("the first", lambda: asker.group().get(CHECKPOINT_ANNOTATION) == "2023-11-14T22:13:20Z")
    scene.save(1, 20, at_s=1_700_000_060.0)
    until("the second", lambda: asker.group().get(CHECKPOINT_ANNOTATION) == "2023-11-14T22:14:20Z")
    patches = cluster.asked("PATCH", "podgroups")
    time.sleep(1.0)
    assert cluster.asked("PATCH", "podgroups") == patches, "nothing new, nothing written"


@only_ci
@pytest.mark.slow
def test_an_api_server_that_refuses_words_keeps_no_save_from_being_asked(cluster, scene, start):
    ours = put_gang(cluster, scene)
    asker = start()
    cluster.fail("POST", "/events", 503, times=2)
    cluster.deny("patch", "podgroups")
    asker.ask(question(*ours))
    until("the ranks are asked", lambda: read_requests(scene.store, 1))
    until("the event comes in the end", lambda: ("EvictionHeld", "run-a1-uid") in asker.events())


def test_what_is_no_question_is_refused(start):
    asker = start()
    for body in (b"", b"{", b"3", b"[" * 100_000, b'{"evictor": 3}', b'{"evictor": {}, "evictees": {"a": 1}}'):
        assert asker.send("POST", "/preemptable", body)[0] == 400, body[:20]
    nested = b'{"evictor": {}, "evictees": [{"Pod": {"metadata": 3}}]}'
    assert asker.send("POST", "/preemptable", nested)[0] == 400
    assert asker.ask({"evictor": {"Job": "x"}, "evictees": None}) == []
    assert asker.send("POST", "/elsewhere", b"{}")[0] == 404
    assert asker.send("GET", "/preemptable")[0] == 404
    assert asker.send("PUT", "/preemptable", b"{}")[0] == 501
    assert asker.send("GET", "/healthz") == (200, b"ok\n")


def raw(asker: Asker, data: bytes) -> bytes:
    with closing(socket.create_connection(("127.0.0.1", asker.port), timeout=WAIT_S)) as connection:
        connection.sendall(data)
        return connection.recv(100)


def test_a_huge_question_is_not_read(start):
    asker = start()
    for length in (b"99999999999", b"9" * 300):
        assert b" 413 " in raw(asker, b"POST /preemptable HTTP/1.1\r\nContent-Length: " + length + b"\r\n\r\n")
    for length in (b"-1", b"x", b""):
        assert b" 411 " in raw(asker, b"POST /preemptable HTTP/1.1\r\nContent-Length: " + length + b"\r\n\r\n")
    chunked = b"POST /preemptable HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert b" 411 " in raw(asker, chunked)


@only_ci
@pytest.mark.slow
def test_slow_clients_end_and_leave_room_for_others(cluster, scene, start, monkeypatch):
    ours = put_gang(cluster, scene)
    monkeypatch.setattr(module, "LONGEST_S", 3.0)
    asker = start()
    with closing(socket.create_connection(("127.0.0.1", asker.port), timeout=WAIT_S)) as slow:
        slow.sendall(b"POST /preemptable HTTP/1.1\r\nContent-Length: 100\r\n\r\n")
        begun = time.monotonic()
        ended = False
        while not ended and time.monotonic() - begun < WAIT_S:
            try:
                slow.sendall(b" ")
            except OSError:
                ended = True
            assert asker.ask(question(*ours)) == []
            time.sleep(0.05)
        assert ended, "one byte now and then does not keep a connection"
        assert time.monotonic() - begun < WAIT_S / 2


@only_ci
@pytest.mark.slow
def test_too_many_at_once_are_turned_away_and_come_in_later(cluster, scene, start, monkeypatch):
    ours = put_gang(cluster, scene)
    monkeypatch.setattr(module, "MOST_AT_ONCE", 2)
    asker = start()
    open_ones = [socket.create_connection(("127.0.0.1", asker.port)) for _ in range(2)]
    until("they are served", lambda: asker.server._open and len(asker.server._open) == 2)
    with pytest.raises((ConnectionError, HTTPException)):
        asker.send("GET", "/healthz")
    for one in open_ones:
        one.close()
    until("there is room", lambda: not asker.server._open)
    assert asker.ask(question(*ours)) == []


def test_an_answer_too_long_for_the_scheduler_names_fewer_victims(monkeypatch):
    monkeypatch.setattr(module, "ANSWER_BYTES", 1000)
    answer = {"status": 1, "victims": [{"UID": str(number), "Pod": "x" * 100} for number in range(50)]}
    found = json.loads(module.encode(answer))
    assert 0 < len(found["victims"]) < 10


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_work_that_breaks_is_found_out(start, monkeypatch):
    asker = start()
    assert not asker.server.broken()

    def mistake(_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(extender_worker.Worker, "advance", mistake)
    until("it is seen", asker.server.broken)


def test_health_says_when_nothing_is_known(cluster, start):
    cluster.deny("list", "pods")
    asker = start()
    code, text = asker.send("GET", "/healthz")
    assert code == 503
    assert b"pods" in text


@only_ci
@pytest.mark.slow
def test_answers_come_from_memory(cluster, scene, start):
    ours = put_gang(cluster, scene, ranks=8)
    asker = start(checkpoint_every_s=60.0)
    for one in ours:
        one["spec"]["containers"][0]["env"] += [{"name": f"V{n}", "value": "x" * 100} for n in range(50)]
    asked = question(*ours)
    asker.ask(asked)
    until("the event is written", asker.events)
    requests = len(cluster.requests)
    took = []
    for _ in range(100):
        begun = time.monotonic()
        asker.ask(asked)
        took.append(time.monotonic() - begun)
    assert len(cluster.requests) - requests < 20, "no question asks the API server"
    assert sorted(took)[50] < 0.25, took


def test_the_command_prints_and_refuses(run_rerail):
    import yaml

    kinds = [one["kind"] for one in yaml.safe_load_all(run_rerail("serve", "extender", "--print", "manifests"))]
    assert kinds == [
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Deployment",
        "Service",
        "NetworkPolicy",
    ]
    assert "give HOST:PORT" in run_rerail("serve", "extender", "--listen", "8765", code=2)
    assert "--hold-s" in run_rerail("serve", "extender", "--hold-s", "0", code=2)


@pytest.fixture
def run_rerail(capsys) -> Callable[..., str]:
    from rerail.plugins.cli.main import main

    def run(*arguments: str, code: int = 0) -> str:
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        assert ended.value.code == code
        captured = capsys.readouterr()
        return str(captured.out + captured.err)

    return run
