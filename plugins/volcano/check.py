"""What is wrong with a vcjob before it is sent: what Volcano's webhook would reject, and traps that it lets pass."""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from rerail.plugins.volcano.base import DNS_LABEL, DNS_SUBDOMAIN
from rerail.plugins.volcano.enums import JobAction, JobEvent
from rerail.plugins.volcano.job import LifecyclePolicy, Task, VolcanoJob

MAX_LABEL: Final = 63
"""Longest host name; a pod's name is its host name here."""

_PLUGINS_NEED: Final = {"pytorch": ("svc",), "tensorflow": ("svc",), "mpi": ("svc", "ssh"), "ray": ("svc",)}
_WEBHOOK_REJECTS: Final = frozenset({JobEvent.POD_RUNNING, JobEvent.OUT_OF_SYNC, JobEvent.COMMAND_ISSUED})
_PARTIAL: Final = frozenset({JobAction.RESTART_POD, JobAction.RESTART_TASK, JobAction.RESTART_PARTITION})


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        severity: An ``error`` is rejected by Volcano, or never runs; a ``warning`` runs and breaks later.
        field: Path of the field, as in the manifest.
        message: What is wrong and what to do.
    """

    severity: Literal["error", "warning"]
    field: str
    message: str

    def __str__(self) -> str:
        """For people."""
        return ": ".join(filter(None, (self.severity, self.field, self.message)))


def effective_max_retry(value: int | None) -> int:
    """What Volcano makes of a ``maxRetry``, of a job or a task: 0 cannot be told from absent, and becomes 3."""
    return value or 3


def check_job(job: VolcanoJob) -> tuple[Problem, ...]:
    """Check a vcjob by itself; ``VolcanoClient.preflight`` also asks the cluster."""
    return tuple(_job_problems(job))


def _error(field: str, message: str) -> Problem:
    return Problem("error", field, message)


def _warning(field: str, message: str) -> Problem:
    return Problem("warning", field, message)


def _job_problems(job: VolcanoJob) -> Iterator[Problem]:
    yield from _name_problems(job)
    yield from _gang_problems(job)
    for index, policy in enumerate(job.spec.policies):
        yield from _policy_problems(policy, f"spec.policies[{index}]")
    for index, task in enumerate(job.spec.tasks):
        yield from _task_problems(job, task, f"spec.tasks[{index}]")


def _name_problems(job: VolcanoJob) -> Iterator[Problem]:
    if not job.name and not job.metadata.generate_name:
        yield _error("metadata.name", "is missing")
    elif job.name and not re.fullmatch(DNS_SUBDOMAIN, job.name):
        yield _error("metadata.name", f"{job.name!r} is no name: lower-case letters, digits and '-'")
    for name, count in Counter(task.name for task in job.spec.tasks).items():
        if count > 1:
            yield _error("spec.tasks", f"{count} tasks are called {name!r}; names must differ")


def _gang_problems(job: VolcanoJob) -> Iterator[Problem]:
    spec = job.spec
    if spec.scheduler_name is None:
        yield _warning(
            "spec.schedulerName", "write 'volcano': without Volcano's webhook pods go to the default scheduler"
        )
    if not spec.tasks:
        yield _error("spec.tasks", "a job needs at least one task")
    replicas = sum(task.replicas for task in spec.tasks)
    if spec.min_available is None:
        yield _warning("spec.minAvailable", f"write {replicas}: without Volcano's webhook it is 0, which is no gang")
    elif spec.min_available > replicas:
        yield _error(
            "spec.minAvailable",
            f"{spec.min_available} is more than the {replicas} replicas of all tasks: it never runs",
        )
    if "max_retry" in spec.model_fields_set and spec.max_retry == 0:
        yield _warning(
            "spec.maxRetry", "0 becomes 3; to never restart, write 1 and no policy that restarts, or leave policies out"
        )
    for plugin, needed in _PLUGINS_NEED.items():
        for missing in (one for one in needed if plugin in spec.plugins and one not in spec.plugins):
            yield _error("spec.plugins", f"{plugin!r} needs {missing!r} beside it: add {missing!r}: []")


def _task_problems(job: VolcanoJob, task: Task, where: str) -> Iterator[Problem]:
    if not task.name:
        yield _error(f"{where}.name", "is missing: pods would be called '<job>--<index>'")
    elif not re.fullmatch(DNS_LABEL, task.name):
        yield _error(f"{where}.name", f"{task.name!r} is no DNS label: lower-case letters, digits and '-'")
    if task.min_available is not None and task.min_available > task.replicas:
        yield _error(f"{where}.minAvailable", f"{task.min_available} is more than its {task.replicas} replicas")
    longest = f"{job.name}-{task.name or ''}-{max(task.replicas - 1, 0)}"
    if len(longest) > MAX_LABEL:
        yield _error(
            "metadata.name",
            f"pod {longest!r} would have {len(longest)} characters, and {MAX_LABEL} are possible: shorten the job's or "
            f"the task's name by {len(longest) - MAX_LABEL}",
        )
    pod_spec = task.template.get("spec") or {}
    if not pod_spec.get("containers"):
        yield _error(f"{where}.template.spec.containers", "a pod needs at least one container")
    if pod_spec.get("restartPolicy", "Always") == "Always":
        yield _warning(
            f"{where}.template.spec.restartPolicy",
            "write Never: with Always (the default) a rank that failed starts again alone and the gang never fails",
        )
    policy = task.partition_policy
    if policy and policy.total_partitions * policy.partition_size != task.replicas:
        yield _error(
            f"{where}.partitionPolicy",
            f"{policy.total_partitions} partitions of {policy.partition_size} are not {task.replicas} replicas",
        )
    if task.max_retry == 0:
        yield _warning(f"{where}.maxRetry", "0 becomes 3")
    for index, one in enumerate(task.policies):
        yield from _policy_problems(one, f"{where}.policies[{index}]")


def _policy_problems(policy: LifecyclePolicy, where: str) -> Iterator[Problem]:
    events = [*policy.events, *([policy.event] if policy.event else [])]
    if policy.exit_code is not None and events:
        yield _error(where, "has both an event and an exitCode; write two policies")
    if policy.exit_code is None and not events:
        yield _error(where, "has neither an event nor an exitCode")
    if policy.exit_code == 0:
        yield _error(f"{where}.exitCode", "0 is success and cannot be a policy's")
    for event in events:
        if event in _WEBHOOK_REJECTS:
            yield _error(where, f"event {str(event)!r} is rejected by Volcano's webhook")
        elif event == JobEvent.POD_PENDING:
            yield _warning(
                where,
                "PodPending: after a restart of the controller every pod counts as pending, so this can restart a "
                "healthy job; watch the time yourself",
            )
        elif event == JobEvent.ANY and policy.action == JobAction.RESTART_JOB:
            yield _warning(where, "'*' includes TaskCompleted: a task that finished is started again")
    if policy.action in _PARTIAL:
        yield _error(
            where,
            f"{str(policy.action)!r} brings back single ranks, which cannot join a gang with fixed ranks, and Volcano "
            "up to 1.15.1 deletes the PodGroup with it; use RestartJob, or TerminateJob and a new attempt",
        )
