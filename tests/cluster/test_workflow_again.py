"""A person brings a run back that ended too early: with Argo's Retry, or with another Workflow that takes it over."""

from collections.abc import Iterator

import pytest
from rig.gangs import full
from rig.library import Trained, installed
from rig.training import BEFORE, MIDDLE, traced


@pytest.fixture
def trained(cluster, argo, gang) -> Iterator[Trained]:
    with installed(cluster, gang.namespace):
        yield Trained(argo, gang)


def stopped(trained) -> str:
    """Train past the middle, and stop the Workflow."""
    name = trained.submit(traced(trained.gang, delay_s=0.2))
    trained.wait_step(MIDDLE)
    trained.argo.stop(name)
    trained.ended("Failed")
    assert trained.gang.state().phase == "stopped"
    return name


def went_on(trained, baseline, *, attempts=2) -> None:
    """Bit for bit the same training."""
    found = trained.gang.compare(baseline)
    assert found.identical, found.differences
    report = trained.gang.report()
    assert (report.outcome, len(report.attempts)) == ("done", attempts), trained.told()


@full
def test_a_stopped_workflow_that_is_retried_goes_on_from_what_the_stop_saved(trained, baseline):
    name = stopped(trained)
    saved = trained.gang.state().attempts[0].last_commit_step
    assert saved >= MIDDLE
    trained.argo.retry(name)
    trained.wait_step(1, attempt=2)
    trained.ended("Succeeded")
    assert trained.gang.state().attempts[1].started_from_step == saved
    went_on(trained, baseline)


@full
def test_a_run_that_was_given_up_goes_on_in_another_workflow_since_argos_retry_runs_nothing(trained, baseline):
    raising = {"RERAIL_DRILL_RAISE": ";".join(f"step={MIDDLE},rank=1,attempt={number}" for number in (1, 2))}
    policy = {"in_place": False, "budgets": {"identical": 2}}
    document = traced(trained.gang, environment=raising)
    first = trained.submit(document, policy=policy)
    trained.ended("Failed")
    gave_up = trained.node("give-up")
    assert gave_up["phase"] == "Failed", trained.told()
    before = trained.gang.state()
    trained.argo.retry(first)
    trained.until("Argo is done", lambda: "finishedAt" in trained.argo.workflow(first)["status"])
    trained.ended("Failed")
    assert trained.node("give-up")["startedAt"] == gave_up["startedAt"], "Argo keeps it, as if the report had mended it"
    assert trained.gang.state() == before
    trained.submit(document, policy=policy, take_over="true")
    trained.ended("Succeeded")
    assert trained.gang.state().attempts[2].started_from_step == BEFORE
    went_on(trained, baseline, attempts=3)


@full
def test_a_stopped_run_goes_on_in_another_workflow_that_takes_it_over(trained, baseline):
    first = stopped(trained)
    saved = trained.gang.state().attempts[0].last_commit_step
    second = trained.submit(traced(trained.gang, delay_s=0.2), take_over="true")
    trained.ended("Succeeded")
    assert second != first
    assert ("resume", "Succeeded") in trained.steps(), trained.told()
    assert trained.gang.state().attempts[1].started_from_step == saved
    went_on(trained, baseline)
