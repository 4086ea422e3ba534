"""A cache that is as fresh as its watch, and says so when it is not."""

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rerail.plugins.kube import cache as module
from rerail.plugins.kube.cache import Cache
from rerail.plugins.kube.resources import NODES
from rerail.policies.errors import ClusterUnreachableError, ForbiddenError

DEADLINE_S = 20.0


def until(test: Callable[[], Any]) -> Any:
    end = time.monotonic() + DEADLINE_S
    while not (found := test()):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


def node(name: str, **labels: str) -> dict[str, Any]:
    return {"kind": "Node", "metadata": {"name": name, "labels": labels}}


@pytest.fixture
def cache(kube) -> Iterator[Callable[..., Cache[str]]]:
    running: list[Cache[str]] = []

    def make(**options: Any) -> Cache[str]:
        running.append(Cache(kube, NODES, keep=lambda one: str(one["metadata"]["labels"]), **options))
        return running[-1]

    yield make
    for one in running:
        one.stop()


def raised(cache: Cache[str], *more: type[Exception]) -> str:
    try:
        cache.values()
    except (ClusterUnreachableError, *more) as error:
        return str(error)
    return ""


def test_it_follows_changes_and_deletions(fake_api, cache):
    fake_api.put("nodes", node("n1", a="1"))
    seen: list[tuple[str, str]] = []
    kept = cache(on_change=lambda change, one: seen.append((change, one["metadata"]["name"])))
    assert kept.values() == ("{'a': '1'}",)
    assert kept.get("n1") == "{'a': '1'}"
    fake_api.put("nodes", node("n1", a="2"))
    until(lambda: kept.values() == ("{'a': '2'}",))
    fake_api.remove("nodes", "", "n1")
    until(lambda: kept.values() == ())
    until(lambda: len(seen) == 3)
    assert seen == [("added", "n1"), ("modified", "n1"), ("deleted", "n1")]
    assert fake_api.asked("GET", "/nodes?limit") == 1


def test_a_write_of_ours_is_seen_at_once_and_older_events_do_not_hide_it(fake_api, cache, kube):
    fake_api.put("nodes", node("n1", a="1"))
    hold = threading.Event()
    shown: list[str | None] = []

    def look(_change, one):
        if one["metadata"]["labels"] == {"a": "2"}:
            hold.wait(DEADLINE_S)
        shown.append(kept.get("n1"))

    kept = cache(on_change=look)
    kept.values()
    fake_api.put("nodes", node("n1", a="2"))
    until(lambda: kept.get("n1") == "{'a': '2'}")
    fake_api.put("nodes", node("n1", a="3"))
    kept.take(kube.patch(NODES, "n1", {"metadata": {"labels": {"a": "4"}}}))
    assert kept.get("n1") == "{'a': '4'}"
    hold.set()  # now the event of 3 is read, and must not show
    fake_api.put("nodes", node("n2"))
    until(lambda: kept.get("n2") is not None)
    assert shown[1:4] == ["{'a': '4'}"] * 3, "after the events of 2, 3 and 4"
    fake_api.put("nodes", node("n1", a="5"))
    until(lambda: kept.get("n1") == "{'a': '5'}")


def test_an_api_server_that_is_gone_makes_it_too_old_and_it_recovers(fake_api, cache):
    fake_api.put("nodes", node("n1", a="1"))
    kept = cache(stale_s=0.2)
    kept.values()
    fake_api.fail("GET", "/nodes", 503, times=10**6)
    fake_api.end_streams()
    assert "older than 0.2 s" in until(lambda: raised(kept))
    fake_api.faults.clear()
    until(lambda: not raised(kept))
    fake_api.put("nodes", node("n1", a="2"))
    until(lambda: kept.values() == ("{'a': '2'}",))


def test_a_stream_that_ended_and_opened_again_in_silence_is_fresh(fake_api, cache):
    fake_api.bookmark_s = 30.0
    fake_api.put("nodes", node("n1"))
    kept = cache(stale_s=0.3)
    kept.values()
    fake_api.put("nodes", node("n2"))
    until(lambda: kept.get("n2"))  # the stream is open
    fake_api.fail("GET", "watch=true", 503, times=1)
    fake_api.end_streams()
    until(lambda: fake_api.asked("GET", "watch=true") == 3 and kept._watch.trouble is None)
    end = time.monotonic() + 0.8
    while time.monotonic() < end:
        assert not raised(kept)
        time.sleep(0.02)


def test_before_the_first_list_there_is_no_answer(fake_api, cache):
    fake_api.fail("GET", "/nodes", 503, times=10**6)
    assert "not listed within 0.2 s" in raised(cache(first_s=0.2))


def test_a_refusal_after_a_good_beginning_is_believed_only_when_it_lasts(fake_api, cache, kube, monkeypatch):
    ahead = [0.0]
    monkeypatch.setattr(kube, "clock", lambda: time.monotonic() + ahead[0])
    monkeypatch.setattr(module, "_AGAIN_S", 0.05)
    fake_api.put("nodes", node("n1", a="1"))
    kept = cache()
    kept.values()
    fake_api.fail("GET", "/nodes", 403, times=10**6)
    fake_api.end_streams()
    assert "are not told now" in until(lambda: raised(kept))
    ahead[0] = 301.0
    with pytest.raises(ForbiddenError):
        kept.values()
    fake_api.faults.clear()
    until(lambda: not raised(kept, ForbiddenError))


def test_a_refusal_is_told_and_tried_again_later(fake_api, cache):
    fake_api.deny("list", "nodes")
    kept = cache(again_s=0.05)
    with pytest.raises(ForbiddenError, match="verbs"):
        kept.values()
    fake_api.denied.clear()
    fake_api.put("nodes", node("n1"))

    def there():
        try:
            return kept.values()
        except ForbiddenError:
            return ()

    until(there)


def test_it_ends_while_it_waits(cache):
    kept = cache()
    kept.values()
    kept.stop()
    assert not [one for one in threading.enumerate() if one.name == "rerail-watch-nodes"]
    assert "was stopped" in raised(kept)
    kept.start()
    assert "was stopped" in raised(kept)
