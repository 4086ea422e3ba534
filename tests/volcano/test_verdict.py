"""Verdicts from facts: the rules of volcano.md 8 and 9.3, and what the cases say."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerail.plugins.volcano import PodGroup, VolcanoJob, check_job, effective_max_retry
from rerail.plugins.volcano.facts import gang_facts, pod_facts
from rerail.policies.volcano_verdict import (
    GangFacts,
    PodFacts,
    StuckTimers,
    judge_gang,
    stuck_states,
)

NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
LONG = dict.fromkeys(("S1", "S2", "S3", "S4", "S5", "S6", "S7", "S8"), 10_000.0)
CASES = next((f for p in Path(__file__).parents if (f := p / "shared/data/cases/volcano.jsonl").is_file()), None)


def running(name: str = "r", **more: object) -> PodFacts:
    return PodFacts(name=name, phase="Running", ready=True, node="n1", **more)  # type: ignore[arg-type]


def failed(name: str = "f", **more: object) -> PodFacts:
    return PodFacts(name=name, phase="Failed", node="n1", **more)  # type: ignore[arg-type]


def facts(phase: str = "Running", *pods: PodFacts, **more: object) -> GangFacts:
    return GangFacts(name="g", phase=phase, pods=pods, min_available=2, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("final_commit", "state"), [(True, "succeeded"), (False, "incomplete"), (None, "completed")])
def test_completed_is_success_only_by_the_runs_own_marker(final_commit, state):
    verdict = judge_gang(facts("Completed", failed("hidden"), final_commit=final_commit), {})
    assert (verdict.state, verdict.final) == (state, True)
    if state != "succeeded":
        assert verdict.pods == ("hidden",)


def test_the_root_of_a_failure_is_not_the_rank_that_failed_because_of_it():
    evicted = failed("evicted", exit_code=143, conditions=frozenset({"DisruptionTarget"}),
                     disruption="PreemptionByScheduler", ended_s=20.0)  # fmt: skip
    collateral = failed("collateral", exit_code=1, ended_s=10.0)
    verdict = judge_gang(facts("Failed", collateral, evicted), {})
    assert (verdict.state, verdict.cause, verdict.pods) == ("failed", "infrastructure", ("evicted",))
    assert "PreemptionByScheduler" in verdict.why
    first = judge_gang(
        facts("Failed", failed("b", exit_code=1, ended_s=9.0), failed("a", exit_code=1, ended_s=8.0)), {}
    )
    assert (first.cause, first.pods) == ("application", ("a",))
    assert judge_gang(facts("Terminated", failed(exit_code=87)), {}).way_out == ""


def test_a_failure_without_pods_is_an_exhausted_count_or_unknown():
    assert judge_gang(facts("Failed", retry_count=3, max_retry=3), {}).state == "retry_exhausted"
    verdict = judge_gang(facts("Failed", retry_count=1, max_retry=3), {})
    assert (verdict.state, verdict.cause) == ("failed", "unknown")


def test_phases_that_are_no_failures():
    assert judge_gang(facts("Terminated", gave_up=True), {}).state == "controller_gave_up"
    assert judge_gang(facts("Terminated"), {}).state == "terminated"
    assert judge_gang(facts("Aborted"), {}).state == "suspended"
    assert judge_gang(facts("Terminating"), {}).state == "ending"
    assert judge_gang(facts("Running", deleting=True), {}).state == "ending"
    assert judge_gang(facts("Hibernating"), {}).state == "unknown"
    assert judge_gang(GangFacts(name="g", found=False), {}).state == "deleted"


@pytest.mark.parametrize(
    ("code", "gang"),
    [
        ("S1", facts("Running", running(), PodFacts(name="p", phase="Pending"), group_phase="Unknown")),
        ("S1", facts("Pending", running(), PodFacts(name="p", phase="Pending"))),
        ("S1", facts("Running", running(), unschedulable="NotEnoughResources")),
        ("S2", facts("Running", running(), failed())),
        ("S3", facts("Running", running(), running("x", overdue_s=61.0, node_ready=False))),
        ("S3", facts("Restarting", running("x", overdue_s=500.0))),
        ("S4", facts("Restarting")),
        ("S5", facts("Pending", PodFacts(name="p", phase="Pending"), group_phase="Inqueue")),
        ("S6", facts("Running", running(), running("m", disruption="PreemptionByScheduler"))),
        ("S7", facts("Pending", group_phase="Pending", unschedulable="NotEnoughTasks")),
        ("S8", facts("Pending", queue_state="Closed")),
        ("S8", facts("Pending", queue_state="missing")),
    ],
)
def test_each_stuck_state_is_told_when_it_lasted_and_not_before(code, gang):
    assert code in stuck_states(gang)
    verdict = judge_gang(gang, {code: StuckTimers().of(code)})
    assert (verdict.state, verdict.stuck) == ("stuck", code)
    assert verdict.way_out
    if StuckTimers().of(code):
        assert judge_gang(gang, {code: StuckTimers().of(code) - 0.1}).state != "stuck"


def test_a_healthy_gang_is_never_stuck():
    assert stuck_states(facts("Running", running("a"), running("b"), group_phase="Running")) == {}
    assert stuck_states(facts("Pending", queue_state="Open", group_phase="Pending")) == {}
    leaving = running("x", overdue_s=-20.0, node_ready=True)
    assert "S3" not in stuck_states(facts("Running", leaving))
    assert "S3" not in stuck_states(facts("Running", running("x", overdue_s=500.0, node_ready=True)))


def test_a_finished_job_with_a_ghost_is_finished():
    assert judge_gang(facts("Failed", running("x", overdue_s=500.0, node_ready=False)), LONG).state == "failed"


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_every_gang_has_a_verdict_with_a_reason(data):
    pods = st.builds(
        PodFacts,
        name=st.just("p"),
        phase=st.sampled_from(["Pending", "Running", "Failed", "Succeeded", "Unknown"]),
        ready=st.booleans(),
        node=st.none() | st.just("n"),
        node_ready=st.none() | st.booleans(),
        overdue_s=st.none() | st.floats(-60, 500),
        exit_code=st.none() | st.sampled_from([0, 1, 85, 137]),
        disruption=st.none() | st.just("x"),
    )
    gang = data.draw(
        st.builds(
            GangFacts,
            name=st.just("g"),
            phase=st.sampled_from(
                ["Pending", "Running", "Restarting", "Failed", "Completed", "Aborted", "Terminated", "?"]
            ),
            pods=st.lists(pods, max_size=3).map(tuple),
            min_available=st.integers(0, 3),
            group_phase=st.none() | st.sampled_from(["Pending", "Inqueue", "Running", "Unknown", "Completed"]),
            final_commit=st.none() | st.booleans(),
        )
    )
    verdict = judge_gang(gang, LONG)
    assert verdict.why
    assert (verdict.state == "stuck") == (verdict.stuck is not None)
    if verdict.state == "succeeded":
        assert gang.final_commit is True


def test_facts_of_a_pod():
    pod = {
        "metadata": {"name": "p", "deletionTimestamp": "2026-11-29T11:58:00Z"},
        "spec": {"nodeName": "n1"},
        "status": {
            "phase": "Failed",
            "reason": "Evicted",
            "conditions": [
                {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"},
                {"type": "Ready", "status": "False"},
            ],
            "containerStatuses": [
                {"state": {"terminated": {"exitCode": 0, "finishedAt": "2026-11-29T11:57:00Z"}}},
                {"state": {"terminated": {"exitCode": 9, "reason": "Error", "finishedAt": "2026-11-29T11:57:09Z"}}},
                {"state": {"running": {}}},
            ],
        },
    }
    told = pod_facts(pod, now=NOW, ready_nodes={"n2"})
    assert (told.overdue_s, told.node_ready, told.exit_code, told.container_reason) == (120.0, False, 9, "Error")
    assert (told.disruption, told.ready, told.pod_reason) == ("PreemptionByScheduler", False, "Evicted")


def case(name: str) -> dict:
    if CASES is None:
        pytest.skip("../shared/data/cases is not here")
    return next(one for one in map(json.loads, CASES.read_text().splitlines()) if one["id"] == name)


def test_case_three_preemptions_used_up_the_count():
    given_ = case("C4-02")["input"]
    verdict = judge_gang(facts(given_["phase"], retry_count=given_["retryCount"], max_retry=given_["maxRetry"]), {})
    assert verdict.state == "retry_exhausted"
    assert verdict.cause != "application"


def test_case_max_retry_0_means_3():
    one = case("C4-04")
    job = VolcanoJob(metadata={"name": "x"}, spec={"max_retry": one["input"]["spec"]["maxRetry"]})
    assert effective_max_retry(job.spec.max_retry) == one["expected"]["effective"]["job"]
    assert any("0 becomes 3" in problem.message for problem in check_job(job))


def test_case_partial_restarts_are_an_error():
    policies = case("C4-07")["input"]["policies"]
    problems = check_job(VolcanoJob.from_dict({"metadata": {"name": "x"}, "spec": {"policies": policies}}))
    assert any(one.severity == "error" and "use RestartJob" in one.message for one in problems)


def test_case_a_gang_broken_by_preemption_is_stranded():
    given_ = case("C4-08")["input"]
    pods = tuple(running(f"p{number}") for number in range(given_["running"]))
    gang = GangFacts(
        name="g", phase="Running", min_available=given_["minMember"], pods=pods, group_phase=given_["phase"]
    )
    verdict = judge_gang(gang, LONG)
    assert (verdict.stuck, "end the whole gang" in verdict.way_out) == ("S1", True)


def test_an_old_condition_of_a_placed_group_is_not_the_truth():
    condition = {"type": "Unschedulable", "status": "True", "reason": "NotEnoughResources"}
    for phase, reason in (("Running", None), ("Unknown", "NotEnoughResources")):
        group = PodGroup.from_dict({"status": {"phase": phase, "conditions": [condition]}})
        assert gang_facts(VolcanoJob(), name="x", now=NOW, group=group).unschedulable == reason
