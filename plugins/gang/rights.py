"""The least that an account needs to run gangs in a cluster, and what is missing of it by the API server's own word."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rerail.plugins.kube.api import KubeApi
from rerail.plugins.kube.errors import Call
from rerail.plugins.kube.resources import PODS, SERVICES, ResourceType
from rerail.plugins.volcano.command import COMMANDS
from rerail.plugins.volcano.job import JOBS
from rerail.plugins.volcano.podgroup import POD_GROUPS
from rerail.plugins.volcano.queue import QUEUES

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

LOOK_AT_QUEUES: Final[Rights] = {QUEUES: ("get",)}
"""In the whole cluster; may be left out: then a queue that is missing or closed is not told as such."""


def missing(api: KubeApi, needed: Rights, *, namespace: str | None = None, name: str | None = None) -> Iterator[Call]:
    """What an account may not do of what it needs.

    Args:
        api: The API server, with the account's login.
        needed: Verbs by kind.
        namespace: Of the objects; the connection's by default.
        name: Only objects of this name; ``create`` and lists cannot be bound to names.
    """
    for kind, verbs in needed.items():
        for verb in verbs:
            if not api.may(verb, kind, namespace=namespace, name=name):
                yield Call(verb, kind, api.place(kind, namespace), name)
