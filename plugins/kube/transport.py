"""HTTP to the API server over the official client's connection pool: one request, or one stream of lines.

The official client does configuration, TLS and credentials. Its own call layer is passed by: version 37 replaces
bodies by models of its own, and urllib3's defaults sleep for as long as a Retry-After says and follow redirects.
"""

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlencode

import urllib3
import urllib3.exceptions
from kubernetes.client import ApiClient
from urllib3.util import Timeout

from rerail.plugins.kube.errors import Call, error_of
from rerail.policies.errors import ClusterUnreachableError, RefusedError, RerailError

CONNECT_TIMEOUT_S: Final = 10.0
MAX_LINE_BYTES: Final = 64 << 20
"""Longer than any object that etcd takes; a line without an end is a broken stream."""

_NEVER_SENT = (
    urllib3.exceptions.NewConnectionError,
    urllib3.exceptions.ConnectTimeoutError,
    urllib3.exceptions.ProxyError,
)


def unreachable(error: Exception, call: Call) -> RerailError:
    """Turn a failed exchange into the error to raise, which knows whether the request may have been carried out."""
    if isinstance(error, urllib3.exceptions.SSLError):
        return RefusedError(
            f"cannot {call}: TLS with the API server failed: {error}; check the certificate authority, the client "
            "certificate and the address in the kubeconfig"
        )
    return ClusterUnreachableError(
        f"cannot {call} now: the API server did not answer ({type(error).__name__}: {error}); check the address in "
        "the kubeconfig, the network, and that the API server runs",
        outcome_unknown=not isinstance(error, _NEVER_SENT),
    )


class Lines:
    """A streamed answer, line by line, that another thread can end.

    A last line without its end is dropped: the connection broke within it.
    """

    def __init__(self, response: urllib3.BaseHTTPResponse, call: Call) -> None:
        self._response = response
        self._call = call
        self._ended = threading.Event()

    def __iter__(self) -> Iterator[bytes]:
        """Yield complete lines.

        Raises:
            ClusterUnreachableError: The stream broke, or was silent for longer than the read time-out.
        """
        rest = b""
        try:
            for chunk in self._response.stream(65536):
                *lines, rest = (rest + chunk).split(b"\n")
                yield from (line for line in lines if line.strip())
                if len(rest) > MAX_LINE_BYTES:
                    raise ClusterUnreachableError(f"cannot {self._call}: a line of over {MAX_LINE_BYTES} bytes came")
        except (urllib3.exceptions.HTTPError, OSError, ValueError, AttributeError) as error:
            # ValueError and AttributeError: what urllib3 says when another thread closed the response meanwhile.
            if not self._ended.is_set():
                raise unreachable(error, self._call) from error
        finally:
            self.end()

    def end(self) -> None:
        """Give the connection up; a read that waits in another thread returns. May be called more than once."""
        if self._ended.is_set():
            return
        self._ended.set()
        shutdown = getattr(self._response, "shutdown", None)
        if shutdown is not None:
            with suppress(OSError, ValueError, RuntimeError):
                shutdown()
        self._response.close()


class Transport:
    """Sends requests with the credentials of a loaded configuration. Safe for use by several threads.

    Args:
        client: Loaded by ``rerail.plugins.kube.config``.
        user_agent: Names us in the API server's audit log.
    """

    def __init__(self, client: ApiClient, *, user_agent: str) -> None:
        self._client = client
        self._pool = client.rest_client.pool_manager
        self._user_agent = user_agent

    @property
    def server(self) -> str:
        """Address of the API server."""
        return str(self._client.configuration.host).rstrip("/")

    def send(
        self,
        call: Call,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        body: object = None,
        content_type: str = "application/json",
        timeout_s: float,
    ) -> dict[str, Any]:
        """Make one request, once.

        Raises:
            RerailError: As ``errors.error_of`` says, or that the API server did not answer.
        """
        return self.exchange(
            call, method, path, query=query, body=body, content_type=content_type, timeout_s=timeout_s
        )[0]

    def exchange(
        self,
        call: Call,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        body: object = None,
        content_type: str = "application/json",
        timeout_s: float,
    ) -> tuple[dict[str, Any], Mapping[str, str]]:
        """As ``send``, with the answer's headers."""
        response = self._open(
            call, method, path, query=query, body=body, content_type=content_type, timeout_s=timeout_s
        )
        try:
            data = response.read(decode_content=True)
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise unreachable(error, call) from error
        finally:
            response.release_conn()
        self._check(response, data, call)
        try:
            content = json.loads(data)
        except ValueError as error:
            raise unreachable(error, call) from error
        if not isinstance(content, dict):
            raise unreachable(TypeError("the answer is no JSON object"), call)
        return content, response.headers

    def stream(self, call: Call, path: str, *, query: Mapping[str, str], timeout_s: float) -> Lines:
        """Open a stream of lines; ``timeout_s`` is the longest silence.

        Raises:
            RerailError: As for ``send``.
        """
        response = self._open(call, "GET", path, query=query, timeout_s=timeout_s)
        if response.status != 200:  # noqa: PLR2004
            try:
                self._check(response, response.read(decode_content=True), call)
            except (urllib3.exceptions.HTTPError, OSError) as error:
                raise unreachable(error, call) from error
            finally:
                response.release_conn()
        return Lines(response, call)

    def close(self) -> None:
        """Close idle connections."""
        self._client.close()  # type: ignore[no-untyped-call]

    def _open(
        self,
        call: Call,
        method: str,
        path: str,
        *,
        query: Mapping[str, str],
        body: object = None,
        content_type: str = "application/json",
        timeout_s: float,
    ) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": "application/json", "User-Agent": self._user_agent}
        if body is not None:
            headers["Content-Type"] = content_type
        self._client.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        url = self.server + path + ("?" + urlencode(query) if query else "")
        try:
            return self._pool.request(
                method,
                url,
                body=None if body is None else json.dumps(body).encode(),
                headers=headers,
                timeout=Timeout(connect=min(CONNECT_TIMEOUT_S, timeout_s), read=timeout_s),
                retries=False,
                redirect=False,
                preload_content=False,
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise unreachable(error, call) from error

    @staticmethod
    def _check(response: urllib3.BaseHTTPResponse, data: bytes, call: Call) -> None:
        if not 200 <= response.status < 300:  # noqa: PLR2004
            raise error_of(response.status, data, call, retry_after=response.headers.get("Retry-After"))
