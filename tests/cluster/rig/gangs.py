"""Gangs for tests: vcjobs that ask for slots, a resource that no other test asks for."""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from rerail.plugins.kube.api import KubeApi
from rerail.plugins.kube.resources import EVENTS, PODS
from rerail.plugins.volcano import PodGroup, Queue, VolcanoClient, VolcanoJob
from rerail.policies.errors import NotFoundError
from rig.access import Cluster

SLOT = "rerail.test/slot"
SLOTS_PER_NODE = 2
WAIT_S = 180.0
HOLD_S = 3.0
"""How long a test looks that something does *not* happen: three sessions of the scheduler; twice that in full."""

ON_TERM = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit({code})); "
    "print('listens', flush=True); time.sleep(600)"
)
"""Leaves with this code when told to go."""
SLEEP = ON_TERM.format(code=143)
DEAF = "import time; time.sleep(600)"
"""As process 1 it does not hear SIGTERM, and goes at the end of its grace."""


def when_ranks(*ranks: int, then: str, others: str = SLEEP) -> str:
    """Code for some ranks (by the variable of the plugin env), and code for the others."""
    choose = f"import os; code = {then!r} if int(os.environ['VC_TASK_INDEX']) in {ranks!r} else {others!r}"
    return f"{choose}; exec(code)"


def after(seconds: float, code: int) -> str:
    """Code that leaves with an exit code after some seconds."""
    return f"import sys, time; time.sleep({seconds}); sys.exit({code})"


full = pytest.mark.skipif(os.environ.get("RERAIL_CLUSTER") != "full", reason="only in full: make cluster-test-full")


def policy(action: str, *events: str, **more: Any) -> dict[str, Any]:
    return {"action": action, **({"events": list(events)} if events else {}), **more}


@dataclass(frozen=True)
class Gangs:
    cluster: Cluster
    namespace: str
    client: VolcanoClient

    @property
    def api(self) -> KubeApi:
        return self.client.api

    def only_real(self, what: str) -> None:
        """Skip what the stand-in refuses, by name."""
        if not self.cluster.volcano.startswith("real"):
            pytest.skip(f"the stand-in does not play {what}: RERAIL_VOLCANO_BIN")

    def container(self, code: str, resources: Mapping[str, int]) -> dict[str, Any]:
        asked = {"resources": {"limits": {name: str(count) for name, count in resources.items()}}} if resources else {}
        return {
            "name": "main",
            "image": self.cluster.image,
            "imagePullPolicy": "IfNotPresent",
            "command": ["python3", "-uc", code],
            **asked,
        }

    def submit(
        self,
        name: str,
        replicas: int,
        code: str = SLEEP,
        *,
        policies: Sequence[Mapping[str, Any]] = (),
        min_available: int | None = None,
        grace_s: int = 1,
        slots: int = 1,
        annotations: Mapping[str, str] | None = None,
        pod: Mapping[str, Any] | None = None,
        **spec: Any,
    ) -> VolcanoJob:
        """Create a job of one task ``rank``; ``pod`` goes into the pods' spec, ``spec`` into the job's."""
        needed = replicas if min_available is None else min_available
        template = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": grace_s,
            "containers": [self.container(code, {SLOT: slots} if slots else {})],
            **(pod or {}),
        }
        task = {"name": "rank", "replicas": replicas, "minAvailable": needed, "template": {"spec": template}}
        body = {
            "metadata": {"name": name, "namespace": self.namespace, "annotations": dict(annotations or {})},
            "spec": {
                "schedulerName": "volcano",
                "minAvailable": needed,
                "plugins": {"env": []},
                "policies": list(policies),
                "tasks": [task],
                **spec,
            },
        }
        return self.client.create(VolcanoJob.from_dict(body))

    def run(self, name: str, replicas: int, code: str = SLEEP, **options: Any) -> VolcanoJob:
        """Submit a job and wait until all its pods run."""
        job = self.submit(name, replicas, code, **options)
        self.wait_pods(job, replicas, "Running")
        return self.phase(name, "Running")

    def job(self, name: str) -> VolcanoJob:
        return self.client.get(VolcanoJob, name)

    def phase(self, name: str, *phases: str, fail_on: Sequence[str] = (), timeout_s: float = WAIT_S) -> VolcanoJob:
        return self.client.wait(VolcanoJob, name, phases, fail_on=fail_on, timeout_s=timeout_s, poll_s=2)

    def listens(self, pod: str) -> None:
        """Wait until a pod of ``ON_TERM`` hears SIGTERM: before that, process 1 ignores it."""
        logs = ("logs", pod, "-n", self.namespace)
        self.cluster.wait("it listens", lambda: "listens" in self.cluster.kubectl(*logs, check=False))

    def pods(self, job: str | VolcanoJob) -> dict[str, Any]:
        """The pods of a job by name."""
        name = job if isinstance(job, str) else job.name
        found = self.api.list(PODS, labels={"volcano.sh/job-name": name}).items
        return {pod["metadata"]["name"]: pod for pod in found}

    def in_phase(self, job: str | VolcanoJob, phase: str) -> dict[str, Any]:
        """Those of its pods in a phase that nobody has told to go."""
        return {
            name: pod
            for name, pod in self.pods(job).items()
            if pod["status"].get("phase") == phase and "deletionTimestamp" not in pod["metadata"]
        }

    def wait_pods(self, job: str | VolcanoJob, count: int, phase: str) -> dict[str, Any]:
        name = job if isinstance(job, str) else job.name
        self.cluster.wait(
            f"{count} pods of {name} are {phase}", lambda: len(self.in_phase(job, phase)) == count, WAIT_S
        )
        return self.in_phase(job, phase)

    def uids(self, job: str | VolcanoJob) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.pods(job).values()}

    def delete_pod(self, name: str) -> None:
        self.api.delete(PODS, name)

    def group(self, job: VolcanoJob) -> PodGroup | None:
        try:
            return self.client.get(PodGroup, job.pod_group_name)
        except NotFoundError:
            return None

    def holds(self, what: str, condition: Any, hold_s: float = HOLD_S) -> None:
        """Look for a while that something stays true."""
        begun, hold_s = self.api.clock(), hold_s * (2 if self.cluster.full else 1)
        while self.api.clock() - begun < hold_s:
            assert condition(), what
            self.api.sleep(0.5)

    def waits_for_room(self, job: VolcanoJob) -> None:
        """Wait until the scheduler says that it cannot place a job."""

        def told() -> bool:
            group = self.group(job)
            return group is not None and group.unschedulable is not None

        self.cluster.wait(f"the group of {job.name} is unschedulable", told, WAIT_S)

    def queue(self, name: str, **spec: Any) -> Queue:
        queue = self.client.create(Queue.from_dict({"metadata": {"name": name}, "spec": spec}))
        return self.client.wait(Queue, queue.name, {"Open"}, timeout_s=WAIT_S, poll_s=2)

    def events(self, about: str) -> list[dict[str, Any]]:
        return list(self.api.list(EVENTS, fields=f"involvedObject.name={about}").items)

    def annotate(self, job: VolcanoJob, key: str) -> set[str]:
        """The values of an annotation of the job's pods."""
        return {pod["metadata"]["annotations"].get(key) for pod in self.pods(job).values()}


def set_slots(cluster: Cluster, node: str, count: int | None) -> None:
    """Give a node slots; None takes them all away."""
    key = SLOT.replace("/", "~1")
    value = {} if count is None else {"value": str(count)}
    operation = "remove" if count is None else "add"
    patch = [{"op": operation, "path": f"/status/{part}/{key}", **value} for part in ("capacity", "allocatable")]
    # Taking away what another session took away already is no error.
    asked = ("patch", "node", node, "--subresource=status", "--type=json", "-p", json.dumps(patch))
    cluster.kubectl(*asked, check=count is not None)


@contextmanager
def no_slots(cluster: Cluster) -> Iterator[None]:
    """Take all slots away for a while; who has some keeps them."""
    nodes = sorted(cluster.ready_nodes())[:2]
    for node in nodes:
        set_slots(cluster, node, 0)
    try:
        yield
    finally:
        for node in nodes:
            set_slots(cluster, node, SLOTS_PER_NODE)


def victims(pods: Mapping[str, Any]) -> set[str]:
    """Names of the pods that a scheduler marked for disruption."""
    return {
        name
        for name, pod in pods.items()
        for condition in pod["status"].get("conditions", [])
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True"
    }
