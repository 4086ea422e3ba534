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

from collections.abc import Mapping, Sequence
from typing import Final

from hera.workflows import DAG, Container, Parameter, Task, WorkflowTemplate
from hera.workflows.models import Arguments, LifecycleHook, PodGC, ValueFrom

from rerail.workflows.accounts import READER, RUNNER
from rerail.workflows.naming import LABELS, about, versioned
from rerail.workflows.parameters import (
    BOUNDS,
    CONTROL,
    DEADLINE,
    MAX_ATTEMPTS,
    PLACE,
    RUN,
    STORE,
    WORK,
    Setting,
    given,
    names,
)
from rerail.workflows.steps import OUTPUTS, step

NAME: Final = "rerail-train"
ENTRY: Final = "train"

SETTINGS: Final[tuple[Setting, ...]] = (STORE, RUN, *WORK, DEADLINE, MAX_ATTEMPTS, *BOUNDS[2:], CONTROL, *PLACE[3:])
"""In the order of the form."""

_PLACE: Final = names(PLACE)
_WORK: Final = names(WORK)
_BOUNDS: Final = names(BOUNDS)
_BROKE: Final = "(fresh.Failed || fresh.Errored || resume.Failed || resume.Errored)"
_ENDED: Final = "(attempt.Succeeded || attempt.Failed || attempt.Errored || attempt.Skipped || attempt.Omitted)"
_GRACE: Final = "{\"terminationGracePeriodSeconds\": {{=asInt(inputs.parameters['deadline-s']) + 60}}}"
"""Asked for a stop, the runner lets the ranks save and ends the gang."""


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
    own: Sequence[str] = names((STORE, CONTROL, RUN, *PLACE[3:]))
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
        templates=[*train_templates(), farewell_step()],
        hooks={
            "exit": LifecycleHook(
                template="farewell",
                arguments=_arguments({name: f"{{{{workflow.parameters.{name}}}}}" for name in own}),
            )
        },
        pod_gc=PodGC(strategy="OnPodSuccess", delete_delay_duration="10m"),
    )


def _arguments(values: dict[str, str]) -> Arguments:
    return Arguments(parameters=[Parameter(name=name, value=value).as_argument() for name, value in values.items()])


def _train(prefix: str) -> DAG:
    with DAG(
        name=f"{prefix}{ENTRY}",
        inputs=[setting.entry() for setting in SETTINGS],
        outputs=[
            Parameter(
                name="run",
                value_from=ValueFrom(parameter="{{tasks.resolve.outputs.parameters.run}}", default=""),
            )
        ],
        fail_fast=False,
        target="attempt report",
    ) as dag:
        run = "{{tasks.resolve.outputs.parameters.run}}"
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
                run=run,
                how="{{tasks.resolve.outputs.parameters.how}}",
                attempt="{{tasks.resolve.outputs.parameters.attempt}}",
            ),
        )
        Task(
            name="report",
            template=f"{prefix}report",
            depends=f"resolve.Succeeded && {_ENDED}",
            arguments=given(*rest, run=run),
        )
    return dag


def _attempt(prefix: str) -> DAG:
    """One attempt, and nested in it the next one. Nested ones get no manifest: the Workflow stays small."""
    inputs: list[Parameter] = [Parameter(name=name) for name in (*_PLACE, *_BOUNDS, "how", "attempt")]
    inputs += [Parameter(name=name, default="") for name in _WORK]
    with DAG(name=f"{prefix}attempt", inputs=inputs, fail_fast=False) as dag:
        for how in ("fresh", "resume"):
            Task(
                name=how,
                template=f"{prefix}run",
                when=f"'{{{{inputs.parameters.how}}}}' == '{how}'",
                arguments=given(*_PLACE, *_WORK, *_BOUNDS),
            )
        Task(
            name="assess",
            template=f"{prefix}assess",
            depends=_BROKE,
            arguments=given(*_PLACE),
        )
        decided = "{{tasks.assess.outputs.parameters.decision}}"
        Task(
            name="next-attempt",
            template=f"{prefix}attempt",
            depends="assess.Succeeded",
            when=f"'{decided}' == 'again'",
            arguments=given(
                *_PLACE,
                *_BOUNDS,
                how="{{tasks.assess.outputs.parameters.how}}",
                attempt="{{tasks.assess.outputs.parameters.next-attempt}}",
            ),
        )
        Task(
            name="give-up",
            template=f"{prefix}give-up",
            depends="assess.Succeeded",
            when=f"'{decided}' == 'give-up'",
            arguments=given(*_PLACE),
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
        pod_spec_patch=_GRACE,
    )


def _assess(prefix: str) -> Container:
    return step(
        f"{prefix}assess",
        ["step", "assess"],
        inputs=_PLACE,
        outputs={"decision": "give-up", "how": "resume", "next-attempt": "", "words": ""},
        account=RUNNER,
    )


def give_up_step(prefix: str) -> Container:
    """The failing end, whose message is the reason."""
    return step(f"{prefix}give-up", ["step", "give-up"], inputs=_PLACE, account=RUNNER, retries=None)


def report_step(prefix: str) -> Container:
    """The report, as an artifact."""
    return step(
        f"{prefix}report",
        ["step", "report"],
        inputs=_PLACE,
        outputs={"words": ""},
        artifacts=REPORT_FILES,
        account=READER,
        retries=3,
    )


def farewell_step(inputs: Sequence[str] = _PLACE, env: Mapping[str, str] | None = None) -> Container:
    """The exit hook: the report once more, and after a stop the gangs that are left are ended."""
    return step(
        "farewell",
        ["step", "report"],
        inputs=inputs,
        outputs={"words": ""},
        artifacts=REPORT_FILES,
        env={**(env or {}), "RERAIL_WORKFLOW_STATUS": "{{workflow.status}}"},
        account=RUNNER,
        retries=3,
    )


REPORT_FILES: Final = {"report": f"{OUTPUTS}/report.html", "report-data": f"{OUTPUTS}/report.json"}
"""Argo shows the first in its page: HTML as it is, no archive."""
