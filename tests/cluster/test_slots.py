"""Nodes emptied for other healers, as these ask for it: NVSentinel by a DrainRequest, ACK by a label of the node."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from rig.gangs import full
from rig.training import MIDDLE, Gang, finished, traced

from rerail.plugins.checkpoint.notes import read_requests

pytestmark = pytest.mark.alone

RERAIL = str(Path(sys.executable).with_name("rerail"))
NEEDREPAIR = "alibabacloud.com/node-needrepair"
NOTE = "rerail.dev/drain-for-ack"


class Drains:
    """``rerail serve drains`` as a process."""

    def __init__(self, gang: Gang, *words: str) -> None:
        self.log = gang.folder / "drains.log"
        environment = {**os.environ, **gang.cluster.s3_env, "KUBECONFIG": str(gang.cluster.kubeconfig)}
        with self.log.open("a") as log:
            self.process = subprocess.Popen([RERAIL, "serve", "drains", *words], env=environment, stderr=log)

    def said(self) -> str:
        return self.log.read_text()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@contextmanager
def drains(gang: Gang, *words: str) -> Iterator[Drains]:
    one = Drains(gang, *words)
    try:
        yield one
    finally:
        one.kill()


def far_node(gang: Gang) -> str:
    """A node of the gang, which trains."""
    gang.start(traced(gang))
    gang.wait_step(MIDDLE)
    return str(gang.pods()[-1]["spec"]["nodeName"])


def left_node_unhurt(gang: Gang, baseline: Gang, node: str) -> None:
    report = finished(gang, baseline)
    assert report.lost_steps == 0
    assert node not in report.attempts[1].nodes
    assert report.incidents[0].cause == "preemption"
    assert len(read_requests(gang.run, 1)) == 1


@full
def test_nvsentinels_drain_request(cluster, gang, baseline):
    printed = subprocess.run(
        [RERAIL, "serve", "drains", "--slot=nvsentinel", "--print=manifests"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    definition = next(one for one in yaml.safe_load_all(printed) if one["kind"] == "CustomResourceDefinition")
    cluster.kubectl("apply", "-f", "-", document=definition)
    cluster.kubectl("wait", "--for=condition=Established", f"crd/{definition['metadata']['name']}", "--timeout=60s")
    node = far_node(gang)
    here = [pod["metadata"]["name"] for pod in gang.pods() if pod["spec"]["nodeName"] == node]
    request = {
        "apiVersion": "nvsentinel.nvidia.com/v1alpha1",
        "kind": "DrainRequest",
        "metadata": {"name": f"drain-{node}-1", "namespace": gang.namespace},
        "spec": {
            "nodeName": node,
            "checkName": "GpuXid",
            "recommendedAction": "RESTART_VM",
            "podsToDrain": {gang.namespace: here},
        },
    }
    where = ("drainrequest", f"drain-{node}-1", "-n", gang.namespace)

    def condition() -> dict[str, Any]:
        status = cluster.read(*where).get("status") or {}
        return next(iter(status.get("conditions") or []), {})

    try:
        with drains(gang, "--slot=nvsentinel", f"--set=nvsentinel.namespace={gang.namespace}") as served:
            cluster.kubectl("cordon", node)
            cluster.kubectl("create", "-f", "-", document=request)
            cluster.wait("the drain is complete", lambda: condition().get("status") == "True")
            found = condition()
            still = [pod for pod in gang.pods() if pod["spec"].get("nodeName") == node and running(pod)]
            # As node-drainer does once it is complete.
            cluster.kubectl("delete", *where)
        left_node_unhurt(gang, baseline, node)
    finally:
        cluster.kubectl("uncordon", node)
    assert not still, served.said()
    assert found["reason"] == "GangsSaved", found
    assert f"gang {gang.namespace}/{gang.name}-a1 saved step" in found["message"]


@full
def test_acks_approval_also_when_we_were_killed_in_between(cluster, gang, baseline):
    node = far_node(gang)

    def metadata() -> dict[str, Any]:
        return dict(cluster.read("node", node)["metadata"])

    def noted() -> dict[str, Any]:
        return dict(json.loads(metadata()["annotations"].get(NOTE, "{}")))

    try:
        cluster.kubectl("taint", "node", node, f"{NEEDREPAIR}=Unschedulable:NoSchedule")
        cluster.kubectl("label", "node", node, f"{NEEDREPAIR}=Inquiring")
        with drains(gang, "--slot=ack") as first:
            cluster.wait("the deadline is kept", lambda: bool(noted()))
            begun = noted()
            first.kill()
        with drains(gang, "--slot=ack"):
            cluster.wait("the repair is approved", lambda: metadata()["labels"][NEEDREPAIR] == "Approved")
            still = [pod for pod in gang.pods() if pod["spec"].get("nodeName") == node and running(pod)]
            told = noted()
        left_node_unhurt(gang, baseline, node)
    finally:
        cluster.kubectl("label", "node", node, f"{NEEDREPAIR}-")
        cluster.kubectl("annotate", "node", node, f"{NOTE}-")
        cluster.kubectl("taint", "node", node, f"{NEEDREPAIR}-", check=False)
    assert not still
    assert told["deadline_at_s"] == begun["deadline_at_s"]
    assert told["told"]["done"], told


def running(pod: dict[str, Any]) -> bool:
    return pod["status"].get("phase") not in ("Succeeded", "Failed")
