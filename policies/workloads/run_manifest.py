"""``rerail.dev/v1alpha1`` Run: a training run as a short manifest of our own."""

import difflib
from typing import Any, Final, Literal, Self

from pydantic import ConfigDict, Field, JsonValue, ValidationError
from pydantic.alias_generators import to_camel

from rerail.policies.documents import Value
from rerail.policies.errors import UsageError
from rerail.policies.recovery import RecoveryPolicy
from rerail.policies.workloads.fields import shown_value
from rerail.policies.workloads.lock import LOCK_ANNOTATION

RUN_KIND: Final = "Run"
RUN_VERSION: Final = "rerail.dev/v1alpha1"
TASK: Final = "worker"
"""The one task of the vcjob that a Run becomes; its pods are ``<run>-a<attempt>-worker-<index>``."""


class _Part(Value):
    """A part of the manifest: camelCase, as in Kubernetes; unknown fields are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel, populate_by_name=True)


class RunMetadata(_Part):
    """Name and labels."""

    name: str
    namespace: str | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class RunSpec(_Part):
    """What to run, and how it is recovered.

    Attributes:
        command: What each rank runs, with its arguments. Launch is put before it.
        replicas: Pods.
        gpus_per_replica: GPUs of each pod.
        gpu_resource: Their resource name.
        ranks_per_replica: Ranks of each pod; None makes it one per GPU, at least one.
        env: As in a container: a list of name with value or valueFrom.
        resources: Further requests and limits, as in a container.
        store: Address of the run's store.
        control: Address of the store of control documents, where it is another one.
        policy: Fields of the recovery policy that differ from the defaults.
        preemption_lock: Whether Volcano may take the gang only once Rerail opens its lock.
    """

    image: str = Field(min_length=1)
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] | None = None
    image_pull_secrets: tuple[dict[str, str], ...] = ()
    command: tuple[str, ...] = Field(min_length=1)
    replicas: int = Field(ge=1)
    gpus_per_replica: int = Field(0, ge=0)
    gpu_resource: str = Field("nvidia.com/gpu", min_length=1)
    ranks_per_replica: int | None = Field(None, ge=1)
    queue: str = "default"
    priority_class_name: str | None = None
    service_account_name: str | None = None
    env: tuple[dict[str, JsonValue], ...] = ()
    env_from: tuple[dict[str, JsonValue], ...] = ()
    resources: dict[Literal["requests", "limits"], dict[str, str | int | float]] = Field(default_factory=dict)
    node_selector: dict[str, str] = Field(default_factory=dict)
    tolerations: tuple[dict[str, JsonValue], ...] = ()
    volumes: tuple[dict[str, JsonValue], ...] = ()
    volume_mounts: tuple[dict[str, JsonValue], ...] = ()
    store: str | None = None
    control: str | None = None
    policy: dict[str, JsonValue] = Field(default_factory=dict)
    preemption_lock: bool = False

    @property
    def ranks(self) -> int:
        """Ranks of each pod."""
        return self.ranks_per_replica or max(1, self.gpus_per_replica)


class RunManifest(_Part):
    """The whole manifest."""

    api_version: Literal["rerail.dev/v1alpha1"] = RUN_VERSION
    kind: Literal["Run"] = RUN_KIND
    metadata: RunMetadata
    spec: RunSpec

    @classmethod
    def from_document(cls, document: dict[str, Any], source: str) -> Self:
        """Read a Run.

        Raises:
            UsageError: Names the field, the value, and the nearest known name or the allowed range.
        """
        try:
            manifest = cls.model_validate(document)
        except ValidationError as error:
            raise UsageError(f"{source}: {_first_problem(error)}") from None
        RecoveryPolicy.from_mapping(dict(manifest.spec.policy), f"{source}: spec.policy")
        return manifest


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    path = ".".join(str(part) for part in first["loc"])
    if first["type"] == "missing":
        return f"{path} is missing"
    if first["type"] == "extra_forbidden":
        parts: dict[str, type[_Part]] = {"metadata": RunMetadata, "spec": RunSpec}
        part = parts.get(str(first["loc"][0]), RunManifest)
        known = [to_camel(name) for name in part.model_fields]
        near = difflib.get_close_matches(str(first["loc"][-1]), known, n=1)
        return f"unknown field {path}: " + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}")
    return f"{path} = {shown_value(path, first['input'])}: {first['msg']}"


def to_vcjob(run: RunManifest) -> dict[str, Any]:
    """The vcjob that a Run stands for, without anything that recovery adds.

    Raises:
        UsageError: ``spec.resources`` says another number of GPUs than ``spec.gpusPerReplica``.
    """
    spec = run.spec
    container: dict[str, Any] = {
        "name": "main",
        "image": spec.image,
        "imagePullPolicy": spec.image_pull_policy,
        "command": list(spec.command),
        "env": list(spec.env),
        "envFrom": list(spec.env_from),
        "resources": _resources(spec),
        "volumeMounts": list(spec.volume_mounts),
    }
    pod: dict[str, Any] = {
        "serviceAccountName": spec.service_account_name,
        "imagePullSecrets": list(spec.image_pull_secrets),
        "nodeSelector": dict(spec.node_selector),
        "tolerations": list(spec.tolerations),
        "containers": [_said(container)],
        "volumes": list(spec.volumes),
    }
    annotations = {"rerail.dev/ranks-per-pod": str(spec.ranks)}
    job: dict[str, Any] = {
        "schedulerName": "volcano",
        "queue": spec.queue,
        "priorityClassName": spec.priority_class_name,
        "minAvailable": spec.replicas,
        "tasks": [
            {
                "name": TASK,
                "replicas": spec.replicas,
                "template": {"metadata": {"annotations": annotations}, "spec": _said(pod)},
            }
        ],
    }
    metadata = run.metadata.model_dump()
    if spec.preemption_lock:
        metadata["annotations"] = {**metadata["annotations"], LOCK_ANNOTATION: "true"}
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": _said(metadata),
        "spec": _said(job),
    }


def _resources(spec: RunSpec) -> dict[str, dict[str, str | int | float]]:
    resources = {str(side): dict(amounts) for side, amounts in spec.resources.items()}
    for side, amounts in resources.items():
        said = amounts.get(spec.gpu_resource)
        if said is not None and str(said) != str(spec.gpus_per_replica):
            raise UsageError(
                f"spec.resources.{side}.{spec.gpu_resource} = {said!r} and spec.gpusPerReplica = "
                f"{spec.gpus_per_replica}: leave the first out"
            )
    if spec.gpus_per_replica:
        resources.setdefault("limits", {})[spec.gpu_resource] = spec.gpus_per_replica
    return resources


def _said(fields: dict[str, Any]) -> dict[str, Any]:
    """Without what nobody said."""
    return {key: value for key, value in fields.items() if value not in (None, [], {}, "")}
