"""The public cases about templates with their right answers, and the rules on templates of our own."""

import json
from pathlib import Path

import pytest
import yaml
from argo_documents import spec_of

from rerail.policies.argo_lint import launcher_timer, lint, most_attempts, nesting, signal_reaches
from rerail.policies.errors import UsageError
from rerail.policies.workloads.attempt import AttemptGang
from rerail.policies.workloads.exclusion import exclude_nodes
from rerail.workflows.render import refuse_twins, to_yaml

CASES = {
    case["id"]: case
    for case in map(json.loads, Path(__file__).with_name("cases.jsonl").read_text(encoding="utf-8").splitlines())
}


def case(name):
    return CASES[name]["input"], CASES[name]["expected"]


def told(template, rule=None):
    found = [one for one in lint([template]) if rule in (None, one.rule)]
    return [f"{'error' if one.severity == 'error' else 'note'}: {one.problem}" for one in found]


def excluded(terms, nodes, hostnames):
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    spec = {"affinity": affinity}
    gang = AttemptGang(
        run="r", gang="r-a1", attempt=1, store="s3://b/r", excluded_nodes=tuple(nodes), hostnames=hostnames
    )
    exclude_nodes(spec, gang)
    required = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return required["nodeSelectorTerms"]


def test_c5_02_a_retried_create_with_a_generated_name():
    given, expected = case("C5-02")
    template = {"name": "gang", "resource": given["resource"], "retryStrategy": given["retryStrategy"]}
    (found,) = [one for one in lint([template]) if one.rule == "retried-create"]
    assert f"error: {found.problem}".startswith(expected["lint"])
    assert found.fix == expected["fix"]


def test_c5_03_retries_that_miss_lost_pods_or_never_happen():
    given, expected = case("C5-03")
    for strategy, right in zip(given["cases"], expected["results"], strict=True):
        found = lint([{"name": "step", "retryStrategy": strategy["retryStrategy"]}])
        assert len(found) == 1, found
        answer = f"{found[0].severity}: {found[0].problem}"
        if right.startswith("ok"):
            assert found[0].severity == "note"
            assert right == f"{found[0].problem}; {found[0].fix.split(',')[0]}"
        else:
            assert answer == right


def test_c5_04_conditions_that_forget_a_final_phase():
    given, expected = case("C5-04")
    conditions = {name: given[name] for name in ("successCondition", "failureCondition")}
    (found,) = lint([{"name": "gang", "resource": {"action": "get", **conditions}}])
    assert f"error: {found.problem}".startswith(expected["lint"])
    assert found.fix == expected["fix"]
    mended = {**conditions, "failureCondition": found.fix.removeprefix("failureCondition: ")}
    assert lint([{"name": "gang", "resource": {"action": "get", **mended}}]) == ()


def test_c5_08_the_exclusion_stands_in_every_term():
    given, expected = case("C5-08")
    terms = [
        {"matchExpressions": [{"key": text.split()[0], "operator": "In", "values": [text.split()[2]]} for text in term]}
        for term in given["nodeSelectorTerms"]
    ]
    result = [
        [f"{one['key'].split('/')[-1]} {one['operator']} {one['values'][0]}" for one in term["matchExpressions"]]
        for term in excluded(terms, given["exclude"], {"g1": "g1"})
    ]
    assert result == expected["result"]


def test_c5_09_a_nodes_name_is_not_taken_for_its_label():
    given, expected = case("C5-09")
    node = given["node"]["name"]
    label = given["node"]["labels"]["kubernetes.io/hostname"]
    (by_label,) = excluded([], [node], {node: label})
    assert by_label["matchExpressions"] == [{"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [label]}]
    (unread,) = excluded([], [node], {})
    assert unread["matchFields"] == [{"key": "metadata.name", "operator": "NotIn", "values": [node]}]
    assert f"metadata.name NotIn [{node}]" in expected["result"]
    assert label in expected["result"]


def test_c5_11_attempts_that_do_not_nest():
    given, expected = case("C5-11")
    found = nesting(given["templates_per_attempt"], given["max_attempts"])
    assert (f"error: {found.problem}", found.fix) == (expected["lint"], expected["fix"])
    assert nesting(3, 30) is None
    assert most_attempts(1) == 100


def test_c5_13_an_expression_stays_on_its_line():
    given, _ = case("C5-13")
    text = to_yaml({"expression": given["expression"]})
    assert yaml.safe_load(text)["expression"] == given["expression"]
    assert given["expression"][4:60] in text.splitlines()[0]


def test_c5_16_names_that_collide_and_a_count_from_a_parameter(library):
    twins = [{"name": "run"}, {"name": "run"}]
    with pytest.raises(UsageError, match="one another prefix"):
        refuse_twins("composed", twins)
    verify = next(one for one in library["rerail-node-release-v0-1"]["spec"]["templates"] if one["name"] == "verify")
    patched = verify["podSpecPatch"].replace("{{=asInt(inputs.parameters['gpus'])}}", "4")
    assert json.loads(patched)["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "4"}


def test_c3_01_the_shortest_timer_wins():
    given, expected = case("C3-01")
    found = launcher_timer(
        given["launcher"],
        grace_s=given["terminationGracePeriodSeconds"],
        save_s=given["save_seconds_p99"],
        env=given["env"],
    )
    assert f"error: {found.problem}" == expected["lint"]
    longer = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "120"}
    assert launcher_timer("torchrun", grace_s=600, save_s=90, env=longer) is None
    assert launcher_timer("rerail-launch", grace_s=600, save_s=90) is None
    assert "the pod kills after 60 s" in launcher_timer("rerail-launch", grace_s=60, save_s=90).problem


def test_c3_02_a_signal_through_torchrun():
    given, expected = case("C3-02")
    signal = given["method"].split()[1].removeprefix("-")
    assert signal_reaches(given["launcher"], signal) is (expected["result"] == "supported")
    assert signal_reaches("torchrun", "SIGTERM")


@pytest.mark.parametrize(
    ("template", "rule"),
    [
        ({"container": {"image": "x", "args": ["a"]}}, "command"),
        ({"outputs": {"parameters": [{"name": "o", "valueFrom": {"path": "/o"}}]}}, "output-default"),
        ({"dag": {"tasks": [{"name": "a", "when": "{{tasks.b.outputs.result}} == x"}]}}, "when-quoted"),
        ({"steps": [[{"name": "a", "when": "{{steps.b.outputs.result}} == 'x'"}]]}, "when-quoted"),
        ({"failFast": True}, "fail-fast"),
        ({"retryStrategy": {"retryPolicy": "Always"}}, "retry-limit"),
        (
            {"retryStrategy": {"limit": 3, "retryPolicy": "OnError", "expression": "lastRetry.exitCode == '1'"}},
            "retry-never",
        ),
        ({"retryStrategy": {"limit": 1, "retryPolicy": "Always"}, "resource": {"action": "create"}}, "retried-create"),
    ],
)
def test_each_rule_sees_what_it_is_about(template, rule):
    assert {one.rule for one in lint([{"name": "t", **template}])} == {rule}


def test_a_template_that_calls_itself_is_told_how_often_it_can():
    loop = [
        {"name": "a", "dag": {"tasks": [{"name": "b", "template": "b"}]}},
        {"name": "b", "steps": [[{"name": "a", "template": "a"}]]},
        {"name": "c", "container": {"command": ["true"]}},
    ]
    found = lint(loop)
    assert [(one.where, one.severity) for one in found] == [("a", "note"), ("b", "note")]
    assert "over 2 levels, so at most 50 times" in found[0].problem


def test_the_library_keeps_every_rule(library):
    for name, document in library.items():
        found = [one for one in lint(spec_of(document)["templates"]) if one.severity == "error"]
        assert found == [], name
