"""Evictions of gangs of real processes: after the commit, or at the deadline, and the record says which."""

import os
import random
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from typer.testing import CliRunner

from rerail.plugins.checkpoint.commit import read_manifest
from rerail.plugins.checkpoint.notes import read_requests
from rerail.plugins.cli.main import build
from rerail.policies.errors import NotFoundError
from rerail.policies.eviction import request_id

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")
only_ci = pytest.mark.skipif(os.environ.get("CI") != "true", reason="only where CI=true")
TRIALS = 10 if os.environ.get("CI") == "true" else 2


def test_at_any_moment_every_step_that_was_made_is_in_the_commit(training):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    moment = random.Random(seed)
    training.start(every=5)
    for attempt in range(1, TRIALS + 1):
        training.trains(attempt)
        time.sleep(moment.uniform(0.0, 0.4))
        found = training.pre_evict().perform()

        assert (found.outcome, found.attempt, found.why) == ("committed", attempt, ""), training.said()
        assert found.supervised
        assert found.left == ()
        assert found.evicted_at_s >= found.committed_at_s >= found.asked_at_s
        manifest = read_manifest(training.run, attempt, found.step)
        assert manifest.answers == (request_id(found.gang, attempt),)
        assert all(one.at_s > found.asked_at_s for one in manifest.snapshots)
        made = [training.steps(attempt, rank)[-1] for rank in range(2)]
        assert made == [found.step, found.step], "no rank made a step that the commit does not hold"
        training.trains(attempt + 1)
        assert training.steps(attempt + 1)[0] == found.step + 1
    state = training.state()
    assert {one.charged_to for one in state.attempts if one.charged_to} == {"preemption"}
    assert {one.lost_steps for one in state.incidents} == {0}


def test_ranks_that_hang_in_an_evaluation_are_evicted_at_the_deadline_and_nobody_is_to_blame(training):
    training.start(every=5)
    training.trains(1)
    training.evaluates(1)
    found = training.pre_evict(deadline_s=0.6).perform()

    assert found.outcome == "deadline"
    assert "no commit within 0.6 s of the request: the ranks were in evaluation" in found.why
    assert 0.6 <= found.evicted_at_s - found.asked_at_s < 30.0
    assert found.step == training.steps(1)[-1] // 5 * 5
    (training.folder / "evaluate").unlink()
    training.trains(2)
    state = training.state()
    assert (state.incidents[0].cause, state.incidents[0].class_name) == ("preemption", "evicted")
    assert not state.quarantined
    assert training.steps(2)[0] == found.step + 1


@only_ci
@pytest.mark.slow
def test_a_save_that_fails_is_told_and_the_commit_before_stands(training):
    training.start(every=5)
    training.trains(1)
    (training.folder / "fail").touch()
    found = training.pre_evict().perform()
    (training.folder / "fail").unlink()

    assert found.outcome == "unsaved"
    assert found.why.startswith("the gang ended before the deadline without saving (exit codes of ranks: 86"), found
    training.trains(2)
    assert training.steps(2)[0] == found.step + 1


@only_ci
@pytest.mark.slow
def test_a_deadline_shorter_than_a_save_ends_at_the_deadline_and_a_late_commit_counts(training):
    training.start(every=100_000)
    training.trains(1)
    (training.folder / "slow").write_text("0.8")
    found = training.pre_evict(deadline_s=0.3).perform()
    (training.folder / "slow").unlink()

    assert found.outcome == "deadline" or found.committed_at_s - found.asked_at_s > 0.3
    training.trains(2)
    assert training.steps(2)[0] == found.step + 1 == training.steps(1)[-1] + 1, training.said()


def test_any_number_of_evictors_are_one_request(training):
    training.start()
    training.trains(1)
    with ThreadPoolExecutor() as pool:
        evictions = [training.pre_evict(reason=f"evictor {number}") for number in range(4)]
        found = list(pool.map(lambda one: one.perform(), evictions))

    assert {one.outcome for one in found} == {"committed"}
    assert len({one.step for one in found}) == 1
    # Two that look at the same moment both write it; an id is one request however often it stands there.
    assert len({request.id for _, request in read_requests(training.run, 1)}) == 1
    training.trains(2)
    assert len(training.state().incidents) == 1


@only_ci
@pytest.mark.slow
def test_without_a_supervisor_the_gang_leaves_all_the_same_and_that_is_said(training, wait_for):
    training.start()
    training.trains(1)
    training.supervisors[0].kill()
    training.supervisors[0].wait()
    found = training.pre_evict(takeover_s=0.3).perform()

    assert (found.outcome, found.supervised) == ("committed", False)
    assert "no supervisor of the run was seen" in found.why
    wait_for(lambda: not training.left())
    training.start()
    training.trains(2)
    assert training.steps(2)[0] == found.step + 1


def test_the_command_says_what_became_of_it(training, as_json):
    training.start(total=1000)
    training.trains(1)

    def evict(*options):
        words = ["evict", "--deadline", "20s", "--store", training.store, "-o", "json", *options]
        done = CliRunner().invoke(build(["evict"]), words)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code, as_json(done.stdout)

    code, document = evict("--gang", "run")
    assert code == 0, document
    assert (document["gang"], document["outcome"]) == ("run-a1", "committed")
    assert document["step"] == training.steps(1)[-1]
    assert document["evicted_at_s"] > 0
    training.trains(2)
    with pytest.raises(NotFoundError, match=r"nothing to evict: gang 'run-a1' ended; run 'run' has gang 'run-a2'"):
        evict("--gang", "run-a1")
    with pytest.raises(NotFoundError, match="neither a run nor a gang 'other'"):
        evict("--gang", "other")
    assert training.supervisors[0].wait(200) == 0
    with pytest.raises(NotFoundError, match="it is done"):
        evict("--gang", "run")
