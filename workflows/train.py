"""rerail-train: a gang that goes on after faults, as a DAG that a person can read.

    resolve ──> attempt ──> report
                 ├─ fresh | resume          the gang of this attempt, supervised
                 └─ assess (only if it did not succeed)
                     ├─ next-attempt        the same again, nested
                     └─ give-up             fails with the reason

The verdict is the attempt's: ``target`` names it beside the report, since Argo otherwise looks at leaves only and a
written report would make a failed run a success. ``next-attempt`` needs no new gang: the step that saw the fault has
submitted it already, so Argo is not on the path of recovery.
"""

from typing import Final

from hera.workflows import DAG, Container, Parameter, Task, WorkflowTemplate
from hera.workflows.models import PodGC

from rerail.workflows.accounts import RUNNER
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
    BACKEND,
    BOUNDS,
    CONTROL,
    DEADLINE,
    GUARD_NAMESPACE,
    MAX_ATTEMPTS,
    PLACE,
    PRIORITY_CLASS,
    RUN,
    STORE,
    WORK,
    Setting,
    given,
    names,
)
from rerail.workflows.steps import step

NAME: Final = "rerail-train"
ENTRY: Final = "train"

SETTINGS: Final[tuple[Setting, ...]] = (STORE, RUN, *WORK, DEADLINE, MAX_ATTEMPTS, *BOUNDS[2:], CONTROL, *PLACE[3:])
"""In the order of the form."""

_PLACE: Final = names(PLACE)
_WORK: Final = names(WORK)
_BOUNDS: Final = names(BOUNDS)
_ENDING: Final = names((*PLACE, DEADLINE, BACKEND, GUARD_NAMESPACE))


def train_templates(*, prefix: str = "") -> list[DAG | Container]:
    """The templates of a resilient gang; the first is the one to refer to.

    Args:
        prefix: Before each name, so that several gangs fit into one workflow.
    """
    return [
        _train(prefix),
        _attempt(prefix),
        _resolve(prefix),
        _run(prefix),
        _assess(prefix),
        give_up_step(prefix),
        report_step(prefix),
    ]


def train_template() -> WorkflowTemplate:
    """The library's rerail-train."""
    return WorkflowTemplate(
        name=versioned(NAME),
        annotations=about(
            "Train a gang that goes on after faults",
            "Runs a gang under Volcano, and after a GPU fault, a lost node or a preemption goes on from the newest "
            "good checkpoint, elsewhere. Give `store`, and either `image` with `command` or your own `manifest`.",
            "training",
            "gpu",
            "volcano",
            "checkpoint",
        ),
        labels=LABELS,
        entrypoint=ENTRY,
        service_account_name=RUNNER,
        arguments=[setting.argument() for setting in SETTINGS],
        templates=[*train_templates(), farewell_step(_ENDING)],
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
        Task(name="resolve", template=f"{prefix}resolve", arguments=given(*_PLACE, *_WORK, *_BOUNDS))
        Task(
            name="attempt",
            template=f"{prefix}attempt",
            depends="resolve",
            arguments=given(
                *rest,
                *_WORK,
                *_BOUNDS,
                run=RUN_OF_RESOLVE,
                how="{{tasks.resolve.outputs.parameters.how}}",
                attempt="{{tasks.resolve.outputs.parameters.attempt}}",
            ),
        )
        report_task(prefix)
    return dag


def _attempt(prefix: str) -> DAG:
    """One attempt, and nested in it the next one. Nested ones get no manifest: the Workflow stays small.

    They keep the priority class, which stands in no document of a run that has a manifest.
    """
    inputs: list[Parameter] = [Parameter(name=name) for name in (*_PLACE, *_BOUNDS, "how", "attempt")]
    inputs += [Parameter(name=name, default="") for name in _WORK]
    with DAG(name=f"{prefix}attempt", inputs=inputs, fail_fast=False) as dag:
        supervision_tasks(prefix, given(*_PLACE, *_WORK, *_BOUNDS))
        recovery_tasks(
            prefix,
            assess=given(*_PLACE),
            again=given(
                *_PLACE,
                *_BOUNDS,
                PRIORITY_CLASS.name,
                how="{{tasks.assess.outputs.parameters.how}}",
                attempt="{{tasks.assess.outputs.parameters.next-attempt}}",
            ),
        )
    return dag


def _resolve(prefix: str) -> Container:
    return step(
        f"{prefix}resolve",
        ["step", "resolve"],
        inputs=[*_PLACE, *_WORK, *_BOUNDS],
        outputs={
            "how": "resume",
            "run": "{{inputs.parameters.run}}",
            "attempt": "1",
            "from-step": "0",
            "words": "",
        },
        account=RUNNER,
    )


def _run(prefix: str) -> Container:
    return step(
        f"{prefix}run",
        ["step", "run"],
        inputs=[*_PLACE, *_WORK, *_BOUNDS],
        outputs={"outcome": "stopped", "words": ""},
        account=RUNNER,
        pod_spec_patch=LEAVES_IN_TIME,
    )


def _assess(prefix: str) -> Container:
    return step(
        f"{prefix}assess",
        ["step", "assess"],
        inputs=_PLACE,
        outputs={"decision": "give-up", "how": "resume", "next-attempt": "", "words": ""},
        account=RUNNER,
    )
