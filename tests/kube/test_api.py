"""Requests: places, pages, bounded retries, and errors that name the way out."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rerail.plugins.kube.api import ALL_NAMESPACES, KubeApi, Patience
from rerail.plugins.kube.config import connect
from rerail.plugins.kube.errors import Call, error_of
from rerail.plugins.kube.resources import NODES, PODS, ResourceType
from rerail.policies.errors import (
    AlreadyExistsError,
    ClusterUnreachableError,
    ConflictError,
    ExpiredError,
    ForbiddenError,
    InvalidObjectError,
    NotFoundError,
    NotInstalledError,
    QuotaExceededError,
    RefusedError,
    UsageError,
)

JOBS = ResourceType("batch.volcano.sh", "v1alpha1", "jobs", "Job", product="Volcano")


def pod(name: str, namespace: str = "team", **labels: str) -> dict:
    return {"kind": "Pod", "metadata": {"name": name, "namespace": namespace, "labels": labels}}


def test_namespace_and_context_come_from_the_kubeconfig(kubeconfig, tmp_path):
    assert connect(kubeconfig).namespace == "team"
    assert connect(kubeconfig, context="other").namespace == "elsewhere"
    assert connect(kubeconfig, namespace="mine").namespace == "mine"
    assert connect(environ={"KUBECONFIG": str(kubeconfig)}).origin == str(kubeconfig)
    # As kubectl does: a list of files, of which some may not exist.
    assert connect(environ={"KUBECONFIG": f"{tmp_path}/none:{kubeconfig}"}).namespace == "team"


@pytest.mark.parametrize("text", [None, "", "{", "kind: Config\n", '{"current-context": "x", "contexts": []}'])
def test_a_kubeconfig_that_cannot_be_used_is_named(tmp_path, text):
    path = tmp_path / "config"
    if text is not None:
        path.write_text(text)
    with pytest.raises(UsageError, match=r"(?s)kubeconfig '.*config'.*--kubeconfig"):
        connect(path)


def test_an_unknown_context_is_named(kubeconfig):
    with pytest.raises(UsageError, match="'nope'"):
        connect(kubeconfig, context="nope")


def test_create_get_list_patch_delete(kube, fake_api):
    made = kube.create(PODS, {"kind": "Pod", "metadata": {"name": "a", "labels": {"x": "1"}}})
    assert made["metadata"]["namespace"] == "team"
    kube.create(PODS, pod("b", "elsewhere", x="1"))
    assert [one["metadata"]["name"] for one in kube.list(PODS).items] == ["a"]
    assert len(kube.list(PODS, namespace=ALL_NAMESPACES, labels={"x": "1"}).items) == 2
    assert kube.list(PODS, labels="x=2").items == ()
    assert kube.patch(PODS, "a", {"metadata": {"labels": {"y": "2"}}})["metadata"]["labels"] == {"x": "1", "y": "2"}
    changed = kube.patch(PODS, "a", ({"op": "replace", "path": "/metadata/labels/x", "value": "3"},))
    assert changed["metadata"]["labels"]["x"] == "3"
    with pytest.raises(ConflictError, match="read it again"):
        kube.replace(PODS, {**made, "spec": {}})
    with pytest.raises(ConflictError):
        kube.delete(PODS, "a", uid="other")
    kube.delete(PODS, "a", uid=made["metadata"]["uid"])
    with pytest.raises(NotFoundError, match="get pods 'a' in namespace 'team': it does not exist"):
        kube.get(PODS, "a")
    assert fake_api.agents == {next(iter(fake_api.agents))}
    assert next(iter(fake_api.agents)).startswith("rerail")


def test_writes_are_strict_signed_and_may_be_dry(kube, fake_api):
    kube.create(PODS, pod("a"), dry_run=True)
    (path,) = [path for method, path in fake_api.requests if method == "POST"]
    assert "fieldValidation=Strict" in path
    assert "dryRun=All" in path
    assert "fieldManager=rerail" in path
    assert fake_api.find("pods") == []


def test_a_list_comes_in_pages_and_a_page_that_came_too_late_begins_anew(kube, fake_api):
    fake_api.page = 2
    for number in range(5):
        fake_api.put("pods", pod(f"p{number}"))
    assert len(kube.list(PODS).items) == 5
    compacted = []

    def compact(*_: str) -> None:
        if not compacted:
            compacted.append(fake_api.put("pods", pod("late")))
            fake_api.compact()

    fake_api.hooks.append(compact)
    assert len(kube.list(PODS).items) == 6


@pytest.mark.parametrize("code", [429, 500, 503, 504, 0])
def test_reads_are_tried_again(kube, fake_api, code):
    fake_api.put("pods", pod("a"))
    fake_api.fail("GET", "/pods", code, times=2)
    assert len(kube.list(PODS).items) == 1
    assert fake_api.asked("GET", "/pods") == 3


@pytest.mark.parametrize(("code", "tries"), [(429, 3), (503, 3), (500, 1), (0, 1)])
def test_writes_are_tried_again_only_where_they_were_not_carried_out(kube, fake_api, code, tries):
    fake_api.fail("POST", "/pods", code, times=2)
    if tries == 3:
        kube.create(PODS, pod("a"))
    else:
        with pytest.raises(ClusterUnreachableError) as caught:
            kube.create(PODS, pod("a"))
        assert caught.value.outcome_unknown
    assert fake_api.asked("POST", "/pods") == tries


def test_a_delete_with_a_uid_may_be_repeated_and_without_may_not(kube, fake_api):
    one = fake_api.put("pods", pod("a"))
    fake_api.lose_reply("DELETE", "/pods/a")
    with pytest.raises(NotFoundError):
        kube.delete(PODS, "a", uid=one["metadata"]["uid"])
    fake_api.put("pods", pod("a"))
    fake_api.lose_reply("DELETE", "/pods/a")
    with pytest.raises(ClusterUnreachableError):
        kube.delete(PODS, "a")


def test_retries_end(kube, fake_api):
    fake_api.fail("GET", "/pods", 503, times=10_000)
    begun = time.monotonic()
    with pytest.raises(ClusterUnreachableError, match="list pods in namespace 'team' now: the API server answered 503"):
        kube.list(PODS)
    assert time.monotonic() - begun < 10


def test_a_long_retry_after_is_no_hang(kubeconfig, fake_api):
    pauses: list[float] = []
    kube = KubeApi.connect(kubeconfig)
    kube.sleep = pauses.append
    fake_api.fail("GET", "/pods", 429, times=2, retry_after="3600")
    kube.list(PODS)
    assert pauses == [5.0, 5.0]
    kube.close()


def test_a_server_that_takes_requests_and_is_silent_is_told(kubeconfig, fake_api):
    kube = KubeApi.connect(kubeconfig, patience=Patience(request_s=0.3, total_s=0.5))
    fake_api.hang("GET", "/pods", times=100)
    with pytest.raises(ClusterUnreachableError, match=r"(?s)did not answer.*timed out"):
        kube.list(PODS)
    kube.close()


def test_a_server_that_is_not_there_is_told(tmp_path, fake_module):
    path = tmp_path / "config"
    path.write_text(fake_module.kubeconfig("http://127.0.0.1:9"))
    kube = KubeApi.connect(path, patience=Patience(total_s=0.1))
    with pytest.raises(ClusterUnreachableError, match="address in the kubeconfig") as caught:
        kube.create(PODS, pod("a"))
    assert not caught.value.outcome_unknown
    kube.close()


def test_a_missing_right_names_the_rule(kube, fake_api):
    fake_api.deny("create", "jobs")
    with pytest.raises(ForbiddenError, match="Add to a Role in namespace 'team'") as caught:
        kube.create(JOBS, {"metadata": {"name": "x"}})
    assert caught.value.rule == '- apiGroups: ["batch.volcano.sh"]\n  resources: ["jobs"]\n  verbs: ["create"]'
    fake_api.deny("get", "nodes")
    with pytest.raises(ForbiddenError, match="Add to a ClusterRole"):
        kube.get(NODES, "n1")
    assert kube.may("get", PODS)
    assert not kube.may("create", JOBS)


def test_missing_crds_are_told_apart_from_a_missing_object(kube, fake_api):
    with pytest.raises(NotFoundError, match="'x' in namespace 'team': it does not exist") as caught:
        kube.get(JOBS, "x")
    assert not isinstance(caught.value, NotInstalledError)
    fake_api.uninstall("batch.volcano.sh")
    with pytest.raises(NotInstalledError, match="Volcano's CRDs are not installed"):
        kube.get(JOBS, "x")


@pytest.mark.parametrize(
    ("code", "reason", "message", "details", "error", "words"),
    [
        (403, "Forbidden", 'pods "x" is forbidden: exceeded quota: gpus', {}, QuotaExceededError, "ResourceQuota raised"),  # noqa: E501
        (403, "Forbidden", "it is being terminated", {"causes": [{"reason": "NamespaceTerminating"}]}, ForbiddenError, "use another"),  # noqa: E501
        (403, "Forbidden", "violates PodSecurity", {}, ForbiddenError, "admission forbids it"),
        (404, "NotFound", 'namespaces "team" not found', {"name": "team", "kind": "namespaces"}, NotFoundError, "namespace 'team' does not exist"),  # noqa: E501
        (401, "Unauthorized", "Unauthorized", {}, RefusedError, "renew the login"),
        (409, "AlreadyExists", "exists", {}, AlreadyExistsError, "choose another"),
        (409, "Conflict", "modified", {}, ConflictError, "read it again"),
        (410, "Expired", "too old", {}, ExpiredError, "list again"),
        (422, "Invalid", "x is invalid", {"causes": [{"field": "spec.tasks", "message": "Required"}]}, InvalidObjectError, "spec.tasks: Required"),  # noqa: E501
        (400, "BadRequest", 'strict decoding error: unknown field "spec.partitionPolicy"', {}, InvalidObjectError, "too old to know the field"),  # noqa: E501
        (400, "BadRequest", 'admission webhook "validatejob.volcano.sh" denied the request: queue x', {}, InvalidObjectError, "denied the request: queue x"),  # noqa: E501
        (413, "RequestEntityTooLarge", "limit is 3145728", {}, InvalidObjectError, "limit is"),
        (429, "TooManyRequests", "slow down", {"retryAfterSeconds": 7}, ClusterUnreachableError, "429"),
        (500, "InternalError", "failed calling webhook", {}, ClusterUnreachableError, "failed calling webhook"),
    ],
)  # fmt: skip
def test_each_answer_has_its_error(code, reason, message, details, error, words):  # noqa: PLR0917
    body = {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}
    told = error_of(code, json.dumps(body).encode(), Call("create", JOBS, "team", "x"))
    assert type(told) is error
    assert "create jobs.batch.volcano.sh 'x' in namespace 'team'" in str(told)
    assert words in str(told)
    if code == 429:
        assert told.retry_after_s == 7


def test_an_answer_of_a_proxy_is_told_as_it_is():
    told = error_of(502, b"<html>bad gateway</html>", Call("list", JOBS, None))
    assert "in all namespaces" in str(told)
    assert "bad gateway" in str(told)


@pytest.mark.parametrize("name", ["", "a/b", ".."])
def test_names_cannot_leave_their_path(kube, name):
    with pytest.raises(UsageError):
        kube.get(PODS, name)


def test_the_light_modules_bring_no_client_with_them():
    code = (
        "import sys; import rerail.plugins.volcano, rerail.plugins.volcano.check; "
        "sys.exit('kubernetes' in sys.modules or 'urllib3' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=Path("/")).returncode == 0
