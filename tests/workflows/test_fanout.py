"""rerail-train-fanout: Argo's verdict on it, and its pods beside those that Rerail makes itself."""

import json

import pytest
from argo_dag import Controller
from argo_documents import inputs_of, tasks_of
from argo_play import DECISIONS, PHASES, Pods, arguments_of, templates_of
from hypothesis import given
from hypothesis import strategies as st

from rerail.plugins.steps.simple import simple_manifest
from rerail.policies.workloads.attempt import AttemptGang
from rerail.policies.workloads.fanout import POD_LABEL, rank_pods
from rerail.policies.workloads.podgroup import render_podgroup
from rerail.policies.workloads.reading import read_workload

FANOUT = "rerail-train-fanout-v0-1"


def trained(library, **script):
    """The verdict, and what ran."""
    templates = templates_of(library, FANOUT)
    pods = Pods(templates, **{"resolve": [("Succeeded", {"run": "r"})], **script})
    controller = Controller(templates, pods)
    ended = controller.run("train", arguments_of(library, FANOUT), "wf")
    return ended.phase, [path.removeprefix("wf.") for path, _ in controller.ran][:-1]


def opened(number=1, how="resume", replicas=2):
    told = {"how": how, "gang": f"r-a{number}", "attempt": str(number), "replicas": str(replicas)}
    return ("Succeeded", told)


def next_is(number, decision="again"):
    return ("Succeeded", {**opened(number)[1], "decision": decision})


def test_ranks_are_made_beside_their_runner_once_the_group_stands(library):
    assert trained(library, open=[opened(how="fresh")]) == (
        "Succeeded",
        [
            "resolve", "open", "attempt.fresh",
            "attempt.ranks.rank(0)", "attempt.ranks.rank(1)", "attempt.ranks", "attempt", "report",
        ],
    )  # fmt: skip


def test_ranks_that_fail_decide_nothing_and_the_next_attempt_has_its_own(library):
    phase, ran = trained(
        library,
        open=[opened(how="fresh")],
        run=["Failed", "Succeeded"],
        rank=["Failed", "Error", "Succeeded"],
        assess=[next_is(2)],
    )
    assert phase == "Succeeded"
    inner = "attempt.next-attempt"
    assert f"{inner}.ranks.rank(1)" in ran
    assert ran.index("attempt.assess") < ran.index(f"{inner}.ranks")


def test_a_run_that_gives_up_fails_though_its_ranks_ended_well(library):
    phase, ran = trained(library, open=[opened()], run=["Failed"], assess=[next_is(2, "give-up")], give_up=["Failed"])
    assert (phase, ran[-3:]) == ("Failed", ["attempt.give-up", "attempt", "report"])


def test_where_nothing_was_opened_no_rank_is_made_and_the_runner_says_why(library):
    nothing = ("Succeeded", {})
    phase, ran = trained(library, open=[nothing], run=["Failed"], assess=[next_is(1, "give-up")], give_up=["Failed"])
    assert phase == "Failed"
    assert not [path for path in ran if "ranks" in path]
    assert "attempt.resume" in ran


def test_a_group_that_cannot_stand_fails_and_nothing_is_trained(library):
    assert trained(library, open=["Failed"]) == ("Failed", ["resolve", "open", "report"])


def test_a_run_that_is_done_makes_nothing(library):
    phase, ran = trained(library, open=[("Succeeded", {"how": "done"})])
    assert (phase, ran) == ("Succeeded", ["resolve", "open", "attempt", "report"])


@given(
    runs=st.lists(PHASES, min_size=1, max_size=6),
    ranks=st.lists(PHASES, min_size=1, max_size=9),
    decisions=st.lists(DECISIONS, max_size=5),
)
def test_whatever_ranks_do_the_verdict_is_the_supervisors(library, runs, ranks, decisions):
    assessed = [next_is(number + 2, word) for number, word in enumerate([*decisions, "give-up"])]
    phase, ran = trained(library, open=[opened()], run=runs, rank=ranks, assess=assessed, give_up=["Failed"])
    many = sum(path.endswith(".resume") for path in ran)
    last = runs[min(many, len(runs)) - 1]
    gave_up = any(path.endswith(".give-up") for path in ran)
    assert (phase == "Succeeded") is (last == "Succeeded" or not gave_up)


def test_no_rank_waits_for_another_attempts_and_none_is_tried_again(library):
    templates = templates_of(library, FANOUT)
    tasks = {task["name"]: task for task in tasks_of(templates["attempt"])}
    assert "ranks" not in " ".join(task.get("depends", "") for task in tasks.values())
    assert "retryStrategy" not in templates["rank"]
    assert "retryStrategy" not in templates["ranks"]


# A rank as Argo makes it, and as Rerail would.


STORE = {"store": "s3://b/r", "control": "", "run": "llama", "store-secret": "rerail-store"}
WORDS = ["python", "-c", "print(\"a  b\", '$HOME', `x`)", "--text=ö {\\n} 50%"]


def workload(**more):
    import shlex

    told = {"image": "llama:1", "command": shlex.join(WORDS), "replicas": "3", "gpus_per_replica": "2"}
    document = simple_manifest("llama", secret="rerail-store", queue="training", **{**told, **more})
    return read_workload(document, "parameters", run="llama")


def attempt(number=2, **more):
    own = {
        "excluded_nodes": ("n1", "n2"),
        "hostnames": {"n1": "host-1"},
        "grace_s": 41.5,
        "hold_s": 90.0,
        "poll_s": 0.2,
    }
    owner = "workflow/team/w1/u1"
    named = {"run": "llama", "gang": f"llama-a{number}", "attempt": number, "store": "s3://b/r", "owner": owner}
    return AttemptGang(**{**named, **own, **more})


def as_argo_makes_it(library, ranks, index):
    """The template's pod: inputs put in, then the patch over the spec."""
    template = templates_of(library, FANOUT)["rank"]
    given_ = {
        **STORE,
        "gang": ranks.gang,
        "attempt": str(ranks.attempt),
        "image": ranks.image,
        "command": json.dumps(ranks.command),
        "resources": json.dumps(ranks.resources),
        "affinity": json.dumps(ranks.affinity),
        "grace-s": str(ranks.grace_s),
        "priority-class": json.dumps(ranks.priority_class),
        "world-size": ranks.environment["WORLD_SIZE"],
        "local-ranks": ranks.environment["RERAIL_LOCAL_RANKS"],
        "hold-s": ranks.environment["RERAIL_HOLD_S"],
        "poll-s": ranks.environment["RERAIL_POLL_S"],
        "index": str(index),
    }
    assert set(given_) == set(inputs_of(template))

    def filled(part):
        if isinstance(part, dict):
            return {key: filled(value) for key, value in part.items()}
        if isinstance(part, list):
            return [filled(one) for one in part]
        if isinstance(part, str):
            for name, value in {
                **{f"inputs.parameters.{key}": one for key, one in given_.items()},
                "workflow.name": "w1",
            }.items():
                part = part.replace(f"{{{{{name}}}}}", value)
        return part

    made = filled(template)
    patch = json.loads(made["podSpecPatch"])
    (own,) = patch.pop("containers")
    container = {"name": "main", **made["container"], **own}
    spec = {"schedulerName": made["schedulerName"], "volumes": made["volumes"], **patch, "containers": [container]}
    return {"metadata": made["metadata"], "spec": spec}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"gpus_per_replica": "0"},
        {"replicas": "1", "priority_class": "high"},
        {"priority_class": 'x", "hostNetwork": true, "y": "'},
    ],
    ids=["gpus", "no-gpus", "priority", "no-class"],
)
def test_a_rank_is_the_same_pod_as_that_of_a_podgroup(library, more):
    wanted, gang = workload(**more), attempt(excluded_nodes=() if more else ("n1", "n2"))
    objects = render_podgroup(wanted, gang)
    for index, pod in enumerate(objects.pods):
        made = as_argo_makes_it(library, rank_pods(wanted, gang), index)
        assert made["metadata"]["labels"].pop(POD_LABEL) == pod["metadata"]["name"]
        assert made["metadata"]["labels"] == pod["metadata"]["labels"]
        group = "scheduling.k8s.io/group-name"
        assert made["metadata"]["annotations"][group] == pod["metadata"]["annotations"][group]
        (mine,), (its,) = made["spec"].pop("containers"), pod["spec"].pop("containers")
        variables = {one["name"]: one for one in mine.pop("env")}
        by_name = {one["name"]: one for one in its.pop("env")}
        assert variables.pop("RERAIL_CONTROL") == {"name": "RERAIL_CONTROL", "value": ""}, "launch reads none"
        assert variables.pop("RERAIL_POD") == {"name": "RERAIL_POD", "value": pod["metadata"]["name"]}
        assert by_name.pop("RERAIL_POD")["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.name"
        assert variables == by_name
        assert {key: value for key, value in mine.items() if value} == its
        assert made["spec"].pop("serviceAccountName", "rerail-rank") == "rerail-rank"
        pod["spec"].pop("restartPolicy")  # Argo's pods have it anyway
        assert {key: value for key, value in made["spec"].items() if value} == pod["spec"]
