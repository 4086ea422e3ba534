"""rerail-node-release: a node that was repaired is verified, approved, and given back."""

from typing import Final

from hera.workflows import DAG, Container, Parameter, Suspend, Task, WorkflowTemplate
from hera.workflows.models import (
    Affinity,
    NodeAffinity,
    NodeSelector,
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Toleration,
)

from rerail.workflows.accounts import NODE_KEEPER, READER
from rerail.workflows.parameters import RERAIL_IMAGE, Setting, given, names
from rerail.workflows.single import workflow_template
from rerail.workflows.steps import LOCKED, infrastructure_retry, step

NAME: Final = "rerail-node-release"

NODE: Final = Setting(name="node", default=None, description="The node.")
VERIFY_IMAGE: Final = Setting(
    name="verify-image", default=None, description="Image of the check, for example with nvidia-smi or dcgmi."
)
VERIFY_COMMAND: Final = Setting(
    name="verify-command",
    default="nvidia-smi",
    description="The check, as sh -c reads it. It runs on the node, with its GPUs, and has to exit 0.",
)
GPUS: Final = Setting(name="gpus", default="1", description="GPUs that the check asks for; all of the node's is best.")
APPROVAL: Final = Setting(
    name="approval",
    default="required",
    choices=("required", "automatic"),
    description="Whether a person approves. A node whose device failed again and again always needs one (`by`).",
)
APPROVE_WITHIN: Final = Setting(
    name="approve-within", default="24h", description="How long approval is waited for; then the node stays as it is."
)
BY: Final = Setting(
    name="by", description="The person in whose name a repeat offender is released, once its device was replaced."
)
UNCORDON: Final = Setting(
    name="uncordon",
    default="true",
    choices=("true", "false"),
    description="Whether the cordon is taken off as well, which the drain of rerail-node-fault put on.",
)
SETTINGS: Final = (NODE, VERIFY_IMAGE, VERIFY_COMMAND, GPUS, APPROVAL, APPROVE_WITHIN, BY, UNCORDON, RERAIL_IMAGE)


def release_templates() -> list[DAG | Container | Suspend]:
    """Verify, approve, release."""
    return [_dag(), _verify(), _approve(), _release()]


def node_release_template() -> WorkflowTemplate:
    """The library's rerail-node-release."""
    return workflow_template(
        NAME,
        "Give a repaired node back",
        "Runs a check on the node, waits for approval, and takes Rerail's mark off. To approve, set the output "
        "`answer` of the node `approve` to APPROVE.",
        tags=("node", "repair"),
        settings=SETTINGS,
        templates=release_templates(),
        account=NODE_KEEPER,
    )


def _dag() -> DAG:
    answer = "{{tasks.approve.outputs.parameters.answer}}"
    with DAG(name="release", inputs=[setting.entry() for setting in SETTINGS], fail_fast=False) as dag:
        Task(
            name="verify",
            template="verify",
            arguments=given(*names((NODE, VERIFY_IMAGE, VERIFY_COMMAND, GPUS))),
        )
        Task(
            name="approve",
            template="approve",
            depends="verify.Succeeded",
            when="'{{inputs.parameters.approval}}' == 'required'",
            arguments=given(APPROVE_WITHIN.name),
        )
        Task(
            name="give-back",
            template="give-back",
            depends="verify.Succeeded && (approve.Succeeded || approve.Skipped)",
            arguments=given(*names((NODE, APPROVAL, BY, UNCORDON, RERAIL_IMAGE)), answer=answer),
        )
    return dag


def _verify() -> Container:
    """The check's pod: on this node and no other, whatever taints it has."""
    only = NodeSelectorTerm(
        match_fields=[
            NodeSelectorRequirement(key="metadata.name", operator="In", values=["{{inputs.parameters.node}}"])
        ]
    )
    return Container(
        name="verify",
        image="{{inputs.parameters.verify-image}}",
        command=["sh", "-c"],
        args=["{{inputs.parameters.verify-command}}"],
        inputs=[Parameter(name=name) for name in names((NODE, VERIFY_IMAGE, VERIFY_COMMAND, GPUS))],
        affinity=Affinity(
            node_affinity=NodeAffinity(
                required_during_scheduling_ignored_during_execution=NodeSelector(node_selector_terms=[only])
            )
        ),
        tolerations=[Toleration(operator="Exists")],
        security_context=LOCKED.model_copy(
            update={"read_only_root_filesystem": None, "run_as_non_root": None, "run_as_user": None}
        ),
        service_account_name=READER,  # the check's image is the user's: it gets no right on nodes
        pod_spec_patch=(
            '{"containers": [{"name": "main", "resources": {"limits": '
            '{"nvidia.com/gpu": "{{=asInt(inputs.parameters[\'gpus\'])}}"}}}]}'  # text could add fields of its own
        ),
        retry_strategy=infrastructure_retry(2),
    )


def _approve() -> Suspend:
    return Suspend(
        name="approve",
        duration="{{inputs.parameters.approve-within}}",
        inputs=[Parameter(name=APPROVE_WITHIN.name)],
        intermediate_parameters=[
            Parameter(
                name="answer",
                enum=["APPROVE", "REJECT", "TIMEOUT"],
                default="TIMEOUT",
                description="Whether the node goes back to work.",
            )
        ],
    )


def _release() -> Container:
    return step(
        "give-back",
        ["step", "node-release"],
        inputs=[*names((NODE, APPROVAL, BY, UNCORDON)), "answer"],
        outputs={"released": "false", "words": ""},
        account=NODE_KEEPER,
    )
