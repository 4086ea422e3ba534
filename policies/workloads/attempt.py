"""The gang of one attempt, as far as it does not depend on what the user runs."""

import hashlib
from typing import Any, Final

from pydantic import Field

from rerail.policies.documents import Value, canonical
from rerail.policies.owners import WorkflowRef
from rerail.policies.recovery import LONGEST_S

RUN_LABEL: Final = "rerail.dev/run"
ATTEMPT_LABEL: Final = "rerail.dev/attempt"
GANG_LABEL: Final = "rerail.dev/gang"
WORKFLOW_LABEL: Final = "rerail.dev/workflow"
"""The Workflow that the gang was made for, by name; who drives its run now, the ledger says."""

OWNER_ANNOTATION: Final = "rerail.dev/owner"
SPEC_HASH_ANNOTATION: Final = "rerail.dev/spec-hash"
"""What was rendered, as a digest: tells an own, repeated submission from an object that somebody changed."""


class AttemptGang(Value):
    """What recovery adds to the user's workload for one attempt.

    Attributes:
        gang: Name of the gang's vcjob or PodGroup, ``<run>-a<attempt>``.
        excluded_nodes: Names of nodes that must not be used.
        hostnames: Of excluded nodes, the value of the label ``kubernetes.io/hostname`` as read from the cluster. A node
            that is missing here is excluded by its name too, since label and name may differ.
        grace_s: What a pod needs between SIGTERM and SIGKILL: the longest save that was measured, and a margin.
        store: Address of the run's store.
        control: Address of the store of control documents, where it is another one.
        hold_s: How long launch keeps a pod without orders.
        poll_s: How often launch asks the store for orders.
        owner: Who drives the run, for people who look at the object; empty says nothing.
        priority_class: PriorityClass of the gang; empty leaves the user's.
    """

    run: str = Field(min_length=1)
    gang: str = Field(min_length=1)
    attempt: int = Field(ge=1)
    excluded_nodes: tuple[str, ...] = ()
    hostnames: dict[str, str] = Field(default_factory=dict)
    grace_s: float = Field(30.0, ge=0, lt=LONGEST_S)
    store: str = Field(min_length=1)
    control: str | None = None
    hold_s: float = Field(120.0, gt=0, lt=LONGEST_S)
    poll_s: float = Field(1.0, gt=0, lt=LONGEST_S)
    owner: str = ""
    priority_class: str = ""

    @property
    def labels(self) -> dict[str, str]:
        """Labels that every object of the gang carries."""
        workflow = WorkflowRef.of(self.owner)
        return {
            RUN_LABEL: self.run,
            ATTEMPT_LABEL: str(self.attempt),
            GANG_LABEL: self.gang,
            **({WORKFLOW_LABEL: workflow.name} if workflow is not None else {}),
        }


def spec_hash(document: dict[str, Any]) -> str:
    """Digest of a rendered object, without its own annotation of it; the same object gives the same digest."""
    metadata = document.get("metadata") or {}
    annotations = {
        key: value for key, value in (metadata.get("annotations") or {}).items() if key != SPEC_HASH_ANNOTATION
    }
    content = {**document, "metadata": {**metadata, "annotations": annotations}}
    return hashlib.sha256(canonical(content)).hexdigest()
