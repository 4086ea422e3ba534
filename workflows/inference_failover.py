"""rerail-inference-failover: a Deployment's replica on a faulty node is replaced at once; nothing is saved for it."""

from typing import Final

from hera.workflows import WorkflowTemplate

from rerail.workflows.accounts import NODE_KEEPER
from rerail.workflows.node_release import NODE
from rerail.workflows.parameters import RERAIL_IMAGE, Setting
from rerail.workflows.single import workflow_template
from rerail.workflows.steps import step

NAME: Final = "rerail-inference-failover"

DEPLOYMENT: Final = Setting(name="deployment", default=None, description="The Deployment, in this namespace.")
WITHIN: Final = Setting(
    name="ready-within-s", default="300", description="Seconds until the new replica has to be ready elsewhere."
)
SETTINGS: Final = (NODE, DEPLOYMENT, WITHIN, RERAIL_IMAGE)


def failover_template() -> WorkflowTemplate:
    """The library's rerail-inference-failover."""
    failover = step(
        "failover",
        ["step", "failover"],
        inputs=[setting.entry() for setting in SETTINGS],
        outputs={"replaced": "0", "words": ""},
        account=NODE_KEEPER,
    )
    return workflow_template(
        NAME,
        "Replace inference replicas on a faulty node",
        "Marks the node, evicts the Deployment's pods there at once, and waits until as many are ready elsewhere.",
        tags=("inference", "node-fault"),
        settings=SETTINGS,
        templates=[failover],
        account=NODE_KEEPER,
    )
