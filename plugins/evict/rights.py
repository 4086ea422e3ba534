"""The least that an account needs to evict a gang, to drain a node, and to run the extender: as data."""

from collections.abc import Mapping
from typing import Final

from rerail.plugins.evict.extender_manifests import LOCK_RIGHTS, RIGHTS
from rerail.plugins.gang.rights import Rights
from rerail.plugins.kube.resources import NODES, PODS, ResourceType

EVICTIONS: Final = ResourceType("", "v1", "pods/eviction", "Eviction")

EVICT: Final[Rights] = {PODS: ("list", "watch"), EVICTIONS: ("create",)}
"""``rerail evict --namespace N``, in that namespace; without the option it lists pods of every one."""

LOOK_AT_NODES: Final[Rights] = {NODES: ("get",)}
"""In the whole cluster; may be left out: then pods on a node that does not report are waited for like others."""

DRAIN: Final[Rights] = {NODES: ("get", "patch"), PODS: ("list", "watch"), EVICTIONS: ("create",)}
"""``rerail drain``, in the whole cluster: a node holds pods of every namespace."""

IN_CLUSTER: Final[Mapping[str, Rights]] = {"drain": DRAIN, "extender": RIGHTS, "locks": LOCK_RIGHTS}
"""What is bound in the whole cluster, by who needs it."""
