"""rerail-pre-evict: a gang saves and leaves as a whole, before a drain, an upgrade or a repair."""

from typing import Final

from hera.workflows import Container, WorkflowTemplate

from rerail.workflows.accounts import PRE_EVICT
from rerail.workflows.parameters import CONTROL, DEADLINE, RERAIL_IMAGE, STORE, STORE_SECRET, Setting
from rerail.workflows.single import workflow_template
from rerail.workflows.steps import step

NAME: Final = "rerail-pre-evict"

GANG: Final = Setting(name="gang", default=None, description="The run, or its gang RUN-aN.")
REASON: Final = Setting(name="reason", default="evicted by a workflow", description="Why, for the record.")
STORE_OF_PODS: Final = Setting(
    name=STORE.name, description="Store as seen from here. Empty: as the gang's pods say, in this namespace."
)

SETTINGS: Final = (GANG, DEADLINE, REASON, STORE_OF_PODS, CONTROL, STORE_SECRET, RERAIL_IMAGE)


def pre_evict() -> Container:
    """Ask all ranks to save and leave; at the deadline evict them all the same. Fails unless a commit holds all."""
    return step(
        "pre-evict",
        [
            "evict",
            "--gang={{inputs.parameters.gang}}",
            "--deadline={{inputs.parameters.deadline-s}}s",
            "--reason={{inputs.parameters.reason}}",
            "--namespace={{workflow.namespace}}",
            "--output=json",
        ],
        inputs=[setting.entry() for setting in SETTINGS],
        account=PRE_EVICT,
    )


def pre_evict_template() -> WorkflowTemplate:
    """The library's rerail-pre-evict."""
    return workflow_template(
        NAME,
        "Save and evict a gang",
        "Asks all ranks of a gang to save and leave, waits for the commit until the deadline, then evicts the gang as "
        "a whole. Succeeds when a commit holds all that was done.",
        tags=("eviction", "checkpoint"),
        settings=SETTINGS,
        templates=[pre_evict()],
        account=PRE_EVICT,
    )
