"""The rendered files: the same as those in Git, whole, and what kustomize makes of them."""

import json
import shutil
import subprocess

import pytest
import yaml

from rerail.policies.errors import UsageError
from rerail.workflows.rbac import IN_CLUSTER
from rerail.workflows.render import drift, files, flat, flat_rights, packaged, refuse_twins, to_yaml, write


def test_the_files_in_git_are_what_is_rendered():
    """After a change that is meant: rerail render --output workflows/manifests, and read the diff."""
    assert drift(packaged(), files()) == ""


def test_drift_is_seen_in_a_change_a_missing_file_and_a_file_too_many(tmp_path):
    wanted = files()
    assert len(write(tmp_path, wanted)) == len(wanted)
    assert write(tmp_path, wanted) == []
    assert drift(tmp_path, wanted) == ""
    changed = tmp_path / "base/kustomization.yaml"
    changed.write_text(changed.read_text() + "# more\n")
    (tmp_path / "base/accounts/accounts.yaml").unlink()
    (tmp_path / "base/own.yaml").write_text("kind: Own\n")
    difference = drift(tmp_path, wanted)
    assert "-# more" in difference
    assert "+++ base/accounts/accounts.yaml as rendered" in difference
    assert "-kind: Own" in difference


def test_rendering_twice_gives_the_same_bytes():
    assert files() == files()


def test_expressions_stay_on_one_line_and_come_back_as_they_were():
    expression = (
        "{{= asInt(lastRetry.exitCode) == 143 || lastRetry.message matches 'pod deleted|node shutdown|imminent node "
        "shutdown' ? 'resume' : 'fail' }}"
    )
    text = to_yaml({"value": expression})
    assert yaml.safe_load(text) == {"value": expression}
    assert len(text.splitlines()) == 1
    for path, content in files().items():
        assert all(line.count("{{") <= line.count("}}") for line in content.splitlines()), path


def test_two_templates_of_one_name_are_refused():
    with pytest.raises(UsageError, match="two templates 'run'"):
        refuse_twins("own", [{"name": "run"}, {"name": "else"}, {"name": "run"}])


def test_every_resource_of_a_kustomization_is_there():
    found = files()
    for path, text in found.items():
        if path.endswith("kustomization.yaml"):
            content = yaml.safe_load(text)
            for target in [*content["resources"], *content.get("components", [])]:
                place = resolved(path, target)
                assert place in found or f"{place}/kustomization.yaml" in found, (path, target)


def resolved(path, target):
    parts = path.split("/")[:-1]
    for step in target.split("/"):
        parts = parts[:-1] if step == ".." else [*parts, step]
    return "/".join(parts)


def kustomized(folder):
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("no kubectl on PATH, whose kustomize would build the overlays")
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [document for document in yaml.safe_load_all(done.stdout) if document]


@pytest.mark.parametrize("overlay", ["namespaced", "cluster-wide"])
def test_an_overlay_puts_everything_into_its_namespace(overlay, tmp_path):
    write(tmp_path, files("team-a"))
    documents = kustomized(tmp_path / "overlays" / overlay)
    clustered = {"ClusterWorkflowTemplate", "ClusterRole", "ClusterRoleBinding"}
    kinds = {document["kind"] for document in documents}
    assert kinds & clustered == (clustered if overlay == "cluster-wide" else set())
    for document in documents:
        expected = None if document["kind"] in clustered else "team-a"
        assert document["metadata"].get("namespace") == expected, document["metadata"]["name"]
        for subject in document.get("subjects", []):
            assert subject["namespace"] == "team-a"


def test_one_stream_holds_the_same_objects_as_the_namespaced_overlay(tmp_path):
    write(tmp_path, files("team-a"))
    ours = [document for document in yaml.safe_load_all(flat("team-a")) if document]
    assert sorted(map(canonical, ours)) == sorted(map(canonical, kustomized(tmp_path / "overlays" / "namespaced")))


def test_the_rights_in_the_cluster_come_alone_and_bound_under_names_of_their_own():
    ours = [one for one in yaml.safe_load_all(flat_rights("team-a")) if one]
    assert len(ours) == 2 * len(IN_CLUSTER)
    for one in ours:
        assert "namespace" not in one["metadata"]
        if one["kind"] == "ClusterRoleBinding":
            assert one["metadata"]["name"] == f"{one['roleRef']['name']}-team-a"
            assert one["subjects"][0]["namespace"] == "team-a"
    roles = [one for one in ours if one["kind"] == "ClusterRole"]
    assert {one["metadata"]["name"] for one in roles} == set(IN_CLUSTER), "they are the same for all"
    component = files("team-a")["components/nodes/rights.yaml"]
    assert [one["metadata"]["name"] for one in yaml.safe_load_all(component) if one] == [
        one["metadata"]["name"] for one in ours
    ]


def canonical(document):
    return json.dumps(document, sort_keys=True)
