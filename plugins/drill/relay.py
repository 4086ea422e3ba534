"""TCP relays between local nodes, which a drill can freeze: connections stay open, and nothing goes through.

Ranks that are not on rank 0's node meet it at the relay's address instead of its own. Loopback has many addresses, so
both listen at one port.
"""

import contextlib
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from rerail.plugins.gang.local import LocalBackend
from rerail.policies.documents import Rendezvous
from rerail.policies.supervisor.state import GangSpec, PodSpec

RELAY_HOST = "127.0.0.2"
_TRIES = 20
_CHUNK_BYTES = 1 << 16


@dataclass
class Relays:
    """All relays of one drill; each start of the gang gets one, and all freeze and heal together."""

    _flowing: threading.Event = field(default_factory=threading.Event)
    _over: threading.Event = field(default_factory=threading.Event)
    _sockets: list[socket.socket] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._flowing.set()

    def open(self, host: str, port: int) -> None:
        """Relay what comes in at ``RELAY_HOST:port`` to ``host:port``.

        Raises:
            OSError: The port is taken at the relay's address.
        """
        listener = socket.create_server((RELAY_HOST, port), backlog=64)
        self._sockets.append(listener)
        threading.Thread(target=self._accept, args=(listener, (host, port)), daemon=True).start()

    def freeze(self) -> None:
        """From now on nothing goes through; nobody is told."""
        self._flowing.clear()

    def heal(self) -> None:
        """Let everything through, also what waited."""
        self._flowing.set()

    def close(self) -> None:
        """End all relays."""
        self._over.set()
        self._flowing.set()
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self, listener: socket.socket, target: tuple[str, int]) -> None:
        while not self._over.is_set():
            try:
                near, _ = listener.accept()
            except OSError:
                return
            self._sockets.append(near)
            threading.Thread(target=self._join, args=(near, target), daemon=True).start()

    def _join(self, near: socket.socket, target: tuple[str, int]) -> None:
        self._flowing.wait()
        try:
            far = socket.create_connection(target)
        except OSError:
            near.close()
            return
        self._sockets.append(far)
        for one in (near, far):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        back = threading.Thread(target=self._pump, args=(far, near), daemon=True)
        back.start()
        self._pump(near, far)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(_CHUNK_BYTES):
                self._flowing.wait()
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


@dataclass(slots=True)
class RelayedBackend(LocalBackend):
    """Local pods whose nodes reach each other through ``relays`` only, where there are any."""

    relays: Relays | None = None

    def __post_init__(self) -> None:
        if self.relays is not None:
            self.pod_environment = _through_relay

    def rendezvous(self, gang: GangSpec) -> Rendezvous:
        """As the port says; the relay of this start listens before anybody knows its address."""
        for _ in range(_TRIES):
            meeting = LocalBackend.rendezvous(self, gang)
            if self.relays is None:
                return meeting
            try:
                self.relays.open(meeting.host, meeting.port)
            except OSError:
                continue
            return meeting
        raise OSError(f"no port of {RELAY_HOST} was free in {_TRIES} tries")


def _through_relay(pod: PodSpec) -> Mapping[str, str]:
    return {} if pod.first_rank == 0 else {"RERAIL_MASTER_ADDR": RELAY_HOST}
