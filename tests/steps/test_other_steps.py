"""resolve, assess, give-up, report and the reaper: what they tell Argo, and what they leave alone."""

import gzip
import json
import re
import signal
import threading
from base64 import b64encode
from datetime import UTC, datetime, timedelta

import pytest
import typer

from rerail.plugins.checkpoint.notes import read_requests
from rerail.plugins.cli.main import main
from rerail.plugins.cli.step_telling import telling
from rerail.plugins.gang.ledger import append
from rerail.plugins.steps.ending import save_and_end
from rerail.plugins.steps.inputs import MOST_ATTEMPTS, Inputs
from rerail.plugins.steps.outputs import Outputs
from rerail.policies.errors import UsageError
from rerail.policies.supervisor.reopen import taken_over
from rerail.workflows.train import train_template


@pytest.fixture
def step(stage, monkeypatch):
    monkeypatch.setattr("rerail.plugins.steps.assess.ASK_WITHIN_S", 0.0)
    return lambda name, **more: stage.step(name, monkeypatch, **more)


def node(run, code, message, at, *, template="run", phase="Failed", kind="Pod"):
    return {
        "type": kind, "templateName": template, "phase": phase, "message": message, "finishedAt": at,
        "inputs": {"parameters": [{"name": "run", "value": run}]}, "outputs": {"exitCode": code},
        "id": f"{template}-{at}",
    }  # fmt: skip


def with_nodes(stage, *nodes, packed=False):
    every = {str(number): one for number, one in enumerate(nodes)}
    status = {"compressedNodes": b64encode(gzip.compress(json.dumps(every).encode())).decode()} if packed else {}
    stage.workflow("w1", "u1", status={"phase": "Running", **(status or {"nodes": every})})


def train_until(stage, wait_for, attempt=1, **more):
    runner = stage.start(**more)
    wait_for(lambda: (stage.folder / "progress").exists() and stage.state().attempt == attempt)
    return runner


# resolve


def test_a_new_run_is_fresh_and_its_name_is_kept_with_the_workflow(stage, step):
    assert step("resolve") == 0
    assert {name: stage.output(name) for name in ("how", "run", "attempt", "from-step")} == {
        "how": "fresh", "run": "run", "attempt": "1", "from-step": "0"
    }  # fmt: skip
    assert stage.annotations()["rerail.dev/run"] == "run"
    assert step("resolve", rerail_run="", rerail_manifest="", rerail_image="x", rerail_command="train") == 0
    assert stage.output("run") == "w1", "the workflow's name, where nobody gave another"


def test_a_run_that_stands_is_resumed_or_done_or_somebody_elses(stage, step):
    stage.faults[1] = "lost"
    assert stage.ended(stage.start()) == 10
    assert step("resolve") == 0
    assert (stage.output("how"), stage.output("attempt"), stage.output("from-step")) == ("resume", "2", "10")
    stage.workflow("w2", "u2")
    assert step("resolve", rerail_workflow="w2", rerail_workflow_uid="u2") == 5
    assert "belongs to Workflow team/w1" in stage.last_words()
    assert step("resolve", rerail_workflow="w2", rerail_workflow_uid="u2", rerail_take_over="true") == 0
    assert stage.ended(stage.start()) == 0
    assert step("resolve") == 0
    assert (stage.output("how"), stage.output("from-step")) == ("done", "100")


def test_a_run_that_is_known_and_not_in_the_store_is_blocked(stage, step):
    labels = {"rerail.dev/run": "run", "rerail.dev/gang": "run-a3"}
    metadata = {"name": "run-a3", "namespace": "team", "labels": labels}
    stage.api.put("jobs", {"metadata": metadata, "spec": {"tasks": []}, "status": {"state": {"phase": "Terminated"}}})
    assert step("resolve") == 3
    assert "a wrong address looks like an empty store" in stage.last_words()
    stage.api.remove("jobs", "team", "run-a3")
    assert step("resolve") == 0


def test_bad_input_is_found_before_anything_is_made(stage, step):
    assert step("resolve", rerail_max_attempts="0") == 2
    assert step("resolve", rerail_manifest="kind: Pod") == 2
    assert "holds no workload" in stage.last_words()
    assert step("resolve", rerail_manifest=OF_MANIFEST.replace("{name: run}", "{name: run, namespace: other}")) == 2
    assert "metadata.namespace = 'other', and gangs are watched in 'team'" in stage.last_words()
    assert step("resolve", rerail_manifest="", rerail_image="x", rerail_command="a 'b") == 2
    assert "quote it as in a shell" in stage.last_words()
    assert step("resolve", rerail_manifest="", rerail_image="x", rerail_command="a", rerail_replicas="two") == 2
    assert "parameter replicas = 'two'" in stage.last_words()


OF_MANIFEST = """
apiVersion: rerail.dev/v1alpha1
kind: Run
metadata: {name: run}
spec: {image: x, command: [train], replicas: 1, store: s3://bucket/p, control: s3://bucket/control}
"""
OF_FORM = {"image": "x", "command": "train"}


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"manifest": OF_MANIFEST}, "give control=s3://bucket/control as a parameter, too"),
        ({"manifest": OF_MANIFEST, "control": "s3://bucket/b"}, "parameter control = 's3://bucket/b'"),
        ({"manifest": OF_MANIFEST, "image": "y"}, "parameter image = 'y' stands beside a manifest"),
        ({"manifest": OF_MANIFEST, "command": "y"}, "parameter command = 'y' stands beside a manifest"),
        *(({**OF_FORM, "deadline_s": text}, "parameter deadline-s = ") for text in ("", " 120 ", "\u0661\u0662\u0660")),
    ],
)
def test_parameters_that_would_break_a_later_step_are_refused_by_the_first(told, words):
    known = {"store": "s3://bucket/p", "namespace": "team", "workflow": "w1", "workflow_uid": "u1", **told}
    inputs = Inputs.of({f"RERAIL_{name.upper()}": value for name, value in known.items()})
    with pytest.raises(UsageError, match=re.escape(words)):
        _ = inputs.wanted(), inputs.deadline_s


def test_without_a_number_there_are_as_many_attempts_as_argo_nests():
    assert Inputs.of({"RERAIL_MAX_ATTEMPTS": ""}).most_attempts == MOST_ATTEMPTS


# assess and give-up


def test_after_a_hand_over_the_next_attempt_follows(stage, step):
    stage.faults[1] = "lost"
    assert stage.ended(stage.start()) == 10
    with_nodes(stage, node("run", "10", "main: Error (exit code 10)", "2026-01-01T00:00:01Z"))
    assert step("assess") == 0
    assert {name: stage.output(name) for name in ("decision", "how", "next-attempt")} == {
        "decision": "again", "how": "resume", "next-attempt": "2"
    }  # fmt: skip
    assert "attempt 2 goes on from step 10" in stage.output("words")
    assert stage.ended(stage.start()) == 0
    assert step("assess") == 0
    assert stage.output("decision") == "done"


@pytest.mark.parametrize("packed", [True, False])
def test_what_no_retry_mends_is_given_up_with_the_steps_own_words(stage, step, packed):
    old = node("run", "10", "handed over", "2026-01-01T00:00:01Z")
    newest = node("run", "5", "main: Error (exit code 5): Refused: no right", "2026-01-01T00:00:09Z", template="x-run")
    other = node("another", "1", "not ours", "2026-01-01T00:00:10Z")
    retry = node("run", "", "child failed", "2026-01-01T00:00:11Z", kind="Retry")
    with_nodes(stage, old, newest, other, retry, packed=packed)
    assert step("assess") == 0
    assert (stage.output("decision"), stage.output("words")) == ("give-up", newest["message"])
    words = f"run run: {newest['message']}"
    assert stage.annotations()["rerail.dev/reason"] == words, "also if the pod of give-up is lost"
    (event,) = stage.api.find("events")
    assert (event["reason"], event["message"], event["type"]) == ("GangGaveUp", words, "Warning")
    assert step("give-up", rerail_store="file:///nowhere/at/all") == 1
    assert stage.last_words() == words, "as it was told, though the store does not answer now"
    assert step("assess") == 0
    assert len(stage.api.find("events")) == 1, "one Event, however often it is said"


def test_giving_up_tells_the_workflow_itself_where_the_step_before_did_not(stage, step):
    stage.workflow("w1", "u1", metadata={"annotations": {"rerail.dev/reason": "run other: no room"}})
    assert step("give-up") == 1
    words = stage.last_words()
    assert words.startswith("run run: ")
    assert stage.annotations()["rerail.dev/reason"] == words
    (event,) = stage.api.find("events")
    assert event["message"] == words


def test_a_store_that_does_not_answer_or_has_no_run_is_given_up_and_assess_does_not_fail(stage, step):
    assert step("assess") == 0
    assert stage.output("decision") == "give-up"
    assert "is not at" in stage.output("words")
    assert step("assess", rerail_store="file:///nowhere/at/all") == 0
    assert "is not there" in stage.output("words")
    stage.api.deny("get", "workflows")
    assert step("assess", kubeconfig="/nowhere") == 0, "no way to a cluster"
    assert stage.output("decision") == "give-up"


def test_giving_up_is_told_as_far_as_rights_allow(stage, step):
    stage.api.deny("patch", "workflows")
    stage.api.deny("create", "events")
    assert step("give-up") == 1
    assert stage.last_words().startswith("run run: ")
    assert "annotated" in stage.told["give-up"]


# report


def test_the_report_is_written_also_of_a_run_that_did_not_end_well(stage, step):
    assert step("report") == 0
    assert "there is no report" in stage.output("words")
    stage.faults[1] = "lost"
    assert stage.ended(stage.start(rerail_max_attempts="1")) == 11
    assert step("report") == 0
    document = json.loads((stage.outputs / "report.json").read_text())
    assert document["outcome"] == "stopped"
    assert "<svg" in (stage.outputs / "report.html").read_text()


def test_the_exit_hook_ends_what_its_workflow_left_and_nothing_else(stage, step, wait_for):
    stage.faults[1] = "answer"
    runner = train_until(stage, wait_for)
    runner.kill()
    runner.wait()
    stage.workflow("w2", "u2")
    other = {"rerail_workflow": "w2", "rerail_workflow_uid": "u2"}
    assert step("report", rerail_workflow_status="Failed", **other) == 0
    assert step("report", rerail_workflow_status="Succeeded") == 0
    assert step("report") == 0
    assert stage.state().phase == "running"
    stage.workflow("w1", "u1", metadata={"annotations": {"rerail.dev/run": "run"}})
    assert step("report", rerail_workflow_status="Failed", rerail_run="", rerail_manifest="") == 0
    state = stage.state()
    assert (state.phase, state.reason) == ("stopped", "asked to stop: Workflow team/w1 ended: Failed")
    assert state.attempts[0].last_commit_step == 16, "after a save"
    assert not [pod for pod in stage.api.find("pods") if pod["status"]["phase"] == "Running"]


def farewell(**parameters):
    """The environment of rerail-train's exit hook: what the workflow has, through the hook's arguments."""
    spec = train_template().to_dict()["spec"]
    told = {one["name"]: one.get("value", "") for one in spec["arguments"]["parameters"]} | parameters
    template = next(one for one in spec["templates"] if one["name"] == spec["hooks"]["exit"]["template"])
    values = {"workflow.status": "Failed"}
    for one in spec["hooks"]["exit"]["arguments"]["parameters"]:
        values[f"inputs.parameters.{one['name']}"] = told[one["value"].removeprefix("{{workflow.parameters.")[:-2]]
    variables = {one["name"]: one["value"].strip("{}") for one in template["container"]["env"]}
    return {name: values[tag] for name, tag in variables.items() if tag in values}


def test_the_exit_hook_ends_a_podgroup_within_the_deadline_of_its_workflow(stage, step, wait_for, monkeypatch):
    stage.faults[1] = "answer"
    runner = train_until(stage, wait_for, rerail_backend="podgroup")
    runner.kill()
    runner.wait()
    deadlines = []
    monkeypatch.setattr(
        "rerail.plugins.steps.farewell.save_and_end",
        lambda *words, deadline_s, **more: deadlines.append(deadline_s) or save_and_end(*words, deadline_s=9, **more),
    )
    told = {"store": stage.store.as_uri(), "run": "run", "backend": "podgroup", "deadline-s": "600"}
    nothing = {"rerail_manifest": "", "rerail_policy": ""}
    assert step("report", **nothing, **farewell(**told)) == 0, stage.told["report"]
    assert stage.state().attempts[0].last_commit_step == 16, "after a save"
    assert stage.api.find("podgroups") == running(stage) == []
    assert deadlines == [600]


# reap


def left_behind(stage, wait_for):
    """A gang that trains, and whose runner is gone."""
    stage.faults[1] = "answer"
    runner = train_until(stage, wait_for)
    runner.send_signal(signal.SIGKILL)
    runner.wait()


def running(stage):
    return [pod for pod in stage.api.find("pods") if pod["status"]["phase"] == "Running"]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", "Error", "gone", "another"])
def test_a_gang_whose_workflow_is_over_saves_and_is_ended(stage, step, wait_for, phase):
    left_behind(stage, wait_for)
    assert step("reap") == 0
    assert len(running(stage)) == 2, "its Workflow goes on"
    if phase in ("gone", "another"):
        stage.api.remove("workflows", "team", "w1")
        if phase == "another":
            stage.workflow("w1", "u9")
    else:
        stage.workflow("w1", "u1", status={"phase": phase}, spec={"shutdown": "Terminate"})
    assert step("reap") == 0
    assert not running(stage)
    state = stage.state()
    assert state.phase == "stopped"
    assert state.attempts[0].last_commit_step == 16, "after a save"
    (line,) = [line for line in stage.told["reap"].splitlines() if line.startswith("run run in team: ")]
    assert "newest commit of the attempt: 16" in line
    assert step("reap") == 0
    assert stage.last_words() == "nothing to do"
    assert len(stage.created) == 1


def test_a_gang_has_as_long_for_its_save_as_its_policy_says(stage, step, wait_for, monkeypatch):
    stage.faults[1] = "answer"
    runner = train_until(stage, wait_for, rerail_policy=f"{stage.environment()['RERAIL_POLICY']}save_within_s: 600")
    runner.kill()
    runner.wait()
    stage.api.remove("workflows", "team", "w1")
    deadlines = []
    monkeypatch.setattr(
        "rerail.plugins.steps.reap.save_and_end",
        lambda *words, deadline_s, **more: deadlines.append(deadline_s) or save_and_end(*words, deadline_s=9, **more),
    )
    assert step("reap") == 0
    assert (deadlines, running(stage)) == ([600], [])


def test_a_gang_that_nobody_may_speak_for_is_left_alone(stage, step, wait_for):
    left_behind(stage, wait_for)
    stage.api.uninstall("argoproj.io")
    assert step("reap") == 1, "without Argo nothing can be said of its Workflows"
    assert len(running(stage)) == 2
    stage.api.absent.clear()
    stage.api.remove("workflows", "team", "w1")
    stage.workflow("w2", "u2")
    stage.faults[1] = "hold"
    taker = stage.start(rerail_workflow="w2", rerail_workflow_uid="u2", rerail_take_over="true")
    wait_for(lambda: stage.state().owner.endswith("u2"))
    assert step("reap") == 0
    assert len(running(stage)) == 2, "another Workflow took the run over, though the gang's label names the first"
    taker.kill()
    taker.wait()


def test_a_run_that_a_person_took_over_is_never_touched(stage, step, wait_for):
    left_behind(stage, wait_for)
    stage.api.remove("workflows", "team", "w1")
    entry = stage.entry()
    append(stage.run, entry.number + 1, taken_over(entry, "cluster/team"), at_s=1.0)
    assert step("reap") == 0
    assert len(running(stage)) == 2


def test_a_run_that_is_taken_over_while_its_save_is_waited_for_is_not_stopped(stage, step, wait_for):
    left_behind(stage, wait_for)
    stage.faults[1] = "hold"
    stage.api.remove("workflows", "team", "w1")
    stage.workflow("w2", "u2")

    def take_over():
        wait_for(lambda: read_requests(stage.run, 1))
        entry = stage.entry()
        append(stage.run, entry.number + 1, taken_over(entry, "workflow/team/w2/u2"), at_s=1.0)

    taker = threading.Thread(target=take_over)
    taker.start()
    assert step("reap", rerail_deadline_s="3") == 0
    taker.join()
    assert (stage.state().phase, stage.state().owner) == ("running", "workflow/team/w2/u2")
    assert len(running(stage)) == 2
    assert "left alone: Workflow team/w2 took it over meanwhile" in stage.told["reap"]


def step_pod(name, node, *words, deleted="2026-01-01T00:00:00Z", phase="Running"):
    """A step's pod as Argo makes it; its grace is over."""
    container = {"name": "main", "command": ["/var/run/argo/argoexec", "emissary", "--", *words[:1]], "args": words[1:]}
    metadata = {"name": name, "namespace": "team", "uid": f"u-{name}", "finalizers": ["workflows.argoproj.io/status"]}
    metadata["labels"] = {"workflows.argoproj.io/workflow": "w1"}
    if deleted:
        metadata["deletionTimestamp"] = deleted
    states = [{"name": one, "ready": True, "state": {"running": {}}} for one in ("main", "wait")]
    spec = {"nodeName": node, "containers": [container]}
    return {"metadata": metadata, "spec": spec, "status": {"phase": phase, "containerStatuses": states}}


def test_a_step_on_a_lost_node_is_given_up_so_that_argo_starts_it_elsewhere(stage, step):
    stage.node("n4", {"type": "Ready", "status": "Unknown"})
    (silent,) = (one for one in stage.api.find("nodes") if one["metadata"]["name"] == "n4")
    silent["status"]["conditions"] = silent["status"]["conditions"][1:]
    stage.api.put("nodes", silent)
    run = ("rerail", "step", "run")
    kept = (
        step_pod("on-a-sound-node", "n1", *run),
        step_pod("not-told-to-go", "n4", *run, deleted=""),
        step_pod("has-time-left", "n4", *run, deleted="2999-01-01T00:00:00Z"),
        step_pod("has-ended", "n4", *run, phase="Failed"),
        step_pod("may-not-run-twice", "n4", "rerail", "step", "node-release"),
        step_pod("the-users", "n4", "python", "step", "run"),
    )
    lost = {
        "lost": ("n4", *run),
        "on-a-node-that-is-gone": ("n9", *run),
        "opens-after": ("n4", "rerail", "step", "open", "--after"),
        "another-reaper": ("n4", "rerail", "step", "reap"),
        "gives-up": ("n4", "rerail", "step", "give-up"),
    }
    for one in (*(step_pod(name, *words) for name, words in lost.items()), *kept):
        stage.api.put("pods", one)
    before = {one["metadata"]["name"]: one["status"] for one in kept}
    last = {}
    stage.api.hooks.append(
        lambda *_: last.update({one["metadata"]["name"]: one["status"] for one in stage.api.find("pods")})
    )
    assert step("reap") == 0
    found = {one["metadata"]["name"]: one for one in stage.api.find("pods")}
    assert {name: found[name]["status"] for name in before} == before
    for name in lost:
        assert name not in found
        status = last[name]
        assert (status["phase"], status["reason"]) == ("Failed", "NodeLost")
        codes = [one["state"]["terminated"]["exitCode"] for one in status["containerStatuses"]]
        assert codes == [137, 137], "Argo waits for a container that counts as running"
        assert f"pod {name}: node " in stage.told["reap"]
    stage.api.put("pods", step_pod("lost", "n4", *run))
    stage.api.deny("get", "nodes")
    assert step("reap") == 0
    assert "steps on lost nodes are not looked for" in stage.told["reap"]


def test_a_rank_that_argo_made_is_given_up_once_its_gang_was_told_to_go(stage, step):
    def rank(name, node, **more):
        pod = step_pod(name, node, "rerail-launch", **more)
        pod["metadata"]["labels"]["rerail.dev/pod"] = f"run-a1-{name}"
        stage.api.put("pods", pod)

    def seconds_ago(seconds):
        return (datetime.now(UTC) - timedelta(seconds=seconds)).isoformat()

    rank("lost", "n9", deleted=seconds_ago(90))
    rank("not-told-to-go", "n9", deleted="")
    rank("may-be-back", "n9", deleted=seconds_ago(30))
    rank("on-a-sound-node", "n1", deleted=seconds_ago(90))
    assert step("reap") == 0
    left = {one["metadata"]["name"] for one in stage.api.find("pods")}
    assert left >= {"not-told-to-go", "may-be-back", "on-a-sound-node"}
    assert "lost" not in left
    assert "pod lost: node n9 is lost, and its pod was given up: its gang was told to go" in stage.told["reap"]


# outputs


def test_last_words_are_bounded_whole_letters_and_need_no_file(tmp_path):
    outputs = Outputs(tmp_path / "out", tmp_path / "log", tmp_path / "progress")
    outputs.words("no file there")
    assert not (tmp_path / "log").exists()
    (tmp_path / "log").touch()
    outputs.words("ä" * 3000)
    assert (tmp_path / "log").read_text() == "ä" * 1024
    assert (tmp_path / "out" / "words").read_text() == "ä" * 3000
    outputs.progress(120, 100)
    assert (tmp_path / "progress").read_text() == "100/100"
    outputs.progress(3, 0)
    assert (tmp_path / "progress").read_text() == "100/100"
    outputs.write(next_attempt=2)
    assert (tmp_path / "out" / "next-attempt").read_text() == "2"


def test_an_end_that_nobody_expected_has_last_words_too(tmp_path, monkeypatch):
    log = tmp_path / "log"
    log.touch()
    monkeypatch.setenv("RERAIL_TERMINATION_LOG", str(log))
    with pytest.raises(typer.Exit), telling(tmp_path):
        raise typer.Exit(3)
    assert log.read_text() == ""
    with pytest.raises(KeyError), telling(tmp_path):
        raise KeyError("hunter2")
    assert log.read_text() == "Rerail failed: KeyError; see the log"


@pytest.mark.parametrize(("uid", "words"), [("u1", "Bad input: --deadline = 'soon' is no duration"), ("", "")])
def test_an_error_of_any_command_in_a_pod_of_a_workflow_is_its_last_words(tmp_path, monkeypatch, uid, words):
    log = tmp_path / "log"
    monkeypatch.setenv("RERAIL_TERMINATION_LOG", str(log))
    monkeypatch.setenv("RERAIL_WORKFLOW_UID", uid)
    for there in (False, True):
        if there:
            log.touch()
        with pytest.raises(SystemExit, match="2"):
            main(["evict", "--gang", "x", "--deadline", "soon"])
        assert log.exists() == there
    assert log.read_text().startswith(words)
    assert bool(log.read_text()) == bool(words)
