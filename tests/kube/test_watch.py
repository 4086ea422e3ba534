"""A watch that loses nothing, whatever the server does. Each fault is made by the fake; nothing is slept for."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from rerail.plugins.kube.resources import PODS, ResourceType
from rerail.plugins.kube.watch import Watch, WatchEvent
from rerail.policies.errors import ClusterUnreachableError, ForbiddenError, NotInstalledError, RerailError

DEADLINE_S = 20.0


def until(test: Callable[[], object]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not test():
        assert time.monotonic() < end
        time.sleep(0.01)


def pod(name: str, **more: object) -> dict:
    return {"kind": "Pod", "metadata": {"name": name, "namespace": "team", **more}}


class Reader:
    """Collects events in a thread, so that a test can wait for what it expects."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.events: list[tuple[str, str]] = []
        self.error: BaseException | None = None
        self.news = threading.Condition()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            for event in self.watch:
                self._add(event)
        except RerailError as error:
            self.error = error
        with self.news:
            self.news.notify_all()

    def _add(self, event: WatchEvent) -> None:
        with self.news:
            self.events.append((event.change, (event.object.get("metadata") or {}).get("name", "")))
            self.news.notify_all()

    def wait(self, *wanted: tuple[str, str]) -> None:
        with self.news:
            came = self.news.wait_for(lambda: all(one in self.events for one in wanted), timeout=DEADLINE_S)
        assert came, f"wanted {wanted}, got {self.events}, {self.error!r}"

    def wait_for(self, most: int) -> None:
        """So many changes."""
        with self.news:
            assert self.news.wait_for(lambda: len(self.real()) >= most, timeout=DEADLINE_S), self.events

    def real(self) -> list[tuple[str, str]]:
        return [one for one in self.events if one[0] != "synced"]

    def stop(self) -> None:
        self.watch.stop()
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive(), "a watch that was stopped must end at once"


@pytest.fixture
def read(kube) -> Iterator:
    readers: list[Reader] = []

    def begin(resource: ResourceType = PODS, **options: object) -> Reader:
        readers.append(Reader(Watch(kube, resource, **options)))  # type: ignore[arg-type]
        return readers[-1]

    yield begin
    for one in readers:
        one.stop()


def test_the_state_then_synced_then_changes(read, fake_api):
    fake_api.put("pods", pod("a"))
    reader = read()
    reader.wait(("synced", ""))
    fake_api.put("pods", pod("b"))
    fake_api.put("pods", pod("b", labels={"x": "1"}))
    fake_api.remove("pods", "team", "a")
    reader.wait(("deleted", "a"))
    assert reader.events == [("added", "a"), ("synced", ""), ("added", "b"), ("modified", "b"), ("deleted", "a")]
    assert [one["metadata"]["name"] for one in reader.watch.known] == ["b"]


def test_stopping_ends_a_watch_that_waits(read):
    reader = read()
    reader.wait(("synced", ""))
    begun = time.monotonic()
    reader.stop()
    assert time.monotonic() - begun < 5


@pytest.mark.parametrize(
    "fault",
    [
        {"close": True, "after": 1},
        {"cut": True, "after": 1},
        {"garbage": True, "after": 1},
        {"error": {"kind": "Status", "code": 410, "message": "too old"}, "after": 1},
        {"error": {"kind": "Status", "code": 500, "message": "etcd"}, "after": 1},
        {"error": {"kind": "Status", "code": 504, "message": "storage is (re)initializing"}, "after": 1},
        {"gone": True},
    ],
    ids=["ends", "cut in a line", "no JSON", "410 event", "500 event", "504 event", "410 answer"],
)
def test_changes_during_a_fault_come_all_the_same_and_once(read, fake_api, fake_module, fault):
    fake_api.streams.append(fake_module.Stream(**fault))
    fake_api.put("pods", pod("a"))
    reader = read()
    reader.wait(("synced", ""))
    for name in "bcd":
        fake_api.put("pods", pod(name))
    fake_api.remove("pods", "team", "a")
    reader.wait(("added", "d"), ("deleted", "a"))
    assert sorted(reader.real()) == [("added", "a"), ("added", "b"), ("added", "c"), ("added", "d"), ("deleted", "a")]


def test_a_server_that_forgot_history_is_listed_again_and_deletions_are_found(read, fake_api, fake_module):
    fake_api.put("pods", pod("a"))
    fake_api.put("pods", pod("b"))
    fake_api.streams.append(fake_module.Stream(silent=True))
    reader = read()
    reader.wait(("synced", ""))
    fake_api.remove("pods", "team", "a")
    fake_api.change("pods", "team", "b", lambda one: one["metadata"].update(labels={"x": "1"}))
    fake_api.put("pods", pod("c"))
    fake_api.compact()
    reader.wait(("deleted", "a"), ("modified", "b"), ("added", "c"))
    assert len(reader.real()) == 5


def test_swallowed_events_are_found_by_the_next_list(read, fake_api, fake_module):
    fake_api.put("pods", pod("a"))
    fake_api.streams.append(fake_module.Stream(swallow=100))
    reader = read(relist_s=1.0)
    reader.wait(("synced", ""))
    fake_api.put("pods", pod("b"))
    fake_api.remove("pods", "team", "a")
    reader.wait(("added", "b"), ("deleted", "a"))


def test_an_object_replaced_under_its_name_is_one_deleted_and_one_added(read, fake_api):
    fake_api.put("pods", pod("a"))
    reader = read(relist_s=1.0)
    reader.wait(("synced", ""))
    with fake_api.changed:  # no list sees it half done
        fake_api.remove("pods", "team", "a", quiet=True)
        fake_api.put("pods", pod("a"), quiet=True)
    reader.wait_for(3)
    assert reader.real() == [("added", "a"), ("deleted", "a"), ("added", "a")]


def test_a_watch_goes_on_from_a_bookmark_where_history_before_it_is_gone(read, fake_api):
    reader = read()
    reader.wait(("synced", ""))
    fake_api.put("podgroups", {"metadata": {"name": "g", "namespace": "team"}})
    with fake_api.changed:
        assert fake_api.changed.wait_for(lambda: fake_api.bookmarked == fake_api.version, timeout=DEADLINE_S)
    fake_api.compact()
    fake_api.end_streams()
    fake_api.put("pods", pod("b"))
    reader.wait(("added", "b"))
    assert fake_api.asked("GET", "limit=") == 1


def test_after_a_long_outage_all_is_listed_before_changes_are_told(read, fake_api, kube, monkeypatch):
    ahead = [0.0]
    monkeypatch.setattr(kube, "clock", lambda: time.monotonic() + ahead[0])
    reader = read(relist_s=10_000.0)
    reader.wait(("synced", ""))
    fake_api.put("pods", pod("a"))
    reader.wait(("added", "a"))
    fake_api.fail("GET", "watch=true", 503, times=1_000_000)
    fake_api.end_streams()
    until(lambda: reader.watch.trouble is not None)
    ahead[0] = 9.0
    asked = fake_api.asked("GET", "watch=true")
    until(lambda: fake_api.asked("GET", "watch=true") > asked + 1)
    fake_api.faults.clear()
    fake_api.put("pods", pod("b"))
    reader.wait(("added", "b"))
    assert fake_api.asked("GET", "limit=") > 1


def test_labels_and_names_select_on_the_server(read, fake_api):
    reader = read(labels={"run": "x"}, name="a")
    reader.wait(("synced", ""))
    fake_api.put("pods", pod("b", labels={"run": "x"}))
    fake_api.put("pods", pod("a", labels={"run": "y"}))
    fake_api.remove("pods", "team", "a")
    fake_api.put("pods", pod("a", labels={"run": "x"}))
    reader.wait(("added", "a"))
    assert reader.real() == [("added", "a")]


def test_failures_are_survived_and_told(read, fake_api):
    told = []
    fake_api.fail("GET", "watch=true", 503, times=3)
    reader = read(on_trouble=told.append)
    reader.wait(("synced", ""))
    fake_api.put("pods", pod("a"))
    reader.wait(("added", "a"))
    assert len(told) == 3


def test_a_server_that_always_says_410_is_not_stormed(read, fake_api, fake_module):
    told = []
    fake_api.streams.extend(fake_module.Stream(gone=True) for _ in range(6))
    reader = read(on_trouble=lambda _: told.append(time.monotonic()))
    reader.wait(("synced", ""))
    fake_api.put("pods", pod("a"))
    reader.wait(("added", "a"))
    with reader.news:
        assert reader.news.wait_for(lambda: len(told) == 6, timeout=DEADLINE_S)
    assert told[-1] - told[0] > 0.1


def test_patience_ends(kube, fake_api):
    fake_api.fail("GET", "/pods", 503, times=10_000)
    with pytest.raises(ClusterUnreachableError, match="503"):
        list(Watch(kube, PODS, patience_s=0.5))


def test_a_watch_ends_when_its_time_is_over(kube):
    begun = time.monotonic()
    assert [event.change for event in Watch(kube, PODS, for_s=1.0)] == ["synced"]
    assert 0.9 < time.monotonic() - begun < 10


def test_what_trying_again_does_not_change_is_raised(kube, fake_api):
    fake_api.deny("watch", "pods")
    with pytest.raises(ForbiddenError, match=r'verbs: \["watch"\]'):
        list(Watch(kube, PODS))
    fake_api.uninstall("batch.volcano.sh")
    with pytest.raises(NotInstalledError):
        list(Watch(kube, ResourceType("batch.volcano.sh", "v1alpha1", "jobs", "Job", product="Volcano")))
