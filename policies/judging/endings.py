"""Answers about endings and liveness: pod statuses, stalls, resumes that were not applied, evictions."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from rerail.policies.catalog import load_catalogue
from rerail.policies.endings import Ending, NodeEvidence, judge_ending
from rerail.policies.judging.reading import Answer, Case, need, need_int, number, sub_cases
from rerail.policies.liveness import (
    eviction_end,
    judge_progress,
    judge_resume,
    request_outcome,
    stall_limit_s,
    stuck_deletion,
)
from rerail.policies.recovery import RecoveryPolicy

_POLICY: Final = RecoveryPolicy()
_COMMIT_INTERVAL: Final = 100
_LAST_VALID: Final = "restart the gang from the last valid checkpoint"
_UNIT_S: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_CODE = re.compile(r"\b(S?XID)[\s:_#-]*(?:\([^)]*\)[\s:]*)?(\d+)", re.IGNORECASE)
_DISTANCE = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)[a-z]*\s+(before|earlier|ago|after|later)", re.IGNORECASE)
_OTHER_NODE = re.compile(r"\b(another|other|different|unrelated)\s+(node|host|machine)", re.IGNORECASE)
_NOTHING = re.compile(
    r"^\s*(no|none|nothing|null)?\s*(xid|fault|evidence|error)?s?\s*(found|seen|logged)?\s*$", re.IGNORECASE
)
_OF_PODS = re.compile(r"(\d+)\s*(?:of|/)\s*(\d+)")
_UNINTERRUPTIBLE = re.compile(r"state D\b|\bD[- ]state|uninterruptible|unkillable", re.IGNORECASE)
_OVER_LIMIT = re.compile(r"exceed", re.IGNORECASE)


def speaks_of_hardware(codes: Iterable[str]) -> bool:
    """Whether a record with these codes accuses a device or node: not if all are of processes, or are ignored.

    A record without a code does, and so does a code that no table knows: it is never blindly tried again there.
    """
    entries = [load_catalogue().get(code) for code in codes]
    if not entries:
        return True
    return any(entry is None or (entry.scope != "process" and entry.action != "none") for entry in entries)


def read_evidence(text: str) -> NodeEvidence | None:
    """Read a fault record in words, for example ``XID 79 on the same node 20 s before``; None where it says nothing."""
    if _NOTHING.match(text):
        return None
    distance = _DISTANCE.search(text)
    before = None
    if distance:
        before = float(distance[1]) * _UNIT_S[distance[2].lower()]
        if distance[3].lower() in ("after", "later"):
            before = -before
    return NodeEvidence(
        hardware=speaks_of_hardware(f"{family.lower()}:{int(number)}" for family, number in _CODE.findall(text)),
        before_s=before,
        same_node=not _OTHER_NODE.search(text),
    )


def _evidence(raw: Any) -> list[NodeEvidence]:
    found = []
    for one in raw if isinstance(raw, list) else [raw]:
        if isinstance(one, Mapping):
            codes = one.get("xids") or ([one["xid"]] if one.get("xid") is not None else [])
            found.append(
                NodeEvidence(
                    hardware=speaks_of_hardware(f"xid:{int(code)}" for code in codes),
                    before_s=one.get("before_s", one.get("age_s")),
                    same_node=bool(one.get("same_node", True)),
                )
            )
        elif one is not None:
            read = read_evidence(str(one))
            if read is not None:
                found.append(read)
    return found


def _conditions(raw: Any) -> list[str]:
    """Types of the conditions that are True, from ``Type=True``, a list of them, or Kubernetes' own objects."""
    found = []
    for one in raw if isinstance(raw, list) else [raw]:
        if isinstance(one, Mapping):
            if str(one.get("status", "True")) == "True":
                found.append(str(one.get("type")))
        elif one is not None:
            name, _, status = str(one).partition("=")
            if status.strip().lower() in ("", "true"):
                found.append(name.strip())
    return found


def say_ending(ending: Ending) -> str:
    """An ending as one line: whose, what happens next, and whether it is counted."""
    place = " elsewhere" if ending.where == "elsewhere" else ""
    if ending.cause in ("infrastructure", "hardware"):
        return f"infra: retry{place}, not counted"
    if ending.cause == "application":
        return {
            "no": "app: terminal, not retried",
            "until-limit": "app: deterministic, stop after limit",
        }.get(ending.retry, "app: retry, counted")
    return {
        "none": "done",
        "resource": "app: resource, not retried unchanged",
        "damage": "checkpoint: damaged, retry from an older one, not counted",
        "request": "left as asked: resume, not counted",
    }.get(ending.cause, "unknown: retry, counted")


def _judge_pod(case: Case) -> Ending:
    pod_reason = case.get("pod_reason")
    container_reason = case.get("container_reason")
    message = str(case.get("pod_message") or case.get("message") or "")
    if pod_reason == "OOMKilled" or (pod_reason == "Evicted" and _OVER_LIMIT.search(message)):
        # The pod was over a limit of its own, whoever ended it for that.
        pod_reason, container_reason = None, "OOMKilled"
    return judge_ending(
        case.get("exit"),
        pod_reason=pod_reason,
        conditions=[*_conditions(case.get("condition")), *_conditions(case.get("conditions"))],
        container_reason=container_reason,
        node_evidence=_evidence(case.get("node_evidence")),
        same_step_failures=int(number(case, "same_step_failures")),
    )


def answer_pod_status(case: Case) -> Answer:
    """Answer a ``pod_status``: whose fault each ending is, and whether and where to try again."""
    endings = [_judge_pod(one) for one in (sub_cases(case) or [case])]
    return {
        "results": [say_ending(one) for one in endings],
        "endings": [one.model_dump(mode="json") for one in endings],
    }


def answer_progress(case: Case) -> Answer:
    """Answer a ``progress``: whether a resume was applied, or whether a gang stalls."""
    if case.get("resume_step") is not None or "reports" in case:
        return _answer_resume(case)
    limit_s = stall_limit_s(
        number(case, "step_time_p99_seconds"), phase=str(case.get("phase") or "training"), policy=_POLICY
    )
    limit_s = number(case, "limit_seconds", limit_s)
    counts = _OF_PODS.search(str(case.get("pods") or ""))
    verdict = judge_progress(
        float(need(case, "last_step_report_age_seconds")),
        limit_s,
        running=int(counts[1]) if counts else None,
        wanted=int(counts[2]) if counts else None,
    )
    return {"verdict": verdict, "action": "none" if verdict == "progressing" else _LAST_VALID, "limit_s": limit_s}


def _answer_resume(case: Case) -> Answer:
    resume_step = int(number(case, "resume_step"))
    reports = [one if isinstance(one, int) else need_int(one, "step") for one in case.get("reports") or []]
    verdict = judge_resume(resume_step, reports)
    if verdict != "resume_not_applied":
        return {"verdict": verdict, "action": "none", "first_expected_step": resume_step + 1}
    interval = int(number(case, "save_every_steps", _COMMIT_INTERVAL))
    following = (reports[-1] // interval + 1) * interval
    return {
        "verdict": verdict,
        "action": f"stop the gang before the first commit, keep step {resume_step}, alert",
        "must_not": f"commit step {following} over the run",
        "first_expected_step": resume_step + 1,
        "first_reported_step": reports[0],
        "retention": "frozen",
    }


def answer_phase_request(case: Case) -> Answer:
    """Answer a ``train_trace`` in which a save is asked for during a phase that the loop does not leave at once."""
    phase = str(need(case, "phase_at_request"))
    lasts = number(case, f"{phase.replace('-', '_')}_seconds", number(case, "phase_seconds"))
    if case.get("polled_in_phase") or case.get("can_save_in_phase"):
        lasts = 0.0
    outcome = request_outcome(
        until_boundary_s=max(0.0, lasts - number(case, "elapsed_in_phase_seconds")),
        save_s=number(case, "save_seconds"),
        deadline_s=float(need(case, "deadline_seconds")),
        now_step=need_int(case, "now_step"),
        last_commit_step=need_int(case, "last_periodic_step"),
    )
    return {
        "outcome": "committed before the deadline" if outcome.saved else "deadline passed, evict anyway",
        "resume_from": outcome.resume_step,
        "lost_steps": outcome.lost_steps,
        "metric": f"preempt_checkpoint_missed{{phase='{phase}'}} = {0 if outcome.saved else 1}",
    }


_STUCK_WORDS: Final = {
    "wait": "wait for the grace period",
    "kill": "have the kubelet kill the container, then look again",
    "reboot": "cordon, reboot node, then force delete the pod object",
    "fence": "cordon, fence the node (power off), then force delete the pod object",
}


def answer_evict(case: Case) -> Answer:
    """Answer an ``evict``: how it ends, or what frees the device of a pod that does not go away."""
    if case.get("pod_deletion_age_seconds") is not None:
        step = stuck_deletion(
            number(case, "pod_deletion_age_seconds"),
            number(case, "grace"),
            kubelet_ready=bool(case.get("kubelet_ready", True)),
            uninterruptible=bool(_UNINTERRUPTIBLE.search(str(case.get("node_evidence") or ""))),
        )
        result: Answer = {"action": _STUCK_WORDS[step], "scope": "node" if step in ("reboot", "fence") else "process"}
        if step == "reboot":
            result["must_not"] = "force delete and reuse the GPU without reboot"
        elif step == "fence":
            result["must_not"] = "force delete while the node may still run the process"
        return result
    ignores = bool(case.get("container_ignores_term"))
    deadline_s = float(need(case, "deadline_seconds"))
    leaves = None if ignores else number(case, "exits_after_seconds", number(case, "save_seconds"))
    margin_s = case.get("margin_seconds")
    end = (
        eviction_end(deadline_s, leaves_after_s=leaves)
        if margin_s is None
        else eviction_end(deadline_s, leaves_after_s=leaves, margin_s=float(margin_s))
    )
    return {
        "outcome": "forced at deadline + margin" if end.forced else "left before the deadline",
        "evicted_at_s": end.at_s,
        "must_not": "wait without bound",
    }
