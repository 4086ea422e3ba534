"""What all models share: unknown fields kept, nothing added on the way back, and where a kind lives.

Reading never fails on what a newer Volcano writes: constraints of the CRDs are recorded on the fields (``Crd``), for
``generate_crds`` and for people, and are left to the API server to enforce. Enumerations fall back to plain text.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Final, Self, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from rerail.plugins.kube.resources import ResourceType
from rerail.policies.errors import UsageError
from rerail.policies.yaml_text import read_yaml

T = TypeVar("T")

DNS_SUBDOMAIN: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
DNS_LABEL: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"
QUANTITY: Final = (
    r"^(\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))"
    r"(([KMGTPE]i)|[numkMGTPE]|([eE](\+|-)?(([0-9]+(\.[0-9]*)?)|(\.[0-9]+))))?$"
)


_GO_PART: Final = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|\u00b5s|ms|h|m|s)")
_GO_UNITS_S: Final = {"ns": 1e-9, "us": 1e-6, "\u00b5s": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Crd:
    """What Volcano's CRD says about a field beyond its type.

    Attributes:
        words: Keywords of the schema, as the CRD spells them.
        required: Whether the field must be there.
        opaque: The field is Kubernetes' own (a pod template); its inside is kept, not described.
        closed: False where the CRD lists no values although the Go code has constants.
    """

    words: tuple[tuple[str, object], ...] = ()
    required: bool = False
    opaque: bool = False
    closed: bool = True


def crd(*, required: bool = False, opaque: bool = False, closed: bool = True, **words: object) -> Crd:
    """Record what the CRD says about a field."""
    return Crd(words=tuple(words.items()), required=required, opaque=opaque, closed=closed)


def _no_null_list(value: object) -> object:
    return [] if value is None else value


def _no_null_map(value: object) -> object:
    return {} if value is None else value


Many = Annotated[list[T], BeforeValidator(_no_null_list)]
Table = Annotated[dict[str, T], BeforeValidator(_no_null_map)]

Int32 = Annotated[int, crd(format="int32")]
Count = Annotated[int, crd(format="int32", minimum=0)]
Positive = Annotated[int, crd(format="int32", minimum=1)]
ObjectName = Annotated[str, crd(maxLength=253, pattern=DNS_SUBDOMAIN)]
ShortText = Annotated[str, crd(maxLength=253)]
Timestamp = Annotated[str, crd(format="date-time")]
"""RFC 3339, kept as written; ``moment`` reads it."""
Quantities = Table[int | str]
"""Resource name -> quantity, for example {"nvidia.com/gpu": "8"}."""
Opaque = Annotated[dict[str, Any], BeforeValidator(_no_null_map), crd(opaque=True)]
"""An object of Kubernetes' own, as a plain dict."""


def moment(timestamp: str | None) -> datetime | None:
    """Read a timestamp of the cluster; None stays None."""
    return None if timestamp is None else datetime.fromisoformat(timestamp)


def go_duration_s(text: str) -> float:
    """Read a Go duration such as ``1h2m3.5s`` or ``300ms``, as Volcano writes them; seconds.

    Raises:
        UsageError: It is none.
    """
    if text == "0":
        return 0.0
    sign, body = (-1.0, text[1:]) if text.startswith("-") else (1.0, text)
    parts = _GO_PART.findall(body)
    if not parts or "".join(number + unit for number, unit in parts) != body:
        raise UsageError(f"{text!r} is no Go duration; write 90s, 1h30m or 500ms (no days)")
    return sign * sum(float(number) * _GO_UNITS_S[unit] for number, unit in parts)


class Part(BaseModel):
    """A part of an object. Python names are snake_case, JSON names camelCase; unknown fields are kept."""

    model_config = ConfigDict(
        extra="allow", alias_generator=to_camel, validate_by_name=True, validate_by_alias=True, validate_assignment=True
    )

    def to_dict(self) -> dict[str, Any]:
        """The object as JSON has it: what was set or changed, and every unknown field; no default is written out."""
        content: dict[str, Any] = {}
        for name, field in type(self).model_fields.items():
            value = getattr(self, name)
            always = name in self.model_fields_set or name in ("api_version", "kind")
            if always or value != field.get_default(call_default_factory=True, validated_data={}):
                content[field.alias or name] = _plain(value)
        return {**content, **(self.model_extra or {})}


def _plain(value: object) -> object:
    if isinstance(value, Part):
        return value.to_dict()
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return value


class OwnerReference(Part):
    """Who owns an object: the owner's deletion takes it along."""

    api_version: Annotated[str, crd(required=True)]
    kind: Annotated[str, crd(required=True)]
    name: Annotated[str, crd(required=True)]
    uid: Annotated[str, crd(required=True)]
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class Metadata(Part):
    """Name, identity and labels of an object."""

    name: str | None = None
    generate_name: str | None = None
    namespace: str | None = None
    uid: str | None = None
    resource_version: str | None = None
    generation: int | None = None
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: Table[str] = Field(default_factory=dict)
    annotations: Table[str] = Field(default_factory=dict)
    owner_references: Many[OwnerReference] = Field(default_factory=list)
    finalizers: Many[str] = Field(default_factory=list)


class VolcanoObject(Part):
    """Base of the four kinds.

    Attributes:
        RESOURCE: Where the API server keeps objects of the kind.
    """

    RESOURCE: ClassVar[ResourceType]

    api_version: str = ""
    kind: str = ""
    metadata: Metadata = Field(default_factory=Metadata)

    def model_post_init(self, _context: object, /) -> None:
        """Fill in what the class itself says."""
        given = (self.api_version or self.RESOURCE.api_version, self.kind or self.RESOURCE.kind)
        if given != (self.RESOURCE.api_version, self.RESOURCE.kind):
            raise ValueError(
                f"this is a {given[1]} of {given[0]}, not a {self.RESOURCE.kind} of {self.RESOURCE.api_version}"
            )
        # Past validation on assignment, which would come back here.
        self.__dict__["api_version"], self.__dict__["kind"] = given

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """Read an object as the API server or a manifest has it.

        Raises:
            UsageError: It is another kind, or a field has a type that cannot be read; names the field.
        """
        try:
            return cls.model_validate(dict(content), by_alias=True, by_name=False)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "the object"
            metadata = content.get("metadata")
            name = metadata.get("name") if isinstance(metadata, Mapping) else None
            raise UsageError(f"{cls.RESOURCE.kind} {name!r} cannot be read: {where}: {first['msg']}") from error

    @classmethod
    def from_yaml(cls, text: str) -> Self:
        """Read a manifest of one document.

        Raises:
            UsageError: No YAML, several documents, or another kind.
        """
        documents = read_yaml(text, "the manifest")
        if len(documents) > 1:
            raise UsageError(f"the manifest is no YAML of one document: it holds {len(documents)}")
        content = documents[0] if documents else None
        if not isinstance(content, dict):
            raise UsageError(f"the manifest holds no {cls.RESOURCE.kind}: an object with apiVersion, kind, metadata")
        return cls.from_dict(content)

    def to_yaml(self) -> str:
        """The object as a manifest."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False)

    @property
    def name(self) -> str:
        """The object's name; empty where the server is to make one."""
        return self.metadata.name or ""

    @property
    def uid(self) -> str:
        """The object's identity; empty before it is created."""
        return self.metadata.uid or ""

    @property
    def deleting(self) -> bool:
        """Whether its deletion was asked for."""
        return self.metadata.deletion_timestamp is not None


class NamespacedObject(VolcanoObject):
    """A kind that lives in a namespace."""


class ClusterObject(VolcanoObject):
    """A kind that belongs to the whole cluster."""
