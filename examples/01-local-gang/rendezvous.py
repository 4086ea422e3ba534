"""How the ranks of one start of the gang meet at rank 0, and who is not let in."""

import contextlib
import json
import socket
import time

Address = tuple[str, int]

_GREETING_LIMIT_BYTES = 4096
_STRANGER_TIMEOUT_S = 2.0
_RETRY_S = 0.02


def gather(address: Address, world_size: int, rendezvous: str, until: float) -> dict[int, socket.socket]:
    """Rank 0: listen until every other rank is here.

    Args:
        address: Host and port to listen at.
        world_size: Ranks of the group, rank 0 among them.
        rendezvous: Id of this start of the gang; a process with another one is a zombie or a stranger.
        until: Deadline on the monotonic clock, seconds.

    Raises:
        ConnectionError: The address stays taken, or ranks are missing at the deadline; it names them.
    """
    joined: dict[int, socket.socket] = {}
    try:
        with _listen(address, until) as listener:
            while len(joined) < world_size - 1:
                listener.settimeout(max(0.001, until - time.monotonic()))
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    missing = sorted(set(range(1, world_size)) - set(joined))
                    raise ConnectionError(f"ranks {missing} did not come to {address} in time") from None
                rank = _admit(connection, world_size, rendezvous)
                if rank is None or rank in joined or not _welcome(connection):
                    connection.close()
                else:
                    joined[rank] = connection
    except BaseException:
        for connection in joined.values():
            connection.close()
        raise
    return joined


def join(address: Address, rank: int, world_size: int, rendezvous: str, until: float) -> socket.socket:
    """Any other rank: try until rank 0 lets it in.

    Refusal is not the end: an older gang's rank 0 may still hold the port.

    Raises:
        ConnectionError: Not let in by ``until``; it tells the last reason.
    """
    greeting = json.dumps({"rendezvous": rendezvous, "world_size": world_size, "rank": rank}).encode() + b"\n"
    why = "nobody answered in time"
    while (left := until - time.monotonic()) > 0:
        connection = None
        try:
            connection = socket.create_connection(address, timeout=left)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.sendall(greeting)
            if connection.recv(1) == b"+":
                connection.settimeout(None)
                return connection
            why = f"rank 0 there does not take rank {rank} of {world_size} with rendezvous {rendezvous!r}"
        except TimeoutError:
            pass  # cut short by the deadline: the reason before says more
        except OSError as error:
            why = str(error)
        if connection is not None:
            connection.close()
        time.sleep(_RETRY_S)
    raise ConnectionError(f"rank {rank} did not get into the group at {address}: {why}")


def _listen(address: Address, until: float) -> socket.socket:
    while True:
        try:
            return socket.create_server(address, backlog=128)
        except OSError as error:
            if time.monotonic() >= until:
                raise ConnectionError(f"rank 0 cannot listen at {address}: {error}") from error
        time.sleep(_RETRY_S)


def _admit(connection: socket.socket, world_size: int, rendezvous: str) -> int | None:
    """The rank that a newcomer says it is, or None where it does not belong to this start of the gang."""
    connection.settimeout(_STRANGER_TIMEOUT_S)
    line = b""
    with contextlib.suppress(OSError):
        while not line.endswith(b"\n") and len(line) < _GREETING_LIMIT_BYTES:
            got = connection.recv(_GREETING_LIMIT_BYTES)
            if not got:
                return None
            line += got
    try:
        said = json.loads(line)
    except ValueError:
        return None
    rank = said.get("rank") if isinstance(said, dict) else None
    if type(rank) is not int or not 0 < rank < world_size:
        return None
    return rank if said == {"rendezvous": rendezvous, "world_size": world_size, "rank": rank} else None


def _welcome(connection: socket.socket) -> bool:
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.sendall(b"+")
        connection.settimeout(None)
    except OSError:
        return False
    return True
