"""Minimal CRDs made from the models: for a test cluster where Volcano's own files are not at hand.

They say what Volcano's say about every field of Volcano's own; what belongs to Kubernetes (a pod template) is accepted
whole, without description.
"""

import types
from enum import StrEnum
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

from rerail.plugins.volcano.base import QUANTITY, ClusterObject, Crd, Part, VolcanoObject
from rerail.plugins.volcano.command import Command
from rerail.plugins.volcano.job import VolcanoJob
from rerail.plugins.volcano.podgroup import PodGroup
from rerail.plugins.volcano.queue import Queue

Schema = dict[str, Any]

KINDS: Final[tuple[type[VolcanoObject], ...]] = (VolcanoJob, PodGroup, Queue, Command)

_SHORT_NAMES: Final[dict[type[VolcanoObject], tuple[str, ...]]] = {
    VolcanoJob: ("vcjob", "vj"),
    PodGroup: ("pg", "podgroup-v1beta1"),
    Queue: ("q", "queue-v1beta1"),
    Command: (),
}
_STATUS_SUBRESOURCE: Final = frozenset({VolcanoJob, Queue})

_SCALARS: Final[dict[object, Schema]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    bool: {"type": "boolean"},
}


def generate_crds() -> tuple[Schema, ...]:
    """The CustomResourceDefinitions of the four kinds, ready to be created."""
    return tuple(_definition(kind) for kind in KINDS)


def schema_of(kind: type[Part]) -> Schema:
    """The structural schema of a model."""
    hints = get_type_hints(kind, include_extras=True)
    properties: Schema = {}
    required: list[str] = []
    for name, field in kind.model_fields.items():
        alias = field.alias or name
        if issubclass(kind, VolcanoObject) and name == "metadata":
            properties[alias] = {"type": "object"}
            continue
        properties[alias] = _schema(hints[name])
        if any(mark.required for mark in _marks(hints[name])):
            required.append(alias)
    return {"type": "object", "properties": properties} | ({"required": sorted(required)} if required else {})


def _definition(kind: type[VolcanoObject]) -> Schema:
    resource = kind.RESOURCE
    names: Schema = {
        "kind": resource.kind,
        "listKind": f"{resource.kind}List",
        "plural": resource.plural,
        "singular": resource.kind.lower(),
    }
    if _SHORT_NAMES[kind]:
        names["shortNames"] = list(_SHORT_NAMES[kind])
    version: Schema = {
        "name": resource.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema_of(kind)},
    }
    if kind in _STATUS_SUBRESOURCE:
        version["subresources"] = {"status": {}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": resource.full_name},
        "spec": {
            "group": resource.group,
            "names": names,
            "scope": "Cluster" if issubclass(kind, ClusterObject) else "Namespaced",
            "versions": [version],
        },
    }


def _schema(hint: Any) -> Schema:
    """The schema of a type annotation."""
    marks = _marks(hint)
    if any(mark.opaque for mark in marks):
        return {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = _bare(hint)
    for mark in marks:
        schema |= dict(mark.words)
        if not mark.closed:
            schema.pop("enum", None)
    return schema


def _bare(hint: Any) -> Schema:
    hint = _unwrapped(hint)
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        inner = tuple(one for one in inner if one is not types.NoneType)
        if set(inner) == {int, str}:
            return {
                "anyOf": [{"type": "integer"}, {"type": "string"}],
                "pattern": QUANTITY,
                "x-kubernetes-int-or-string": True,
            }
        return _schema(inner[0])
    if origin is list:
        return {"type": "array", "items": _schema(inner[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": _schema(inner[1])}
    if issubclass(hint, StrEnum):
        return {"type": "string", "enum": [one.value for one in hint]}
    if issubclass(hint, Part):
        return schema_of(hint)
    return dict(_SCALARS[hint])


def _unwrapped(hint: Any) -> Any:
    """The type inside Annotated."""
    while get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    return hint


def _marks(hint: Any) -> list[Crd]:
    """What is recorded on the type itself, also within ``X | None``; inner ones first, so that outer ones win."""
    if get_origin(hint) is Annotated:
        inner, *metadata = get_args(hint)
        return _marks(inner) + [one for one in metadata if isinstance(one, Crd)]
    if get_origin(hint) in (Union, types.UnionType):
        real = [one for one in get_args(hint) if one is not types.NoneType]
        return _marks(real[0]) if len(real) == 1 else []
    return []
