"""The least that an account needs to run gangs in a cluster, and what is missing of it by the API server's own word."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from rerail.plugins.kube.api import KubeApi
from rerail.plugins.kube.errors import Call
from rerail.plugins.kube.resources import CONFIG_MAPS, EVENTS, PODS, SERVICES, ResourceType
from rerail.plugins.nodes.kube_guard import NAME as GUARD_NAME
from rerail.plugins.nodes.rights import GUARD, MAKE_GUARD
from rerail.plugins.volcano.command import COMMANDS
from rerail.plugins.volcano.job import JOBS
from rerail.plugins.volcano.podgroup import POD_GROUPS
from rerail.plugins.volcano.queue import QUEUES
from rerail.policies.errors import ForbiddenError, NotFoundError, RefusedError

Rights = Mapping[ResourceType, Sequence[str]]

WITH_JOBS: Final[Rights] = {
    JOBS: ("get", "list", "watch", "create"),
    COMMANDS: ("create",),
    POD_GROUPS: ("list", "watch"),
    PODS: ("list", "watch", "deletecollection"),
}
"""For gangs that are vcjobs, in their namespace."""

WITH_GROUPS: Final[Rights] = {
    POD_GROUPS: ("get", "list", "watch", "create", "delete"),
    SERVICES: ("get", "create"),
    PODS: ("get", "list", "watch", "create", "deletecollection"),
}
"""For gangs that are PodGroups with bare pods, in their namespace."""

WITH_ARGO: Final[Rights] = {
    POD_GROUPS: ("get", "list", "watch", "create", "delete"),
    SERVICES: ("get", "create"),
    PODS: ("get", "list", "watch", "delete", "deletecollection"),
    ResourceType("", "v1", "pods/status", "Pod"): ("patch",),
}
"""For gangs that are PodGroups with pods that Argo makes, in their namespace."""

OF_BACKEND: Final[Mapping[str, Rights]] = {"vcjob": WITH_JOBS, "podgroup": WITH_GROUPS, "fanout": WITH_ARGO}
"""For the gangs of each backend of a cluster."""

TELL: Final[Rights] = {EVENTS: ("create",)}
"""In the run's namespace, and for Events of nodes in ``default``; may be left out: then no Events tell of incidents."""

LOOK_AT_QUEUES: Final[Rights] = {QUEUES: ("get",)}
"""In the whole cluster; may be left out: then a queue that is missing or closed is not told as such."""


def missing(
    api: KubeApi,
    needed: Rights,
    *,
    namespace: str | None = None,
    name: str | None = None,
    account: str | None = None,
) -> Iterator[Call]:
    """What an account may not do of what it needs.

    Args:
        api: The API server, with the account's login.
        needed: Verbs by kind.
        namespace: Of the objects; the connection's by default.
        name: Only objects of this name; ``create`` and lists cannot be bound to names.
        account: Whose, as ``namespace/name`` of a ServiceAccount; our own by default.
    """
    for kind, verbs in needed.items():
        for verb in verbs:
            if not api.may(verb, kind, namespace=namespace, name=name, account=account):
                yield Call(verb, kind, api.place(kind, namespace), name)


def lacks(api: KubeApi, backend: str, *, guard_namespace: str | None, account: str | None = None) -> Iterator[Call]:
    """What an account may not do of what a run cannot go without.

    Raises:
        ForbiddenError: Nobody tells us.
    """
    yield from missing(api, OF_BACKEND[backend], account=account)
    yield from missing(api, GUARD, namespace=guard_namespace, name=GUARD_NAME, account=account)
    try:
        api.get(CONFIG_MAPS, GUARD_NAME, namespace=guard_namespace)
    except NotFoundError:
        yield from missing(api, MAKE_GUARD, namespace=guard_namespace, account=account)


def refuse_missing(api: KubeApi, backend: str, *, guard_namespace: str | None) -> None:
    """Refuse to drive a run without a right that it will need, now and not at its first fault.

    Raises:
        RefusedError: Names every rule that is missing.
    """
    lacking: list[Call] = []
    with suppress(ForbiddenError):  # whether we may, nobody tells us
        lacking += lacks(api, backend, guard_namespace=guard_namespace)
    if lacking:
        added = "\n".join(f"{call.role}:\n{call.rule}" for call in lacking)
        raise RefusedError(
            f"rights are missing: {'; '.join(map(str, lacking))}. `rerail rights --backend {backend} --namespace "
            f"{api.namespace}` prints all that is needed. Add to\n{added}"
        )
