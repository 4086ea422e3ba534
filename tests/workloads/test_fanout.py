"""What fits through pods that Argo makes, and what is refused by name."""

import copy

import pytest

from rerail.plugins.steps.simple import AUTHORITIES, simple_manifest
from rerail.policies.errors import UsageError
from rerail.policies.workloads.fanout import as_rank, made_as, refuse_manifest
from rerail.policies.workloads.reading import read_workload


@pytest.fixture
def simple():
    told = {"image": "llama:1", "command": "python train.py", "gpus_per_replica": "8", "priority_class": "high"}
    return read_workload(simple_manifest("llama", secret="rerail-store", queue="q", **told), "run.json", run="llama")


def test_a_run_of_the_form_fits(simple):
    refuse_manifest(simple, volumes=(AUTHORITIES,))


def pod_of(document):
    return document["spec"]["tasks"][0]["template"]["spec"]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            lambda one: one["metadata"].update(annotations={"volcano.sh/preemptable": "false"}),
            "metadata.annotations.volc",
        ),
        (lambda one: one["spec"].update(networkTopology={"mode": "hard"}), "spec.networkTopology"),
        (lambda one: one["spec"]["tasks"].append(copy.deepcopy(one["spec"]["tasks"][0])), "spec.tasks[1]"),
        (lambda one: pod_of(one).update(tolerations=[{"operator": "Exists"}]), "template.spec.tolerations"),
        (lambda one: pod_of(one).update(nodeSelector={"a": "b"}), "template.spec.nodeSelector"),
        (lambda one: pod_of(one)["volumes"].append({"name": "data", "emptyDir": {}}), "template.spec.volumes: data"),
        (lambda one: pod_of(one)["containers"].append({"name": "side"}), "template.spec.containers[1]"),
        (lambda one: pod_of(one)["containers"][0].update(env=[{"name": "A", "value": "b"}]), "containers[0].env"),
        (
            lambda one: one["spec"]["tasks"][0]["template"]["metadata"].update(labels={"team": "a"}),
            "template.metadata.labels.team",
        ),
    ],
)
def test_what_the_template_has_no_place_for_is_named(simple, change, named):
    document = copy.deepcopy(simple.document)
    change(document)
    with pytest.raises(UsageError, match="go on with this run by rerail-train") as refused:
        refuse_manifest(simple.model_copy(update={"document": document}), volumes=(AUTHORITIES,))
    assert named in str(refused.value)


def test_a_pod_that_rerail_named_itself_is_left_as_it_is():
    pod = {"metadata": {"name": "run-a1-0", "labels": {"rerail.dev/gang": "run-a1"}}, "status": {"phase": "Running"}}
    assert as_rank(pod) == pod
    assert made_as(as_rank(pod)) == "run-a1-0"


def test_a_pod_of_argo_s_keeps_its_name_for_requests():
    pod = {"metadata": {"name": "w-rank-1", "labels": {"rerail.dev/pod": "run-a1-0"}}, "status": {"phase": "Pending"}}
    ours = as_rank(pod)
    assert (ours["metadata"]["name"], made_as(ours), ours["status"]["phase"]) == ("run-a1-0", "w-rank-1", "Pending")
    assert pod["metadata"]["name"] == "w-rank-1"
