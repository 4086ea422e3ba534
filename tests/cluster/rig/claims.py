"""A volume for a store in a folder, and the claim that is bound to it."""

from typing import Any

CLAIM = "store"


def volume(namespace: str, folder: str, mode: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A volume and the claim that is bound to it."""
    size = {"storage": "1Gi"}
    claim = {"kind": "PersistentVolumeClaim", "namespace": namespace, "name": CLAIM}
    spec = {"accessModes": [mode], "storageClassName": ""}
    return (
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": namespace},
            "spec": {
                **spec,
                "capacity": size,
                "hostPath": {"path": folder},
                "claimRef": claim,
                "persistentVolumeReclaimPolicy": "Retain",
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": CLAIM, "namespace": namespace},
            "spec": {**spec, "resources": {"requests": size}, "volumeName": namespace},
        },
    )
