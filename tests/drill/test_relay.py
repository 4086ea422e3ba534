"""The network between nodes, frozen: nothing goes through, nothing is refused, and nothing is lost."""

import socket
from collections.abc import Iterator

import pytest

from rerail.plugins.drill.relay import RELAY_HOST, Relays

WAIT_S = 0.3


@pytest.fixture
def relays() -> Iterator[Relays]:
    made = Relays()
    yield made
    made.close()


@pytest.fixture
def server() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)
        yield listening


def test_through_and_back(relays: Relays, server: socket.socket) -> None:
    port = server.getsockname()[1]
    relays.open("127.0.0.1", port)
    with socket.create_connection((RELAY_HOST, port), timeout=10) as near:
        far, _ = server.accept()
        near.sendall(b"there")
        assert far.recv(9) == b"there"
        far.sendall(b"back")
        assert near.recv(9) == b"back"
        far.close()
        assert near.recv(9) == b"", "an end goes through as well"


def test_frozen_connections_stay_open_and_lose_nothing(relays: Relays, server: socket.socket) -> None:
    port = server.getsockname()[1]
    relays.open("127.0.0.1", port)
    with socket.create_connection((RELAY_HOST, port), timeout=10) as near:
        far, _ = server.accept()
        relays.freeze()
        near.sendall(b"one")
        far.settimeout(WAIT_S)
        with pytest.raises(TimeoutError):
            far.recv(9)
        with socket.create_connection((RELAY_HOST, port), timeout=10) as late:
            server.settimeout(WAIT_S)
            with pytest.raises(TimeoutError):
                server.accept()
            relays.heal()
            server.settimeout(10)
            other, _ = server.accept()
            late.sendall(b"two")
            other.settimeout(10)
            assert other.recv(9) == b"two"
            other.close()
        far.settimeout(10)
        assert far.recv(9) == b"one"
        far.close()
