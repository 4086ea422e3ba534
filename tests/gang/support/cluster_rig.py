"""One backend of a cluster on the fake API server of tests/kube; tests play the controllers."""

import importlib.util
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

from rerail.plugins.gang.cluster import GangWatch
from rerail.plugins.gang.fanout import FanoutBackend
from rerail.plugins.gang.podgroup import PodGroupBackend
from rerail.plugins.gang.pods import PodMemory
from rerail.plugins.gang.vcjob import VcjobBackend
from rerail.plugins.kube.api import Patience
from rerail.plugins.volcano import VolcanoClient
from rerail.policies.errors import ClusterUnreachableError
from rerail.policies.recovery import RecoveryPolicy
from rerail.policies.supervisor.state import GangSpec, PodSpec
from rerail.policies.workloads.fanout import as_rank
from rerail.policies.workloads.reading import read_workload

SUPPORT = Path(__file__).parents[2] / "kube" / "support" / "fake_api.py"
TEAM = "team"
GANG = "run-a1"
DEADLINE_S = 20.0
JOB = {
    "apiVersion": "batch.volcano.sh/v1alpha1",
    "kind": "Job",
    "metadata": {"name": "run"},
    "spec": {
        "queue": "training",
        "tasks": [
            {
                "name": "worker",
                "replicas": 2,
                "template": {
                    "spec": {
                        "restartPolicy": "Never",
                        "containers": [{"name": "main", "image": "registry.invalid/train", "command": ["train"]}],
                    }
                },
            }
        ],
    },
}


def load() -> ModuleType:
    name = "rerail_test_fake_api"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, SUPPORT)
        assert spec
        assert spec.loader
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def versions(ones: Iterable[dict[str, Any]]) -> set[tuple[str, str]]:
    return {(one["metadata"]["name"], one["metadata"]["resourceVersion"]) for one in ones}


@dataclass
class Time:
    """A monotonic clock that a test sets."""

    at_s: float = 1000.0

    def __call__(self) -> float:
        return self.at_s


@dataclass
class Rig:
    """One backend on the fake API server, and the parts of the cluster's controllers that a test plays."""

    kind: str
    api: Any
    backend: VcjobBackend | PodGroupBackend
    clock: Time
    ready: dict[str, bool] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"{GANG}-{pod.suffix}" for pod in self.backend.shape)

    @property
    def plural(self) -> str:
        """Of the object that stands for the gang."""
        return "jobs" if self.kind == "vcjob" else "podgroups"

    @property
    def spec(self) -> GangSpec:
        pods = tuple(
            PodSpec(name=f"{GANG}-{pod.suffix}", node="", first_rank=pod.first_rank, ranks=pod.ranks)
            for pod in self.backend.shape
        )
        return GangSpec(name=GANG, world_size=2, pods=pods)

    def pods(self) -> list[dict[str, Any]]:
        """The gang's pods as the backend's watch has them."""
        return list(self.backend.watch.snapshot().pods.get(GANG, []))

    def object_seen(self) -> bool:
        """Whether the backend's watch has the object that stands for the gang."""
        seen = self.backend.watch.snapshot()
        return GANG in (seen.jobs if self.kind == "vcjob" else seen.groups)

    def view(self) -> Any:
        return self.backend.view(GANG)

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait until the backend's watches have it."""
        end = time.monotonic() + DEADLINE_S
        while not (found := condition()):
            assert time.monotonic() < end, f"it did not come in time: {self.view()}"
            time.sleep(0.005)
        return found

    @staticmethod
    def stamp(in_s: float) -> str:
        """A time of the cluster, so many seconds from now."""
        return (datetime.now(UTC) + timedelta(seconds=in_s)).isoformat(timespec="seconds").replace("+00:00", "Z")

    @staticmethod
    def ended(code: int, *, message: str = "", reason: str = "Error") -> dict[str, Any]:
        """Status of a container that ended."""
        return {"name": "main", "state": {"terminated": {"exitCode": code, "reason": reason, "message": message}}}

    @staticmethod
    def refusal(code: int, message: str, reason: str | None = None) -> dict[str, Any]:
        """The body of an answer that refuses."""
        return dict(load().status(code, message, reason))

    def level(self) -> None:
        """Wait until the backend's watches have what the API server has, unless it is told to fail."""
        if any(one.method == "GET" and one.times > 0 for one in self.api.faults):
            return
        watch = self.backend.watch
        caches = {"podgroups": watch._groups, **({"jobs": watch._jobs} if watch._jobs else {})}

        def so() -> bool:
            try:
                seen = {plural: cache.values() for plural, cache in caches.items()}
                seen["pods"] = [pod for pods in watch.snapshot().pods.values() for pod in pods]
            except ClusterUnreachableError:
                return False
            return all(versions(ones) == versions(self.api.find(plural)) for plural, ones in seen.items())

        self.until(so)

    def wait_phase(self, number: int, phase: str) -> Any:
        """Wait until a pod is seen in a phase; returns how it is seen."""
        self.until(lambda: (pods := self.view().pods) and pods[number].phase == phase)
        return self.view().pods[number]

    def submit(self) -> None:
        self.backend.submit(self.spec)
        self.until(lambda: not self.view().absent)

    def pod(self, name: str, phase: str = "Running", *, node: str | None = None, **status: Any) -> None:
        """A pod as the controller makes it, or another state of the one that is there."""
        known = {one["metadata"]["name"]: one for one in self.api.find("pods")}
        labels = {"rerail.dev/run": "run", "rerail.dev/gang": GANG}
        one = known.get(name) or {"metadata": {"name": name, "namespace": TEAM, "labels": labels}}
        conditions = [{"type": "Ready", "status": "True"}] if phase == "Running" else []
        conditions += status.pop("conditions", [])
        spec = one.get("spec") or {}
        where = spec.pop("nodeName", "n1") if node is None else node
        one["spec"] = {**spec, **({"nodeName": where} if where else {})}
        one["status"] = {"phase": phase, "conditions": conditions, **status}
        self.api.put("pods", one)

    def group(self, phase: str, **more: Any) -> None:
        """The gang's PodGroup, as scheduler and controller write it."""
        found = [one for one in self.api.find("podgroups") if one["metadata"]["name"].startswith(GANG)]
        labels = {"rerail.dev/run": "run", "rerail.dev/gang": GANG}
        one = found[0] if found else {"metadata": {"name": f"{GANG}-1", "namespace": TEAM, "labels": labels}}
        one["spec"] = {"minMember": 2, "queue": "training", **(one.get("spec") or {})}
        one["status"] = {"phase": phase, **more}
        self.api.put("podgroups", one)

    def phase(self, phase: str) -> None:
        """The gang's own phase, where it has one."""
        if self.kind == "vcjob":
            self.api.change("jobs", TEAM, GANG, lambda job: job.update(status={"state": {"phase": phase}}))

    def run_pods(self) -> None:
        """Place and start every pod."""
        self.phase("Running")
        self.group("Running")
        for number, name in enumerate(self.names):
            self.pod(name, node=f"n{number + 1}")

    def run(self) -> None:
        """Submit, and place and start every pod."""
        self.submit()
        self.run_pods()
        self.until(lambda: [pod.phase for pod in self.view().pods] == ["running"] * 2)
        self.until(lambda: not self.view().waits)

    def deadlines(self) -> list[int]:
        """Grace of each deletion of pods that was asked for."""
        return [
            body["gracePeriodSeconds"]
            for method, path, body in self.api.bodies
            if method == "DELETE" and "/pods?" in path
        ]


def start(fake: Any, folder: Path, kind: str, *, ready: dict[str, bool], clock: Time) -> VcjobBackend | PodGroupBackend:
    path = folder / "kubeconfig"
    path.write_text(load().kubeconfig(fake.url))
    patience = Patience(request_s=20.0, total_s=0.3, first_pause_s=0.01, longest_pause_s=0.1)
    client = VolcanoClient.connect(path, patience=patience)
    workload = read_workload(JOB, "job.yaml")
    watch = GangWatch("run", client, with_jobs=kind == "vcjob", memory=PodMemory(node_ready=ready.get), clock=clock)
    if kind == "fanout":
        watch.as_ours = as_rank
    chosen = {"vcjob": VcjobBackend, "podgroup": PodGroupBackend, "fanout": FanoutBackend}[kind]
    return chosen(workload, watch, "s3://bucket/runs", RecoveryPolicy())


@contextmanager
def rigged(kind: str, fake: Any, folder: Path) -> Iterator[Rig]:
    """A backend with its watches running."""
    ready: dict[str, bool] = {}
    clock = Time()
    backend = start(fake, folder, kind, ready=ready, clock=clock)
    with backend.watch:
        yield Rig(kind, fake, backend, clock, ready)
    backend.watch.client.close()
