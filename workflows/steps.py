"""One step of a template: a container that runs ``rerail`` with its inputs as environment, and nothing more.

Holds what every step needs on Argo 4.0.5: ``command`` is set (else the controller asks the registry), each output has a
default (else a lost pod leaves a reference that is waited for without end), a retry has a limit (without one a back-off
does not count), and only what the infrastructure broke is tried again.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from hera.workflows import (
    Artifact,
    ConfigMapVolume,
    Container,
    EmptyDirVolume,
    Env,
    NoneArchiveStrategy,
    Parameter,
    RetryStrategy,
)
from hera.workflows.models import (
    Affinity,
    Backoff,
    Capabilities,
    EnvFromSource,
    NodeAffinity,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    PreferredSchedulingTerm,
    ResourceRequirements,
    SeccompProfile,
    SecretEnvSource,
    SecurityContext,
    ValueFrom,
)

from rerail.plugins.steps.simple import AUTHORITIES, AUTHORITIES_FOLDER
from rerail.workflows.parameters import RERAIL_IMAGE, STORE_SECRET, environment

OUTPUTS: Final = "/tmp/rerail"  # noqa: S108  # an emptyDir of the pod's own
"""Folder of a step's outputs."""

INFRASTRUCTURE: Final = "lastRetry.status == 'Error' || lastRetry.exitCode in ['-1','64','137','143']"
"""What broke a step and not its run: a lost pod, Argo's own failure, SIGKILL, SIGTERM."""

IDENTITY: Final = (
    Env(name="RERAIL_WORKFLOW", value="{{workflow.name}}"),
    Env(name="RERAIL_WORKFLOW_UID", value="{{workflow.uid}}"),
    Env(name="RERAIL_NAMESPACE", value="{{workflow.namespace}}"),
    Env(name="RERAIL_OUTPUTS", value=OUTPUTS),
)

_USER: Final = 65534
_GPU_NODE: Final = "nvidia.com/gpu.present"


def step(
    name: str,
    arguments: Sequence[str],
    *,
    inputs: Iterable[str | Parameter],
    account: str,
    outputs: Mapping[str, str] | None = None,
    artifacts: Mapping[str, str] | None = None,
    env: Mapping[str, str] | None = None,
    retries: int | None = 10,
    pod_spec_patch: str | None = None,
    memory: str = "1Gi",
) -> Container:
    """A container template that runs ``rerail`` with these arguments.

    Args:
        name: Of the template.
        arguments: After ``rerail``.
        inputs: Parameters; a bare name is one without a default. The step's image is added. With
            ``store-secret`` the step gets what the Secret holds.
        account: ServiceAccount of the pod.
        outputs: Output parameters with their defaults, each read from the file of its name in ``OUTPUTS``.
        artifacts: Output artifacts and their files; a file that is not there is no failure.
        env: Further variables.
        retries: How often a step that the infrastructure broke is tried again. None for a step that only says why
            something failed: its node then has its words, where a Retry node has Argo's own.
        pod_spec_patch: What of the pod's spec Argo sets in no other way.
        memory: The container's limit.
    """
    taken = {_name(one): Parameter(name=one) if isinstance(one, str) else one for one in inputs}
    taken.setdefault(RERAIL_IMAGE.name, Parameter(name=RERAIL_IMAGE.name, default=RERAIL_IMAGE.default))
    files: list[Parameter | Artifact] = [
        Parameter(name=key, value_from=ValueFrom(path=f"{OUTPUTS}/{key}", default=default))
        for key, default in (outputs or {}).items()
    ]
    files += [
        Artifact(name=key, path=path, archive=NoneArchiveStrategy(), optional=True)
        for key, path in (artifacts or {}).items()
    ]
    variables = [*IDENTITY, *environment(taken), *(Env(name=key, value=value) for key, value in (env or {}).items())]
    return Container(
        name=name,
        image=f"{{{{inputs.parameters.{RERAIL_IMAGE.name}}}}}",
        image_pull_policy="IfNotPresent",
        command=["rerail"],
        args=list(arguments),
        inputs=list(taken.values()),
        outputs=files or None,
        env=variables,
        env_from=[store_access()] if STORE_SECRET.name in taken else None,
        resources=ResourceRequirements(requests={"cpu": "50m", "memory": "192Mi"}, limits={"memory": memory}),
        volumes=[
            EmptyDirVolume(name="scratch", mount_path="/tmp"),  # noqa: S108  # the root is read-only
            ConfigMapVolume(name=AUTHORITIES, mount_path=AUTHORITIES_FOLDER, read_only=True, optional=True),
        ],
        security_context=LOCKED,
        service_account_name=account,
        affinity=BESIDE_GPUS,
        retry_strategy=infrastructure_retry(retries) if retries is not None else None,
        pod_spec_patch=pod_spec_patch,
    )


def store_access() -> EnvFromSource:
    """The store's Secret as environment; it may be missing, where the account has an identity of its own."""
    secret = SecretEnvSource(name=f"{{{{inputs.parameters.{STORE_SECRET.name}}}}}", optional=True)
    return EnvFromSource(secret_ref=secret)


def infrastructure_retry(limit: int) -> RetryStrategy:
    """Try again what the infrastructure broke, a few seconds apart."""
    return RetryStrategy(
        limit=limit,
        retry_policy="Always",
        expression=INFRASTRUCTURE,
        backoff=Backoff(duration="2s", factor=2, cap="60s"),
    )


LOCKED: Final = SecurityContext(
    allow_privilege_escalation=False,
    capabilities=Capabilities(drop=["ALL"]),
    read_only_root_filesystem=True,
    run_as_non_root=True,
    run_as_user=_USER,
    seccomp_profile=SeccompProfile(type="RuntimeDefault"),
)
"""Of each step: no root, nothing to write but its scratch."""

BESIDE_GPUS: Final = Affinity(
    node_affinity=NodeAffinity(
        preferred_during_scheduling_ignored_during_execution=[
            PreferredSchedulingTerm(
                weight=100,
                preference=NodeSelectorTerm(
                    match_expressions=[NodeSelectorRequirement(key=_GPU_NODE, operator="DoesNotExist")]
                ),
            )
        ]
    )
)
"""Whoever watches a gang had better not die with its node."""


def _name(parameter: str | Parameter) -> str:
    return parameter if isinstance(parameter, str) else str(parameter.name)
