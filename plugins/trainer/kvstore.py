"""A small key-value server on rank 0 for the ranks' agreement, and its client: standard library only.

The client has ``set``, ``get`` and ``check`` as ``torch.distributed.TCPStore`` has them, so either fits ``agree``.
A frame is one byte of operation, two lengths (4 bytes each, big-endian), a key and a value.
"""

import socket
import socketserver
import struct
import threading
import time
from typing import Protocol, Self

from rerail.policies.errors import StoreUnreachableError

_FRAME = struct.Struct(">cII")
_LIMIT_BYTES = 64 * 2**20


class KeyValue(Protocol):
    """What agreement needs of a store that all ranks of one attempt reach."""

    def set(self, key: str, value: str) -> None:
        """Store a value."""
        ...

    def get(self, key: str) -> bytes:
        """The value; waits until there is one, as long as the store's time-out allows."""
        ...

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there, without waiting."""
        ...


def _receive(stream: socket.socket) -> tuple[bytes, str, bytes]:
    code, key_size, value_size = _FRAME.unpack(_exactly(stream, _FRAME.size))
    if key_size + value_size > _LIMIT_BYTES:
        raise ConnectionError(f"a frame of {key_size + value_size} bytes: not a client of ours")
    key = _exactly(stream, key_size).decode()
    return code, key, _exactly(stream, value_size)


def _exactly(stream: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        piece = stream.recv(size - len(data))
        if not piece:
            raise ConnectionError("the other side closed the connection")
        data += piece
    return bytes(data)


def _send(stream: socket.socket, code: bytes, key: str, value: bytes) -> None:
    name = key.encode()
    stream.sendall(_FRAME.pack(code, len(name), len(value)) + name + value)


class KeyValueServer:
    """Serves until closed; runs beside rank 0's training.

    Attributes:
        port: Where it listens.
    """

    def __init__(self, host: str = "127.0.0.1", port: int = 0) -> None:
        values: dict[str, bytes] = {}
        changed = threading.Condition()

        class Handler(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                stream: socket.socket = self.request
                stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                try:
                    while True:
                        self.answer(stream, *_receive(stream))
                except (ConnectionError, UnicodeDecodeError):
                    return

            def answer(self, stream: socket.socket, code: bytes, key: str, value: bytes) -> None:
                with changed:
                    if code == b"S":
                        values[key] = value
                        changed.notify_all()
                        _send(stream, b"S", "", b"")
                        return
                    if code == b"C":
                        there = all(one in values for one in key.split("\n"))
                        _send(stream, b"C", "", b"1" if there else b"")
                        return
                    found = changed.wait_for(lambda: key in values, timeout=float(value))
                    _send(stream, b"G" if found else b"T", "", values.get(key, b""))

        class Server(socketserver.ThreadingTCPServer):
            daemon_threads = True
            allow_reuse_address = True

        self._server = Server((host, port), Handler)
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, name="rerail-kv", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class KeyValueClient:
    """One rank's connection.

    Args:
        host: Of rank 0.
        port: Of its server.
        timeout_s: How long to wait for the server, and in ``get`` for a value.
    """

    def __init__(self, host: str, port: int, *, timeout_s: float = 300.0) -> None:
        self._where = f"{host}:{port}"
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        until = time.monotonic() + timeout_s
        while True:
            try:
                self._stream = socket.create_connection((host, port), timeout=timeout_s)
                break
            except OSError as error:
                if time.monotonic() > until:
                    raise StoreUnreachableError(f"key-value server {self._where}: {error}; is rank 0 up?") from None
                time.sleep(0.05)
        self._stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream.settimeout(timeout_s + 10)

    def _ask(self, code: bytes, key: str, value: bytes) -> tuple[bytes, bytes]:
        try:
            with self._lock:
                _send(self._stream, code, key, value)
                answer, _, found = _receive(self._stream)
        except OSError as error:
            raise StoreUnreachableError(f"key-value server {self._where}: {error}; is rank 0 up?") from None
        return answer, found

    def set(self, key: str, value: str | bytes) -> None:
        """Store a value."""
        self._ask(b"S", key, value.encode() if isinstance(value, str) else value)

    def get(self, key: str) -> bytes:
        """The value of ``key``, waiting for it.

        Raises:
            StoreUnreachableError: None came within the time-out, or the server is gone.
        """
        answer, found = self._ask(b"G", key, str(self._timeout_s).encode())
        if answer != b"G":
            raise StoreUnreachableError(f"key-value server {self._where}: no {key!r} within {self._timeout_s:g} s")
        return found

    def check(self, keys: list[str]) -> bool:
        """Whether all keys are there."""
        return self._ask(b"C", "\n".join(keys), b"")[1] == b"1"

    def close(self) -> None:
        """End the connection."""
        self._stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
