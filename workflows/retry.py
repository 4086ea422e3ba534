"""rerail-retry: GPU node-fault retries for steps that are no gangs.

    guarded ──> try (retried) ──> step      your template, by reference
            │                  └─ assess    only if it failed: judges its node, marks it, says whether to try again
            └─ give-up (where trying again helps nobody)

A retry expression of Argo sees neither a node's conditions nor budgets, and a hook runs once for all tries. So the
retry is that of a DAG over the step and its assessment. ``assess`` ends with 86 where another node may help: the DAG
fails and is retried. It ends with 0 where nothing would: the DAG succeeds, is not retried, and ``give-up`` fails the
whole. The marked node keeps other workflows off, too; Argo's own anti-affinity only knows this one.
"""

from collections.abc import Mapping
from typing import Final

from hera.workflows import DAG, Container, Parameter, RetryStrategy, Task, WorkflowTemplate
from hera.workflows.models import Backoff, RetryAffinity, RetryNodeAntiAffinity, TemplateRef, ValueFrom

from rerail.workflows.accounts import NODE_KEEPER
from rerail.workflows.parameters import RERAIL_IMAGE, Setting, given
from rerail.workflows.single import workflow_template
from rerail.workflows.steps import step

NAME: Final = "rerail-retry"
ENTRY: Final = "guarded"

LIBRARY: Final = Setting(name="template-name", default=None, description="WorkflowTemplate that your step is in.")
TEMPLATE: Final = Setting(
    name="template", default=None, description="The template in it. Its inputs need defaults; a container or a DAG."
)
RETRIES: Final = Setting(name="retries", default="3", description="How often it is tried again, on other nodes.")
SETTLE: Final = Setting(
    name="settle-s",
    default="30",
    description="Seconds for which a failed step's node is looked at: its agent may be later than the failure.",
)
RETRY: Final = (RETRIES, SETTLE, RERAIL_IMAGE)
SETTINGS: Final = (LIBRARY, TEMPLATE, *RETRY)

GAVE_UP: Final = "give-up"


def guard_templates(
    *,
    prefix: str = "",
    template: str = "",
    template_ref: TemplateRef | None = None,
    arguments: Mapping[str, str] | None = None,
) -> list[DAG | Container]:
    """The wrapper around one step; the first template is the one to refer to.

    Args:
        prefix: Before each name, so that several fit into one workflow.
        template: The step's template in the same workflow.
        template_ref: Or elsewhere. Neither: inputs ``template-name`` and ``template`` say which.
        arguments: For the step; their names are inputs of the wrapper.
    """
    taken = tuple(arguments or {})
    settings: tuple[Setting, ...] = RETRY
    reference: str | TemplateRef = template or template_ref or ""
    if not reference:
        settings = SETTINGS
        reference = TemplateRef(name="{{inputs.parameters.template-name}}", template="{{inputs.parameters.template}}")
    return [
        _guarded(prefix, settings, taken),
        _try(prefix, settings, taken, reference),
        _assess(prefix),
        _give_up(prefix),
    ]


def retry_template() -> WorkflowTemplate:
    """The library's rerail-retry."""
    return workflow_template(
        NAME,
        "Try a GPU step again elsewhere",
        "Runs a template of yours. When it fails because of its node, the node is marked and the step runs again on "
        "another one; when it fails by itself, nothing is retried.",
        tags=("retry", "gpu", "node-fault"),
        settings=SETTINGS,
        templates=guard_templates(),
        account=NODE_KEEPER,
    )


def _guarded(prefix: str, settings: tuple[Setting, ...], taken: tuple[str, ...]) -> DAG:
    inputs = [*(setting.entry() for setting in settings), *(Parameter(name=name) for name in taken)]
    with DAG(name=f"{prefix}{ENTRY}", inputs=inputs, fail_fast=False) as dag:
        Task(name="try", template=f"{prefix}try", arguments=given(*(setting.name for setting in settings), *taken))
        Task(
            name=GAVE_UP,
            template=f"{prefix}{GAVE_UP}",
            depends="try.Succeeded",
            when=f"'{{{{tasks.try.outputs.parameters.outcome}}}}' == '{GAVE_UP}'",
            arguments=given(RERAIL_IMAGE.name, words="{{tasks.try.outputs.parameters.words}}"),
        )
    return dag


def _try(prefix: str, settings: tuple[Setting, ...], taken: tuple[str, ...], reference: str | TemplateRef) -> DAG:
    told = [
        Parameter(
            name=name,
            value_from=ValueFrom(expression=f"tasks.assess.outputs.parameters.{name}", default=default),
        )
        for name, default in (("outcome", "done"), ("words", ""))
    ]
    with DAG(
        name=f"{prefix}try",
        inputs=[Parameter(name=name) for name in (*(setting.name for setting in settings), *taken)],
        outputs=told,
        fail_fast=False,
        retry_strategy=RetryStrategy(
            limit="{{inputs.parameters.retries}}",
            retry_policy="Always",
            backoff=Backoff(duration="5s", factor=2, cap="5m"),
            affinity=RetryAffinity(node_anti_affinity=RetryNodeAntiAffinity()),
        ),
    ) as dag:
        Task(
            name="step",
            template=reference if isinstance(reference, str) else None,
            template_ref=None if isinstance(reference, str) else reference,
            arguments=given(*taken) or None,
        )
        Task(
            name="assess",
            template=f"{prefix}assess",
            depends="(step.Failed || step.Errored)",
            arguments=given(RERAIL_IMAGE.name, SETTLE.name, node_id="{{tasks.step.id}}"),
        )
    return dag


def _assess(prefix: str) -> Container:
    return step(
        f"{prefix}assess",
        ["step", "retry-assess"],
        inputs=["node-id", SETTLE.name],
        outputs={"outcome": GAVE_UP, "words": ""},
        account=NODE_KEEPER,
    )


def _give_up(prefix: str) -> Container:
    command = ["step", "say", "--fail"]
    return step(f"{prefix}{GAVE_UP}", command, inputs=["words"], account=NODE_KEEPER, retries=None)
