"""Every rendered object against Argo's full resource definitions: Hera drops what it does not know without a word."""

import copy

import pytest
import yaml
from argo_schema import problems

from rerail.workflows.render import files

RENDERED = {
    f"{path}: {document['metadata']['name']}": document
    for path, text in files().items()
    for document in yaml.safe_load_all(text)
    if document["apiVersion"].startswith("argoproj.io/")
}


@pytest.mark.parametrize("name", RENDERED)
def test_the_object_is_what_argo_takes(name, definitions):
    document = RENDERED[name]
    assert list(problems(document, definitions(document["kind"]))) == []


def test_there_are_objects_of_each_kind():
    assert {document["kind"] for document in RENDERED.values()} == {
        "WorkflowTemplate",
        "ClusterWorkflowTemplate",
        "CronWorkflow",
    }


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda spec: spec.update(entryPoint="x"), "spec.entryPoint: unknown field"),
        (lambda spec: spec["templates"][0].pop("name"), None),
        (lambda spec: spec["templates"][0]["inputs"].update(parameter=[]), "inputs.parameter: unknown field"),
        (lambda spec: spec.update(parallelism="3"), "spec.parallelism: '3' is no integer"),
        (lambda spec: spec["templates"][3]["container"]["env"][0].pop("name"), "env[0].name: missing"),
        (lambda spec: spec["templates"][3]["retryStrategy"].update(limit=[1]), "neither a whole number nor text"),
    ],
)
def test_what_argo_would_refuse_or_drop_is_seen(change, told, definitions, library):
    document = copy.deepcopy(library["rerail-train-v0-1"])
    change(document["spec"])
    found = list(problems(document, definitions("WorkflowTemplate")))
    assert (told is None and found == []) or any(told in one for one in found), found
