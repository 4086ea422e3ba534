"""The cluster as a test uses it: kubectl, waits, and pods that run Python code."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from rig import layout, machines

DEADLINE_S = 300.0
EVERY_POD = ("get", "pods", "-A", "-o", "wide")


@dataclass(frozen=True)
class Cluster:
    kubeconfig: Path
    image: str
    bucket: str
    s3_env: Mapping[str, str]
    """What reaches the S3 server, from pods and from here."""
    volcano: str
    """Which Volcano runs: "real, from FOLDER", "stand-in" or "none"."""
    full: bool
    """Whether this run takes every case."""
    program: str
    """kubectl."""
    ours: bool
    """Whether it is the cluster that ``rig up`` made: only its nodes can be stopped and cut off."""

    def node(self, name: str) -> layout.Node:
        """A node of our own cluster, for ``rig.machines`` and ``rig.network``; skips the test on another cluster."""
        if not self.ours:
            pytest.skip("only the nodes of our own cluster can be stopped or cut off")
        return next(node for node in layout.nodes(layout.MAX_NODES) if node.name == name)

    def ready_nodes(self) -> dict[str, Any]:
        nodes = {node["metadata"]["name"]: node for node in self.read("nodes")["items"]}
        conditions = {name: node["status"].get("conditions", []) for name, node in nodes.items()}
        good = {
            name for name, found in conditions.items() if ("Ready", "True") in {(c["type"], c["status"]) for c in found}
        }
        return {name: nodes[name] for name in sorted(good)}

    def gpus(self) -> int:
        """GPUs of each node; skips the test where nodes differ."""
        counts = {int(node["status"]["allocatable"].get(machines.GPU, 0)) for node in self.ready_nodes().values()}
        if len(counts) != 1:
            pytest.skip(f"the nodes have different numbers of GPUs: {sorted(counts)}")
        return counts.pop()

    @contextmanager
    def condition(self, node: str, condition: Mapping[str, str]) -> Iterator[None]:
        """A condition of a node, as a health agent would report it; it is healthy again, and unmarked, afterwards."""
        self._report(node, condition)
        try:
            yield
        finally:
            self._report(node, {**condition, "status": "False"})
            self.unmark(node)

    def unmark(self, node: str) -> None:
        """Forget what Rerail noted on a node."""
        self.kubectl("taint", "node", node, "rerail.dev/quarantined-", check=False)
        marks = ("incident-", "incidents-", "released-at-")
        self.kubectl("annotate", "node", node, *(f"rerail.dev/{mark}" for mark in marks), check=False)

    def heal(self) -> None:
        """Make all nodes of our own cluster as sound as they were at first; a test that was killed left them so."""
        for node in self.read("nodes")["items"]:
            name = node["metadata"]["name"]
            if node["spec"].get("taints") or "rerail.dev/" in str(node["metadata"]["annotations"]):
                self.kubectl("uncordon", name, check=False)  # a node that another session made may be gone
                self.unmark(name)
            for condition in node["status"]["conditions"]:
                if condition["type"].startswith("Nvidia") and condition["status"] == "True":
                    self._report(name, {**condition, "status": "False"})

    def _report(self, node: str, condition: Mapping[str, str]) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        whole = {**condition, "lastHeartbeatTime": now, "lastTransitionTime": now}
        patch = json.dumps({"status": {"conditions": [whole]}})
        self.kubectl("patch", "node", node, "--subresource=status", "--type=strategic", f"--patch={patch}")

    def kubectl(self, *arguments: str, document: Any = None, check: bool = True) -> str:
        command = [self.program, f"--kubeconfig={self.kubeconfig}", *arguments]
        text = None if document is None else json.dumps(document)
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False, timeout=DEADLINE_S)
        if check and done.returncode:
            raise AssertionError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def read(self, *arguments: str) -> Any:
        return json.loads(self.kubectl("get", *arguments, "-o", "json"))

    def wait(self, what: str, condition: Callable[[], bool], deadline_s: float = DEADLINE_S) -> float:
        """Wait for a condition; returns the seconds that it took."""
        start = time.monotonic()
        while not condition():
            if time.monotonic() - start > deadline_s:
                raise AssertionError(f"{what}: not within {deadline_s:.0f} s\n{self.kubectl(*EVERY_POD)}")
            time.sleep(0.2)
        return time.monotonic() - start


@dataclass(frozen=True)
class Pods:
    cluster: Cluster
    namespace: str

    def start(
        self, name: str, code: str, *, gpus: int = 0, node: str = "", env: Mapping[str, str] | None = None, **spec: Any
    ) -> None:
        """Start a pod that runs Python code, with the S3 variables; ``spec`` goes into the pod's spec."""
        variables = {**self.cluster.s3_env, "BUCKET": self.cluster.bucket, **(env or {})}
        container: dict[str, Any] = {
            "name": "main",
            "image": self.cluster.image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["python3", "-uc", code],
            "env": [{"name": key, "value": value} for key, value in variables.items()],
        }
        if gpus:
            container["resources"] = {"limits": {machines.GPU: str(gpus)}}
        if node:
            spec["nodeSelector"] = {"kubernetes.io/hostname": node}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": self.namespace, "labels": {"pod": name}},
            "spec": {
                "restartPolicy": "Never",
                "terminationGracePeriodSeconds": 1,
                "containers": [container],
                **spec,
            },
        }
        self.cluster.kubectl("create", "-f", "-", document=pod)

    def get(self, name: str) -> Any:
        return self.cluster.read("pod", name, "-n", self.namespace)

    def wait(self, name: str, *phases: str, deadline_s: float = DEADLINE_S) -> Any:
        def reached() -> bool:
            phase = self.get(name)["status"]["phase"]
            if phase == "Failed" and phase not in phases:
                raise AssertionError(f"pod {name} failed: {self.log(name)}")
            return phase in phases

        self.cluster.wait(f"pod {name} is {' or '.join(phases)}", reached, deadline_s)
        return self.get(name)

    def log(self, name: str) -> str:
        return self.cluster.kubectl("logs", name, "-n", self.namespace, check=False)
