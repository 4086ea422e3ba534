"""What a step is told: the parameters of its template, as environment."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from rerail.plugins.checkpoint.attempts import read_run
from rerail.plugins.checkpoint.open import check_address, open_run
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.gang.clusters import ALL_BACKENDS, BACKENDS, Wanted
from rerail.plugins.steps.outputs import TERMINATION_LOG, Outputs
from rerail.plugins.steps.simple import check_name, number, simple_manifest
from rerail.policies.errors import NotFoundError, UsageError
from rerail.policies.keys import check_run_name
from rerail.policies.owners import WorkflowRef
from rerail.policies.policy_text import parse_policy
from rerail.policies.recovery import RecoveryPolicy
from rerail.policies.workloads.reading import parse_manifest, read_workload
from rerail.policies.workloads.workload import Workload

MOST_ATTEMPTS: Final = 80
"""Argo nests at most 100 templates, and each attempt of a Workflow is nested in the one before it."""

_YES: Final = {"true": True, "false": False, "": False}


@dataclass(frozen=True, slots=True)
class Inputs:
    """The environment of a step, as text; a variable that is not set is empty.

    Attributes:
        environ: The environment.
    """

    environ: Mapping[str, str]

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self:
        """From a process's environment."""
        return cls({key: value for key, value in environ.items() if key.startswith(("RERAIL_", "ARGO_"))})

    def text(self, name: str) -> str:
        """One parameter by its name in the form, for example ``max-attempts``."""
        return self.environ.get(f"RERAIL_{name.upper().replace('-', '_')}", "").strip()

    def with_run(self, run: str) -> "Inputs":
        """The same, with the run named."""
        return Inputs({**self.environ, "RERAIL_RUN": run})

    def outputs(self, folder: Path) -> Outputs:
        """Where the step tells Argo."""
        progress = self.environ.get("ARGO_PROGRESS_FILE")
        log = self.text("termination-log")
        return Outputs(folder, Path(log) if log else TERMINATION_LOG, Path(progress) if progress else None)

    @property
    def workflow(self) -> WorkflowRef:
        """The Workflow that the step belongs to.

        Raises:
            UsageError: The environment does not say.
        """
        namespace, name, uid = self.text("namespace"), self.text("workflow"), self.text("workflow-uid")
        if not (namespace and name and uid):
            raise UsageError(
                "RERAIL_NAMESPACE, RERAIL_WORKFLOW and RERAIL_WORKFLOW_UID must be set: a step belongs to a Workflow"
            )
        return WorkflowRef(namespace=namespace, name=name, uid=uid)

    @property
    def store(self) -> str:
        """Address of the store.

        Raises:
            UsageError: There is none.
        """
        if not self.text("store"):
            raise UsageError("parameter store is empty: give an address such as s3://BUCKET/PREFIX")
        check_address(self.text("store"))
        return self.text("store")

    @property
    def control(self) -> str | None:
        """Address of the documents, where that is another one."""
        return self.text("control") or None

    @property
    def take_over(self) -> bool:
        """Whether another owner's run may be gone on with."""
        text = self.text("take-over")
        if text.lower() not in _YES:
            raise UsageError(f"parameter take-over = {text!r}: true or false belongs there")
        return _YES[text.lower()]

    @property
    def most_attempts(self) -> int:
        """A bound on attempts beside the policy's."""
        text = self.text("max-attempts")
        return number("max-attempts", text, least=1, most=MOST_ATTEMPTS) if text else MOST_ATTEMPTS

    @property
    def deadline_s(self) -> float:
        """How long a save on request may take. Argo reads the same text, and takes no spaces."""
        return float(number("deadline-s", self.environ.get("RERAIL_DEADLINE_S", "120"), least=1))

    @property
    def kind(self) -> str:
        """Of the backend."""
        text = self.text("backend") or BACKENDS[0]
        if text not in ALL_BACKENDS:
            raise UsageError(f"parameter backend = {text!r}: use one of {', '.join(BACKENDS)}")
        return text

    def check_names(self) -> None:
        """Refuse names that no object of the cluster can have, before one is asked for.

        Raises:
            UsageError: Names the parameter and the value.
        """
        for name in ("queue", "priority-class", "guard-namespace"):
            if self.text(name):
                check_name(name, self.text(name))
        if "RERAIL_STORE_SECRET" in self.environ:
            check_name("store-secret", self.text("store-secret"))

    def given(self) -> Workload | None:
        """The workload that the parameters describe; None where they describe none.

        Raises:
            UsageError: They do not fit together, or the manifest cannot run as a gang.
        """
        run = self.text("run") or None
        manifest = self.environ.get("RERAIL_MANIFEST", "")
        if manifest.strip():
            for name in ("image", "command"):
                if self.text(name):
                    raise UsageError(
                        f"parameter {name} = {self.text(name)!r} stands beside a manifest: leave one of them out"
                    )
            return read_workload(parse_manifest(manifest, "parameter manifest"), "parameter manifest", run=run)
        if not self.text("image") and not self.text("command"):
            return None
        document = simple_manifest(
            check_run_name(run or self.workflow.name),
            image=self.text("image"),
            command=self.text("command"),
            replicas=self.text("replicas") or "1",
            gpus_per_replica=self.text("gpus-per-replica") or "0",
            queue=self.text("queue"),
            priority_class=self.text("priority-class"),
            secret=self.text("store-secret"),
        )
        return read_workload(document, "parameters image and command", run=run)

    def run_name(self, given: Workload | None, *, otherwise: str = "") -> str:
        """The run's name: as it is given, else the manifest's, else ``otherwise``, else the Workflow's.

        Raises:
            UsageError: It cannot name a run.
        """
        named = self.text("run") or (given.run if given is not None else "") or otherwise
        return check_run_name(named or self.workflow.name)

    def open(self, run: str, *, create: bool = False) -> RunStore:
        """The run's stores."""
        return open_run(run, store=self.store, control=self.control, create=create, outside=True)

    def wanted(self) -> Wanted:
        """What is to be supervised: as the parameters describe it, else as it stands in the run's own document.

        Raises:
            UsageError: Something is wrong with the parameters; or there is neither a description nor such a run.
        """
        self.check_names()
        given = self.given()
        if given is not None and given.control not in (None, self.control or self.store):
            raise UsageError(
                f"{given.source} says control {given.control!r} and parameter control = {self.control or ''!r}: give "
                f"control={given.control} as a parameter, too, since later steps see no manifest"
            )
        policy = RecoveryPolicy()
        if given is not None and given.policy:
            policy = RecoveryPolicy.from_mapping(
                policy.model_dump() | dict(given.policy), f"{given.source}: spec.policy"
            )
        told = self.environ.get("RERAIL_POLICY", "")
        if told.strip():
            policy = parse_policy(told, "parameter policy", policy)
        return Wanted(
            kind=self.kind,
            workload=given or self._standing(),
            store=self.store,
            control=self.control,
            policy=policy,
            policy_given=bool(told.strip()),
            owner=self.workflow.owner,
            take_over=self.take_over,
            guard_namespace=self.text("guard-namespace") or None,
            priority_class=self.text("priority-class"),
            most_attempts=self.most_attempts,
        )

    def _standing(self) -> Workload:
        name = self.run_name(None)
        try:
            doc = read_run(self.open(name))
        except NotFoundError as error:
            raise UsageError(f"{error}; for a new run give image and command, or a manifest") from None
        if doc.workload is None:
            raise UsageError(
                f"run {name!r} was begun on a machine, not from a manifest: a Workflow cannot go on with it"
            )
        return read_workload(dict(doc.workload), f"run.json of run {name!r}", run=name)
