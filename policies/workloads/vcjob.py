"""The vcjob of one attempt: the user's own, changed only where recovery needs it."""

import copy
import re
from typing import Any, Final

from rerail.policies.supervisor.state import PodShape
from rerail.policies.workloads import pod_template
from rerail.policies.workloads.attempt import OWNER_ANNOTATION, SPEC_HASH_ANNOTATION, AttemptGang, spec_hash
from rerail.policies.workloads.fields import below
from rerail.policies.workloads.lock import PREEMPTABLE, lock
from rerail.policies.workloads.workload import Member, Workload

EVIDENCE_S: Final = 3600
"""How long a finished job and its pods stay at least, for whoever asks why the attempt ended."""

POLICIES: Final[tuple[dict[str, Any], ...]] = ({"events": ["PodFailed", "PodEvicted"], "action": "TerminateJob"},)
_OF_A_LIVE_OBJECT: Final = (
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
)
_LAST_APPLIED: Final = "kubectl.kubernetes.io/last-applied-configuration"
_PUBLISH: Final = "publish-not-ready-addresses"

REASONS: Final[tuple[tuple[str, str], ...]] = (
    (r"metadata\.(name|generateName)", "each attempt is a fresh job under a name of its own"),
    (r"metadata\.labels", "names the run, the attempt and its gang, so that all three can be found"),
    (rf"metadata\.({'|'.join(_OF_A_LIVE_OBJECT)})|status", "belongs to an object that exists, not to a new one"),
    (rf"metadata\.annotations\[{re.escape(_LAST_APPLIED)}", "belongs to an object that exists, not to a new one"),
    (rf"metadata\.annotations\[{re.escape(PREEMPTABLE)}", "locked: Volcano may take it once Rerail opens the lock"),
    (r"metadata\.annotations", "names what was rendered and who drives the run"),
    (r"spec\.schedulerName", "without Volcano's webhook pods would go to the default scheduler"),
    (r"spec\.minAvailable", "a gang of fixed ranks is whole or not there"),
    (r"spec\.minSuccess", "a run is done by its final commit, never by a number of pods"),
    (r"spec\.maxRetry", "one job is one attempt; recovery counts attempts itself, by cause"),
    (r"spec\.policies", "a lost rank ends the attempt at once; what follows is decided by recovery"),
    (r"spec\.plugins\.pytorch", "launch sets RANK, WORLD_SIZE and MASTER_*; this counts pods and waits for a port"),
    (r"spec\.plugins(\.(svc|env))?", "ranks find each other by name, also before they are ready"),
    (r"spec\.ttlSecondsAfterFinished", f"an ended attempt stays {EVIDENCE_S} s as evidence"),
    (r"spec\.priorityClassName", "the priority class that was asked for"),
    (r"spec\.tasks\[[^]]*\]\.minAvailable", "a gang of fixed ranks is whole or not there"),
    (r"spec\.tasks\[[^]]*\]\.maxRetry", "Volcano reads 0 as 3"),
    (r"spec\.tasks\[[^]]*\]\.partitionPolicy", "a gang of fixed ranks is whole or not there"),
    (r"spec\.tasks\[[^]]*\]\.policies", "a single rank or task cannot join a gang that runs; the job's policy ends it"),
    *((rf"spec\.tasks\[[^]]*\]\.template\.{path}", why) for path, why in pod_template.REASONS),
)
"""Why a field of a rendered job differs: a pattern of its path, and the reason."""


def pod_suffix(workload: Workload, member: Member) -> str:
    """What follows ``<gang>-`` in a pod's name; Volcano's job controller makes the names."""
    return f"{workload.tasks[member.task].name}-{member.index}"


def layout(workload: Workload) -> tuple[PodShape, ...]:
    """The pods that hold ranks, in the order of ranks."""
    return tuple(
        PodShape(suffix=pod_suffix(workload, member), first_rank=member.first_rank, ranks=member.ranks)
        for member in workload.members()
        if member.ranks
    )


def rendezvous_host(workload: Workload, gang: str, namespace: str = "") -> str:
    """Host name of the pod of rank 0, as the job plugin ``svc`` publishes it.

    Args:
        workload: What runs.
        gang: Name of the vcjob.
        namespace: Its namespace; empty gives the short name, which works within the namespace.
    """
    return f"{gang}-{layout(workload)[0].suffix}.{gang}" + (f".{namespace}.svc" if namespace else "")


def render_vcjob(workload: Workload, gang: AttemptGang) -> dict[str, Any]:
    """The vcjob of one attempt, as a new document. The same workload and gang give the same document.

    Raises:
        UsageError: The user sets a variable that recovery must set to something else, or the store would lie inside
            the pods.
    """
    job = copy.deepcopy(workload.document)
    job.pop("status", None)
    metadata = below(job, "metadata")
    for key in ("generateName", *_OF_A_LIVE_OBJECT):
        metadata.pop(key, None)
    metadata["name"] = gang.gang
    below(metadata, "labels").update(gang.labels)
    annotations = below(metadata, "annotations")
    annotations.pop(_LAST_APPLIED, None)
    if gang.owner:
        annotations[OWNER_ANNOTATION] = gang.owner
    lock(job)
    _change_spec(job["spec"], workload, gang)
    for task, item in zip(workload.tasks, job["spec"]["tasks"], strict=True):
        _change_task(item)
        pod_template.render_template(item["template"], workload, task, gang, index=None)
    annotations[SPEC_HASH_ANNOTATION] = spec_hash(job)
    return job


def _change_spec(spec: dict[str, Any], workload: Workload, gang: AttemptGang) -> None:
    spec["schedulerName"] = spec.get("schedulerName") or "volcano"
    spec["minAvailable"] = workload.size
    spec["maxRetry"] = 1
    spec["policies"] = copy.deepcopy(list(POLICIES))
    spec.pop("minSuccess", None)
    if gang.priority_class:
        spec["priorityClassName"] = gang.priority_class
    ttl_s = spec.get("ttlSecondsAfterFinished")
    if ttl_s is not None:
        spec["ttlSecondsAfterFinished"] = max(ttl_s, EVIDENCE_S)
    plugins = below(spec, "plugins")
    plugins.pop("pytorch", None)
    plugins["svc"] = _with_addresses(plugins.get("svc") or [])
    plugins["env"] = plugins.get("env") or []


def _with_addresses(arguments: list[str]) -> list[str]:
    """Arguments of ``svc`` that publish a pod's address before it is ready, as Go reads flags: the last one counts."""
    wanted = f"--{_PUBLISH}=true"
    others = [one for one in arguments if one.lstrip("-").split("=")[0] != _PUBLISH]
    return arguments if wanted in arguments and len(others) == len(arguments) - 1 else [*others, wanted]


def _change_task(task: dict[str, Any]) -> None:
    task["minAvailable"] = task["replicas"]
    task.pop("policies", None)
    if task.get("maxRetry") == 0:
        task["maxRetry"] = 1
    cut = task.get("partitionPolicy")
    if cut and cut.get("minPartitions"):
        cut["minPartitions"] = cut["totalPartitions"]
