"""Whether a volume that one node mounts at a time is still held by a node that the next gang will not use.

Kubernetes detaches such a volume only when its pods are gone, and from a node that does not report only after minutes
or never. Until then the next gang would hold its GPUs and wait in ``ContainerCreating``.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from rerail.plugins.kube.api import KubeApi, Obj
from rerail.plugins.kube.resources import (
    PERSISTENT_VOLUME_CLAIMS,
    PERSISTENT_VOLUMES,
    VOLUME_ATTACHMENTS,
    ResourceType,
)
from rerail.policies.errors import NotFoundError, RefusedError

READ_CLAIMS: Final[Mapping[ResourceType, tuple[str, ...]]] = {PERSISTENT_VOLUME_CLAIMS: ("get",)}
"""In the run's namespace."""

READ_ATTACHMENTS: Final[Mapping[ResourceType, tuple[str, ...]]] = {
    PERSISTENT_VOLUMES: ("get",),
    VOLUME_ATTACHMENTS: ("list",),
}
"""In the whole cluster. Without these, or the one above, the next gang does not wait for a detach."""

LIST_EVERY_S: Final = 3.0
"""Attachments cannot be listed by volume, so the list is that of the cluster."""

_MANY_NODES: Final = frozenset({"ReadWriteMany", "ReadOnlyMany"})
_WAY_OUT: Final = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"


@dataclass(slots=True)
class Volumes:
    """The volumes behind a run's claims. Costs two requests per claim once, and one list for those of a single node.

    Attributes:
        claims: Names of PersistentVolumeClaims in the namespace of ``api``.
        node_ready: Whether a node reports; False where it is gone, None where nobody tells.
        log: Takes one line where rights are missing, once.
    """

    api: KubeApi
    claims: tuple[str, ...]
    node_ready: Callable[[str], bool | None]
    log: Callable[[str], object] = lambda _line: None
    _volumes: dict[str, str] = field(default_factory=dict)
    _listed: tuple[float, tuple[Obj, ...]] | None = None
    _blind: bool = False

    def why_hold(self, excluded: Collection[str]) -> str:
        """Why the next gang should not be opened yet; empty where no volume is in its way, or nobody may look.

        Args:
            excluded: Names of nodes that the next gang keeps away from.

        Raises:
            TransientError: The API server does not answer.
        """
        if self._blind:
            return ""
        try:
            volumes = {volume: claim for claim in self.claims if (volume := self._of_one_node(claim))}
            attached = self._attached(volumes)
        except RefusedError as error:
            self._blind = True
            self.log(f"the next gang does not wait until its volumes are detached: {error}")
            return ""
        for volume, node in attached:
            reports = self.node_ready(node) is not False
            if reports and node not in excluded:
                continue
            why = (
                "which this run keeps away from"
                if reports
                else f"which does not report (if that machine is off, taint it {_WAY_OUT})"
            )
            return f"claim {volumes[volume]} (volume {volume}) is still attached to node {node}, {why}"
        return ""

    def _of_one_node(self, claim: str) -> str:
        """The volume of a claim, if one node at a time may mount it; empty else, and while it has none."""
        if claim not in self._volumes:
            try:
                bound = self.api.get(PERSISTENT_VOLUME_CLAIMS, claim, namespace=self.api.namespace)
                name = str((bound.get("spec") or {}).get("volumeName") or "")
                if not name:
                    return ""
                volume = self.api.get(PERSISTENT_VOLUMES, name)
            except NotFoundError:
                return ""  # the pods say so themselves
            # What counts is what the volume can do, as for Kubernetes' own controller, not what the claim asks for.
            modes = set((volume.get("spec") or {}).get("accessModes") or ())
            self._volumes[claim] = "" if modes & _MANY_NODES else name
        return self._volumes[claim]

    def _attached(self, volumes: Collection[str]) -> list[tuple[str, str]]:
        """Volume and node of each attachment of ``volumes``."""
        if not volumes:
            return []
        at_s = self.api.clock()
        if self._listed is None or at_s - self._listed[0] >= LIST_EVERY_S:
            self._listed = (at_s, self.api.list(VOLUME_ATTACHMENTS).items)
        found = (_volume_and_node(one) for one in self._listed[1] if (one.get("status") or {}).get("attached"))
        return sorted(one for one in found if one[0] in volumes)


def _volume_and_node(attachment: Mapping[str, Any]) -> tuple[str, str]:
    spec = attachment.get("spec") or {}
    return str((spec.get("source") or {}).get("persistentVolumeName") or ""), str(spec.get("nodeName") or "")
