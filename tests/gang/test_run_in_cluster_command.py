"""``rerail run --backend vcjob|podgroup`` up to the moment where it would create something: refusals and dry runs."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from rerail.plugins.cli.main import build
from rerail.plugins.kube.api import KubeApi, Patience
from rerail.plugins.volcano import VolcanoClient
from rerail.policies.errors import (
    ClusterUnreachableError,
    NotInstalledError,
    RefusedError,
    RerailError,
    UsageError,
)

JOB: dict[str, Any] = {
    "apiVersion": "batch.volcano.sh/v1alpha1",
    "kind": "Job",
    "metadata": {"name": "train"},
    "spec": {
        "queue": "training",
        "tasks": [
            {
                "name": "worker",
                "replicas": 2,
                "template": {"spec": {"containers": [{"name": "main", "image": "x", "command": ["train"]}]}},
            }
        ],
    },
}


class Command:
    """The command against the fake API server, with a store that is a folder on a volume of the pods."""

    def __init__(self, api: Any, folder: Path) -> None:
        self.api, self.folder = api, folder
        self.patience = Patience(request_s=20.0, total_s=0.3, first_pause_s=0.01)
        self.store = folder / "store"
        self.job = json.loads(json.dumps(JOB))
        spec = self.job["spec"]["tasks"][0]["template"]["spec"]
        spec["volumes"] = [{"name": "store", "hostPath": {"path": str(folder)}}]
        spec["containers"][0]["volumeMounts"] = [{"name": "store", "mountPath": str(folder)}]

    def __call__(self, *options: str, store: bool = True) -> str:
        path = self.folder / "job.yaml"
        path.write_text(yaml.safe_dump(self.job))
        where = [f"--store={self.store.as_uri()}"] if store else []
        done = CliRunner().invoke(build(["run"]), ["run", *options, *where, str(path)], catch_exceptions=True)
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        assert done.exit_code == 0, done.output
        return done.stdout

    def refused(self, kind: type[RerailError], *options: str, **more: Any) -> str:
        """The words of a refusal, after which nothing is there."""
        with pytest.raises(kind) as caught:
            self(*options, **more)
        assert not any(self.api.find(plural) for plural in ("jobs", "podgroups", "services", "pods", "configmaps"))
        assert not list(self.store.glob("train/**/*.json"))
        return str(caught.value)


@pytest.fixture
def command(cluster_api, make_rig, tmp_path, monkeypatch) -> Command:
    make_rig("vcjob")  # writes the kubeconfig
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.delenv("RERAIL_STORE", raising=False)
    made = Command(cluster_api, tmp_path)

    def connect(kubeconfig: Any = None, *, namespace: str | None = None) -> VolcanoClient:
        return VolcanoClient(KubeApi.connect(kubeconfig, namespace=namespace, patience=made.patience))

    monkeypatch.setattr(VolcanoClient, "connect", connect)
    return made


@pytest.fixture(params=["vcjob", "podgroup"])
def backend(request) -> str:
    return f"--backend={request.param}"


def test_without_volcano_it_says_so(command, backend):
    command.api.uninstall("scheduling.volcano.sh")
    command.api.uninstall("batch.volcano.sh")
    assert "Volcano's CRDs are not installed in this cluster" in command.refused(NotInstalledError, backend)


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_a_manifest_of_another_namespace_is_refused(command, backend, options):
    command.job["metadata"]["namespace"] = "other"
    words = command.refused(UsageError, backend, "--namespace=team", *options)
    assert "metadata.namespace = 'other', and gangs are watched in 'team'" in words


def test_an_old_volcano_is_told_by_the_field_that_it_does_not_know(command, backend):
    plural = "jobs" if "vcjob" in backend else "podgroups"
    body = {"kind": "Status", "message": 'strict decoding error: unknown field "spec.networkTopology"', "code": 400}
    command.api.fail("POST", f"/{plural}", 400, body=body)
    words = command.refused(RefusedError, backend)
    assert 'unknown field "spec.networkTopology"' in words
    assert "too old to know the field: leave it out or upgrade" in words


def test_a_queue_that_is_missing_or_closed_is_refused(command, backend):
    command.api.change("queues", "", "training", lambda one: one.update(status={"state": "Closed"}))
    assert "queue 'training' is Closed; open it, or name another" in command.refused(RefusedError, backend)
    command.api.remove("queues", "", "training")
    assert "queue 'training' does not exist; create it, or name another" in command.refused(RefusedError, backend)


def test_a_missing_right_is_refused_with_its_rule(command, backend):
    command.api.deny("deletecollection", "pods")
    words = command.refused(RefusedError, backend)
    assert 'resources: ["pods"]\n  verbs: ["deletecollection"]' in words


@pytest.mark.parametrize(("code", "say"), [(429, "answered 429"), (500, "answered 500"), (0, "did not answer")])
def test_an_api_server_that_does_not_answer_is_given_up_with_a_word(command, backend, code, say):
    command.api.fail("GET", "/queues", code, times=999)
    assert say in command.refused(ClusterUnreachableError, backend)


def test_an_api_server_that_hangs_is_given_up_with_a_word(command, backend):
    command.patience = replace(command.patience, request_s=1.0)
    command.api.hang("GET", "/queues", times=999)
    assert "did not answer" in command.refused(ClusterUnreachableError, backend)


def test_what_cannot_be_meant_is_bad_input(command):
    assert "use one of: local, vcjob, podgroup" in command.refused(UsageError, "--backend=mpi")
    assert "takes one FILE" in command.refused(UsageError, "--backend=vcjob", "another.yaml")
    assert "pass --store" in command.refused(UsageError, "--backend=vcjob", store=False)
    assert "belong to a cluster" in command.refused(UsageError, "--dry-run")
    command.job["spec"]["minAvailable"] = 3
    assert "is more than the 2 replicas" in command.refused(UsageError, "--backend=vcjob")
    del command.job["spec"]["minAvailable"]
    assert "at most 63" in command.refused(UsageError, "--backend=vcjob", f"--run={'x' * 50}")
    command.job["spec"]["tasks"][0]["template"]["spec"]["volumes"][0] = {"name": "store", "emptyDir": {}}
    assert "emptyDir" in command.refused(UsageError, "--backend=vcjob")


def test_a_dry_run_shows_a_vcjob_as_a_diff_with_every_reason_once(command):
    shown = command("--backend=vcjob", "--dry-run")
    assert "-  name: train\n+  name: train-a1\n" in shown
    assert "# each attempt is a fresh job under a name of its own:\n#     metadata.name\n" in shown
    reasons = [line for line in shown.splitlines() if line.startswith("# ") and line.endswith(":")]
    assert len(reasons) == len(set(reasons)) > 8
    document = json.loads(command("--backend=vcjob", "--dry-run", "--output=json"))
    assert document["objects"][0]["metadata"]["name"] == "train-a1"
    assert {"path": "metadata.name", "before": "train", "after": "train-a1"}.items() <= document["changes"][0].items()
    assert not command.api.find("jobs")
    assert not command.store.exists()


def test_a_dry_run_shows_the_objects_of_a_podgroup(command):
    shown = list(yaml.safe_load_all(command("--backend=podgroup", "--dry-run")))
    assert [one["kind"] for one in shown] == ["PodGroup", "Service", "Pod", "Pod"]
    assert [one["metadata"]["name"] for one in shown[2:]] == ["train-a1-0", "train-a1-1"]
    assert not command.api.find("podgroups")


def test_a_dry_run_that_would_be_refused_says_so_after_what_it_shows(command):
    command.api.remove("queues", "", "training")
    assert "does not exist" in command.refused(RefusedError, "--backend=vcjob", "--dry-run")


def test_a_run_keeps_its_manifest_and_its_policy(command, tmp_path, monkeypatch):
    from rerail.plugins.cli import run_cluster

    monkeypatch.setattr(run_cluster, "drive", lambda *_, **__: None)
    command("--backend=vcjob")
    assert list(command.store.glob("train/run.json"))
    command("--backend=vcjob")
    rules = tmp_path / "policy.yaml"
    rules.write_text("save_within_s: 33\n")
    with pytest.raises(UsageError, match=r"has a policy of its own in run\.json; leave --policy out"):
        command("--backend=vcjob", f"--policy={rules}")
    command.job["spec"]["tasks"][0]["replicas"] = 3
    with pytest.raises(UsageError, match="was begun with another manifest"):
        command("--backend=vcjob")
    shutil.rmtree(command.store)
    command("--backend=vcjob")
