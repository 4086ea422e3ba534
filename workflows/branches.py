"""What both forms of a resilient gang share: the branches of an attempt, and how a run ends."""

from collections.abc import Mapping, Sequence
from typing import Final

from hera.workflows import Container, Parameter, Task
from hera.workflows.models import Arguments, LifecycleHook, ValueFrom

from rerail.workflows.accounts import READER, RUNNER
from rerail.workflows.parameters import PLACE, RUN, given, names
from rerail.workflows.steps import OUTPUTS, step

REPORT_FILES: Final = {"report": f"{OUTPUTS}/report.html", "report-data": f"{OUTPUTS}/report.json"}
"""Argo shows the first in its page: HTML as it is, no archive."""

LEAVES_IN_TIME: Final = "{\"terminationGracePeriodSeconds\": {{=asInt(inputs.parameters['deadline-s']) + 60}}}"
"""Pod patch of a runner: asked for a stop, it lets the ranks save and ends the gang."""

RUN_OF_RESOLVE: Final = "{{tasks.resolve.outputs.parameters.run}}"

_PLACE: Final = names(PLACE)
_BROKE: Final = "(fresh.Failed || fresh.Errored || resume.Failed || resume.Errored)"
_ENDED: Final = "(attempt.Succeeded || attempt.Failed || attempt.Errored || attempt.Skipped || attempt.Omitted)"


def run_output() -> Parameter:
    """The run's name, for the tasks after a gang."""
    return Parameter(name=RUN.name, value_from=ValueFrom(parameter=RUN_OF_RESOLVE, default=""))


def report_task(prefix: str) -> None:
    """In a gang's DAG: the report, however the attempts ended."""
    rest = [name for name in _PLACE if name != RUN.name]
    Task(
        name="report",
        template=f"{prefix}report",
        depends=f"resolve.Succeeded && {_ENDED}",
        arguments=given(*rest, run=RUN_OF_RESOLVE),
    )


def supervision_tasks(prefix: str, arguments: Mapping[str, str]) -> None:
    """In an attempt's DAG: one step that supervises, whose name says whether the attempt began anew."""
    for how in ("fresh", "resume"):
        Task(
            name=how,
            template=f"{prefix}run",
            when=f"'{{{{inputs.parameters.how}}}}' == '{how}'",
            arguments=dict(arguments),
        )


def recovery_tasks(prefix: str, *, assess: Mapping[str, str], again: Mapping[str, str]) -> None:
    """In an attempt's DAG: if the supervision did not succeed, the next attempt or the end.

    Args:
        prefix: Before each template's name.
        assess: Arguments of the step that decides.
        again: Arguments of the next attempt.
    """
    decided = "{{tasks.assess.outputs.parameters.decision}}"
    Task(name="assess", template=f"{prefix}assess", depends=_BROKE, arguments=dict(assess))
    Task(
        name="next-attempt",
        template=f"{prefix}attempt",
        depends="assess.Succeeded",
        when=f"'{decided}' == 'again'",
        arguments=dict(again),
    )
    Task(
        name="give-up",
        template=f"{prefix}give-up",
        depends="assess.Succeeded",
        when=f"'{decided}' == 'give-up'",
        arguments=given(*_PLACE),
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


def farewell_step(inputs: Sequence[str], env: Mapping[str, str] | None = None) -> Container:
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


def farewell_hook(own: Sequence[str]) -> dict[str, LifecycleHook]:
    """Hooks of a WorkflowTemplate that ends with the farewell step.

    Args:
        own: The workflow's parameters that the step is told.
    """
    passed = [Parameter(name=name, value=f"{{{{workflow.parameters.{name}}}}}").as_argument() for name in own]
    return {"exit": LifecycleHook(template="farewell", arguments=Arguments(parameters=passed))}
