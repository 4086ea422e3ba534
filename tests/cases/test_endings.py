"""Siblings of the cases about pod endings, stalls, resumes that were not applied and evictions."""

import pytest

from rerail.policies.endings import judge_ending
from rerail.policies.judging import answer
from rerail.policies.judging.endings import read_evidence

_INFRA = "infra: retry, not counted"
_ELSEWHERE = "infra: retry elsewhere, not counted"
_APP = "app: retry, counted"
_UNKNOWN = "unknown: retry, counted"
_SAME_STEP = "app: deterministic, stop after limit"
_RESOURCE = "app: resource, not retried unchanged"


@pytest.mark.parametrize(
    ("pod", "said"),
    [
        ({"exit": 143, "pod_reason": "NodeShutdown"}, _INFRA),
        ({"exit": 137, "pod_reason": "Evicted"}, _INFRA),
        ({"exit": None, "pod_reason": "NodeLost"}, _INFRA),
        ({"exit": 1, "pod_reason": "Preempting"}, _INFRA),
        ({"exit": 1, "condition": "DisruptionTarget=True"}, _INFRA),
        ({"exit": 137, "conditions": [{"type": "DisruptionTarget", "status": "True"}]}, _INFRA),
        ({"exit": 1, "condition": "DisruptionTarget=False"}, _APP),
        ({"exit": 134, "node_evidence": "XID 48 on the same node 3 min before"}, _ELSEWHERE),
        ({"exit": 137, "node_evidence": "SXID 20034 on the same node 1 s before"}, _ELSEWHERE),
        ({"exit": 1, "node_evidence": {"xid": 95, "before_s": 5}}, _ELSEWHERE),
        ({"exit": 1, "node_evidence": "XID 79 on the same node 3 h before"}, _APP),
        ({"exit": 1, "node_evidence": "XID 79 on another node 20 s before"}, _APP),
        ({"exit": 1, "node_evidence": "XID 31 on the same node 2 s before"}, _APP),
        ({"exit": 1, "node_evidence": "XID 13 on the same node 2 s before", "same_step_failures": 4}, _SAME_STEP),
        ({"exit": 1, "node_evidence": "XID 63 on the same node 2 s before"}, _APP),
        ({"exit": 1, "node_evidence": "SXID 11012 on the same node 2 s before"}, _APP),
        ({"exit": 1, "node_evidence": "XID 9999 on the same node 2 s before"}, _ELSEWHERE),
        ({"exit": 1, "node_evidence": "XID 31 and XID 79 on the same node 2 s before"}, _ELSEWHERE),
        ({"exit": 1, "node_evidence": "NVLink down on the same node 9 s before"}, _ELSEWHERE),
        ({"exit": 1, "node_evidence": "none", "same_step_failures": 1}, _APP),
        ({"exit": 139, "same_step_failures": 2}, _SAME_STEP),
        ({"exit": 137}, _UNKNOWN),
        ({"exit": 143}, _UNKNOWN),
        ({"exit": 2}, _APP),
        ({"exit": 1, "container_reason": "OOMKilled", "same_step_failures": 5}, _RESOURCE),
        (
            {"exit": 137, "pod_reason": "Evicted", "pod_message": "Usage of EmptyDir volume exceeds the limit"},
            _RESOURCE,
        ),
        ({"exit": 0}, "done"),
        ({"exit": 85}, "left as asked: resume, not counted"),
        ({"exit": 87}, "app: terminal, not retried"),
        ({"exit": 88}, "checkpoint: damaged, retry from an older one, not counted"),
    ],
)
def test_endings_are_joined_with_the_pod_and_the_node(pod, said):
    assert answer({"kind": "pod_status", "cases": [pod]})["results"] == [said]
    assert answer({"kind": "pod_status", **pod})["results"] == [said]


def test_evidence_in_words():
    read = read_evidence("SXID 12028 on the same host 2 minutes before, then XID 74")
    assert read is not None
    assert (read.hardware, read.before_s, read.same_node) == (True, 120.0, True)
    logged = read_evidence("NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus, 1.5 s after")
    assert logged is not None
    assert (logged.hardware, logged.before_s) == (True, -1.5)
    assert read_evidence("") is None
    assert read_evidence("no fault seen") is None


def test_the_verdict_says_why():
    assert "NodeShutdown" in judge_ending(137, pod_reason="NodeShutdown").why
    assert "3 times" in judge_ending(1, same_step_failures=3).why


def test_the_first_report_must_be_the_step_after():
    def verdict(resume_step, *steps):
        reports = [{"step": step, "loss": 1.0} for step in steps]
        return answer({"kind": "progress", "resume_step": resume_step, "reports": reports})

    assert verdict(700, 701, 702)["verdict"] == "resume_applied"
    assert verdict(0, 1)["verdict"] == "resume_applied"
    assert verdict(700)["verdict"] == "no_report_yet"
    for first in (1, 700, 702):
        got = verdict(700, first)
        assert got["verdict"] == "resume_not_applied"
        assert got["action"] == "stop the gang before the first commit, keep step 700, alert"


@pytest.mark.parametrize(
    ("more", "verdict"),
    [
        ({"pods": "8 of 8 Running", "last_step_report_age_seconds": 4000, "step_time_p99_seconds": 3}, "gang stalled"),
        ({"pods": "8 of 8 Running", "last_step_report_age_seconds": 20, "step_time_p99_seconds": 12}, "progressing"),
        ({"pods": "8/8 Running", "last_step_report_age_seconds": 1900, "step_time_p99_seconds": 100}, "progressing"),
        (
            {"pods": "3 of 4 Running, 1 gone", "last_step_report_age_seconds": 5, "step_time_p99_seconds": 9},
            "gang incomplete",
        ),
        ({"last_step_report_age_seconds": 900, "step_time_p99_seconds": 2, "phase": "evaluation"}, "progressing"),
        ({"last_step_report_age_seconds": 4000, "step_time_p99_seconds": 2, "phase": "evaluation"}, "gang stalled"),
        ({"last_step_report_age_seconds": 4000, "step_time_p99_seconds": 2, "phase": "compile"}, "gang stalled"),
    ],
)
def test_liveness_comes_from_step_reports(more, verdict):
    got = answer({"kind": "progress", **more})
    assert got["verdict"] == verdict
    assert (got["action"] == "none") == (verdict == "progressing")


def _request(**more):
    base = {"kind": "train_trace", "phase_at_request": "warm-up", "deadline_seconds": 60, "last_periodic_step": 40}
    return answer({**base, "now_step": 47, **more})


def test_a_request_that_the_phase_outlasts_is_a_measured_miss():
    got = _request(warm_up_seconds=61)
    assert (got["outcome"], got["resume_from"], got["lost_steps"]) == ("deadline passed, evict anyway", 40, 7)
    assert got["metric"] == "preempt_checkpoint_missed{phase='warm-up'} = 1"


@pytest.mark.parametrize(
    "more", [{"warm_up_seconds": 50}, {"warm_up_seconds": 300, "polled_in_phase": True}, {"phase_seconds": 60}]
)
def test_a_request_that_is_met_loses_nothing(more):
    got = _request(**more)
    assert (got["resume_from"], got["lost_steps"]) == (47, 0)
    assert got["metric"].endswith("= 0")


def test_the_save_has_to_fit_as_well():
    assert _request(warm_up_seconds=50, save_seconds=11)["lost_steps"] == 7


def test_evictions_are_bounded():
    got = answer({"kind": "evict", "container_ignores_term": True, "deadline_seconds": 30, "margin_seconds": 5})
    assert (got["outcome"], got["evicted_at_s"], got["must_not"]) == (
        "forced at deadline + margin",
        35,
        "wait without bound",
    )
    late = answer({"kind": "evict", "container_ignores_term": False, "deadline_seconds": 30, "exits_after_seconds": 31})
    assert late["outcome"] == "forced at deadline + margin"
    good = answer({"kind": "evict", "container_ignores_term": False, "deadline_seconds": 30, "exits_after_seconds": 12})
    assert (good["outcome"], good["evicted_at_s"]) == ("left before the deadline", 12)


@pytest.mark.parametrize(
    ("more", "begins", "scope"),
    [
        ({"pod_deletion_age_seconds": 60}, "wait", "process"),
        ({"kubelet_ready": False}, "cordon, fence the node", "node"),
        ({"node_evidence": "nothing seen"}, "have the kubelet", "process"),
        ({}, "cordon, reboot node, then force delete", "node"),
    ],
)
def test_a_pod_that_does_not_go_away_is_not_forced_while_the_device_is_held(more, begins, scope):
    base = {"kind": "evict", "pod_deletion_age_seconds": 700, "grace": 100, "kubelet_ready": True}
    got = answer({**base, "node_evidence": "nvidia-smi in D state", **more})
    assert got["action"].startswith(begins)
    assert got["scope"] == scope
