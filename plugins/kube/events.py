"""Kubernetes Events: words on an object, for people who look at it with kubectl."""

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from rerail.plugins.kube.api import KubeApi, Obj
from rerail.plugins.kube.resources import EVENTS, ResourceType
from rerail.policies.errors import AlreadyExistsError, ForbiddenError, NotFoundError

NAMESPACE_OF_CLUSTER: Final = "default"
"""Where Events of objects without a namespace belong, by the API server's own rule."""

_MOST: Final = 1024


@dataclass(frozen=True, slots=True)
class About:
    """The object of an Event.

    Attributes:
        namespace: Empty for objects of the whole cluster.
        uid: As far as it is known; kubectl describe finds Events by it.
    """

    resource: ResourceType
    name: str
    namespace: str = ""
    uid: str = ""

    @property
    def place(self) -> str:
        """The namespace of its Events."""
        return self.namespace or NAMESPACE_OF_CLUSTER


def with_uid(api: KubeApi, about: About) -> About:
    """The same object with its uid; without one where it is gone, or not for us to look at.

    Raises:
        TransientError: No answer.
    """
    if about.uid:
        return about
    try:
        found = api.get(about.resource, about.name, namespace=about.namespace or None)
    except (NotFoundError, ForbiddenError):
        return about
    return About(about.resource, about.name, about.namespace, str(found["metadata"].get("uid") or ""))


def write_event(
    api: KubeApi, about: About, *, name: str, reason: str, text: str, warning: bool, component: str, at_s: float
) -> None:
    """Write an Event, once: one of its name that is there already is the same.

    Args:
        api: The API server.
        about: Its object.
        name: Of the Event, unique for what happened.
        reason: One word in capitals and small letters.
        text: For people.
        warning: Else it is normal.
        component: Who says it.
        at_s: When it happened, epoch seconds.

    Raises:
        RerailError: It cannot be written.
    """
    at = datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    reference = {"apiVersion": about.resource.api_version, "kind": about.resource.kind, "name": about.name}
    reference |= {key: value for key, value in (("namespace", about.namespace), ("uid", about.uid)) if value}
    body: Obj = {
        "apiVersion": EVENTS.api_version,
        "kind": EVENTS.kind,
        "metadata": {"name": name, "namespace": about.place},
        "involvedObject": reference,
        "type": "Warning" if warning else "Normal",
        "reason": reason,
        "message": text[:_MOST],
        "source": {"component": component},
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
    try:
        api.create(EVENTS, body, namespace=about.place)
    except AlreadyExistsError:
        return
