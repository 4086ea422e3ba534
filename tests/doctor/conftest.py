"""`rerail doctor` against the fake API server of tests/kube, with what a sound cluster holds."""

import importlib.util
import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from rerail.plugins.cli.main import build
from rerail.plugins.evict.extender_manifests import scheduler_conf

SUPPORT = Path(__file__).parents[1] / "kube" / "support" / "fake_api.py"


KINDS = {
    "deployments": ("apps", "Deployment"),
    "daemonsets": ("apps", "DaemonSet"),
    "customresourcedefinitions": ("apiextensions.k8s.io", "CustomResourceDefinition"),
    "workflows": ("argoproj.io", "Workflow"),
    "workflowtemplates": ("argoproj.io", "WorkflowTemplate"),
    "cronworkflows": ("argoproj.io", "CronWorkflow"),
    "subjectaccessreviews": ("authorization.k8s.io", "SubjectAccessReview"),
}
VERSIONS = {
    "batch.volcano.sh": "v1alpha1",
    "bus.volcano.sh": "v1alpha1",
    "scheduling.volcano.sh": "v1beta1",
    "argoproj.io": "v1alpha1",
}


@dataclass
class Discovery:
    """What an API server says of itself."""

    api: Any
    known: dict[str, tuple[str, str]]
    more_groups: set[str] = field(default_factory=set)

    def __call__(self, path: str) -> tuple[int, dict[str, Any]] | None:
        if path == "/version":
            return 200, {"gitVersion": "v1.36.1"}
        groups = {group for group, _ in self.known.values() if group} - self.api.absent | self.more_groups
        if path == "/apis":
            served = [(group, VERSIONS.get(group, "v1")) for group in sorted(groups)]
            return 200, {"groups": [{"name": group, "versions": [{"version": one}]} for group, one in served]}
        found = re.fullmatch(r"/apis/([^/]+)/(v[^/]+)", path)
        if found and found[1] in groups and found[2] == VERSIONS.get(found[1], "v1"):
            return 200, {"resources": [{"name": one} for one, (of, _) in self.known.items() if of == found[1]]}
        return None


def load() -> ModuleType:
    name = "rerail_test_fake_api"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, SUPPORT)
        assert spec
        assert spec.loader
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def controller(image: str = "quay.invalid/argoproj/workflow-controller:v4.0.5", **env: str) -> dict[str, Any]:
    container = {"name": "c", "image": image, "env": [{"name": key, "value": value} for key, value in env.items()]}
    return {
        "metadata": {"name": "workflow-controller", "namespace": "argo"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A sound cluster: Volcano's scheduler as we print it, Argo 4.0.5 that looks every second."""
    fake = load()
    fake.KNOWN |= KINDS
    api, stop = fake.serve()
    api.answers = Discovery(api, fake.KNOWN)
    (tmp_path / "kubeconfig").write_text(fake.kubeconfig(api.url))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    monkeypatch.delenv("RERAIL_STORE", raising=False)
    monkeypatch.delenv("RERAIL_CONTROL", raising=False)
    api.absent |= {"nvsentinel.nvidia.com"}
    set_conf(api, scheduler_conf("http://extender:8765"))
    api.put("deployments", controller(DEFAULT_REQUEUE_TIME="1s"))
    yield api
    stop()


def set_conf(api: Any, document: Any) -> None:
    text = document if isinstance(document, str) else yaml.safe_dump(document)
    metadata = {"name": "volcano-scheduler-configmap", "namespace": "volcano-system"}
    api.put("configmaps", {"metadata": metadata, "data": {"volcano-scheduler.conf": text}})


@pytest.fixture
def doctor(cluster: Any) -> Callable[..., dict[str, list[dict[str, str]]]]:
    """Runs the command; findings by check, with its exit code under ``exit``."""
    del cluster

    def look(*words: str) -> dict[str, Any]:
        done = CliRunner().invoke(build(["doctor"]), ["doctor", "-o", "json", *words])
        assert done.exit_code in (0, 1), (done.output, done.exception)
        found: dict[str, Any] = {"exit": done.exit_code}
        for one in json.loads(done.stdout):
            found.setdefault(one["check"], []).append(one)
        return found

    return look
