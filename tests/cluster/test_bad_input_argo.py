"""Bad input to the templates on the cluster's own Argo: named, with the way out, in the form, a node or the command."""

import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator

import pytest
from rig import readme
from rig.argo import Argo, RefusedError
from rig.gangs import full
from rig.library import STORE_SECRET, TRAIN, Trained, installed
from rig.training import DEADLINE_S, MIDDLE, traced

pytestmark = full

SIMPLE = {"command": "python3 train.py", "replicas": "1", "gpus-per-replica": "0"}


@pytest.fixture
def trained(cluster, argo, gang) -> Iterator[Trained]:
    with installed(cluster, gang.namespace):
        yield Trained(argo, gang)


def submit(trained: Trained, **parameters: str) -> str:
    """Submit as the form does; what is not given is sound."""
    image = trained.gang.cluster.image
    given = {"store": trained.gang.store, "image": image, "rerail-image": image, **SIMPLE}
    given |= {name.replace("_", "-"): value for name, value in parameters.items()}
    return trained.argo.submit_template(TRAIN, parameters=[f"{name}={value}" for name, value in given.items()])


def refused(argo: Argo, name: str, *words: str) -> None:
    """The first step says these words, and nothing else was begun."""
    argo.wait(name, "Failed", deadline_s=DEADLINE_S)
    (said,) = [node["message"] for node in argo.whole_nodes(name) if node["displayName"] == "resolve(0)"]
    for word in words:
        assert word in said, said
    assert not [node for node in argo.nodes(name) if node.name in ("fresh", "resume") and node.phase != "Omitted"]


def test_parameters_of_the_wrong_form_are_named_by_the_first_step(trained):
    wrong = {
        "replicas=two": "parameter replicas = 'two': a whole number from 1 to",
        "deadline_s=soon": "parameter deadline-s = 'soon': a whole number from 1 to",
        "policy=hold: 3": "unknown field 'hold'; did you mean 'hold_s'?",
        "manifest=kind: Pod": "parameter manifest holds no workload, but Pod",
        "store=": "parameter store is empty: give an address such as s3://BUCKET/PREFIX",
    }
    submitted = {}
    for given, words in wrong.items():
        name, _, value = given.partition("=")
        submitted[submit(trained, **{name: value})] = words
    for name, words in submitted.items():
        refused(trained.argo, name, "Bad input: ", words)
    assert not trained.gang.cluster.kubectl("get", "vcjob", "-n", trained.gang.namespace, "-o", "name")


def test_what_the_form_offers_as_a_list_takes_nothing_else(trained):
    submitted = {
        submit(trained, backend="perhaps"): ("backend", "vcjob", "podgroup"),
        submit(trained, take_over="perhaps"): ("take-over", "false", "true"),
    }
    for name, words in submitted.items():
        ended = trained.argo.wait(name, "Failed", "Error", deadline_s=DEADLINE_S)
        said = " ".join([ended["status"].get("message", ""), *(node.message for node in trained.argo.nodes(name))])
        for word in words:
            assert word in said
    with pytest.raises(RefusedError, match="store") as told:
        trained.argo.submit_template(TRAIN, parameters=["image=x", "command=y"])
    assert told.value.code == 400


def test_a_store_without_rights_says_what_to_allow(trained):
    cluster, place = trained.gang.cluster, trained.gang.namespace
    wrong = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": STORE_SECRET}}
    keys = {**cluster.s3_env, "AWS_SECRET_ACCESS_KEY": "not-the-key"}
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-n", place, "-f", "-",
                    document={**wrong, "stringData": keys})  # fmt: skip
    refused(trained.argo, submit(trained), "Refused: ", "check the credentials", f"s3://{cluster.bucket}/")
    cluster.kubectl("delete", "secret", STORE_SECRET, "-n", place)
    refused(trained.argo, submit(trained), "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY")


def test_a_template_version_that_is_gone_is_named(trained, tmp_path):
    argo, place = trained.argo, trained.gang.namespace
    command = f"rerail submit -n {place} --template rerail-train-v0-0 -p image=x -p command=y --store s3://b/p"
    said = readme.typed(command, {}, tmp_path, code=4).stderr
    assert f"WorkflowTemplate 'rerail-train-v0-0' is not in namespace '{place}'" in said
    assert f"there are {TRAIN}: name one with --template" in said
    assert f"rerail render --namespace {place} | kubectl apply -n {place} -f -" in said
    with pytest.raises(RefusedError, match="rerail-train-v0-0") as told:
        argo.submit_template("rerail-train-v0-0", parameters=["store=s3://b/p"])
    assert told.value.code == 404
    gone = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": "gone", "namespace": place},
        "spec": {"workflowTemplateRef": {"name": "rerail-train-v0-0"}},
    }
    trained.gang.cluster.kubectl("create", "-f", "-", document=gone)
    ended = argo.wait("gone", "Failed", "Error", deadline_s=DEADLINE_S)
    assert "rerail-train-v0-0" in ended["status"]["message"]


def test_a_run_goes_on_when_its_template_is_removed(trained):
    gang = trained.gang
    trained.submit(traced(gang, delay_s=0.1))
    trained.wait_step(MIDDLE)
    gang.cluster.kubectl("delete", "workflowtemplates", "--all", "-n", gang.namespace)
    gang.kill_pod(gang.pods()[1])
    trained.ended("Succeeded")
    assert ("resume", "Succeeded") in trained.steps()


# Somebody edits what the DAG made.


def delete_the_job(gang) -> None:
    gang.cluster.kubectl("delete", "vcjob", f"{gang.name}-a1", "-n", gang.namespace, "--wait=false")


def delete_the_group(gang) -> None:
    (group,) = gang.cluster.read("podgroups", "-n", gang.namespace)["items"]
    gang.cluster.kubectl("delete", "podgroup", group["metadata"]["name"], "-n", gang.namespace, "--wait=false")


def take_the_labels(gang) -> None:
    gang.cluster.kubectl(
        "label", "vcjob", f"{gang.name}-a1", "-n", gang.namespace, "rerail.dev/run-", "rerail.dev/gang-"
    )


def suspend_the_job(gang) -> None:
    job = gang.cluster.read("vcjob", f"{gang.name}-a1", "-n", gang.namespace)
    target = {"apiVersion": job["apiVersion"], "kind": "Job", "name": job["metadata"]["name"]}
    target["uid"] = job["metadata"]["uid"]
    command = {
        "apiVersion": "bus.volcano.sh/v1alpha1",
        "kind": "Command",
        "metadata": {"name": f"abort-{secrets.token_hex(3)}", "ownerReferences": [target]},
        "action": "AbortJob",
        "target": target,
    }
    gang.cluster.kubectl("create", "-n", gang.namespace, "-f", "-", document=command)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (delete_the_job, "(deleted)"),
        (suspend_the_job, ""),
    ],
    ids=["the vcjob is deleted", "the vcjob is aborted"],
)
def test_a_gang_that_somebody_ends_is_followed_by_the_next_one_and_the_node_says_so(trained, baseline, edit, words):
    gang = trained.gang
    trained.submit(traced(gang))
    trained.wait_step(MIDDLE)
    edit(gang)
    trained.ended("Succeeded")
    said = trained.node("fresh(0)")["message"]
    assert words in said, said
    assert "attempt 2 goes on from step" in said
    found = gang.compare(baseline)
    assert found.identical, found.differences


@pytest.mark.parametrize("edit", [delete_the_group, take_the_labels], ids=["its PodGroup is deleted", "its labels go"])
def test_a_gang_whose_objects_somebody_edits_trains_to_its_end(trained, baseline, edit):
    gang = trained.gang
    trained.submit(traced(gang))
    trained.wait_step(MIDDLE)
    edit(gang)
    trained.ended("Succeeded")
    found = gang.compare(baseline)
    assert found.identical, found.differences


# Clocks and versions.


AHEAD = """
import time
now = time.time
time.time = lambda: now() + 600
from rerail.plugins.cli.main import main
main()
"""


def test_a_clock_that_is_off_is_told_by_the_doctor(cluster, namespace, s3):
    assert s3 is None
    environment = {**os.environ, "KUBECONFIG": str(cluster.kubeconfig)}
    words = [sys.executable, "-c", AHEAD, "doctor", "-o", "json", "-n", namespace]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1, done.stderr
    (clock,) = [one for one in json.loads(done.stdout) if one["check"] == "clock"]
    assert clock["verdict"] == "fail"
    assert re.search(r"this machine's clock is (599|60\d)\.\d s ahead of", clock["found"]), clock
    assert "NTP or chrony" in clock["way_out"]


def test_a_step_can_ask_the_argo_that_runs_it(cluster, argo, pods):
    """`rerail step resolve` refuses an old one by this; as our steps run, with nothing but what Argo mounts."""
    container = {
        "image": cluster.image,
        "command": ["/var/run/argo/argoexec"],
        "args": ["version", "--short"],
        "securityContext": {"runAsUser": 65534, "runAsNonRoot": True, "readOnlyRootFilesystem": True},
    }
    document = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"generateName": "version-"},
        "spec": {"entrypoint": "ask", "templates": [{"name": "ask", "container": container}]},
    }
    name = argo.submit(document)
    argo.wait(name, "Succeeded")
    assert "argoexec: v4." in pods.log(argo.pod_of(name, name))
