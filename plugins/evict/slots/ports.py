"""What a slot is: one healer's way of asking for an empty node, and of being told that it is one."""

from collections.abc import Mapping
from typing import Any, Protocol, TypeVar

from pydantic import ValidationError

from rerail.plugins.kube.api import KubeApi
from rerail.plugins.kube.resources import ResourceType
from rerail.policies.documents import Value
from rerail.policies.drains import Ask, DrainNote, Telling
from rerail.policies.errors import UsageError
from rerail.policies.units import duration_s

Obj = dict[str, Any]


class Slot(Protocol):
    """One healer's requests. Every method may be called again, and beside other processes that do the same.

    Each of them raises ``TransientError`` where the API server does not answer, ``ConflictError`` where the object
    changed meanwhile, ``NotFoundError`` where it went, and ``RefusedError`` naming a right that is missing. A slot is
    made from its options by a callable that is an entry point of the group ``rerail.drain_slots``.

    Attributes:
        name: As its entry point.
        deadline_s: From the first sight of a request until gangs that did not save are evicted all the same.
        rights: The least that it needs, in addition to looking at nodes and pods and evicting pods.
        objects: What ``--print manifests`` prints besides, for ``kubectl apply``.
    """

    name: str
    deadline_s: float

    @property
    def rights(self) -> Mapping[ResourceType, tuple[str, ...]]:
        """Verbs by kind."""
        ...

    def objects(self, namespace: str) -> tuple[Obj, ...]:
        """Objects of the slot's own, in ``namespace`` where the healer does not say otherwise."""
        ...

    def start(self, api: KubeApi) -> None:
        """Begin to watch, and use this API server from now on."""
        ...

    def stop(self) -> None:
        """End it."""
        ...

    def asks(self) -> tuple[Ask, ...]:
        """Every request that stands now, with the note that was kept on it and what its healer was told last."""
        ...

    def keep(self, ask: Ask, note: DrainNote) -> None:
        """Keep the note on the request's object."""
        ...

    def tell(self, ask: Ask, telling: Telling) -> None:
        """Tell the healer. After ``done`` it may reboot the node."""
        ...


class SlotOptions(Value):
    """Options that every slot has.

    Attributes:
        deadline_s: See ``Slot``.
    """

    deadline_s: float = 1200.0


_Options = TypeVar("_Options", bound=SlotOptions)


def options_of(model: type[_Options], slot: str, given: Mapping[str, str]) -> _Options:
    """A slot's options from what a person wrote as ``--set SLOT.NAME=VALUE``.

    Raises:
        UsageError: One is not known, or its value cannot be used.
    """
    values: dict[str, Any] = {}
    for name, text in given.items():
        field = f"{name}_s" if f"{name}_s" in model.model_fields else name
        if field not in model.model_fields:
            known = ", ".join(sorted(one.removesuffix("_s") for one in model.model_fields))
            raise UsageError(f"--set {slot}.{name}: slot {slot!r} has no such option; known: {known}")
        values[field] = duration_s(text, f"--set {slot}.{name}") if field.endswith("_s") else text
    try:
        found = model.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise UsageError(f"--set {slot}.{first['loc'][0]}={first['input']}: {first['msg']}") from None
    if found.deadline_s <= 0:
        raise UsageError(f"--set {slot}.deadline: a save takes time; give it some, for example 20m")
    return found
