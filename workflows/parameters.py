"""The parameters of the templates: what Argo's submit form shows, and how they reach a step's environment."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from hera.workflows import Env, Parameter

from rerail.workflows.naming import IMAGE


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One parameter of a template.

    Attributes:
        name: As in the form and in ``--parameter``.
        description: The form's help.
        default: None where it has to be given.
        choices: The form offers these only.
    """

    name: str
    description: str
    default: str | None = ""
    choices: tuple[str, ...] = ()

    def argument(self) -> Parameter:
        """As an argument of a workflow: with a value, since the form shows it."""
        enum = list(self.choices) or None
        if self.default is None:
            return Parameter(name=self.name, description=self.description, enum=enum)
        return Parameter(name=self.name, description=self.description, enum=enum, value=self.default)

    def entry(self) -> Parameter:
        """As an input of the template that others refer to: what they leave out has its default."""
        enum = list(self.choices) or None
        if self.default is None:
            return Parameter(name=self.name, description=self.description, enum=enum)
        return Parameter(name=self.name, description=self.description, enum=enum, default=self.default)


STORE: Final = Setting(
    name="store",
    default=None,
    description="Where checkpoints and the run's documents are kept, as s3://BUCKET/PREFIX. Pods and steps reach it.",
)
CONTROL: Final = Setting(
    name="control",
    description="Store of the run's documents, if another one (checkpoints on an RWO volume). Empty: the same.",
)
RUN: Final = Setting(
    name="run",
    description="Name of the run: small letters, digits and -, at most 52. One that exists goes on with take-over. "
    "Empty: the manifest's name, else the workflow's.",
)
IMAGE_OF_RANKS: Final = Setting(
    name="image", description="Image with your code and `pip install rerail`. Empty with a manifest."
)
COMMAND: Final = Setting(
    name="command",
    description="What each rank runs, as in a shell: python train.py --steps 1000. Empty with a manifest.",
)
REPLICAS: Final = Setting(name="replicas", default="1", description="Pods of the gang, 1 or more.")
GPUS: Final = Setting(
    name="gpus-per-replica", default="8", description="GPUs of each pod, and as many ranks; 0 makes one rank."
)
QUEUE: Final = Setting(name="queue", default="default", description="Volcano's queue.")
PRIORITY_CLASS: Final = Setting(name="priority-class", description="PriorityClass of the gang. Empty: the cluster's.")
MANIFEST: Final = Setting(
    name="manifest",
    description="Your own vcjob, or a rerail.dev/v1alpha1 Run, as YAML; then image, command, replicas, GPUs and queue "
    "are its own.",
)
POLICY: Final = Setting(
    name="policy", description="Fields of the recovery policy that differ, as YAML: hold_s, max_attempts, budgets."
)
DEADLINE: Final = Setting(
    name="deadline-s",
    default="120",
    description="Whole seconds that a save on request may take, and a stop of the workflow.",
)
MAX_ATTEMPTS: Final = Setting(
    name="max-attempts",
    default="20",
    description="Attempts before the run gives up. At most 80: Argo nests no more than 100 templates.",
)
BACKEND: Final = Setting(
    name="backend",
    default="vcjob",
    choices=("vcjob", "podgroup"),
    description="The gang as a vcjob, or as a PodGroup with bare pods.",
)
TAKE_OVER: Final = Setting(
    name="take-over",
    default="false",
    choices=("false", "true"),
    description="Continue a run that another workflow or person began. Make sure that it does not go on there.",
)
GUARD_NAMESPACE: Final = Setting(
    name="guard-namespace",
    description="Namespace of the guard's ConfigMap that runs share; accounts need its rights there (`rerail rights "
    "--guard-namespace`). Empty: the workflow's.",
)
STORE_SECRET: Final = Setting(
    name="store-secret",
    default="rerail-store",
    description="Secret with the store's access as environment variables (AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ...). "
    "It may be missing: then the account's own identity counts.",
)
RERAIL_IMAGE: Final = Setting(
    name="rerail-image", default=IMAGE, description="Image of Rerail's own steps; its tag is Rerail's version."
)

WORK: Final = (IMAGE_OF_RANKS, COMMAND, REPLICAS, GPUS, QUEUE, PRIORITY_CLASS, MANIFEST, POLICY)
"""What to run. Only the first attempt is told; later ones read it from the run's own document."""

PLACE: Final = (STORE, CONTROL, RUN, STORE_SECRET, RERAIL_IMAGE)
"""Which run, and how a step reaches it."""

BOUNDS: Final = (DEADLINE, MAX_ATTEMPTS, BACKEND, TAKE_OVER, GUARD_NAMESPACE)
"""How it is driven."""

_NOT_ENVIRONMENT: Final = (RERAIL_IMAGE.name,)


def names(settings: Iterable[Setting]) -> tuple[str, ...]:
    """The names of settings."""
    return tuple(setting.name for setting in settings)


def given(*parameters: str, **values: str) -> dict[str, str]:
    """Arguments for a task: inputs handed on under their own name, and values; ``_`` in a keyword is ``-``."""
    passed = {name: f"{{{{inputs.parameters.{name}}}}}" for name in parameters}
    return passed | {name.replace("_", "-"): value for name, value in values.items()}


def environment(parameters: Iterable[str]) -> list[Env]:
    """The environment of a step: each input as RERAIL_<NAME>, so that no value is read by a shell or a template."""
    return [
        Env(name=f"RERAIL_{name.upper().replace('-', '_')}", value=f"{{{{inputs.parameters.{name}}}}}")
        for name in parameters
        if name not in _NOT_ENVIRONMENT
    ]
