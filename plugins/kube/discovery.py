"""What an API server says of itself to any login: its version, its clock, and the kinds that it serves."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any, Final

from rerail.plugins.kube.api import KubeApi
from rerail.plugins.kube.errors import Call
from rerail.plugins.kube.resources import ResourceType
from rerail.policies.errors import NotInstalledError

_VERSION: Final = ResourceType("", "", "version", "Version", namespaced=False)
_GROUPS: Final = ResourceType("", "", "apis", "APIGroupList", namespaced=False)


@dataclass(frozen=True, slots=True)
class ServerClock:
    """The API server's version, and its clock against ours.

    Attributes:
        version: For example ``v1.36.1``.
        offset_s: Its clock minus ours, in seconds; None where the answer carries no Date.
        doubt_s: The offset is this uncertain: half of the time that asking took, and of the second that Date rounds to.
    """

    version: str
    offset_s: float | None
    doubt_s: float


def server_clock(api: KubeApi, *, wall_s: Callable[[], float] = time.time) -> ServerClock:
    """Ask once for version and time.

    Raises:
        RerailError: No answer, or the login is not accepted.
    """
    transport = api.connection.transport
    before_s = wall_s()
    call = Call("get", _VERSION)
    told, headers = transport.exchange(call, "GET", "/version", query={}, timeout_s=api.patience.request_s)
    after_s = wall_s()
    try:
        date_s: float | None = parsedate_to_datetime(headers.get("Date") or "").timestamp() + 0.5
    except ValueError:
        date_s = None
    offset_s = None if date_s is None else date_s - (before_s + after_s) / 2
    return ServerClock(str(told.get("gitVersion") or "?"), offset_s, (after_s - before_s) / 2 + 0.5)


def served_groups(api: KubeApi) -> dict[str, tuple[str, ...]]:
    """Versions that are served, by API group."""
    found = _get(api, "/apis")
    return {
        str(group["name"]): tuple(str(one["version"]) for one in group.get("versions") or [])
        for group in found.get("groups") or []
    }


def served_kinds(api: KubeApi, group: str, versions: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """Versions in which each kind of a group is served, by ``plural.group``."""
    kinds: dict[str, tuple[str, ...]] = {}
    for version in versions:
        try:
            found = _get(api, f"/apis/{group}/{version}")
        except NotInstalledError:  # taken away meanwhile
            continue
        for one in found.get("resources") or []:
            name = f"{one['name']}.{group}"
            if "/" not in name:
                kinds[name] = (*kinds.get(name, ()), version)
    return kinds


def _get(api: KubeApi, path: str) -> dict[str, Any]:
    transport = api.connection.transport
    return transport.send(Call("get", _GROUPS), "GET", path, query={}, timeout_s=api.patience.request_s)
