"""Whether a store in a folder would outlive the pod. Inside the container it would be lost with the first fault."""

from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import unquote

from rerail.policies.addresses import shown, split
from rerail.policies.errors import UsageError

_OF_THE_POD: Final = ("emptyDir", "ephemeral", "configMap", "secret", "downwardAPI", "projected", "image")
_WAY_OUT: Final = "mount a volume there that every node can reach (a PersistentVolumeClaim, NFS), or use an s3:// store"


def check_mounted(
    address: str,
    pod_spec: Mapping[str, Any],
    container: Mapping[str, Any],
    job_volumes: Sequence[Mapping[str, Any]],
    where: str,
) -> None:
    """Check that the folder of a ``file://`` address lies on a volume that the next attempt's pods have too.

    Args:
        address: Address of a store; other schemes pass.
        pod_spec: The pod's spec, for its volumes.
        container: The container that writes there, for its mounts.
        job_volumes: Volumes that a vcjob mounts into every container.
        where: Manifest and task, for messages.

    Raises:
        UsageError: Nothing is mounted there, or a volume that ends with the pod or the job, or one to read only.
    """
    parts = split(address)
    if parts.scheme != "file":
        return
    said = shown(address)
    folder = PurePosixPath(unquote(parts.path))
    mounts = {PurePosixPath(one["mountPath"]): one for one in (*job_volumes, *(container.get("volumeMounts") or []))}
    over = [path for path in (folder, *folder.parents) if path in mounts]
    if not over:
        raise UsageError(f"{where}: store {said} would lie inside the container and go with the pod: {_WAY_OUT}")
    mount = mounts[over[0]]
    if "volumeClaim" in mount:
        raise UsageError(
            f"{where}: store {said} lies on spec.volumes {str(over[0])!r}, whose claim Volcano makes for one job "
            f"and deletes with it, and every attempt is a job of its own: name a claim of yours with volumeClaimName"
        )
    if mount.get("readOnly"):
        raise UsageError(f"{where}: store {said} lies on {str(over[0])!r}, which is mounted to be read only")
    if "volumeClaimName" in mount:
        return
    volumes = {one.get("name"): one for one in pod_spec.get("volumes") or []}
    volume = volumes.get(mount.get("name"), {})
    kind = next((kind for kind in _OF_THE_POD if kind in volume), None)
    if kind:
        raise UsageError(
            f"{where}: store {said} lies on volume {volume['name']!r} ({kind}), which ends with the pod: {_WAY_OUT}"
        )
