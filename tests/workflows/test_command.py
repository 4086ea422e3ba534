"""``rerail render`` and ``rerail lint`` as commands."""

import json
import shutil

import pytest
import yaml

from rerail.plugins.cli.main import main
from rerail.workflows.render import packaged


def rerail(capsys, *arguments):
    code = 0
    try:
        main(arguments)
    except SystemExit as ended:
        code = ended.code or 0
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_installed_files_are_checked(capsys):
    assert rerail(capsys, "render", "--check") == (0, "", "")


def test_a_drift_is_shown_and_exits_with_1(capsys, tmp_path):
    folder = tmp_path / "manifests"
    shutil.copytree(packaged(), folder)
    changed = folder / "base/templates/rerail-report-v0-1.yaml"
    changed.write_text(changed.read_text().replace("rerail-reader", "default"))
    code, out, err = rerail(capsys, "render", "--check", "--output", str(folder))
    assert code == 1
    assert "-  serviceAccountName: default" in out
    assert "+  serviceAccountName: rerail-reader" in out
    assert f"`rerail render --output {folder}` writes it" in err
    assert rerail(capsys, "render", "--output", str(folder))[0] == 0
    assert rerail(capsys, "render", "--check", "--output", str(folder)) == (0, "", "")


def test_the_way_out_of_a_drift_is_the_command_as_it_was_asked(capsys, tmp_path):
    asked = ("-n", "team", "--image", "registry.example/rerail:1", "--output", str(tmp_path))
    assert rerail(capsys, "render", *asked)[0] == 0
    (tmp_path / "base/kustomization.yaml").unlink()
    code, _, err = rerail(capsys, "render", "--check", *asked)
    assert code == 1
    assert f"`rerail render {' '.join(asked)}` writes it" in err


def test_a_folder_that_is_not_there_is_bad_input(capsys, tmp_path):
    code, _, err = rerail(capsys, "render", "--check", "--output", str(tmp_path / "none"))
    assert code == 2
    assert "there is no such folder; leave --check out to write it" in err


def test_objects_of_one_namespace_are_printed(capsys):
    code, out, _ = rerail(capsys, "render", "--namespace", "team-a")
    documents = [one for one in yaml.safe_load_all(out) if one]
    assert code == 0
    assert {one["metadata"]["namespace"] for one in documents} == {"team-a"}
    assert {"WorkflowTemplate", "CronWorkflow", "ServiceAccount", "Role", "RoleBinding"} == {
        one["kind"] for one in documents
    }


def test_our_own_files_are_clean(capsys):
    paths = [str(path) for path in sorted(packaged().rglob("*.yaml"))]
    code, out, _ = rerail(capsys, "lint", "--output", "json", *paths)
    assert code == 0
    assert {one["severity"] for one in json.loads(out)} == {"note"}


def test_a_workflow_of_others_is_told_what_is_wrong(capsys, tmp_path):
    path = tmp_path / "own.yaml"
    path.write_text(
        "apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nmetadata: {generateName: own-}\n"
        "spec:\n  entrypoint: a\n  templates:\n  - name: a\n    container: {image: x}\n    retryStrategy: {limit: 3}\n"
        "---\napiVersion: v1\nkind: ConfigMap\n"
    )
    code, out, _ = rerail(capsys, "lint", "--output", "json", str(path))
    assert code == 1
    assert [(one["object"], one["rule"]) for one in json.loads(out)] == [
        ("own-", "retry-infrastructure"),
        ("own-", "command"),
    ]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "no YAML"),
        ("a: !!bool abc", "no YAML"),
        ("apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nspec: []\n", "have to be mappings"),
        ("apiVersion: argoproj.io/v1alpha1\nkind: Workflow\nspec: {templates: {a: b}}\n", "has to be a list"),
        (None, "pass YAML files"),
    ],
)
def test_files_that_cannot_be_read(content, told, capsys, tmp_path):
    path = tmp_path / "own.yaml"
    if content is not None:
        path.write_text(content)
    code, _, err = rerail(capsys, "lint", str(path))
    assert code == 2
    assert told in err
