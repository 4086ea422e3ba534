"""All ranks do the same at the same step, whatever their speed; the key-value server; requests and their clocks."""

import contextlib
import random
import threading
import time

import pytest

from rerail.plugins.trainer import KeyValueAgreement, KeyValueClient, KeyValueGroup, KeyValueServer, RequestBook, Wish
from rerail.policies.errors import StoreUnreachableError, UsageError


@pytest.fixture
def server():
    with KeyValueServer() as made:
        yield made


@pytest.fixture
def client(server):
    with contextlib.ExitStack() as stack:
        yield lambda timeout_s=20.0: stack.enter_context(KeyValueClient("127.0.0.1", server.port, timeout_s=timeout_s))


@pytest.mark.parametrize("seed", range(12))
def test_ranks_of_any_speed_decide_alike(client, ranks, seed):
    """Each step has one collective; before and after it ranks take random time. Rank 2 gets SIGTERM at step 20."""
    world, steps = 4, 26
    asked = {step for step in range(2, 19) if random.Random(seed).random() < 0.3}

    def work(rank, group):
        dice = random.Random(f"{seed}.{rank}")
        agreement = KeyValueAgreement(client(), rank=rank)
        decided = {}

        def wish(step):
            if rank == 2 and step >= 20:
                return Wish.SAVE_AND_LEAVE
            return Wish.SAVE if rank == 0 and step in asked else Wish.NONE

        agreement.announce(wish(1), step=1)
        for step in range(1, steps + 1):
            time.sleep(dice.random() * 0.003)
            group.all_gather(b"gradients")
            time.sleep(dice.random() * 0.003)
            decided[step] = agreement.decided(step)
            if decided[step] == Wish.SAVE_AND_LEAVE:
                break
            agreement.announce(wish(step + 1), step=step + 1)
        return decided

    results = ranks(world, work)
    assert all(result == results[0] for result in results)
    assert {step for step, wish in results[0].items() if wish == Wish.SAVE} == asked
    left = [step for step, wish in results[0].items() if wish == Wish.SAVE_AND_LEAVE]
    assert left
    assert left[0] <= 22


def test_all_gather_over_the_server(client, ranks):
    def work(rank, _):
        with KeyValueGroup(client(), rank=rank, world_size=3) as group:
            return [group.all_gather(bytes([rank, turn, 255])) for turn in range(5)]

    expected = [[bytes([rank, turn, 255]) for rank in range(3)] for turn in range(5)]
    assert ranks(3, work) == [expected] * 3


def test_get_waits_and_gives_up(client):
    one, other, third = client(), client(timeout_s=0.1), client()
    with pytest.raises(StoreUnreachableError, match="no 'late'"):
        other.get("late")
    timer = threading.Timer(0.05, lambda: third.set("late", "x"))
    timer.start()
    assert one.get("late") == b"x"
    timer.join()
    assert one.check(["late"])
    assert not one.check(["late", "never"])


def test_a_server_that_is_gone_is_said():
    with pytest.raises(StoreUnreachableError, match="is rank 0 up"):
        KeyValueClient("127.0.0.1", 1, timeout_s=0.1)


def test_a_bad_prefix_is_refused(client):
    with pytest.raises(UsageError):
        KeyValueAgreement(client(), rank=0, name="a\nb")


def test_c3_06_a_request_in_evaluation_is_missed_with_its_phase():
    book = RequestBook()
    assert book.see("evict-1", within_s=120, then="leave", now_s=1000.0)
    assert book.wish() == Wish.SAVE_AND_LEAVE
    assert book.expire(phase="evaluation", now_s=1119.9) == ()
    missed = book.expire(phase="evaluation", now_s=1120.0)
    assert [(miss.id, miss.phase, miss.waited_s) for miss in missed] == [("evict-1", "evaluation", 120.0)]
    assert book.missed == {"evaluation": 1}
    assert book.expire(phase="evaluation", now_s=1240.0) == ()  # counted once
    assert book.waiting() == ()  # no commit claims to answer it any more


def test_time_runs_from_the_first_sight_and_a_failed_save_waits_again():
    book = RequestBook()
    assert book.see("a", within_s=10, then="stay", now_s=5.0)
    assert not book.see("a", within_s=10, then="stay", now_s=14.0)
    book.begin(("a",))
    assert book.wish() == Wish.NONE
    book.failed(("a",))
    assert book.wish() == Wish.SAVE
    book.begin(("a",))
    book.answered(("a",))
    assert book.expire(phase="training", now_s=100.0) == ()
    assert book.see("b", within_s=1, then="stay", now_s=100.0)
    assert [miss.id for miss in book.expire(phase="warm-up", now_s=101.0)] == ["b"]
    assert book.wish() == Wish.NONE
