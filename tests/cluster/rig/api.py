"""Plain requests to the API server, and the credentials of those who make them."""

import base64
import json
import secrets
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rig.layout import CONTROL, KUBECONFIG, STATE, Node

SERVER = f"https://{CONTROL}:443"
TOKENS = STATE / "tokens.csv"
CERTIFICATES = STATE / "certificates"
CA = CERTIFICATES / "apiserver.crt"
"""The API server signs for itself."""
TIMEOUT_S = 60.0
TRIES, PAUSE_S = 5, 2.0
OVERLOADED = (0, 429, 500, 503, 504)
ABSENT, CONFLICT = 404, 409

COMPONENTS = ("kube-controller-manager", "kube-scheduler", "coredns", "volcano-controllers", "volcano-scheduler")


class UnansweredError(Exception):
    """The API server could not be reached, or refused; ``code`` is the HTTP status, 0 without one."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


def kubeconfig_of(name: str) -> Path:
    """The kubeconfig of one component."""
    return STATE / "kubeconfigs" / name


def _users(nodes: Sequence[Node]) -> dict[str, tuple[str, str]]:
    """User and group by the name of the kubeconfig; the components are administrators, as this is a test."""
    users = {name: (name, "system:masters") for name in ("admin", *COMPONENTS)}
    return users | {node.name: (f"system:node:{node.name}", "system:nodes") for node in nodes}


def write_credentials(nodes: Sequence[Node]) -> None:
    """Write the API server's list of tokens, and a kubeconfig for each token."""
    lines = []
    (STATE / "kubeconfigs").mkdir(mode=0o700)
    for name, (user, group) in _users(nodes).items():
        token = secrets.token_urlsafe(24)
        lines.append(f'{token},{user},{name},"{group}"\n')
        _write_kubeconfig(STATE / "kubeconfigs" / name, user, token)
    TOKENS.touch(mode=0o600)
    TOKENS.write_text("".join(lines))


def _write_kubeconfig(path: Path, user: str, token: str) -> None:
    name = "rerail-cluster"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": {"server": SERVER, "certificate-authority": str(CA)}}],
        "users": [{"name": user, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": user, "namespace": "default"}}],
        "current-context": name,
    }
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=1))


def publish() -> None:
    """Write the administrator's kubeconfig, whole in one file, where the cluster's users look for it."""
    config = json.loads(kubeconfig_of("admin").read_text())
    cluster = config["clusters"][0]["cluster"]
    del cluster["certificate-authority"]
    cluster["certificate-authority-data"] = base64.b64encode(CA.read_bytes()).decode()
    KUBECONFIG.touch(mode=0o600)
    KUBECONFIG.write_text(json.dumps(config, indent=1))


class Api:
    """Requests as the administrator."""

    def __init__(self) -> None:
        config = json.loads(kubeconfig_of("admin").read_text())
        self._token = config["users"][0]["user"]["token"]
        context = ssl.create_default_context(cafile=CA)
        # No proxy of the host's environment stands between: the address is a link of ours.
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
        )

    def call(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Any:
        """Send one request and return the document.

        Raises:
            UnansweredError: There was no answer, or one with an error.
        """
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": kind, "User-Agent": "rerail-cluster-up"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(SERVER + path, data=data, headers=headers, method=method)
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as answer:
                text = answer.read()
        except urllib.error.HTTPError as error:
            with error:
                raise UnansweredError(f"{method} {path}: {error.code} {error.read()[:500]!r}", error.code) from None
        except OSError as error:
            raise UnansweredError(f"{method} {path}: {error}") from None
        return json.loads(text) if text[:1] == b"{" else text.decode()

    def create(self, path: str, body: Mapping[str, Any]) -> None:
        """Create an object; one that is there already is left as it is. A server that is busy is asked again."""
        for left in reversed(range(TRIES)):
            try:
                self.call("POST", path, body)
            except UnansweredError as error:
                if error.code == CONFLICT:
                    return
                if not left or error.code not in OVERLOADED:
                    raise
            else:
                return
            time.sleep(PAUSE_S)

    def get(self, path: str) -> Any:
        """An object, or an empty document while it cannot be had."""
        try:
            return self.call("GET", path)
        except UnansweredError:
            return {}
