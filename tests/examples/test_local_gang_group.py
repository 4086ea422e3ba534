"""The process group: the same bits every time, and no hang when a rank dies."""

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pytest

from rerail.examples.local_gang.allreduce import Group


def together(work: Callable[[int], Any], world_size: int) -> list[Any]:
    with ThreadPoolExecutor(world_size) as pool:
        return list(pool.map(work, range(world_size)))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_sum_is_in_the_order_of_ranks_on_every_rank(world_size: int, free_port: Callable[[], int]) -> None:
    address = ("127.0.0.1", free_port())
    arrays = [np.random.default_rng(rank).standard_normal(10_000).astype(np.float32) for rank in range(world_size)]
    expected = arrays[0].copy()
    for array in arrays[1:]:
        expected += array

    def work(rank: int) -> list[tuple[bytes, float, int]]:
        found = []
        with Group(rank, world_size, address=address) as group:
            for turn in range(5):
                time.sleep(0.002 * ((rank * 7 + turn * 3) % 5))  # arrivals in other orders
                total, number, flag = group.all_reduce(arrays[rank], 0.1 * rank, flag=rank * turn)
                found.append((total.tobytes(), number, flag))
        return found

    number = 0.0
    for rank in range(1, world_size):
        number += 0.1 * rank
    for found in together(work, world_size):
        assert found == [(expected.tobytes(), number, (world_size - 1) * turn) for turn in range(5)]


def test_half_precision_is_added_in_single_and_overflow_arrives_everywhere(free_port: Callable[[], int]) -> None:
    address = ("127.0.0.1", free_port())
    halves = [np.array([60000, np.inf, -np.inf], np.float16), np.array([60000, -np.inf, 1], np.float16)]

    def work(rank: int) -> np.ndarray:
        with Group(rank, 2, address=address) as group:
            return group.all_reduce(halves[rank]).total

    for total in together(work, 2):
        assert total[0] == 120000
        assert np.isnan(total[1])
        assert total[2] == -np.inf


def test_gather_and_barrier_keep_the_order_of_ranks(free_port: Callable[[], int]) -> None:
    address = ("127.0.0.1", free_port())
    payloads = [b"", b"one", b"2" * 300_000, b"\0"]

    def work(rank: int) -> list[bytes]:
        with Group(rank, 4, address=address) as group:
            group.barrier()
            found = group.all_gather(payloads[rank])
            group.barrier()
            return found

    assert together(work, 4) == [payloads] * 4


def test_alone_needs_no_connection() -> None:
    with Group.from_env({}) as group:
        assert group.all_gather(b"x") == [b"x"]
        assert group.all_reduce(np.ones(2, np.float32), 3.0, flag=2).flag == 2


SURVIVOR = """
import sys
import numpy as np
from rerail.examples.local_gang.allreduce import Group
with Group.from_env() as group:
    print("met", flush=True)
    try:
        while True:
            group.all_reduce(np.ones(50_000, np.float32))
    except ConnectionError as error:
        print("lost:", error, flush=True)
        sys.exit(7)
"""
STOPS = """
import time
from rerail.examples.local_gang.allreduce import Group
with Group.from_env() as group:
    print("met", flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("victim", [0, 1, 3])
@pytest.mark.parametrize("victim_code", [SURVIVOR, STOPS], ids=["reducing", "elsewhere"])
def test_death_of_any_rank_ends_all_others_at_once(
    victim: int, victim_code: str, gangs: Any, until: Callable[..., None]
) -> None:
    code = [SURVIVOR] * 4
    code[victim] = victim_code
    gang = gangs.start(code=code)
    until(lambda: all("met" in log.read_text() for log in gang.logs), "all ranks met")
    gang.kill(victim)
    codes = gang.wait(60)  # for ever, if they did not notice
    assert [code for rank, code in enumerate(codes) if rank != victim] == [7, 7, 7], gang.output()


def test_death_is_seen_while_another_rank_is_still_awaited(gangs: Any, until: Callable[..., None]) -> None:
    gang = gangs.start(code=[SURVIVOR, STOPS, SURVIVOR, SURVIVOR])  # rank 1 never comes to the sum
    until(lambda: all("met" in log.read_text() for log in gang.logs), "all ranks met")
    gang.kill(3)
    until(lambda: all(gang.processes[rank].poll() == 7 for rank in (0, 2)), "ranks 0 and 2 noticed", deadline_s=60)


def test_zombie_of_an_older_start_is_not_let_in(free_port: Callable[[], int]) -> None:
    address = ("127.0.0.1", free_port())
    refused: list[str] = []

    def zombie() -> None:
        end = time.monotonic() + 60
        while not any("rendezvous 'old'" in why for why in refused) and time.monotonic() < end:
            try:
                Group(1, 2, address=address, rendezvous="old", deadline_s=0.5).close()
            except ConnectionError as error:
                refused.append(str(error))

    thread = threading.Thread(target=zombie)
    thread.start()

    def work(rank: int) -> list[bytes]:
        if rank:
            thread.join()
        with Group(rank, 2, address=address, rendezvous="new") as group:
            return group.all_gather(b"%d" % rank)

    assert together(work, 2) == [[b"0", b"1"]] * 2
    assert "rendezvous 'old'" in refused[-1]


@pytest.mark.parametrize("noise", [b"", b"GET / HTTP/1.1\r\n\r\n", b"[1]\n", b'{"rank": "1"}\n', b"x" * 9000])
def test_stranger_at_the_port_is_turned_away(
    noise: bytes, free_port: Callable[[], int], until: Callable[..., None]
) -> None:
    address = ("127.0.0.1", free_port())

    def knock() -> bool:
        try:
            with socket.create_connection(address, timeout=5) as stranger:
                stranger.sendall(noise)
                stranger.shutdown(socket.SHUT_WR)
                return stranger.recv(1) == b""
        except (ConnectionRefusedError, TimeoutError):
            return False
        except OSError:  # reset while it still spoke, in any of the ways that the kernel tells it
            return True

    def work(rank: int) -> list[bytes]:
        if rank:
            until(knock, "the stranger was turned away")
        with Group(rank, 2, address=address) as group:
            return group.all_gather(b"%d" % rank)

    assert together(work, 2) == [[b"0", b"1"]] * 2


def test_missing_rank_is_named(free_port: Callable[[], int]) -> None:
    with pytest.raises(ConnectionError, match=r"ranks \[1, 2\] did not come"):
        Group(0, 3, address=("127.0.0.1", free_port()), deadline_s=0.2)


def test_ranks_in_different_operations_are_told(free_port: Callable[[], int]) -> None:
    address = ("127.0.0.1", free_port())

    def work(rank: int) -> str:
        with Group(rank, 2, address=address) as group:
            operation = partial(group.all_gather, b"") if rank else partial(group.all_reduce, np.ones(3, np.float32))
            with pytest.raises(ConnectionError) as caught:
                operation()
        return str(caught.value)

    assert "rank 1 is in" in together(work, 2)[0]
