"""A process group over TCP: sums in the order of ranks, so that the same gradients always give the same bits.

A star: every rank sends to rank 0, which adds up in single precision from rank 0 to the last and sends the sum back.
Whoever dies closes its socket; rank 0 sees that at once, even while it waits for others, closes all of its own, and so
every rank gets a ``ConnectionError``. A rank that stops without dying makes the others wait: to notice that is not the
group's task.
"""

import os
import selectors
import socket
import struct
import time
from collections.abc import Mapping
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from rerail.examples.local_gang.model import Floats
from rerail.examples.local_gang.optim import Halves
from rerail.examples.local_gang.rendezvous import gather, join

_FRAME = struct.Struct("!4sQQqd")  # operation, its number, bytes that follow, flag, number


class Reduced(NamedTuple):
    """What all ranks get from one all-reduce.

    Attributes:
        total: Sum of the arrays, added in the order of ranks in single precision.
        number: Sum of the numbers, in the order of ranks.
        flag: The largest flag.
    """

    total: Floats
    number: float
    flag: int


class _Frame(NamedTuple):
    payload: bytearray
    flag: int
    number: float


def _receive_exactly(connection: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    view, filled = memoryview(data), 0
    while filled < size:
        count = connection.recv_into(view[filled:])
        if not count:
            raise ConnectionError("a rank of the group closed its connection")
        filled += count
    return data


class _Inbox:
    """One peer's frame, as it arrives in pieces."""

    def __init__(self, rank: int, connection: socket.socket) -> None:
        self.rank, self.connection = rank, connection
        self.begin()

    def begin(self) -> None:
        self._data, self._filled = bytearray(_FRAME.size), 0
        self._header: tuple[bytes, int, int, int, float] | None = None
        self.frame: _Frame | None = None

    def read(self, operation: bytes, count: int) -> None:
        """Take what is there; ``frame`` is set once it is whole."""
        if self.frame is not None:  # it owes nothing: readable now means closed
            if self.connection.recv(1, socket.MSG_PEEK):
                raise ConnectionError(f"rank {self.rank} is ahead of the group")
            raise ConnectionError(f"rank {self.rank} closed its connection")
        got = self.connection.recv_into(memoryview(self._data)[self._filled :])
        if not got:
            raise ConnectionError(f"rank {self.rank} closed its connection")
        self._filled += got
        if self._filled < len(self._data):
            return
        if self._header is None:
            self._header = _FRAME.unpack(self._data)
            if self._header[:2] != (operation, count):
                raise ConnectionError(f"rank {self.rank} is in {self._header[:2]}, rank 0 in {(operation, count)}")
            self._data, self._filled = bytearray(self._header[2]), 0
        if self._filled == len(self._data):
            self.frame = _Frame(self._data, self._header[3], self._header[4])


class Group:
    """The ranks of one start of the gang.

    Args:
        rank: This rank.
        world_size: Number of ranks; 1 needs no connection.
        address: Host and port where rank 0 listens.
        rendezvous: Id of this start of the gang: a process that carries another one is not let in.
        deadline_s: Seconds within which all ranks must have met.
    """

    def __init__(
        self,
        rank: int = 0,
        world_size: int = 1,
        *,
        address: tuple[str, int] = ("127.0.0.1", 29500),
        rendezvous: str = "",
        deadline_s: float = 60.0,
    ) -> None:
        self.rank, self.world_size = rank, world_size
        self._count = 0
        self._inboxes: list[_Inbox] = []
        self._root: socket.socket | None = None
        self._selector = selectors.DefaultSelector()
        until = time.monotonic() + deadline_s
        if world_size > 1 and rank:
            self._root = join(address, rank, world_size, rendezvous, until)
        elif world_size > 1:
            for peer, connection in sorted(gather(address, world_size, rendezvous, until).items()):
                inbox = _Inbox(peer, connection)
                self._inboxes.append(inbox)
                self._selector.register(connection, selectors.EVENT_READ, inbox)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] = os.environ) -> Self:
        """The group that RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and RERAIL_RENDEZVOUS describe; alone without."""
        return cls(
            int(environ.get("RANK", "0")),
            int(environ.get("WORLD_SIZE", "1")),
            address=(environ.get("MASTER_ADDR", "127.0.0.1"), int(environ.get("MASTER_PORT", "29500"))),
            rendezvous=environ.get("RERAIL_RENDEZVOUS", ""),
        )

    def all_reduce(self, array: NDArray[np.float32] | Halves, number: float = 0.0, *, flag: int = 0) -> Reduced:
        """Sum ``array`` and ``number`` over all ranks, and take the largest ``flag``, in one message.

        Raises:
            ConnectionError: A rank is gone, or is in another operation.
        """
        if self.world_size == 1:
            return Reduced(array.astype(np.float32), number, flag)
        if self.rank:
            frame = self._ask(b"sum ", array.tobytes(), flag, number)
            return Reduced(
                np.frombuffer(frame.payload, dtype=np.float32).reshape(array.shape), frame.number, frame.flag
            )
        total = array.astype(np.float32)
        for rank, frame in enumerate(self._collect(b"sum "), 1):
            if len(frame.payload) != array.nbytes:
                self._fail(f"rank {rank} sent {len(frame.payload)} bytes, rank 0 has {array.nbytes}")
            with np.errstate(invalid="ignore"):  # infinities of both signs: the caller looks for what is not finite
                total += np.frombuffer(frame.payload, dtype=array.dtype).astype(np.float32).reshape(array.shape)
            number += frame.number
            flag = max(flag, frame.flag)
        self._answer(b"sum ", total.tobytes(), flag, number)
        return Reduced(total, number, flag)

    def all_gather(self, payload: bytes) -> list[bytes]:
        """What every rank gave, by rank.

        Raises:
            ConnectionError: A rank is gone, or is in another operation.
        """
        if self.world_size == 1:
            return [payload]
        if self.rank:
            data, found = bytes(self._ask(b"all ", payload).payload), []
        else:
            found = [payload, *(bytes(frame.payload) for frame in self._collect(b"all "))]
            data = b"".join(struct.pack("!Q", len(item)) + item for item in found)
            self._answer(b"all ", data)
            return found
        at = 0
        while at < len(data):
            (size,) = struct.unpack_from("!Q", data, at)
            found.append(data[at + 8 : at + 8 + size])
            at += 8 + size
        return found

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self.all_gather(b"")

    def close(self) -> None:
        """Leave the group; the others get a ``ConnectionError`` in their next operation."""
        for inbox in self._inboxes:
            inbox.connection.close()
        self._inboxes = []
        if self._root is not None:
            self._root.close()
            self._root = None
        self._selector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _fail(self, why: str) -> None:
        self.close()
        raise ConnectionError(why)

    def _ask(self, operation: bytes, payload: bytes, flag: int = 0, number: float = 0.0) -> _Frame:
        if self._root is None:
            raise ConnectionError("the group is closed")
        self._count += 1
        try:
            self._root.sendall(_FRAME.pack(operation, self._count, len(payload), flag, number) + payload)
            header = _FRAME.unpack(_receive_exactly(self._root, _FRAME.size))
            return _Frame(_receive_exactly(self._root, header[2]), header[3], header[4])
        except OSError as error:
            self.close()
            raise ConnectionError(f"rank {self.rank} lost the group in operation {self._count}: {error}") from error

    def _collect(self, operation: bytes) -> list[_Frame]:
        if not self._inboxes:
            raise ConnectionError("the group is closed")
        self._count += 1
        for inbox in self._inboxes:
            inbox.begin()
        try:
            while any(inbox.frame is None for inbox in self._inboxes):
                for key, _ in self._selector.select():
                    key.data.read(operation, self._count)
        except OSError as error:
            self.close()
            raise ConnectionError(f"rank 0 lost the group in operation {self._count}: {error}") from error
        return [inbox.frame for inbox in self._inboxes if inbox.frame is not None]

    def _answer(self, operation: bytes, payload: bytes, flag: int = 0, number: float = 0.0) -> None:
        data = _FRAME.pack(operation, self._count, len(payload), flag, number) + payload
        try:
            for inbox in self._inboxes:
                inbox.connection.sendall(data)
        except OSError as error:
            self.close()
            raise ConnectionError(f"rank 0 lost the group in operation {self._count}: {error}") from error
