"""The fake API server of tests/kube, a client of it, and a job controller of three lines."""

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rerail.plugins.kube.api import Patience
from rerail.plugins.volcano import Task, VolcanoClient, VolcanoJob

SUPPORT = Path(__file__).parents[1] / "kube" / "support" / "fake_api.py"


def load() -> ModuleType:
    name = "rerail_test_fake_api"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, SUPPORT)
        assert spec
        assert spec.loader
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture
def fake_module() -> ModuleType:
    return load()


@pytest.fixture
def fake_api() -> Iterator[Any]:
    api, stop = load().serve()
    yield api
    stop()


@pytest.fixture
def kubeconfig(fake_api, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(load().kubeconfig(fake_api.url))
    return path


@pytest.fixture
def client(kubeconfig: Path) -> Iterator[VolcanoClient]:
    patience = Patience(request_s=5.0, total_s=3.0, first_pause_s=0.01, longest_pause_s=0.1)
    with VolcanoClient.connect(kubeconfig, patience=patience) as one:
        yield one


@pytest.fixture
def make_job() -> Callable[..., VolcanoJob]:
    def make(name: str = "train-a1", replicas: int = 2, **spec: Any) -> VolcanoJob:
        container = {"name": "main", "image": "registry.invalid/train", "command": ["sleep", "inf"]}
        template = {"spec": {"restartPolicy": "Never", "containers": [container]}}
        tasks = [Task(name="worker", replicas=replicas, template=template)]
        body: dict[str, Any] = {"scheduler_name": "volcano", "min_available": replicas, "tasks": tasks} | spec
        return VolcanoJob(metadata={"name": name}, spec=body)

    return make


@pytest.fixture
def real_cluster() -> str:
    """The kubeconfig of a real cluster with Volcano's CRDs."""
    path = os.environ.get("RERAIL_TEST_KUBECONFIG", "")
    if not path:
        pytest.skip("no real API server: RERAIL_TEST_KUBECONFIG is not set (make cluster-up prints it)")
    return path
