"""rerail-train-fanout: the same gang with pods that Argo makes, one node of the Workflow for each.

    resolve ──> open ──> attempt ──> report
                          ├─ fresh | resume          supervises the gang
                          ├─ ranks ── rank(0), rank(1) ...
                          └─ assess (only if the supervision did not succeed; opens the next attempt, too)
                              ├─ next-attempt
                              └─ give-up

``open`` lets the PodGroup stand, so that Volcano places the pods of ``ranks`` together or not at all. One rank's
failure ends all: the supervisor deletes the pods of its gang. Nothing waits for ``ranks`` but the end of the Workflow:
a pod on a lost node does not keep the next attempt. A rank is never retried: it could not join its gang any more.

Argo is on the path of recovery here: between a fault and the new ranks stand the pod of ``assess`` and Argo itself.
"""

from dataclasses import replace
from typing import Final

from hera.workflows import DAG, ConfigMapVolume, Container, Env, FieldEnv, Parameter, Task, WorkflowTemplate
from hera.workflows.models import ContinueOn, PodGC, Sequence

from rerail.plugins.gang.clusters import FANOUT
from rerail.plugins.steps.open import NO_GANG
from rerail.plugins.steps.simple import AUTHORITIES, AUTHORITIES_FOLDER
from rerail.policies.workloads.attempt import ATTEMPT_LABEL, GANG_LABEL, RUN_LABEL, WORKFLOW_LABEL
from rerail.policies.workloads.fanout import POD_LABEL
from rerail.policies.workloads.pod_template import LAUNCH
from rerail.policies.workloads.podgroup import GROUP_ANNOTATION
from rerail.workflows.accounts import RANK, RUNNER
from rerail.workflows.branches import (
    LEAVES_IN_TIME,
    RUN_OF_RESOLVE,
    farewell_hook,
    farewell_step,
    give_up_step,
    recovery_tasks,
    report_step,
    report_task,
    run_output,
    supervision_tasks,
)
from rerail.workflows.naming import LABELS, about, versioned
from rerail.workflows.parameters import (
    COMMAND,
    CONTROL,
    DEADLINE,
    GPUS,
    GUARD_NAMESPACE,
    IMAGE_OF_RANKS,
    MAX_ATTEMPTS,
    PLACE,
    POLICY,
    PRIORITY_CLASS,
    QUEUE,
    REPLICAS,
    RUN,
    STORE,
    STORE_SECRET,
    TAKE_OVER,
    Setting,
    given,
    names,
)
from rerail.workflows.steps import step, store_access

NAME: Final = "rerail-train-fanout"
ENTRY: Final = "train"

WORK: Final = (
    replace(
        IMAGE_OF_RANKS, description="Image with your code and `pip install rerail`. A run that exists has its own."
    ),
    replace(
        COMMAND, description="What each rank runs, as in a shell: python train.py --steps 1000. No shell reads it."
    ),
    REPLICAS,
    GPUS,
    QUEUE,
    PRIORITY_CLASS,
    POLICY,
)
"""What to run. Only the first step is told; later ones read it from the run's own document."""

_RUN: Final = replace(
    RUN, description="Name of the run. One that exists goes on with take-over. Empty: the workflow's."
)

SETTINGS: Final[tuple[Setting, ...]] = (
    STORE, _RUN, *WORK, DEADLINE, MAX_ATTEMPTS, TAKE_OVER, GUARD_NAMESPACE, CONTROL, *PLACE[3:]
)  # fmt: skip
"""In the order of the form."""

OF_GANG: Final = (
    "gang",
    "attempt",
    "image",
    "command",
    "resources",
    "affinity",
    "grace-s",
    "priority-class",
    "world-size",
    "local-ranks",
    "hold-s",
    "poll-s",
)
"""What `open` says of an attempt's pods. It stands in the Workflow's status for each rank of each attempt."""

_PLACE: Final = names(PLACE)
_WORK: Final = names(WORK)
_BOUNDS: Final = names((DEADLINE, MAX_ATTEMPTS, TAKE_OVER, GUARD_NAMESPACE))
_ENDING: Final = names((*PLACE, DEADLINE, GUARD_NAMESPACE))
_REACH: Final = names((STORE, CONTROL, RUN, STORE_SECRET))
_BACKEND: Final = {"RERAIL_BACKEND": FANOUT}

_NOTHING: Final = {
    "how": "resume",
    "attempt": "1",
    "gang": NO_GANG,
    "replicas": "0",
    "image": "",
    "command": "[]",
    "resources": "{}",
    "affinity": "{}",
    "grace-s": "30",
    "priority-class": '""',
    "world-size": "1",
    "local-ranks": "1",
    "hold-s": "120",
    "poll-s": "1",
}
"""Outputs of a step that opened nothing: then no rank is made, and the runner says why."""


def fanout_templates(*, prefix: str = "") -> list[DAG | Container]:
    """The templates of a resilient gang of Argo's own pods; the first is the one to refer to.

    Args:
        prefix: Before each name, so that several gangs fit into one workflow.
    """
    return [
        _train(prefix),
        _attempt(prefix),
        _ranks(prefix),
        _rank(prefix),
        _resolve(prefix),
        _open(prefix),
        _run(prefix),
        _assess(prefix),
        give_up_step(prefix),
        report_step(prefix),
    ]


def fanout_template() -> WorkflowTemplate:
    """The library's rerail-train-fanout."""
    return WorkflowTemplate(
        name=versioned(NAME),
        annotations=about(
            "Train a gang of Argo's own pods that goes on after faults",
            "As rerail-train, but each rank is a pod of this workflow, placed together with the others by Volcano "
            "(a PodGroup). One rank's failure ends all, and the next attempt goes on elsewhere from the newest good "
            "checkpoint. Argo makes the pods, so it is needed for a recovery; with rerail-train it is not, which is "
            "therefore faster. A manifest of your own does not fit through Argo's pods: for that rerail-train with "
            "backend podgroup or vcjob. Give `store`, `image` and `command`.",
            "training",
            "gpu",
            "volcano",
            "checkpoint",
        ),
        labels=LABELS,
        entrypoint=ENTRY,
        service_account_name=RUNNER,
        arguments=[setting.argument() for setting in SETTINGS],
        templates=[*fanout_templates(), farewell_step(_ENDING, _BACKEND)],
        hooks=farewell_hook(_ENDING),
        pod_gc=PodGC(strategy="OnPodSuccess", delete_delay_duration="10m"),
    )


def _train(prefix: str) -> DAG:
    with DAG(
        name=f"{prefix}{ENTRY}",
        inputs=[setting.entry() for setting in SETTINGS],
        outputs=[run_output()],
        fail_fast=False,
        target="attempt report",
    ) as dag:
        rest = [name for name in _PLACE if name != RUN.name]
        Task(
            name="resolve",
            template=f"{prefix}resolve",
            arguments=given(*_PLACE, *_WORK, *_BOUNDS),
        )
        Task(
            name="open",
            template=f"{prefix}open",
            depends="resolve",
            arguments=given(*rest, *_WORK, *_BOUNDS, run=RUN_OF_RESOLVE),
        )
        Task(
            name="attempt",
            template=f"{prefix}attempt",
            depends="resolve && open",
            arguments=given(*rest, *_BOUNDS) | {"run": RUN_OF_RESOLVE} | _told_by("open"),
        )
        report_task(prefix)
    return dag


def _told_by(task: str) -> dict[str, str]:
    """What a task said of the attempt that it opened."""
    return {name: f"{{{{tasks.{task}.outputs.parameters.{name}}}}}" for name in ("how", "replicas", *OF_GANG)}


def _attempt(prefix: str) -> DAG:
    """One attempt, and nested in it the next one."""
    inputs = [Parameter(name=name) for name in (*_PLACE, *_BOUNDS, "how", "replicas", *OF_GANG)]
    with DAG(name=f"{prefix}attempt", inputs=inputs, fail_fast=False) as dag:
        supervision_tasks(prefix, given(*_PLACE, *_BOUNDS, "gang"))
        Task(
            name="ranks",
            template=f"{prefix}ranks",
            when=f"'{{{{inputs.parameters.gang}}}}' != '{NO_GANG}'",
            arguments=given(*_REACH, "replicas", *OF_GANG),
        )
        recovery_tasks(
            prefix,
            assess=given(*_PLACE, *_BOUNDS),
            again=given(*_PLACE, *_BOUNDS) | _told_by("assess"),
        )
    return dag


def _ranks(prefix: str) -> DAG:
    """The pods of one attempt. It succeeds however they end: what that means the supervisor says."""
    inputs = [Parameter(name=name) for name in (*_REACH, "replicas", *OF_GANG)]
    with DAG(name=f"{prefix}ranks", inputs=inputs, fail_fast=False) as dag:
        Task(
            name="rank",
            template=f"{prefix}rank",
            with_sequence=Sequence(count="{{inputs.parameters.replicas}}"),
            continue_on=ContinueOn(failed=True, error=True),
            arguments=given(*_REACH, *OF_GANG, index="{{item}}"),
        )
    return dag


def _rank(prefix: str) -> Container:
    """One pod, as Rerail itself would make it for a PodGroup."""
    told = {name: f"{{{{inputs.parameters.{name}}}}}" for name in (*_REACH, *OF_GANG, "index")}
    pod = f"{told['gang']}-{told['index']}"
    variables = {
        "RERAIL_RUN": told["run"],
        "RERAIL_GANG": told["gang"],
        "RERAIL_STORE": told["store"],
        "RERAIL_CONTROL": told["control"],
        "RERAIL_POD": pod,
        "RERAIL_POD_INDEX": told["index"],
        "RERAIL_FIRST_RANK": "0",
        "RERAIL_LOCAL_RANKS": told["local-ranks"],
        "WORLD_SIZE": told["world-size"],
        "RERAIL_HOLD_S": told["hold-s"],
        "RERAIL_POLL_S": told["poll-s"],
        "RERAIL_TERMINATION_LOG": "/dev/termination-log",
    }
    # Words, amounts, rules and the class are JSON already: nothing between here and the kernel reads them once more.
    patch = (
        f'{{"hostname": "{pod}", "subdomain": "{told["gang"]}", "priorityClassName": {told["priority-class"]}, '
        f'"terminationGracePeriodSeconds": {told["grace-s"]}, "affinity": {told["affinity"]}, '
        f'"containers": [{{"name": "main", "command": {told["command"]}, "resources": {told["resources"]}}}]}}'
    )
    return Container(
        name=f"{prefix}rank",
        inputs=[Parameter(name=name) for name in told],
        image=told["image"],
        command=[LAUNCH],
        env=[
            *(Env(name=name, value=value) for name, value in variables.items()),
            FieldEnv(name="RERAIL_NODE", field_path="spec.nodeName"),
        ],
        env_from=[store_access()],
        volumes=[ConfigMapVolume(name=AUTHORITIES, mount_path=AUTHORITIES_FOLDER, read_only=True, optional=True)],
        service_account_name=RANK,
        scheduler_name="volcano",
        annotations={GROUP_ANNOTATION: told["gang"]},
        labels={
            RUN_LABEL: told["run"],
            ATTEMPT_LABEL: told["attempt"],
            GANG_LABEL: told["gang"],
            WORKFLOW_LABEL: "{{workflow.name}}",
            POD_LABEL: pod,
        },
        pod_spec_patch=patch,
    )


def _resolve(prefix: str) -> Container:
    return step(
        f"{prefix}resolve",
        ["step", "resolve"],
        inputs=[*_PLACE, *_WORK, *_BOUNDS],
        outputs={"run": "{{inputs.parameters.run}}", "words": ""},
        account=RUNNER,
        env=_BACKEND,
    )


def _open(prefix: str) -> Container:
    return step(
        f"{prefix}open",
        ["step", "open"],
        inputs=[*_PLACE, *_WORK, *_BOUNDS],
        outputs={**_NOTHING, "words": ""},
        account=RUNNER,
        env=_BACKEND,
    )


def _run(prefix: str) -> Container:
    return step(
        f"{prefix}run",
        ["step", "run"],
        inputs=[*_PLACE, *_BOUNDS, "gang"],
        outputs={"outcome": "stopped", "words": ""},
        account=RUNNER,
        env=_BACKEND,
        pod_spec_patch=LEAVES_IN_TIME,
    )


def _assess(prefix: str) -> Container:
    return step(
        f"{prefix}assess",
        ["step", "open", "--after"],
        inputs=[*_PLACE, *_BOUNDS],
        outputs={"decision": "give-up", **_NOTHING, "words": ""},
        account=RUNNER,
        env=_BACKEND,
    )
