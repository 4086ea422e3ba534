"""What Argo makes of the DAGs, whatever their pods do: the verdict, what ran, and that nothing hangs."""

import pytest
from argo_dag import Controller, Ended, HangError
from argo_documents import inputs_of
from argo_play import DECISIONS, PHASES, Pods, arguments_of, templates_of
from hypothesis import given, settings
from hypothesis import strategies as st

TRAIN, RETRY = "rerail-train-v0-1", "rerail-retry-v0-1"
RELEASE, FAULT = "rerail-node-release-v0-1", "rerail-node-fault-v0-1"
HOWS = st.sampled_from(["fresh", "resume", "done"])


def trained(library, **script):
    """The workflow's verdict, the names of what ran, and the pods."""
    templates = templates_of(library, TRAIN)
    pods = Pods(templates, **script)
    controller = Controller(templates, pods)
    ended = controller.run("train", arguments_of(library, TRAIN), "wf")
    return ended, [path.removeprefix("wf.") for path, _ in controller.ran][:-1], pods


def how(word):
    return ("Succeeded", {"how": word, "run": "r"})


def decide(word):
    return ("Succeeded", {"decision": word, "how": "resume", "next-attempt": "2"})


def test_training_that_succeeds_at_once(library):
    ended, ran, _ = trained(library, resolve=[how("fresh")])
    assert ended.phase == "Succeeded"
    assert ran == ["resolve", "attempt.fresh", "attempt", "report"]
    assert ended.outputs == {"run": "r"}


def test_after_a_fault_the_next_attempt_is_nested_and_shown_as_a_resume(library):
    ended, ran, _ = trained(
        library, resolve=[how("fresh")], run=["Failed", "Error", "Succeeded"], assess=[decide("again")]
    )
    assert ended.phase == "Succeeded"
    inner = "attempt.next-attempt"
    assert ran == [
        "resolve",
        "attempt.fresh",
        "attempt.assess",
        f"{inner}.resume",
        f"{inner}.assess",
        f"{inner}.next-attempt.resume",
        f"{inner}.next-attempt",
        inner,
        "attempt",
        "report",
    ]


def test_a_run_that_gives_up_fails_although_its_report_was_written(library):
    ended, ran, pods = trained(
        library, resolve=[how("resume")], run=["Failed"], assess=[decide("give-up")], give_up=["Failed"]
    )
    assert ended.phase == "Failed"
    assert ran == ["resolve", "attempt.resume", "attempt.assess", "attempt.give-up", "attempt", "report"]
    assert pods.last["report"] == "Succeeded"


def test_a_run_that_is_done_already_runs_nothing_and_succeeds(library):
    ended, ran, _ = trained(library, resolve=[how("done")])
    assert (ended.phase, ran) == ("Succeeded", ["resolve", "attempt", "report"])


def test_a_blocked_resume_fails_and_nothing_is_trained(library):
    ended, ran, _ = trained(library, resolve=["Failed"])
    assert (ended.phase, ran) == ("Failed", ["resolve"])


def test_a_lost_resolve_whose_outputs_are_defaults_trains_and_does_not_succeed_by_nothing(library):
    _, ran, _ = trained(library, resolve=[("Succeeded", {})])
    assert "attempt.resume" in ran


def test_a_runner_that_was_lost_after_the_last_commit_is_no_failure(library):
    ended, _, _ = trained(library, resolve=[how("fresh")], run=["Error"], assess=[decide("done")])
    assert ended.phase == "Succeeded"


@settings(max_examples=300)
@given(data=st.data())
def test_whatever_pods_do_the_verdict_is_the_last_attempts_and_nothing_hangs(library, data):
    runs = data.draw(st.lists(PHASES, min_size=1, max_size=8))
    decisions = [*data.draw(st.lists(DECISIONS, max_size=7)), "give-up"]
    script = {
        "resolve": [data.draw(st.one_of(PHASES.filter(lambda one: one != "Succeeded"), HOWS.map(how)))],
        "run": runs,
        "assess": [data.draw(st.one_of(st.just("Error"), st.just(decide(word)))) for word in decisions],
        "give-up": ["Failed"],
        "report": [data.draw(PHASES)],
    }
    templates = templates_of(library, TRAIN)
    pods = Pods(templates, **script)
    controller = Controller(templates, pods)
    ended = controller.run("train", arguments_of(library, TRAIN), "wf")
    ran = dict(controller.ran)
    resolved = ran["wf.resolve"] == "Succeeded"
    runs_ran = [phase for path, phase in controller.ran if path.endswith((".fresh", ".resume"))]
    assessed = [phase for path, phase in controller.ran if path.endswith(".assess")]
    gave_up = any(path.endswith(".give-up") for path in ran)
    done = not runs_ran or runs_ran[-1] == "Succeeded" or (assessed[-1] == "Succeeded" and not gave_up)
    right = resolved and done and pods.last.get("report") == "Succeeded"
    assert (ended.phase == "Succeeded") is right
    assert ("wf.report" in ran) is resolved
    assert len(assessed) == sum(phase != "Succeeded" for phase in runs_ran)


def guarded(library, retries="2", **script):
    templates = templates_of(library, RETRY)
    controller = Controller(templates, Pods(templates, **script))
    given_ = arguments_of(library, RETRY, template_name="mine", template="step", retries=retries)
    ended = controller.run("guarded", given_, "wf")
    return ended.phase, [path.removeprefix("wf.") for path, _ in controller.ran][:-1]


def test_a_step_that_succeeds_is_not_assessed(library):
    assert guarded(library) == ("Succeeded", ["try(0).step", "try"])


def test_a_step_on_a_sick_node_runs_again(library):
    again = ("Failed", {})  # exit code 86
    phase, ran = guarded(library, outside=["Failed", "Error", "Succeeded"], assess=[again])
    assert phase == "Succeeded"
    assert ran == ["try(0).step", "try(0).assess", "try(1).step", "try(1).assess", "try(2).step", "try"]


def test_retries_have_an_end(library):
    phase, ran = guarded(library, outside=["Failed"], assess=["Failed"])
    assert (phase, len(ran)) == ("Failed", 7)


def test_a_step_that_nothing_would_help_is_not_retried_and_fails(library):
    useless = ("Succeeded", {"outcome": "give-up", "words": "exit code 1"})
    phase, ran = guarded(library, outside=["Failed"], assess=[useless], give_up=["Failed"])
    assert (phase, ran) == ("Failed", ["try(0).step", "try(0).assess", "try", "give-up"])


def test_an_assessment_that_told_nothing_gives_up(library):
    phase, ran = guarded(library, outside=["Failed"], assess=[("Succeeded", {})], give_up=["Failed"])
    assert (phase, ran[-1]) == ("Failed", "give-up")


@given(steps=st.lists(PHASES, min_size=1, max_size=5), told=st.lists(st.booleans(), min_size=1, max_size=5))
def test_a_guarded_step_succeeds_only_if_it_did(library, steps, told):
    useless = ("Succeeded", {"outcome": "give-up", "words": ""})
    phase, ran = guarded(
        library, outside=steps, assess=["Failed" if again else useless for again in told], give_up=["Failed"]
    )
    tries = sum(path.endswith(".step") for path in ran)
    last = steps[min(tries, len(steps)) - 1]
    assert (phase == "Succeeded") is (last == "Succeeded")


@pytest.mark.parametrize(
    ("approval", "script", "verdict", "given_back"),
    [
        ("required", {"approve": [("Succeeded", {"answer": "APPROVE"})]}, "Succeeded", True),
        ("required", {"approve": [("Succeeded", {"answer": "TIMEOUT"})], "give-back": ["Failed"]}, "Failed", True),
        ("automatic", {}, "Succeeded", True),
        ("automatic", {"verify": ["Failed"]}, "Failed", False),
        ("required", {"verify": ["Error"]}, "Error", False),
    ],
)
def test_a_node_is_given_back_only_after_its_check(approval, script, verdict, given_back, library):
    templates = templates_of(library, RELEASE)
    controller = Controller(templates, Pods(templates, **script))
    ended = controller.run("release", arguments_of(library, RELEASE, approval=approval), "wf")
    assert ended.phase == verdict
    assert ("wf.give-back" in dict(controller.ran)) is given_back


@pytest.mark.parametrize(
    ("quarantine", "script", "verdict", "ran"),
    [
        ("node", {}, "Succeeded", ["judge", "mark", "evict"]),
        ("device", {}, "Succeeded", ["judge", "mark", "evict"]),
        ("none", {}, "Succeeded", ["judge"]),
        ("node", {"mark": ["Failed"]}, "Failed", ["judge", "mark"]),
        ("node", {"evict": ["Failed"]}, "Failed", ["judge", "mark", "evict"]),
    ],
)
def test_a_node_is_emptied_only_once_it_is_marked(quarantine, script, verdict, ran, library):
    templates = templates_of(library, FAULT)
    judge = [("Succeeded", {"quarantine": quarantine})]
    controller = Controller(templates, Pods(templates, judge=judge, **script))
    ended = controller.run("node-fault", arguments_of(library, FAULT), "wf")
    assert ended.phase == verdict
    assert [path.removeprefix("wf.") for path, _ in controller.ran][:-1] == ran


def test_a_reference_to_outputs_of_a_task_that_failed_would_hang_and_is_seen():
    templates = {
        "main": {
            "name": "main",
            "dag": {
                "tasks": [
                    {"name": "a", "template": "pod"},
                    {
                        "name": "b",
                        "template": "pod",
                        "depends": "a.Failed",
                        "when": "'{{tasks.a.outputs.parameters.x}}' == 'y'",
                    },
                ]
            },
        },
        "pod": {"name": "pod", "container": {}},
    }
    controller = Controller(templates, lambda _name, _inputs: Ended("Failed", reported=False))
    with pytest.raises(HangError, match=r"main\.b waits for tasks\.a\.outputs\.parameters\.x"):
        controller.run("main", {}, "main")
    assert inputs_of(templates["main"]) == {}
