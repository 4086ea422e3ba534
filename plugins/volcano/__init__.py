"""A typed client for Volcano: jobs, pod groups, queues and commands. See README.md beside this file.

The models need pydantic only; the client, with the official ``kubernetes`` package, is imported when it is first used.
"""

from typing import TYPE_CHECKING, Any

from rerail.plugins.volcano.base import Metadata, OwnerReference, go_duration_s, moment
from rerail.plugins.volcano.check import Problem, check_job, effective_max_retry
from rerail.plugins.volcano.command import Command
from rerail.plugins.volcano.crds import generate_crds
from rerail.plugins.volcano.enums import JobAction, JobEvent, JobPhase, PodGroupPhase, QueueState
from rerail.plugins.volcano.job import JobSpec, LifecyclePolicy, NetworkTopology, Task, VolcanoJob, Volume
from rerail.plugins.volcano.podgroup import PodGroup, PodGroupSpec
from rerail.plugins.volcano.queue import Queue, QueueSpec
from rerail.policies.volcano_verdict import StuckTimers, Verdict

if TYPE_CHECKING:
    from rerail.plugins.volcano.client import VolcanoClient

__all__ = [
    "Command",
    "JobAction",
    "JobEvent",
    "JobPhase",
    "JobSpec",
    "LifecyclePolicy",
    "Metadata",
    "NetworkTopology",
    "OwnerReference",
    "PodGroup",
    "PodGroupPhase",
    "PodGroupSpec",
    "Problem",
    "Queue",
    "QueueSpec",
    "QueueState",
    "StuckTimers",
    "Task",
    "Verdict",
    "VolcanoClient",
    "VolcanoJob",
    "Volume",
    "check_job",
    "effective_max_retry",
    "generate_crds",
    "go_duration_s",
    "moment",
]


def __getattr__(name: str) -> Any:
    if name == "VolcanoClient":
        from rerail.plugins.volcano.client import VolcanoClient

        return VolcanoClient
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
