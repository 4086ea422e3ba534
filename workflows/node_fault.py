"""rerail-node-fault: what a node's conditions say is judged; a sick node is marked, and emptied with saves.

judge ──> mark ──> evict ──> (repair is the platform's) ──> rerail-node-release
"""

from typing import Final

from hera.workflows import DAG, Container, Task, WorkflowTemplate

from rerail.workflows.accounts import NODE_KEEPER
from rerail.workflows.node_release import NODE
from rerail.workflows.parameters import DEADLINE, RERAIL_IMAGE, STORE_SECRET, Setting, given, names
from rerail.workflows.single import workflow_template
from rerail.workflows.steps import step

NAME: Final = "rerail-node-fault"

SOURCE: Final = Setting(
    name="source",
    default="auto",
    choices=("auto", "npd", "ack", "eks"),
    description="Whose conditions count: node-problem-detector, ACK, EKS (where True is well), or whichever is there.",
)
SETTINGS: Final = (NODE, SOURCE, DEADLINE, STORE_SECRET, RERAIL_IMAGE)


def node_fault_templates() -> list[DAG | Container]:
    """Judge, mark, evict."""
    return [_dag(), _judge(), _mark(), _evict()]


def node_fault_template() -> WorkflowTemplate:
    """The library's rerail-node-fault."""
    return workflow_template(
        NAME,
        "Answer a node's fault",
        "Judges what a node's conditions say of its GPUs. A node that is held back is marked (taint NoSchedule, "
        "incident) and emptied: gangs save and leave as a whole. Once repaired, rerail-node-release gives it back.",
        tags=("node", "node-fault", "gpu"),
        settings=SETTINGS,
        templates=node_fault_templates(),
        account=NODE_KEEPER,
    )


def _dag() -> DAG:
    judged = "{{tasks.judge.outputs.parameters.quarantine}}"
    with DAG(name="node-fault", inputs=[setting.entry() for setting in SETTINGS], fail_fast=False) as dag:
        Task(name="judge", template="judge", arguments=given(*names((NODE, SOURCE, RERAIL_IMAGE))))
        Task(
            name="mark",
            template="mark",
            depends="judge.Succeeded",
            when=f"'{judged}' != 'none'",
            arguments=given(
                *names((NODE, RERAIL_IMAGE)),
                incident="{{tasks.judge.outputs.parameters.incident}}",
                reason="{{tasks.judge.outputs.parameters.reason}}",
                device="{{tasks.judge.outputs.parameters.device}}",
            ),
        )
        Task(
            name="evict",
            template="evict",
            depends="mark.Succeeded",
            arguments=given(*names((NODE, DEADLINE, STORE_SECRET, RERAIL_IMAGE))),
        )
    return dag


def _judge() -> Container:
    return step(
        "judge",
        ["step", "node-judge"],
        inputs=names((NODE, SOURCE)),
        outputs={"quarantine": "none", "incident": "", "reason": "", "device": "", "words": ""},
        account=NODE_KEEPER,
    )


def _mark() -> Container:
    return step(
        "mark",
        ["step", "node-mark"],
        inputs=[NODE.name, "incident", "reason", "device"],
        outputs={"words": ""},
        account=NODE_KEEPER,
    )


def _evict() -> Container:
    return step(
        "evict",
        ["drain", "--deadline={{inputs.parameters.deadline-s}}s", "--output=json", "--", "{{inputs.parameters.node}}"],
        inputs=names((NODE, DEADLINE, STORE_SECRET)),
        account=NODE_KEEPER,
    )
