"""Judgements about one run and its gangs: grace, policies that restart by themselves, and gangs left over. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rerail.policies.doctor.finding import Finding, fail, ok, skipped, warn
from rerail.policies.documents import Value
from rerail.policies.supervisor.state import RunState

GRACE_DEFAULT_S: Final = 30.0
_MARGIN: Final = 1.5
"""A save takes its measured time at best: the machine is busy when all leave at once."""

_RESTARTS: Final = frozenset({"RestartJob", "RestartTask", "RestartPod", "RestartPartition", "ResumeJob"})


def judge_grace(state: RunState | None, graces: Mapping[str, float]) -> Finding:
    """Whether a run's pods have the time that its saves take.

    Args:
        state: Of its ledger; None before the first decision.
        graces: Grace period in seconds by pod; empty where no pod is seen.
    """
    check = "grace"
    saves = [record.save_s for record in (state.attempts if state else ()) if record.save_s is not None]
    if not graces:
        return skipped(check, "no pod of the run is in the cluster", "look again while it runs")
    pod, grace_s = min(graces.items(), key=lambda one: one[1])
    if not saves:
        return skipped(check, f"pods have {grace_s:g} s, and no save was measured yet", "look again after a save")
    save_s = max(saves)
    found = f"pod {pod} has {grace_s:g} s of grace, and the longest save took {save_s:.1f} s"
    way_out = f"set terminationGracePeriodSeconds of the ranks' pods to {max(30, round(save_s * 2))} or more"
    if grace_s < save_s:
        return fail(check, f"{found}: a pod that is evicted is killed before its save stands", way_out)
    return warn(check, found, way_out) if grace_s < save_s * _MARGIN else ok(check, found)


def judge_pause(why: str, *, of: str, resume: str) -> Finding:
    """Whether a person holds a run, or all of them.

    Args:
        why: The reason; empty where nobody does.
        of: Whom it holds, for people.
        resume: What ends it.
    """
    if not why:
        return ok("pause", f"{of}: not paused")
    return warn("pause", f"{of}: paused: {why}; faults are noted, and nothing is recovered", resume)


def judge_policies(jobs: Sequence[Mapping[str, Any]]) -> Finding:
    """Whether a vcjob of the run restarts by itself.

    Args:
        jobs: The run's vcjobs as the cluster has them.
    """
    check = "own-restarts"
    found = []
    for job in jobs:
        spec = job.get("spec") or {}
        places = [("spec.policies", spec.get("policies") or [])]
        places += [
            (f"spec.tasks[{at}].policies", task.get("policies") or [])
            for at, task in enumerate(spec.get("tasks") or [])
        ]
        found += [
            f"{job['metadata']['name']}: {where} has {one.get('action')} on {_on(one)}"
            for where, policies in places
            for one in policies
            if one.get("action") in _RESTARTS
        ]
    if found:
        return fail(
            check,
            "; ".join(found),
            "take the policy out of the live vcjob's manifest: Volcano would restart ranks that Rerail is replacing "
            "(gangs that Rerail makes have none of these)",
        )
    return ok(check, f"{len(jobs)} vcjobs, none restarts by itself") if jobs else skipped(check, "it has no vcjob now")


def _on(policy: Mapping[str, Any]) -> str:
    events = [*(policy.get("events") or []), *([policy["event"]] if policy.get("event") else [])]
    return ", ".join(map(str, events)) or f"exit code {policy.get('exitCode')}"


class GangFound(Value):
    """A gang in the cluster, and what is known of its run.

    Attributes:
        state: Of the run's ledger; None where it has none.
        unknown: Why nothing is known of the run; empty where it is.
        workflow_over: Why nobody supervises it any more, where its owner is a Workflow; empty while somebody may.
    """

    namespace: str
    gang: str
    run: str
    state: RunState | None = None
    unknown: str = ""
    workflow_over: str = ""


def judge_gangs(gangs: Sequence[GangFound]) -> tuple[Finding, ...]:
    """Gangs that nobody will go on with, one finding each."""
    check = "orphans"
    found = [finding for one in gangs if (finding := _judge_gang(check, one)) is not None]
    return tuple(found) or (ok(check, f"{len(gangs)} gangs of runs, each the current one of its run"),)


def _judge_gang(check: str, one: GangFound) -> Finding | None:
    name = f"gang {one.namespace}/{one.gang}"
    end = (
        f"if nobody wants it: kubectl -n {one.namespace} delete vcjob,podgroup -l rerail.dev/gang={one.gang} "
        "(its pods go with it)"
    )
    if one.unknown:
        return skipped(check, f"{name}: {one.unknown}", "pass --store and --control")
    if one.state is None:
        return warn(check, f"{name}: run {one.run!r} has no ledger: no supervisor ever drove it", end)
    state = one.state
    if state.phase in ("done", "stopped"):
        return warn(check, f"{name} is left over: run {one.run!r} is {state.phase} ({state.reason or 'done'})", end)
    current = state.gang.name if state.gang else ""
    if one.gang != current:
        return warn(check, f"{name} is left over: the gang of run {one.run!r} is {current or 'none'} now", end)
    if one.workflow_over:
        return warn(check, f"{name}: {one.workflow_over}", "`rerail step reap` (the Cron template) saves and ends it")
    return None
