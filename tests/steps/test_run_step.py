"""``rerail step run``: one gang per step, the next attempt opened before it leaves, and nothing lost with a runner."""

import os
import signal

import pytest
import yaml

from rerail.policies import keys

FULL = os.environ.get("CI") == "true"
PARTS = 8
# Where a loss has most to break: between a decision and its effects, and between the last effect and the exit.
SAMPLE = [
    "before create ledger-0",
    "after create ledger-0",
    "before submit run-a1",
    "after submit run-a1",
    "before mark n1",
    "after end run-a1",
    "before create start-2",
    "after create start-2",
    "before submit run-a2",
    "after submit run-a2",
    "before words",
]


def judge(stage, attempts=2):
    """Exactly one gang and one start per attempt, and the run is done."""
    state = stage.state()
    assert state.phase == "done", stage.said()
    assert [record.n for record in state.attempts] == list(range(1, attempts + 1)), stage.said()
    assert stage.created == [f"run-a{n}" for n in range(1, attempts + 1)]
    starts = [key for entry in stage.run.control.page(keys.COMMITS).entries if (key := keys.parse_commit(entry.key))]
    assert sorted(key.attempt for key in starts if key.kind == "start") == list(range(1, attempts + 1))
    assert [entry.number for entry in stage.decisions()] == list(range(len(stage.decisions())))


def test_a_run_without_faults_is_one_step(stage):
    assert stage.ended(stage.start()) == 0, stage.said()
    judge(stage, attempts=1)
    assert (stage.output("outcome"), stage.output("attempt"), stage.output("next-attempt")) == ("done", "1", "")
    assert stage.last_words() == stage.output("words") == "done at step 100"
    done, total = (stage.folder / "progress").read_text().split("/")
    assert (int(done), int(total)) >= (15, 100)
    (job,) = stage.api.find("jobs")
    assert job["metadata"]["labels"]["rerail.dev/workflow"] == "w1"
    assert job["metadata"]["annotations"]["rerail.dev/owner"] == "workflow/team/w1/u1"
    assert stage.ended(stage.start()) == 0, "again, and nothing happens"
    judge(stage, attempts=1)


def test_a_fault_is_handed_over_and_the_next_step_adopts(stage):
    stage.faults[1] = "xid"
    assert stage.ended(stage.start()) == 10, stage.said()
    state = stage.state()
    assert (state.phase, state.attempt) == ("running", 2)
    assert stage.created == ["run-a1", "run-a2"]
    words = stage.last_words()
    assert words.startswith("XID 79 on n1 ended attempt 1 at step 15; attempt 2 goes on from step 10")
    assert words.endswith((" on n2 and n3", ", away from n1")), "as far as it is placed"
    told = {name: stage.output(name) for name in ("outcome", "attempt", "next-attempt", "from-step")}
    assert told == {"outcome": "next", "attempt": "1", "next-attempt": "2", "from-step": "10"}
    (sick,) = (one for one in stage.api.find("nodes") if one["metadata"]["name"] == "n1")
    assert "rerail.dev/quarantined" in {taint["key"] for taint in sick["spec"]["taints"]}
    told = {(one["reason"], one["involvedObject"]["kind"]) for one in stage.api.find("events")}
    assert {("GangFaulted", "Workflow"), ("GangFaulted", "Node")} <= told
    again = stage.start(rerail_manifest="", rerail_policy="")
    assert stage.ended(again) == 0, stage.said()
    judge(stage)
    assert stage.output("words").startswith("done at step 100 in 2 attempts; XID 79 on n1")


def test_a_fault_while_nobody_supervises_is_the_next_steps_first_work(stage):
    stage.faults |= {1: "xid", 2: "lost"}
    assert stage.ended(stage.start()) == 10
    assert stage.ended(stage.start()) == 10, stage.said()
    assert stage.output("attempt") == "2"
    assert stage.ended(stage.start()) == 0
    judge(stage, attempts=3)


@pytest.mark.parametrize("at", SAMPLE)
def test_a_runner_that_is_lost_anywhere_loses_and_doubles_nothing(stage, at):
    one_case(stage, at)


@pytest.mark.skipif(not FULL, reason="only where CI=true")
@pytest.mark.parametrize("part", range(PARTS))
def test_a_runner_that_is_lost_at_each_effect(make_stage, part):
    first = make_stage()
    first.faults[1] = "xid"
    record = first.folder / "boundaries"
    assert first.ended(first.start("--record", str(record))) == 10
    names = [name for name in record.read_text().splitlines() if "prove" not in name]
    assert len(names) > 20
    for name in names[part::PARTS]:
        one_case(make_stage(), name)


def one_case(stage, at):
    stage.faults[1] = "xid"
    codes = [stage.ended(stage.start("--kill-at", at))]
    while codes[-1] != 0:
        assert codes[-1] in (-signal.SIGKILL, 10), (at, codes, stage.said())
        assert len(codes) < 5, (at, codes, stage.said())
        codes.append(stage.ended(stage.start()))
    judge(stage)
    (sick,) = (one for one in stage.api.find("nodes") if one["metadata"]["name"] == "n1")
    assert "rerail.dev/quarantined" in {taint["key"] for taint in sick["spec"].get("taints", [])}, (
        "the mark is not lost"
    )


def test_a_second_workflow_is_refused_and_may_take_over(stage):
    stage.faults[1] = "hold"
    first = stage.start()
    wait_for_step(stage)
    stage.workflow("w2", "u2")
    other = {"rerail_workflow": "w2", "rerail_workflow_uid": "u2"}
    assert stage.ended(stage.start(**other)) == 5
    words = stage.last_words()
    assert "run 'run' belongs to Workflow team/w1, not to Workflow team/w2" in words
    assert "the parameter take-over=true" in words
    del stage.faults[1]
    second = stage.start(rerail_take_over="true", **other)
    assert stage.ended(second) == 0, stage.said()
    assert stage.ended(first) in (5, 0), "who was driving before leaves it"
    assert stage.state().owner == "workflow/team/w2/u2"
    judge(stage, attempts=1)


def wait_for_step(stage):
    from time import monotonic, sleep

    end = monotonic() + 30
    while not (stage.folder / "progress").exists():
        assert monotonic() < end, stage.said()
        sleep(0.02)


def test_told_to_go_it_leaves_the_gang_to_the_next_runner(stage):
    stage.faults[1] = "hold"
    runner = stage.start()
    wait_for_step(stage)
    runner.send_signal(signal.SIGTERM)
    assert stage.ended(runner) == 143, stage.said()
    assert stage.state().phase == "running"
    assert len(stage.api.find("pods")) == 2
    del stage.faults[1]
    assert stage.ended(stage.start()) == 0
    judge(stage, attempts=1)


@pytest.mark.parametrize("how", ["Stop", "Terminate", "deleted", "gone"])
def test_told_to_go_for_good_the_ranks_save_and_the_gang_is_ended(stage, how):
    stage.faults[1] = "answer"
    runner = stage.start()
    wait_for_step(stage)
    if how == "gone":
        stage.api.remove("workflows", "team", "w1")
    elif how == "deleted":
        stage.workflow("w1", "u1", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    else:
        stage.workflow("w1", "u1", spec={"shutdown": how})
    runner.send_signal(signal.SIGTERM)
    assert stage.ended(runner) == 11, stage.said()
    state = stage.state()
    assert state.phase == "stopped"
    assert state.reason.startswith("asked to stop: Workflow team/w1 is ")
    assert state.attempts[0].last_commit_step == 16, "they saved"
    assert stage.output("outcome") == "stopped"
    assert not [pod for pod in stage.api.find("pods") if pod["status"]["phase"] == "Running"]
    assert stage.created == ["run-a1"]


def test_a_workflow_that_a_person_stopped_and_retries_goes_on(stage):
    test_told_to_go_for_good_the_ranks_save_and_the_gang_is_ended(stage, "Stop")
    assert stage.ended(stage.start()) == 11, "as long as it is being stopped"
    stage.workflow("w1", "u1")
    assert stage.ended(stage.start()) == 0, stage.said()
    judge(stage)
    assert stage.state().attempts[1].started_from_step == 16


def test_a_runner_that_follows_the_end_leaves_it_alone(stage):
    stage.faults |= {1: "lost", 2: "lost"}
    assert stage.ended(stage.start(rerail_max_attempts="2")) == 10, stage.said()
    assert stage.ended(stage.start(rerail_max_attempts="2")) == 11, stage.said()
    assert "2 attempts were made" in stage.last_words()
    assert stage.created == ["run-a1", "run-a2"], "the hand-over begins none beyond the bound"
    assert stage.ended(stage.start(rerail_max_attempts="2")) == 11
    assert stage.created == ["run-a1", "run-a2"]
    del stage.faults[2]
    stage.workflow("w1", "u1", metadata={"annotations": {"rerail.dev/reason": "run run: 2 attempts were made"}})
    assert stage.ended(stage.start()) == 0, "a person retried the Workflow"
    assert stage.annotations() == {}
    judge(stage, attempts=3)


def test_a_stopped_run_that_is_taken_over_tries_again_once(stage):
    stage.faults |= {1: "lost", 2: "lost"}
    assert stage.ended(stage.start(rerail_max_attempts="1")) == 11
    stage.workflow("w2", "u2")
    other = {"rerail_workflow": "w2", "rerail_workflow_uid": "u2", "rerail_take_over": "true"}
    assert stage.ended(stage.start(**other, rerail_max_attempts="1")) == 11, stage.said()
    assert stage.created == ["run-a1", "run-a2"], "once more, as a person said"
    assert stage.ended(stage.start(**other, rerail_max_attempts="1")) == 11
    assert stage.created == ["run-a1", "run-a2"], "a runner that follows is no person"


def test_bad_input_is_said_in_the_last_words(stage):
    for wrong, words in (
        ({"rerail_manifest": "", "rerail_image": "x"}, "parameter command is empty"),
        ({"rerail_manifest": "", "rerail_image": ""}, "for a new run give image and command, or a manifest"),
        ({"rerail_backend": "mpi"}, "parameter backend = 'mpi': use one of vcjob, podgroup"),
        ({"rerail_max_attempts": "many"}, "parameter max-attempts = 'many': a whole number from 1 to 80"),
        ({"rerail_policy": "hold: 3"}, "parameter policy: unknown field 'hold'; did you mean 'hold_s'?"),
        ({"rerail_take_over": "maybe"}, "parameter take-over = 'maybe': true or false"),
        ({"rerail_store": ""}, "parameter store is empty"),
    ):
        assert stage.ended(stage.start(**wrong)) == 2, stage.said()
        assert words in stage.last_words()
    assert not stage.created


def test_a_missing_right_is_said_with_its_rule(stage):
    stage.api.deny("create", "commands")
    assert stage.ended(stage.start()) == 5
    assert 'resources: ["commands"]\n  verbs: ["create"]' in stage.last_words()


def test_a_run_from_the_form_is_a_gang(stage):
    form = {
        "rerail_manifest": "", "rerail_image": "registry.invalid/train", "rerail_command": "python train.py 'a b'",
        "rerail_replicas": "2", "rerail_gpus_per_replica": "0", "rerail_queue": "training", "rerail_store_secret": "s3",
        "rerail_store": "s3://nowhere/x", "rerail_control": stage.store.as_uri(),
    }  # fmt: skip
    # Only what would be created is looked at: nothing answers at that store.
    stage.api.deny("create", "jobs")
    assert stage.ended(stage.start(**form)) == 5
    from rerail.plugins.steps.inputs import Inputs

    document = Inputs.of(stage.environment(**form)).wanted().workload.document
    (task,) = document["spec"]["tasks"]
    (container,) = task["template"]["spec"]["containers"]
    assert container["command"] == ["python", "train.py", "a b"]
    assert container["envFrom"] == [{"secretRef": {"name": "s3", "optional": True}}]
    assert (task["replicas"], document["spec"]["queue"]) == (2, "training")
    assert yaml.safe_dump(document)
