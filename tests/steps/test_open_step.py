"""``rerail step open``: the PodGroup of an attempt stands, and its pods are told to Argo, whoever was lost before."""

import json

import pytest

from rerail.plugins.gang.ledger import append
from rerail.policies.supervisor.reopen import taken_over

WORDS = ["train", "--text", "a  b"]
SIMPLE = {
    "rerail_backend": "fanout",
    "rerail_manifest": "",
    "rerail_image": "registry.invalid/train",
    "rerail_command": "train --text 'a  b'",
    "rerail_replicas": "2",
    "rerail_queue": "training",
    "rerail_store_secret": "rerail-store",
}
LATER = {"rerail_backend": "fanout", "rerail_manifest": "", "rerail_policy": ""}


@pytest.fixture
def step(stage, monkeypatch):
    monkeypatch.setattr("rerail.plugins.steps.assess.ASK_WITHIN_S", 0.0)
    # The store of these tests is a folder, which no pod of a simple run could mount.
    monkeypatch.setattr("rerail.policies.workloads.pod_template.check_mounted", lambda *_: None)
    return lambda name, **more: stage.step(name, monkeypatch, **more)


def told(stage):
    return {path.name: path.read_text() for path in stage.outputs.iterdir() if not path.name.startswith(".")}


def made(stage):
    return [one["metadata"]["name"] for one in stage.api.find("podgroups")]


def rank(stage, index, phase="Running", code=None, attempt=1):
    gang = f"run-a{attempt}"
    labels = {"rerail.dev/run": "run", "rerail.dev/gang": gang, "rerail.dev/pod": f"{gang}-{index}"}
    labels["rerail.dev/workflow"] = "w1"
    store = {"name": "RERAIL_STORE", "value": stage.store.as_uri()}
    ended = {"name": "main", "state": {"terminated": {"exitCode": code, "reason": "Error"}}}
    status = {"phase": phase, "containerStatuses": [ended] if code is not None else []}
    metadata = {"name": f"w1-rank-{attempt}{index}", "namespace": "team", "labels": labels}
    spec = {"nodeName": "n1", "containers": [{"name": "main", "env": [store]}]}
    stage.api.put("pods", {"metadata": metadata, "spec": spec, "status": status})


def test_the_group_stands_and_argo_is_told_of_its_pods(stage, step):
    assert step("open", **SIMPLE) == 0, stage.told["open"]
    assert made(stage) == ["run-a1"]
    assert stage.api.find("pods") == stage.api.find("jobs") == []
    state = stage.state()
    assert (state.phase, state.attempt) == ("running", 1)
    assert state.owner == "workflow/team/w1/u1"
    found = told(stage)
    assert json.loads(found["command"]) == ["rerail-launch", "--", *WORDS]
    assert found.items() >= {
        "how": "fresh", "attempt": "1", "gang": "run-a1", "replicas": "2", "image": "registry.invalid/train",
        "resources": "{}", "affinity": "{}", "grace-s": "30", "priority-class": '""', "world-size": "2",
        "local-ranks": "1", "hold-s": "120", "poll-s": "0.05",
    }.items()  # fmt: skip
    assert stage.last_words().startswith("gang run-a1 stands")


def test_one_that_is_tried_again_makes_nothing_twice_and_says_the_same(stage, step):
    assert step("open", **SIMPLE) == 0
    before, group = told(stage), stage.api.find("podgroups")
    assert step("open", **SIMPLE) == 0
    assert stage.api.find("podgroups") == group
    assert told(stage) | {"words": ""} == before | {"words": ""}


def test_where_pods_of_the_gang_are_there_no_second_ones_are_asked_for(stage, step):
    assert step("open", **SIMPLE) == 0
    rank(stage, 0)
    assert step("open", **LATER) == 0, stage.told["open"]
    assert (stage.output("gang"), stage.output("replicas")) == ("run-a1", "0")


def test_a_run_of_a_manifest_is_refused_and_not_touched(stage, step, wait_for):
    stage.faults[1] = "hold"
    runner = stage.start()
    wait_for(lambda: stage.entry() is not None and stage.state().phase == "running")
    runner.kill()
    decisions = len(stage.decisions())
    assert step("open", **LATER) == 2
    assert "cannot be given to pods that Argo makes" in stage.last_words()
    assert "rerail-train" in stage.last_words()
    assert stage.annotations()["rerail.dev/reason"].startswith("run run: run.json of run 'run': spec.")
    assert len(stage.decisions()) == decisions


def test_what_keeps_a_run_from_beginning_is_told_to_the_workflow(stage, step):
    assert step("open", **{**SIMPLE, "rerail_queue": "nowhere"}) == 5
    assert "nowhere" in stage.annotations()["rerail.dev/reason"]
    assert "nowhere" in stage.last_words()
    assert made(stage) == []


def test_after_a_fault_the_next_attempt_is_opened_by_whoever_judges_it(stage, step):
    assert step("open", **SIMPLE) == 0
    rank(stage, 0, "Failed", code=1)
    rank(stage, 1)
    stage.api.hooks.append(lambda method, path: method == "DELETE" and path.endswith("/pods") and gone(stage))
    assert step("open --after", **LATER) == 0, stage.told["open --after"]
    found = told(stage)
    assert (found["decision"], found["attempt"], found["how"]) == ("again", "2", "fresh")
    assert (found["gang"], found["replicas"]) == ("run-a2", "2")
    assert json.loads(found["command"]) == ["rerail-launch", "--", *WORDS], "as the run's own document says"
    assert made(stage)[-1] == "run-a2"
    assert step("run", **LATER, rerail_gang="run-a1") == 10, "a runner of the gang before hands over at once"


def gone(stage):
    for one in stage.api.find("pods"):
        stage.api.remove("pods", "team", one["metadata"]["name"])


def test_a_runner_without_a_gang_of_its_own_hands_over_at_once(stage, step):
    assert step("open", **SIMPLE) == 0
    assert step("run", **LATER, rerail_gang="-") == 10, stage.told["run"]
    assert stage.state().attempt == 1


def test_after_a_fault_a_run_that_is_over_is_judged_and_nothing_is_opened(stage, step):
    assert step("open", **SIMPLE) == 0
    entry = stage.entry()
    over = taken_over(entry, entry.state.owner)
    stopped = over.state.model_copy(update={"phase": "stopped", "reason": "asked to stop: enough", "gang": None})
    append(stage.run, entry.number + 1, over.model_copy(update={"state": stopped}), at_s=0.0)
    assert step("open --after", **LATER) == 0
    assert (stage.output("decision"), made(stage)) == ("give-up", ["run-a1"])


def test_what_keeps_the_next_attempt_away_is_the_next_runners_to_say(stage, step):
    assert step("open", **SIMPLE) == 0
    stage.api.deny("create", "podgroups")
    assert step("open --after", **LATER) == 0
    assert stage.output("decision") == "again"
    assert "rights are missing" in stage.told["open --after"]
    assert step("run", **LATER, rerail_gang="-") == 5


def test_the_reaper_ends_such_a_gang_and_makes_no_pods_for_it(stage, step):
    policy = f"{stage.environment()['RERAIL_POLICY']}save_within_s: 2"
    assert step("open", **{**SIMPLE, "rerail_policy": policy}) == 0
    for index in (0, 1):
        rank(stage, index)
    assert step("reap", **LATER) == 0
    assert len(stage.api.find("pods")) == 2, "its Workflow goes on"
    stage.workflow("w1", "u1", status={"phase": "Failed"}, spec={"shutdown": "Terminate"})
    stage.api.hooks.append(lambda method, path: method == "DELETE" and path.endswith("/pods") and gone(stage))
    assert step("reap", **LATER, rerail_deadline_s="2") == 0, stage.told["reap"]
    assert (stage.state().phase, made(stage)) == ("stopped", [])
    assert stage.api.asked("POST", "/pods") == 0
