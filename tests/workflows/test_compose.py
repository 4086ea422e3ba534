"""Tasks for DAGs of users: by reference, inline, twice, and what is refused before Argo sees it."""

import subprocess
import sys

import pytest
import yaml
from argo_documents import inputs_of, tasks_of
from argo_schema import problems
from hera.workflows import DAG, Container, Task, Workflow
from hera.workflows.models import TemplateRef
from hypothesis import given
from hypothesis import strategies as st

import rerail.workflows
from rerail.policies.errors import UsageError
from rerail.workflows import evict_gang, guarded_step, resilient_gang, run_report

GANG = {"store": "s3://ckpt/runs", "image": "llama:1", "command": "python train.py"}


def workflow(build):
    """A workflow whose DAG holds what ``build`` makes."""
    with Workflow(generate_name="own-", entrypoint="main") as w:
        own = Container(name="own", image="x", command=["true"])
        with DAG(name="main"):
            build(w, own)
    return w.to_dict()


def templates_of(document):
    return {one["name"]: one for one in document["spec"]["templates"]}


def arguments_of(task):
    return {one["name"]: one["value"] for one in task["arguments"]["parameters"]}


def test_by_reference_the_workflow_holds_nothing_of_ours():
    document = workflow(lambda _w, own: Task(name="before", template=own) >> resilient_gang(**GANG))
    assert set(templates_of(document)) == {"own", "main"}
    task = tasks_of(templates_of(document)["main"])[1]
    assert task["templateRef"] == {"name": "rerail-train-v0-1", "template": "train"}
    assert task["depends"] == "before"


def test_in_a_cluster_wide_library_the_reference_says_so():
    document = workflow(lambda _w, _own: resilient_gang(**GANG, cluster_scope=True))
    assert tasks_of(templates_of(document)["main"])[0]["templateRef"]["clusterScope"] is True


def test_inline_everything_is_there_once_under_the_tasks_name(definitions):
    document = workflow(lambda w, _own: resilient_gang("a", **GANG, inline=w) >> resilient_gang("b", **GANG, inline=w))
    names = [one["name"] for one in document["spec"]["templates"]]
    assert len(names) == len(set(names))
    assert {"a-train", "a-attempt", "a-run", "b-train", "b-give-up"} <= set(names)
    for template in document["spec"]["templates"]:
        for task in tasks_of(template):
            assert task["template"] in names
    assert list(problems(document, definitions("Workflow"))) == []


@pytest.mark.parametrize("inline", [False, True], ids=["by-reference", "inline"])
def test_a_gang_of_argo_s_own_pods_is_one_word_away(inline, library, definitions):
    build = lambda w, _own: resilient_gang(**GANG, replicas=4, backend="fanout", inline=w if inline else None)  # noqa: E731
    document = workflow(build)
    found = templates_of(document)
    (task,) = tasks_of(found["main"])
    entry = found["train-train"] if inline else library["rerail-train-fanout-v0-1"]["spec"]["templates"][0]
    assert set(arguments_of(task)) <= set(inputs_of(entry))
    assert arguments_of(task)["replicas"] == "4"
    if inline:
        assert {"train-ranks", "train-rank", "train-open"} <= set(found)
    else:
        assert task["templateRef"] == {"name": "rerail-train-fanout-v0-1", "template": "train"}
    assert list(problems(document, definitions("Workflow"))) == []


def test_outside_of_a_with_block_the_templates_are_added_as_well():
    w = Workflow(generate_name="own-", entrypoint="main")
    task = resilient_gang(**GANG, inline=w)
    w.templates.append(DAG(name="main", tasks=[task]))
    assert "train-attempt" in templates_of(w.to_dict())


def test_two_gangs_of_one_name_are_refused_when_they_are_built():
    def build():
        with Workflow(generate_name="own-") as w:
            for name in ("one", "two"):
                with DAG(name=name):
                    resilient_gang(**GANG, inline=w)

    with pytest.raises(UsageError, match="two templates 'train-train'"):
        build()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"image": ""}, "give image and command, or a manifest, and not both"),
        ({"command": ""}, "give image and command"),
        ({"manifest": {"kind": "Run"}}, "not both"),
        ({"image": "", "command": "", "manifest": {"kind": "Run"}, "backend": "fanout"}, "cannot have the fields of a"),
        ({"max_attempts": 81}, "no more than 100 templates, so 1 to 80"),
        ({"max_attempts": 0}, "1 to 80"),
    ],
)
def test_what_could_not_run_is_refused(changed, told):
    with pytest.raises(UsageError, match=told):
        resilient_gang(**{**GANG, **changed})


def test_a_number_may_be_an_expression_of_argo():
    document = workflow(
        lambda _w, _own: resilient_gang(**GANG, replicas="{{inputs.parameters.n}}", max_attempts="{{x}}")
    )
    passed = arguments_of(tasks_of(templates_of(document)["main"])[0])
    assert passed["replicas"] == "{{inputs.parameters.n}}"


def test_the_image_of_our_steps_is_the_librarys_unless_it_is_named():
    for named, expected in (({}, None), ({"rerail_image": "registry.example/rerail:1"}, "registry.example/rerail:1")):
        reference = TemplateRef(name="mine", template="step")

        def build(_w, _own, named=named, reference=reference):
            resilient_gang(**GANG, **named) >> guarded_step("score", template_ref=reference, **named)

        for task in tasks_of(templates_of(workflow(build))["main"]):
            assert arguments_of(task).get("rerail-image") == expected


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="{}", exclude_categories=["Cs", "Cc"]), max_size=40)


@given(words=st.lists(TEXTS.filter(bool), min_size=1, max_size=5), policy=st.dictionaries(TEXTS, TEXTS, max_size=3))
def test_any_words_come_through_as_they_were(words, policy):
    import shlex

    document = workflow(lambda _w, _own: resilient_gang(**{**GANG, "command": words}, policy=policy))
    passed = arguments_of(tasks_of(templates_of(document)["main"])[0])
    assert shlex.split(passed["command"]) == words
    assert (yaml.safe_load(passed["policy"]) if policy else {}) == policy or passed["policy"] == ""


def test_a_step_of_a_workflow_template_is_guarded_by_reference():
    reference = TemplateRef(name="mine", template="step")
    document = workflow(lambda _w, _own: guarded_step("score", template_ref=reference))
    (task,) = tasks_of(templates_of(document)["main"])
    assert task["templateRef"] == {"name": "rerail-retry-v0-1", "template": "guarded"}
    assert arguments_of(task)["template-name"] == "mine"
    assert arguments_of(task)["template"] == "step"


def test_a_step_of_the_same_workflow_is_guarded_inline_and_gets_its_arguments(definitions):
    document = workflow(lambda w, own: guarded_step("score", template=own.name, arguments={"my_run": "a"}, inline=w))
    found = templates_of(document)
    (task,) = tasks_of(found["main"])
    assert task["template"] == "score-guarded"
    assert arguments_of(task)["my_run"] == "a"
    step = tasks_of(found["score-try"])[0]
    assert step["template"] == "own"
    assert arguments_of(step) == {"my_run": "{{inputs.parameters.my_run}}"}
    assert "my_run" in inputs_of(found["score-try"])
    assert list(problems(document, definitions("Workflow"))) == []


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"template": "a", "template_ref": TemplateRef(name="b", template="c")},
        {"template": "a"},
        {"template_ref": TemplateRef(name="b", template="c"), "arguments": {"x": "y"}},
        {"template_ref": TemplateRef(name="b", template="c", cluster_scope=True)},
    ],
)
def test_a_guard_that_could_not_find_its_step_is_refused(wrong):
    with pytest.raises(UsageError, match="task 'score'"):
        guarded_step("score", **wrong)


def test_the_other_tasks_refer_to_templates_of_the_library(library):
    def build(_w, _own):
        evict_gang(gang="llama-8b", deadline_s=60) >> run_report(store="s3://b/r", run="llama-8b")

    for task in tasks_of(templates_of(workflow(build))["main"]):
        owner = library[task["templateRef"]["name"]]
        (found,) = [one for one in owner["spec"]["templates"] if one["name"] == task["templateRef"]["template"]]
        assert set(arguments_of(task)) <= set(inputs_of(found))


def test_what_is_exported_is_there_and_documented():
    for name in rerail.workflows.__all__:
        assert getattr(rerail.workflows, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'gang'"):
        rerail.workflows.gang  # noqa: B018


def test_hera_is_imported_when_it_is_used_and_not_before():
    code = "import sys, rerail.workflows, rerail.workflows.command; sys.exit('hera' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
