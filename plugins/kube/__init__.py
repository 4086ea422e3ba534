"""The one place that imports ``kubernetes``: configuration, requests on plain dicts, list and watch, typed errors."""

from rerail.plugins.kube.api import ALL_NAMESPACES, KubeApi, Listing, Patience
from rerail.plugins.kube.config import Connection, connect
from rerail.plugins.kube.resources import ResourceType
from rerail.plugins.kube.watch import Watch, WatchEvent

__all__ = [
    "ALL_NAMESPACES",
    "Connection",
    "KubeApi",
    "Listing",
    "Patience",
    "ResourceType",
    "Watch",
    "WatchEvent",
    "connect",
]
