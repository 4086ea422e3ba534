"""One contract, both backends."""

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest

from rerail.plugins.checkpoint.store import Created, Entry, Exists, Store, Uploaded, all_entries
from rerail.policies.errors import DamagedError, NotFoundError, RefusedError, UsageError

MIB = 1 << 20


def digest_of(data) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def test_it_is_a_store(store):
    assert isinstance(store, Store)


def test_create_then_get(store):
    assert store.create("commits/a.json", b"one") == Created()
    assert store.get("commits/a.json") == b"one"


def test_a_second_create_learns_what_is_there_and_changes_nothing(store):
    store.create("a.json", b"one")
    assert store.create("a.json", b"two") == Exists(b"one")
    assert store.get("a.json") == b"one"


def test_own_bytes_count_as_created(store):
    store.create("a.json", b"one")
    assert store.create("a.json", b"one") == Created()


def test_exactly_one_of_eight_threads_creates(store):
    for round_ in range(5):
        barrier = Barrier(8)

        def race(number, key=f"commits/{round_}.json", barrier=barrier):
            barrier.wait()
            return store.create(key, b"%d" % number)

        with ThreadPoolExecutor(8) as pool:
            outcomes = list(pool.map(race, range(8)))
        winners = [number for number, outcome in enumerate(outcomes) if outcome == Created()]
        assert len(winners) == 1
        won = b"%d" % winners[0]
        assert [outcome for outcome in outcomes if outcome != Created()] == [Exists(won)] * 7
        assert store.get(f"commits/{round_}.json") == won


def test_get_of_nothing_names_the_key(store):
    with pytest.raises(NotFoundError, match="nothing-here"):
        store.get("commits/nothing-here.json")


def test_put_overwrites(store):
    store.put("heartbeat.json", b"1")
    store.put("heartbeat.json", b"22")
    assert store.get("heartbeat.json") == b"22"


def test_empty_prefix_is_an_empty_page(store):
    page = store.page("commits/")
    assert (page.entries, page.next_after) == ((), None)


KEYS = [
    "a",
    "b/1",
    "b/10",
    "b/2",
    "b/c/d",
    "commits/000.2.json",
    "commits/001.json",
    "commits/ü.json",
    "commits/中.json",
]


def fill(store, keys=KEYS):
    for key in reversed(keys):
        store.create(key, key.encode())


def test_pages_are_in_order_and_end(store):
    fill(store)
    assert [entry.key for entry in all_entries(store, "")] == KEYS
    first = store.page("", limit=2)
    assert first.entries == (Entry("a", 1), Entry("b/1", 3))
    seen, after = [], ""
    while True:
        page = store.page("", start_after=after, limit=2)
        seen += [entry.key for entry in page.entries]
        if page.next_after is None:
            break
        after = page.next_after
    assert seen == KEYS


def test_a_page_that_holds_the_last_key_says_so(store):
    fill(store, ["c/1", "c/2"])
    assert store.page("c/", limit=2).next_after is None
    assert store.page("c/", limit=1).next_after == "c/1"


@pytest.mark.parametrize("prefix", ["b/", "b/1", "b/c", "commits/", "comm", "nothing/", "b/c/d", "a/"])
def test_prefix_is_of_text_not_of_folders(store, prefix):
    fill(store)
    assert [entry.key for entry in all_entries(store, prefix)] == [key for key in KEYS if key.startswith(prefix)]


@pytest.mark.parametrize("after", ["b/", "b/1", "b/10", "b/c/d", "b/zz", "commits/", "commits/000", "zz"])
def test_start_after_any_text(store, after):
    fill(store)
    assert [entry.key for entry in store.page("", start_after=after).entries] == [key for key in KEYS if key > after]


def test_one_page_is_one_request_and_views_share_the_count(store):
    view = store.below("run-1")
    view.create("commits/a.json", b"x")
    before = store.requests
    view.page("commits/", limit=4)
    assert store.requests == view.requests == before + 1


def test_below_is_the_same_storage(store):
    store.below("run-1").create("run.json", b"x")
    assert store.get("run-1/run.json") == b"x"
    assert [entry.key for entry in store.below("run-1").page("").entries] == ["run.json"]
    assert store.below("run-1").url == f"{store.url}/run-1"


@pytest.mark.parametrize("size", [1, 1000, MIB, 18 * MIB + 12345])
def test_upload_and_download_measure_on_the_way(store, size):
    data = os.urandom(size)
    third = size // 3
    pieces = (data[:third], bytearray(data[third : 2 * third]), memoryview(data)[2 * third :])
    assert store.upload("shards/1.2.abcdef12/w.bin", pieces, size=size) == Uploaded(size, digest_of(data))
    assert store.page("shards/").entries == (Entry("shards/1.2.abcdef12/w.bin", size),)
    into = bytearray(size)
    assert store.download("shards/1.2.abcdef12/w.bin", memoryview(into)) == digest_of(data)
    assert into == data


def test_upload_of_many_odd_pieces_made_on_the_fly(store):
    size = 18 * MIB
    data = os.urandom(size)
    step = 1_234_567
    found = store.upload("shards/w", (data[at : at + step] for at in range(0, size, step)), size=size)
    assert found.digest == digest_of(data)
    into = bytearray(size)
    store.download("shards/w", memoryview(into))
    assert into == data


@pytest.mark.parametrize("size", [10, 18 * MIB])
@pytest.mark.parametrize("off", [-1, 1])
def test_upload_of_a_wrong_size_leaves_nothing(store, size, off):
    with pytest.raises(UsageError, match=str(size + off)):
        store.upload("shards/w", [bytes(size)], size=size + off)
    assert store.page("").entries == ()


@pytest.mark.parametrize("size", [10, 18 * MIB])
@pytest.mark.parametrize("off", [-1, 1])
def test_download_of_a_wrong_size_is_damage(store, size, off):
    store.upload("shards/w", [bytes(size)], size=size)
    with pytest.raises(DamagedError, match="shards/w"):
        store.download("shards/w", memoryview(bytearray(size + off)))


def test_download_of_nothing(store):
    with pytest.raises(NotFoundError, match="shards/w"):
        store.download("shards/w", memoryview(bytearray(18 * MIB)))


def test_delete_is_idempotent_and_of_many(store):
    keys = tuple(f"shards/1.2.abcdef12/{number:04d}" for number in range(30))
    for key in keys:
        store.put(key, b"x")
    store.create("shards/other", b"x")
    store.delete((*keys, "shards/never"))
    store.delete(keys)
    assert [entry.key for entry in all_entries(store, "")] == ["shards/other"]


HOSTILE = [
    "../x",
    "a/../x",
    "/etc/passwd",
    "a//b",
    "a\\b",
    "a/./b",
    "a\nb",
    "a\x00b",
    "",
    "a/",
    "..",
    ".rerail-x/y",
    "a\x7f",
]


@pytest.mark.parametrize("key", HOSTILE)
def test_hostile_keys_are_refused(store, key):
    into = memoryview(bytearray(1))
    for use in (
        lambda: store.create(key, b"x"),
        lambda: store.put(key, b"x"),
        lambda: store.get(key),
        lambda: store.upload(key, [b"x"], size=1),
        lambda: store.download(key, into),
        lambda: store.delete((key,)),
        lambda: store.below(key.rstrip("/")).get(key),
    ):
        with pytest.raises(RefusedError, match="refused"):
            use()


def test_keys_that_are_no_text_are_refused(store):
    with pytest.raises(RefusedError):
        store.create("a\udc80", b"x")


def test_prove_passes_once_and_leaves_nothing(store):
    store.prove()
    after_first = store.requests
    store.below("run-1").prove()
    assert store.requests == after_first
    assert list(all_entries(store, "")) == []
    assert store.create("a", b"x") == Created()
