"""Shared fixtures: a real S3 server, an HTTP proxy that misbehaves before it, and stores on both backends.

s3_server     session: a SeaweedFS on loopback with an empty bucket; ``.endpoint``, ``.bucket``, ``.env``
s3_env        the usual AWS variables point at it, and nothing of the user's own settings is seen
s3_store      factory: s3_store(endpoint=None, prefix=None, patience=None, ...) -> S3Store on a fresh prefix
posix_store   a PosixStore on a fresh folder
store         each test runs on both
run_store     factory: run_store(name="run") -> RunStore on a fresh prefix of ``store``
s3_proxy      factory: s3_proxy() -> Proxy, a server of its own before ``s3_server``; its docstring tells the hooks
"""

import http.client
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest

from rerail.plugins.checkpoint.posix import PosixStore
from rerail.plugins.checkpoint.store import RunStore, Store

ACCESS, SECRET, BUCKET = "rerail-test", "rerail-test-secret", "rerail"
SERVER_DEADLINE_S = 60.0

# PR_SET_PDEATHSIG survives exec: the server dies with the test process, however that ends.
DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
os.getppid() == int(sys.argv[1]) or os._exit(1)
os.execv(sys.argv[2], sys.argv[2:])
"""


@dataclass(frozen=True)
class S3Server:
    """A running server. ``env`` holds all that a process needs to reach it by the usual AWS variables."""

    endpoint: str
    bucket: str
    access: str
    secret: str

    @property
    def env(self) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": "us-east-1",
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
            "AWS_EC2_METADATA_DISABLED": "true",
            "NO_PROXY": "127.0.0.1",
        }


def free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(closing(socket.socket())) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def start_weed(folder: Path, log: int) -> tuple[subprocess.Popen[bytes], int]:
    names = ["master.port", "volume.port", "filer.port", "s3.port"]
    ports = free_ports(2 * len(names))
    (folder / "s3.json").write_text(
        f'{{"identities": [{{"name": "t", "credentials": [{{"accessKey": "{ACCESS}", "secretKey": "{SECRET}"}}],'
        ' "actions": ["Admin", "Read", "Write", "List", "Tagging"]}]}'
    )
    flags = [f"-{name}={port}" for name, port in zip(names, ports[:4], strict=True)]
    flags += [f"-{name}.grpc={port}" for name, port in zip(names, ports[4:], strict=True)]
    command = [
        str(Path(sys.executable).with_name("weed")),
        "server",
        f"-dir={folder}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-filer",
        "-s3",
        f"-s3.config={folder / 's3.json'}",
        "-s3.autoCreateBucket=false",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        f"-s3.localSocket={folder / 's3.sock'}",
        f"-filer.localSocket={folder / 'filer.sock'}",
        "-master.telemetry=false",
        "-master.volumeSizeLimitMB=64",
        "-volume.max=400",
        "-volume.preStopSeconds=0",
        *flags,
    ]
    server = subprocess.Popen(
        [sys.executable, "-c", DIE_WITH_PARENT, str(os.getpid()), *command],
        stdout=log,
        stderr=log,
        stdin=subprocess.DEVNULL,
        cwd=folder,
        start_new_session=True,
    )
    return server, ports[3]


def answers(server: S3Server, process: subprocess.Popen[bytes]) -> bool:
    """Wait until the server takes a document; False if it ended (another process took one of its ports)."""
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError, ClientError

    once = Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=5, proxies={})
    session = boto3.session.Session(server.access, server.secret, region_name="us-east-1")
    with closing(session.client("s3", endpoint_url=server.endpoint, config=once)) as client:
        deadline = time.monotonic() + SERVER_DEADLINE_S
        while process.poll() is None and time.monotonic() < deadline:
            try:
                with suppress(client.exceptions.BucketAlreadyExists, client.exceptions.BucketAlreadyOwnedByYou):
                    client.create_bucket(Bucket=server.bucket)
                client.put_object(Bucket=server.bucket, Key="ready", Body=b"ready")
                client.delete_object(Bucket=server.bucket, Key="ready")
            except (BotoCoreError, ClientError):
                time.sleep(0.05)
            else:
                return True
    return False


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """A SeaweedFS of this test process (with xdist: of this worker), killed at the end, and by the kernel if we die."""
    for _ in range(3):
        folder = tmp_path_factory.mktemp("weed")
        with (folder / "log").open("wb") as log:
            process, port = start_weed(folder, log.fileno())
            try:
                server = S3Server(f"http://127.0.0.1:{port}", BUCKET, ACCESS, SECRET)
                if answers(server, process):
                    yield server
                    return
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    pytest.fail(f"the S3 server did not start:\n{(folder / 'log').read_text()[-3000:]}")


@pytest.fixture
def s3_env(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    for name in [name for name in os.environ if name.startswith("AWS_") or name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    for name, value in s3_server.env.items():
        monkeypatch.setenv(name, value)
    return s3_server


@pytest.fixture
def s3_store(s3_env: S3Server) -> Iterator[Callable[..., Store]]:
    """Make stores on fresh prefixes; ``endpoint`` (a proxy's) stands in for the server's own."""
    from rerail.plugins.checkpoint.s3 import Patience, S3Store, connect

    clients = []

    def make(*, endpoint: str | None = None, prefix: str | None = None, bucket: str = s3_env.bucket, **more) -> Store:
        def client(patience: Patience):
            clients.append(connect(patience, endpoint=endpoint))
            return clients[-1]

        more.setdefault("patience", Patience(tries=5, first_pause_s=0.02, longest_pause_s=0.2, read_s=20.0))
        return S3Store(bucket, f"{prefix or secrets.token_hex(6)}/", client=client, **more)

    yield make
    for client in clients:
        client.close()


@pytest.fixture
def posix_store(tmp_path: Path) -> PosixStore:
    root = tmp_path / "store"
    root.mkdir()
    return PosixStore(root)


@pytest.fixture(params=["posix", "s3"])
def store(request: pytest.FixtureRequest) -> Store:
    if request.param == "posix":
        return request.getfixturevalue("posix_store")
    return request.getfixturevalue("s3_store")()


@pytest.fixture
def run_store(store: Store) -> Callable[..., RunStore]:
    def make(name: str = "run") -> RunStore:
        below = store.below(secrets.token_hex(4)).below(name)
        return RunStore(name, control=below, shards=below)

    return make


@dataclass
class Request:
    """A request at the proxy. A hook may change it before it goes on; it is then signed anew."""

    method: str
    target: str
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def key(self) -> str:
        return urlsplit(self.target).path.removeprefix(f"/{BUCKET}/")

    @property
    def operation(self) -> str:
        """The S3 operation, for example ``PutObject`` or ``CompleteMultipartUpload``."""
        query = parse_qs(urlsplit(self.target).query, keep_blank_values=True)
        if self.method == "POST":
            if "delete" in query:
                return "DeleteObjects"
            return "CreateMultipartUpload" if "uploads" in query else "CompleteMultipartUpload"
        if self.method == "GET":
            return "ListObjectsV2" if "list-type" in query else "GetObject"
        part = "uploadId" in query
        names = {"PUT": ("PutObject", "UploadPart"), "DELETE": ("DeleteObject", "AbortMultipartUpload")}
        return names[self.method][part] if self.method in names else "HeadObject"

    @property
    def conditional(self) -> bool:
        return self.headers.get("If-None-Match") == "*"


@dataclass
class Reply:
    """An answer, the server's or a hook's."""

    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def error(cls, status: int, code: str) -> "Reply":
        return cls(status, f"<Error><Code>{code}</Code><Message>by the proxy</Message></Error>".encode())


class DropConnection(Exception):  # noqa: N818
    """Raised by a hook: the connection ends without an answer."""


@dataclass
class Proxy:
    """An HTTP proxy before the S3 server. Hooks run in the connection's thread.

    ``on_request(request)`` runs before the request goes on: change it in place, return a ``Reply`` to answer without
    the server, raise ``proxy.drop`` (the class DropConnection) to end the connection, block to be slow, or return None.
    ``on_reply(request, reply)`` runs after the server has acted: return another ``Reply``, raise ``proxy.drop`` so that
    the answer is lost, or return None. ``requests`` lists what came, in order.
    Ready-made: ``translate``, ``ignore_conditions``, ``drop_reply``, ``answer``; ``reply(status, code)`` makes an
    error.
    """

    endpoint: str = ""
    upstream: str = ""
    on_request: Callable[[Request], Reply | None] = lambda _: None
    on_reply: Callable[[Request, Reply], Reply | None] = lambda _request, _reply: None
    requests: list[Request] = field(default_factory=list)
    drop: ClassVar = DropConnection
    reply: ClassVar = Reply.error

    def operations(self) -> list[str]:
        return [request.operation for request in self.requests]

    def translate(self, header: str, value: str, *, status: int = 412, code: str = "PreconditionFailed") -> None:
        """Act as a vendor that knows ``header: value`` and ignores ``If-None-Match``."""

        def on_request(request: Request) -> None:
            del request.headers["If-None-Match"]
            if request.headers.get(header) == value:
                del request.headers[header]
                request.headers["If-None-Match"] = "*"

        def on_reply(_: Request, reply: Reply) -> Reply | None:
            return Reply.error(status, code) if reply.status == 412 else None

        self.on_request, self.on_reply = on_request, on_reply

    def ignore_conditions(self) -> None:
        """Act as a vendor that overwrites, whatever it is told."""

        def on_request(request: Request) -> None:
            del request.headers["If-None-Match"]

        self.on_request = on_request

    def drop_reply(self, operation: str, *, times: int = 1) -> None:
        """The server does it, and the answer is lost."""
        left = iter(range(times))

        def on_reply(request: Request, _: Reply) -> None:
            if request.operation == operation and next(left, None) is not None:
                raise DropConnection

        self.on_reply = on_reply

    def answer(self, status: int, code: str, *, operation: str | None = None, times: int = 1) -> None:
        """Answer an error without asking the server."""
        left = iter(range(times))

        def on_request(request: Request) -> Reply | None:
            if operation in {None, request.operation} and next(left, None) is not None:
                return Reply.error(status, code)
            return None

        self.on_request = on_request

    def handle(self, request: Request) -> Reply:
        self.requests.append(request)
        before = list(request.headers.items()), request.body, request.target
        answered = self.on_request(request)
        if answered:
            return answered
        if (list(request.headers.items()), request.body, request.target) != before:
            self._sign(request)
        where = urlsplit(self.upstream)
        with closing(http.client.HTTPConnection(where.hostname or "", where.port, timeout=60)) as server:
            server.putrequest(request.method, request.target, skip_host=True, skip_accept_encoding=True)
            for name, value in request.headers.items():
                if name.lower() not in {"connection", "expect"}:
                    server.putheader(name, value)
            server.endheaders(request.body)
            answer = server.getresponse()
            reply = Reply(answer.status, answer.read(), dict(answer.getheaders()))
        return self.on_reply(request, reply) or reply

    def _sign(self, request: Request) -> None:
        from botocore.auth import S3SigV4Auth
        from botocore.awsrequest import AWSRequest
        from botocore.credentials import Credentials

        del request.headers["Authorization"], request.headers["X-Amz-Date"], request.headers["X-Amz-Content-SHA256"]
        url = f"http://{request.headers['Host']}{request.target}"
        signed = AWSRequest(request.method, url, headers=dict(request.headers.items()), data=request.body)
        S3SigV4Auth(Credentials(ACCESS, SECRET), "s3", "us-east-1").add_auth(signed)
        for name in ("Authorization", "X-Amz-Date", "X-Amz-Content-SHA256"):
            request.headers[name] = signed.headers[name]


class ProxyServer(ThreadingHTTPServer):
    daemon_threads = True
    proxy: Proxy

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exc_info()[1], OSError):  # clients that went away are what tests make
            super().handle_error(request, client_address)  # type: ignore[arg-type]


class ProxyHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1
    server: ProxyServer

    def handle_expect_100(self) -> bool:
        go_on = super().handle_expect_100()
        self.wfile.flush()
        return go_on

    def relay(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            reply = self.server.proxy.handle(Request(self.command, self.path, self.headers, body))  # type: ignore[arg-type]
        except DropConnection:
            self.close_connection = True
            return
        self.send_response_only(reply.status)
        for name, value in reply.headers.items():
            if name.lower() not in {"content-length", "transfer-encoding", "connection"}:
                self.send_header(name, value)
        length = reply.headers.get("Content-Length") if self.command == "HEAD" else None
        if reply.status != 204:
            self.send_header("Content-Length", length or str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body if self.command != "HEAD" else b"")
        self.wfile.flush()

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = relay  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def s3_proxy(s3_env: S3Server) -> Iterator[Callable[..., Proxy]]:
    """Make proxies; ``tls`` is the context of one that speaks HTTPS."""
    with ExitStack() as stack:

        def make(*, tls: ssl.SSLContext | None = None) -> Proxy:
            server = stack.enter_context(ProxyServer(("127.0.0.1", 0), ProxyHandler))
            if tls is not None:
                # The handshake is the connection's thread's own: one that fails must not end the server.
                server.socket = tls.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
            scheme = "http" if tls is None else "https"
            server.proxy = Proxy(f"{scheme}://127.0.0.1:{server.server_port}", s3_env.endpoint)
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
            thread.start()
            stack.callback(thread.join, 5)
            stack.callback(server.shutdown)
            return server.proxy

        yield make
