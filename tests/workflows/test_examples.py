"""The examples: what they print, build and submit, compared to the letter, and whether Argo and the library take it.

After a change that is meant: RERAIL_WRITE_GOLDEN=1 pytest tests/workflows/test_examples.py, and read the diff.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from argo_documents import inputs_of, spec_of, tasks_of
from argo_schema import problems

from rerail.policies.argo_lint import lint
from rerail.policies.workloads.reading import parse_manifest, read_workload

EXAMPLES = Path(__file__).parents[2] / "examples"


def compare(path, text):
    if os.environ.get("RERAIL_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def documents(text):
    return [one for one in yaml.safe_load_all(text) if one]


@pytest.fixture(scope="module")
def printed():
    script = EXAMPLES / "02-sdk/pipeline.py"
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


def built():
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl on PATH, whose kustomize would build the example")
    folder = EXAMPLES / "03-gitops"
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=True)
    return documents(done.stdout)


def submitted():
    """Every workflow that the examples give to Argo, as in their files."""
    for name in ("02-sdk/pipeline.yaml", "03-gitops/llama-8b.yaml", "04-argo-ui/workflow.yaml"):
        yield name, yaml.safe_load((EXAMPLES / name).read_text())


def test_python_prints_the_workflow_beside_it(printed):
    compare(EXAMPLES / "02-sdk/pipeline.yaml", printed)


def test_in_python_a_resilient_gang_is_one_task_between_others(printed):
    spec = yaml.safe_load(printed)["spec"]
    pipeline = next(one for one in spec["templates"] if one["name"] == "pipeline")
    assert [(task["name"], task.get("depends")) for task in tasks_of(pipeline)] == [
        ("prepare", None),
        ("train", "prepare"),
        ("score", "train"),
    ]


def test_kustomize_builds_what_stands_beside_it():
    """Whole where this folder decides it, by name where the library does."""
    ours = {"ServiceAccount", "Workflow", "ClusterRoleBinding"}
    found = built()
    shown = [one for one in found if one["kind"] in ours]
    others = [f"{one['kind']}/{one['metadata']['name']}" for one in found if one["kind"] not in ours]
    text = yaml.safe_dump_all([*shown, {"and": others}], sort_keys=False, width=1000)
    compare(EXAMPLES / "03-gitops/built.yaml", text)


def test_git_holds_everything_in_one_namespace_and_in_order():
    for one in built():
        if not one["kind"].startswith("Cluster"):
            assert one["metadata"]["namespace"] == "team"
        wave = one["metadata"].get("annotations", {}).get("argocd.argoproj.io/sync-wave", "0")
        first = one["kind"] in ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
        last = one["kind"] in ("Workflow", "CronWorkflow")
        assert wave == ("-1" if first else "1" if last else "0"), one["metadata"]["name"]


def test_the_application_points_at_the_folder():
    application = yaml.safe_load((EXAMPLES / "03-gitops/application.yaml").read_text())
    assert (EXAMPLES.parent / application["spec"]["source"]["path"] / "kustomization.yaml").is_file()
    assert application["spec"]["destination"]["namespace"] == "team"
    assert application["spec"]["syncPolicy"]["automated"]["prune"] is False


def test_a_run_in_git_has_a_fixed_name_and_a_manifest_that_is_read():
    workflow = yaml.safe_load((EXAMPLES / "03-gitops/llama-8b.yaml").read_text())
    assert "generateName" not in workflow["metadata"]
    given = {one["name"]: one["value"] for one in workflow["spec"]["arguments"]["parameters"]}
    workload = read_workload(parse_manifest(given["manifest"], "llama-8b.yaml"), "llama-8b.yaml", run=given["run"])
    assert (workload.run, workload.world_size, workload.queue) == ("llama-8b", 32, "default")


@pytest.mark.parametrize(("name", "workflow"), list(submitted()), ids=[name for name, _ in submitted()])
def test_argo_takes_it(name, workflow, definitions):
    assert list(problems(workflow, definitions("Workflow"))) == [], name


@pytest.mark.parametrize(("name", "workflow"), list(submitted()), ids=[name for name, _ in submitted()])
def test_what_it_refers_to_is_in_the_library_and_gets_what_it_needs(name, workflow, library):
    spec = workflow["spec"]
    calls = []
    if "workflowTemplateRef" in spec:
        owner = library[spec["workflowTemplateRef"]["name"]]
        calls.append((owner, spec_of(owner)["entrypoint"], spec["arguments"]))
    for template in spec.get("templates", []):
        for task in tasks_of(template):
            if "templateRef" in task:
                reference = task["templateRef"]
                calls.append((library[reference["name"]], reference["template"], task["arguments"]))
    assert calls, name
    for owner, template, arguments in calls:
        (found,) = [one for one in spec_of(owner)["templates"] if one["name"] == template]
        wanted = inputs_of(found)
        given = {one["name"]: one["value"] for one in arguments["parameters"]}
        assert set(given) <= set(wanted), name
        assert {key for key, one in wanted.items() if "default" not in one} <= set(given), name
        for key, value in given.items():
            assert "enum" not in wanted[key] or value in wanted[key]["enum"]


def test_workflows_of_the_examples_keep_the_rules():
    for name, workflow in submitted():
        errors = [one for one in lint(workflow["spec"].get("templates", [])) if one.severity == "error"]
        assert errors == [], name


def test_the_form_has_the_fields_that_its_readme_tells(library):
    text = (EXAMPLES / "04-argo-ui/README.md").read_text()
    arguments = {one["name"] for one in library["rerail-train-v0-1"]["spec"]["arguments"]["parameters"]}
    table = re.findall(r"^   \| ([a-z, -]+) \|", text, re.MULTILINE)
    fields = {field for row in table for field in row.split(", ")} - {"field"}
    assert fields
    assert fields <= arguments
    assert library["rerail-train-v0-1"]["metadata"]["annotations"]["workflows.argoproj.io/title"] in text


def test_what_the_main_readme_shows_in_python_builds():
    section = (EXAMPLES.parent / "README.md").read_text().split("\n## Recovery as Argo templates\n")[1]
    shown = section.split("```python\n")[1].split("```")[0]
    lines = [
        "from hera.workflows import DAG, Container, Task, Workflow",
        "STORE, IMAGE, RERAIL = 's3://b/r', 'llama:1', 'rerail:1'",
        "with Workflow(generate_name='x-', entrypoint='pipeline') as w:",
        *(f"    {name} = Container(name='{name}', image='x', command=['true'])" for name in ("prepare", "evaluate")),
        *(f"    {line}" for line in shown.splitlines()),
        "print(w.to_yaml())",
    ]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    (pipeline,) = [one for one in yaml.safe_load(done.stdout)["spec"]["templates"] if one["name"] == "pipeline"]
    assert [task["name"] for task in pipeline["dag"]["tasks"]] == ["prepare", "train", "score"]
