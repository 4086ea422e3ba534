"""One contract, three worlds: folders of this machine, the fake API server of tests/kube, and a real one.

The real one (RERAIL_TEST_KUBECONFIG) gets node objects of its own, which no kubelet serves; they are removed again.
"""

import importlib.util
import json
import os
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rerail.plugins.kube.api import KubeApi, Patience
from rerail.plugins.kube.resources import NODES, PODS
from rerail.plugins.nodes.kube import KubeNodes
from rerail.plugins.nodes.local import INCIDENTS, LocalNodes
from rerail.policies.errors import NotFoundError

SUPPORT = Path(__file__).parents[1] / "kube" / "support"
GPU = "nvidia.com/gpu"
NOT_READY = {"key": "node.kubernetes.io/not-ready", "operator": "Exists"}  # admission adds it to every new node
NOT_FOR_OTHERS = {"key": "rerail.dev/test", "value": "nodes", "effect": "NoSchedule"}
PATIENCE = Patience(request_s=5.0, total_s=3.0, first_pause_s=0.01, longest_pause_s=0.1)
DEADLINE_S = 20.0
LINE = "2026-11-29T20:00:00.000000+00:00 n kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"


def load(module: str = "fake_api") -> ModuleType:
    name = f"rerail_test_{module}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, SUPPORT / f"{module}.py")
        assert spec
        assert spec.loader
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def until(test: Callable[[], Any], *, what: str = "") -> Any:
    """Wait until ``test`` gives something true."""
    end = time.monotonic() + DEADLINE_S
    while not (found := test()):
        assert time.monotonic() < end, what or "it did not come in time"
        time.sleep(0.01)
    return found


@pytest.fixture(name="until")
def _until() -> Callable[..., Any]:
    return until


def stamp() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def condition(type_: str, status: str, reason: str = "", message: str = "", at: str = "") -> dict[str, str]:
    return {
        "type": type_,
        "status": status,
        "reason": reason or "Told",
        "message": message,
        "lastTransitionTime": at or stamp(),
    }


def gpu_node(name: str, gpus: int = 2, **labels: str) -> dict[str, Any]:
    amounts = {GPU: str(gpus), "pods": "110", "cpu": "8"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/os": "linux", "kubernetes.io/hostname": name, **labels}},
        "spec": {},
        "status": {"capacity": amounts, "allocatable": dict(amounts), "conditions": [condition("Ready", "True")]},
    }


def gpu_pod(name: str, node: str, gpus: int = 1, namespace: str = "default", **spec: Any) -> dict[str, Any]:
    amounts = {"requests": {GPU: str(gpus)}, "limits": {GPU: str(gpus)}}
    container = {"name": "main", "image": "registry.invalid/x", "resources": amounts}
    body = {
        "nodeName": node,
        "containers": [container],
        "restartPolicy": "Never",
        "tolerations": [{"operator": "Exists"}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {**body, **spec},
        "status": {"phase": "Pending"},
    }


@pytest.fixture(name="made")
def _made() -> ModuleType:
    """Makers of objects."""
    return sys.modules[__name__]


@pytest.fixture
def fake_module() -> ModuleType:
    return load()


@pytest.fixture
def fake_api() -> Iterator[Any]:
    api, stop = load().serve()
    yield api
    stop()


@pytest.fixture
def kube(fake_api, tmp_path: Path) -> Iterator[KubeApi]:
    path = tmp_path / "kubeconfig"
    path.write_text(load().kubeconfig(fake_api.url))
    api = KubeApi.connect(path, patience=PATIENCE)
    yield api
    api.close()


@pytest.fixture
def start(kube) -> Iterator[Callable[..., KubeNodes]]:
    """Start ``KubeNodes`` on the fake; all are closed at the end."""
    running: list[KubeNodes] = []

    def begin(**options: Any) -> KubeNodes:
        running.append(KubeNodes(kube, **options))
        return running[-1]

    yield begin
    for one in running:
        one.close()


@dataclass
class Hour:
    """A wall clock that a test sets."""

    at_s: float = field(default_factory=lambda: float(int(time.time())))

    def __call__(self) -> float:
        return self.at_s


class Local:
    """Nodes that are folders."""

    def __init__(self, folder: Path) -> None:
        self.names = ("n1", "n2")
        self.hour = Hour()
        self._folder = folder
        self._used: dict[str, int] = {}
        self.nodes = self.again()
        for name in self.names:
            self.nodes.add(name, 2)

    def again(self) -> LocalNodes:
        return LocalNodes(self._folder, used=lambda: self._used, wall_s=self.hour)

    def use(self, name: str) -> None:
        self._used[name] = self._used.get(name, 0) + 1

    def cordon(self, name: str) -> None:
        self.nodes.update(name, lambda node: node.model_copy(update={"unschedulable": True}))

    def fault(self, name: str) -> None:
        with (self._folder / name / "kern.log").open("a") as log:
            log.write(LINE)

    def noted(self, name: str) -> list[str]:
        return json.loads(self.nodes.read(name).annotations.get(INCIDENTS, "[]"))

    def close(self) -> None:
        pass


class Cluster:
    """Node objects of an API server, the fake or a real one."""

    def __init__(self, api: KubeApi) -> None:
        self.id = uuid.uuid4().hex[:8]
        self.names = (f"rerail-test-{self.id}-1", f"rerail-test-{self.id}-2")
        self.hour = Hour()
        self.api = api
        self._running: list[KubeNodes] = []
        self._pods: list[str] = []
        for name in self.names:
            node = gpu_node(name, **{"rerail.dev/test": self.id})
            node["spec"]["taints"] = [NOT_FOR_OTHERS]
            api.create(NODES, node)
            self._status(name, {key: node["status"][key] for key in ("capacity", "allocatable", "conditions")})
        self.nodes = self.again()

    def _status(self, name: str, status: dict[str, Any]) -> None:
        self.api.patch(NODES, name, {"status": status}, kind="strategic", subresource="status")

    def again(self) -> KubeNodes:
        options: dict[str, Any] = {
            "node_selector": {"rerail.dev/test": self.id},
            "tolerations": [NOT_READY, NOT_FOR_OTHERS],
        }
        self._running.append(KubeNodes(self.api, wall_s=self.hour, **options))
        return self._running[-1]

    def use(self, name: str) -> None:
        self._pods.append(f"rerail-test-{self.id}-{len(self._pods)}")
        self.api.create(PODS, gpu_pod(self._pods[-1], name), namespace="default")

    def cordon(self, name: str) -> None:
        self.api.patch(NODES, name, {"spec": {"unschedulable": True}})

    def fault(self, name: str) -> None:
        self._status(name, {"conditions": [condition("NvidiaXID79Error", "True", "NodeHasNvidiaXID79Error")]})

    def noted(self, name: str) -> list[str]:
        text = self.api.get(NODES, name)["metadata"].get("annotations", {}).get(INCIDENTS, "[]")
        return [one["incident"] for one in json.loads(text)]

    def close(self) -> None:
        for one in self._running:
            one.close()
        for pod in self._pods:
            with suppress(NotFoundError):
                self.api.delete(PODS, pod, namespace="default", grace_s=0)
        for name in self.names:
            with suppress(NotFoundError):
                self.api.delete(NODES, name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "real_api" in getattr(item, "fixturenames", ()):
            item.add_marker("cluster")


@pytest.fixture
def real_api() -> Iterator[KubeApi]:
    path = os.environ.get("RERAIL_TEST_KUBECONFIG", "")
    if not path:
        pytest.skip("no real API server: RERAIL_TEST_KUBECONFIG is not set (make cluster-up prints it)")
    api = KubeApi.connect(path)
    yield api
    api.close()


@pytest.fixture(params=["local", "fake", pytest.param("real", marks=pytest.mark.cluster)])
def world(request, tmp_path: Path) -> Iterator[Local | Cluster]:
    if request.param == "local":
        one: Local | Cluster = Local(tmp_path / "nodes")
    else:
        one = Cluster(request.getfixturevalue("kube" if request.param == "fake" else "real_api"))
    yield one
    one.close()
