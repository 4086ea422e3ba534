"""The extender of Volcano's scheduler: whether these pods may be taken for that one, answered from memory.

The protocol has no login and no encryption: whoever reaches the port may ask. An answer reveals and changes little (a
question may send a gang away early, after its save), and a NetworkPolicy belongs in front of it.
"""

import json
import logging
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from rerail.plugins.evict.extender_gangs import OurGangs
from rerail.plugins.evict.extender_metrics import ExtenderMetrics
from rerail.policies.consent import ConsentBook
from rerail.policies.errors import UsageError

log = logging.getLogger("rerail.extender")

VERBS: Final = ("preemptable", "reclaimable")

MOST_BYTES: Final = 32 << 20
"""Of a question: a node's pods with their whole specs, many times over."""

ANSWER_BYTES: Final = 9 << 20
"""Of an answer: Volcano reads 10 MiB and takes a cut one for none, so fewer victims are named."""

MOST_AT_ONCE: Final = 32
LONGEST_S: Final = 5.0
"""One connection, from its first byte to its last; Volcano itself waits for 1 s."""

_PERMIT: Final = 1


@dataclass(slots=True)
class Decider:
    """Answers questions of the scheduler. Safe for several threads.

    Attributes:
        book: What was decided about whom; behind ``lock``.
        gangs: What is known of our gangs.
        now: Epoch seconds that do not run backwards.
    """

    book: ConsentBook
    gangs: OurGangs
    metrics: ExtenderMetrics
    now: Callable[[], float]
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, verb: str, question: Any) -> dict[str, Any]:
        """Which of the evictees may be taken: an empty list means none now, ask again.

        Pods that are of no gang of ours are never held back. All pods of one gang get the same answer.

        Raises:
            UsageError: This is no question of Volcano's.
        """
        evictor, evictees = _read(question)
        consents: dict[str, bool] = {}
        victims: list[Any] = []
        for evictee in evictees:
            gang = self.gangs.gang_of(evictee)
            if gang is not None and gang not in consents:
                consents[gang] = self._ask(verb, evictor, gang)
            if gang is None or consents[gang]:
                victims.append(evictee)
        return {"status": _PERMIT, "victims": victims}

    def _ask(self, verb: str, evictor: str, gang: str) -> bool:
        if evictor == gang:
            self.metrics.count("decisions", verb=verb, kind="own")
            return False  # a gang is whole or not there: none of its pods gives way to another one
        with self.lock:
            answer = self.book.ask(evictor, gang, self.now())
        self.metrics.count("decisions", verb=verb, kind="consent" if answer.consent else "hold")
        return answer.consent

    def held(self) -> int:
        """Gangs that are held back now."""
        with self.lock:
            return len({one.gang for one in self.book.records(self.now()) if one.state == "holding"})


def _read(question: Any) -> tuple[str, list[Mapping[str, Any]]]:
    """The evictor's name, which is that of its PodGroup, and the pods that are asked about."""
    if not isinstance(question, dict) or not isinstance(question.get("evictor"), dict):
        raise UsageError("no question of Volcano's: it has no object 'evictor'")
    task = question["evictor"]
    evictees = question.get("evictees") or []
    if not isinstance(evictees, list) or not all(
        isinstance(one, dict) and isinstance(one.get("Pod") or {}, dict) for one in evictees
    ):
        raise UsageError("no question of Volcano's: 'evictees' is no list of tasks")
    if not all(isinstance((one.get("Pod") or {}).get("metadata") or {}, dict) for one in evictees):
        raise UsageError("no question of Volcano's: a pod's 'metadata' is no object")
    return str(task.get("Job") or f"{task.get('Namespace')}/{task.get('Name')}"), evictees


def encode(answer: dict[str, Any]) -> bytes:
    """The answer's JSON; with fewer victims where all of them are too long for Volcano."""
    data = json.dumps(answer).encode()
    while len(data) > ANSWER_BYTES:
        answer = {**answer, "victims": answer["victims"][: len(answer["victims"]) // 2]}
        data = json.dumps(answer).encode()
    return data


class ExtenderServer(ThreadingHTTPServer):
    """HTTP with bounds: so many connections at once, so long each, so many bytes.

    Args:
        address: Host and port; port 0 takes a free one.
        decider: Answers.
        ready: Why what is known may not be relied upon; empty where it may.

    Attributes:
        broken: Whether the work behind the answers has ended, so that nobody is asked to save any more.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], decider: Decider, ready: Callable[[], str]) -> None:
        super().__init__(address, _Handler)
        self.decider = decider
        self.ready = ready
        self.broken: Callable[[], bool] = lambda: False
        self._free = threading.BoundedSemaphore(MOST_AT_ONCE)
        self._open: dict[socket.socket, float] = {}
        self._open_lock = threading.Lock()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own, or close it where too many are served."""
        if not self._free.acquire(blocking=False):
            self.decider.metrics.count("refused_requests", status="busy")
            self.shutdown_request(request)
            return
        with self._open_lock:
            self._open[request] = time.monotonic()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve it, and let the next one in."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._open_lock:
                self._open.pop(request, None)
            self._free.release()

    def service_actions(self) -> None:
        """Some times a second: cut connections that take too long, however busy they look."""
        end = time.monotonic() - LONGEST_S
        with self._open_lock:
            late = [request for request, begun in self._open.items() if begun < end]
            for request in late:
                with suppress(OSError):
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that broke is the client's affair; anything else is worth a line."""
        del request
        error = sys.exception()
        log.log(logging.DEBUG if isinstance(error, OSError) else logging.ERROR, "%s: %r", client_address, error)


class _Handler(BaseHTTPRequestHandler):
    server: ExtenderServer
    timeout = LONGEST_S

    def do_POST(self) -> None:
        """A question of the scheduler."""
        begun = time.monotonic()
        verb = self.path.strip("/")
        if verb not in VERBS:
            self._refuse(404, f"unknown path {self.path!r}; known: {', '.join('/' + one for one in VERBS)}")
            return
        body = self._body()
        if body is None:
            return
        try:
            answer = self.server.decider.answer(verb, json.loads(body))
        except UsageError as error:
            self._refuse(400, str(error))
            return
        except (ValueError, RecursionError) as error:
            self._refuse(400, f"the body is no JSON: {error}")
            return
        self._send(200, "application/json", encode(answer))
        self.server.decider.metrics.took(time.monotonic() - begun)

    def do_GET(self) -> None:
        """Health and metrics."""
        if self.path == "/healthz":
            trouble = self.server.ready()
            self._send(503 if trouble else 200, "text/plain; charset=utf-8", (trouble or "ok").encode() + b"\n")
        elif self.path == "/metrics":
            text = self.server.decider.metrics.exposition(self.server.decider.held())
            self._send(200, "text/plain; version=0.0.4; charset=utf-8", text.encode())
        else:
            self._refuse(404, f"unknown path {self.path!r}; known: /healthz, /metrics")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class's name
        """To the debug log: the scheduler asks every second."""
        log.debug(format, *args)

    def _body(self) -> bytes | None:
        """The whole body; None where it was refused."""
        given = self.headers.get("Content-Length") or ""
        if not (given.isascii() and given.isdigit()) or self.headers.get("Transfer-Encoding"):
            self._refuse(411, "give a Content-Length")
            return None
        length = int(given) if len(given) < len(str(MOST_BYTES)) + 1 else MOST_BYTES + 1
        if length > MOST_BYTES:
            self._refuse(413, f"at most {MOST_BYTES} bytes")
            return None
        try:
            body = self.rfile.read(length)
        except OSError:
            body = b""
        if len(body) < length:
            self._refuse(408, f"the body ended after {len(body)} of {length} bytes")
            return None
        return body

    def _refuse(self, code: int, why: str) -> None:
        self.server.decider.metrics.count("refused_requests", status=str(code))
        self._send(code, "text/plain; charset=utf-8", f"{why}\n".encode())

    def _send(self, code: int, kind: str, data: bytes) -> None:
        self.close_connection = True
        with suppress(OSError):
            self.send_response(code)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("Connection", "close")
            self.end_headers()
            self.wfile.write(data)
