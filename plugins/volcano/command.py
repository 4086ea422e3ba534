"""``bus.volcano.sh/v1alpha1`` Command: an order to the job controller, which deletes it when it takes it."""

from typing import ClassVar, Final

from rerail.plugins.kube.resources import ResourceType
from rerail.plugins.volcano.base import NamespacedObject, OwnerReference
from rerail.plugins.volcano.enums import Action

COMMANDS: Final = ResourceType("bus.volcano.sh", "v1alpha1", "commands", "Command", product="Volcano")


class Command(NamespacedObject):
    """An order to the job controller. Its fields stand at the top level; there is no spec.

    Attributes:
        action: What is to be done.
        target: The job; the controller compares apiVersion and kind, and then acts on the *name* alone.
    """

    RESOURCE: ClassVar[ResourceType] = COMMANDS

    action: Action | None = None
    target: OwnerReference | None = None
    reason: str | None = None
    message: str | None = None
