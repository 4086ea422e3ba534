"""What ``rerail serve drains`` needs in a cluster, as data."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rerail.plugins.evict.deployed import account, deployment
from rerail.plugins.evict.slots.owner import RIGHTS
from rerail.plugins.evict.slots.ports import Slot
from rerail.plugins.kube.resources import ResourceType

NAME: Final = "rerail-drains"


def rights(slots: Sequence[Slot]) -> dict[ResourceType, tuple[str, ...]]:
    """The least that these slots need together."""
    found: dict[ResourceType, dict[str, None]] = {kind: dict.fromkeys(verbs) for kind, verbs in RIGHTS.items()}
    for slot in slots:
        for kind, verbs in slot.rights.items():
            found.setdefault(kind, {}).update(dict.fromkeys(verbs))
    return {kind: tuple(verbs) for kind, verbs in found.items()}


def manifests(
    namespace: str,
    image: str,
    slots: Sequence[Slot],
    options: Mapping[str, Mapping[str, str]],
    *,
    save_within: str,
    store_secret: str = "",
) -> list[dict[str, Any]]:
    """Everything for ``kubectl apply``: account, rights, Deployment, and what the slots bring.

    Args:
        namespace: Where it runs.
        image: An image with ``rerail[cli,control]``.
        slots: The slots that it serves.
        options: Of the slots, as a person wrote them.
        save_within: The most that a gang's commit is waited for.
        store_secret: A Secret with the usual AWS variables, for stores on S3; empty for none.
    """
    chosen = [f"--slot={slot.name}" for slot in slots]
    told = [f"--set={slot}.{name}={value}" for slot, given in options.items() for name, value in given.items()]
    return [
        *account(NAME, namespace, rights(slots)),
        *(one for slot in slots for one in slot.objects(namespace)),
        deployment(
            NAME,
            namespace,
            image,
            ["serve", "drains", *chosen, *told, f"--save-within={save_within}"],
            store_secret=store_secret,
        ),
    ]
