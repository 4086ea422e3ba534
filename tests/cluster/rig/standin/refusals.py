"""What the stand-in does not play. It says so, by name, on the object, and leaves the object alone."""

from typing import Final

from rerail.plugins.volcano import JobAction, JobEvent, VolcanoJob
from rerail.plugins.volcano.job import LifecyclePolicy
from rig.standin.objects import Obj

REASON: Final = "NotPlayed"
PLUGINS: Final = frozenset({"svc", "env"})
SVC_ARGUMENTS: Final = frozenset({"publish-not-ready-addresses", "disable-network-policy"})
ACTIONS: Final = frozenset(
    {JobAction.RESTART_JOB, JobAction.ABORT_JOB, JobAction.TERMINATE_JOB, JobAction.COMPLETE_JOB, JobAction.RESUME_JOB}
)
EVENTS: Final = frozenset(
    {JobEvent.ANY, JobEvent.POD_FAILED, JobEvent.POD_EVICTED, JobEvent.TASK_COMPLETED, JobEvent.UNKNOWN}
)


def words(found: list[str]) -> str:
    """The refusal for people."""
    return f"the stand-in for tests does not play {', '.join(found)}; run the real Volcano: RERAIL_VOLCANO_BIN"


def of_job(job: VolcanoJob) -> list[str]:
    """What a job asks for and does not get."""
    spec = job.spec
    found = [name for name in ("volumes", "minSuccess", "networkTopology") if spec.to_dict().get(name)]
    found += [f"plugin {name}" for name in spec.plugins if name not in PLUGINS]
    found += [f"svc {one}" for one in spec.plugins.get("svc", []) if one.lstrip("-").split("=")[0] not in SVC_ARGUMENTS]
    found += _of_policies(spec.policies)
    for task in spec.tasks:
        asked = task.to_dict()
        found += [name for name in ("dependsOn", "partitionPolicy", "topologyPolicy") if asked.get(name)]
        found += _of_policies(task.policies)
        found += of_pod(task.template.get("spec") or {})
    return sorted(set(found))


def _of_policies(policies: list[LifecyclePolicy]) -> list[str]:
    found: list[str] = []
    for policy in policies:
        events = [*policy.events, *([policy.event] if policy.event else [])]
        found += [f"policy on {event}" for event in events if event not in EVENTS]
        found += [f"action {policy.action}" for _ in [0] if policy.action not in ACTIONS]
        found += ["policy timeout" for _ in [0] if policy.timeout]
    return found


def of_group(spec: Obj) -> list[str]:
    """What a PodGroup asks for and does not get."""
    return [name for name in ("networkTopology", "subGroupPolicy") if spec.get(name)]


def of_pod(spec: Obj) -> list[str]:
    """What a pod asks of its scheduler and does not get."""
    affinity = spec.get("affinity") or {}
    found = [name for name in ("podAffinity", "podAntiAffinity") if affinity.get(name)]
    found += [name for name in ("topologySpreadConstraints", "resourceClaims", "schedulingGates") if spec.get(name)]
    return found
