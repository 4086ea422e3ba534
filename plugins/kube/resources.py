"""Kinds of objects and where the API server keeps them."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

from rerail.policies.errors import UsageError


@dataclass(frozen=True, slots=True)
class ResourceType:
    """One kind of object as the API server serves it.

    Attributes:
        group: API group; empty for the core group.
        version: Version of the group.
        plural: Name of the collection in paths and in RBAC rules.
        kind: Name in manifests.
        namespaced: Whether objects live in a namespace.
        product: Whose CRD it is, for the message where it is absent; empty for Kubernetes' own.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True
    product: str = ""

    @property
    def api_version(self) -> str:
        """The value of ``apiVersion`` in manifests."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full_name(self) -> str:
        """As kubectl and the API server's own messages write it, for example ``jobs.batch.volcano.sh``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(self, namespace: str | None, name: str | None = None, subresource: str | None = None) -> str:
        """Path of the collection, an object or a subresource; ``namespace`` None is every namespace."""
        parts = ["apis", self.group, self.version] if self.group else ["api", self.version]
        if namespace is not None:
            if not self.namespaced:
                raise UsageError(f"{self.full_name} belongs to the whole cluster; namespace {namespace!r} has no sense")
            parts += ["namespaces", namespace]
        parts.append(self.plural)
        if name is not None:
            if self.namespaced and namespace is None:
                raise UsageError(f"{self.full_name} {name!r} lives in a namespace; say which")
            if not name or "/" in name or name in (".", ".."):
                raise UsageError(f"{name!r} is no name of an object ({self.full_name})")
            parts.append(name)
        if subresource is not None:
            parts.append(subresource)
        return "/" + "/".join(quote(part, safe="") for part in parts)


PODS: Final = ResourceType("", "v1", "pods", "Pod")
EVENTS: Final = ResourceType("", "v1", "events", "Event")
SERVICES: Final = ResourceType("", "v1", "services", "Service")
CONFIG_MAPS: Final = ResourceType("", "v1", "configmaps", "ConfigMap")
RESOURCE_QUOTAS: Final = ResourceType("", "v1", "resourcequotas", "ResourceQuota")
PERSISTENT_VOLUME_CLAIMS: Final = ResourceType("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim")
NODES: Final = ResourceType("", "v1", "nodes", "Node", namespaced=False)
NAMESPACES: Final = ResourceType("", "v1", "namespaces", "Namespace", namespaced=False)
PERSISTENT_VOLUMES: Final = ResourceType("", "v1", "persistentvolumes", "PersistentVolume", namespaced=False)
PRIORITY_CLASSES: Final = ResourceType("scheduling.k8s.io", "v1", "priorityclasses", "PriorityClass", namespaced=False)
VOLUME_ATTACHMENTS: Final = ResourceType(
    "storage.k8s.io", "v1", "volumeattachments", "VolumeAttachment", namespaced=False
)
DEPLOYMENTS: Final = ResourceType("apps", "v1", "deployments", "Deployment")
DAEMON_SETS: Final = ResourceType("apps", "v1", "daemonsets", "DaemonSet")
CUSTOM_RESOURCE_DEFINITIONS: Final = ResourceType(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
ACCESS_REVIEWS: Final = ResourceType(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", namespaced=False
)
OTHERS_ACCESS_REVIEWS: Final = ResourceType(
    "authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False
)
