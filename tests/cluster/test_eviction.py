"""A training gang that holds every GPU gives way: it saves, waits its turn, and goes on."""

import secrets
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from rig import layout, machines
from rig.gangs import full
from rig.training import DEADLINE_S, MIDDLE, Gang, finished, traced

pytestmark = pytest.mark.alone

REPLICAS = 4
SHORT_S = 20
"""The other job is over long before the training gang has waited too long."""


@pytest.fixture
def own(cluster) -> Iterator[str]:
    """What the names of this test's queues and priority classes begin with; they are gone afterwards."""
    name = f"rerail-test-{secrets.token_hex(3)}"
    yield name
    for kind in ("queue.scheduling.volcano.sh", "priorityclass"):
        cluster.kubectl("delete", kind, "-l", f"rerail.test={name}", "--wait=false", "--ignore-not-found")


def queue(cluster, own: str, word: str) -> str:
    """A queue that gives back and takes back its share, with a weight that leaves little to queues of others."""
    body = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": f"{own}-{word}", "labels": {"rerail.test": own}},
        "spec": {"weight": 100, "reclaimable": True},
    }
    cluster.kubectl("create", "-f", "-", document=body)
    return f"{own}-{word}"


def priority(cluster, own: str, word: str, value: int) -> str:
    body = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": f"{own}-{word}", "labels": {"rerail.test": own}},
        "value": value,
    }
    cluster.kubectl("create", "-f", "-", document=body)
    return f"{own}-{word}"


def other_job(cluster, namespace: str, **spec: Any) -> None:
    """A plain vcjob that wants half of all GPUs for a short time."""
    priority_class = {"priorityClassName": spec["priorityClassName"]} if "priorityClassName" in spec else {}
    container = {
        "name": "main",
        "image": cluster.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", str(SHORT_S)],
        "resources": {"limits": {machines.GPU: "2"}},
    }
    pod = {"restartPolicy": "Never", "containers": [container], **priority_class}
    job = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "other"},
        "spec": {
            "schedulerName": "volcano",
            "minAvailable": 2,
            **spec,
            "tasks": [{"name": "short", "replicas": 2, "template": {"spec": pod}}],
        },
    }
    cluster.kubectl("create", "-n", namespace, "-f", "-", document=job)


def gives_way(gang: Gang, baseline: Gang) -> None:
    """The story of both tests, from when somebody else asks for the room."""

    def waits(state: Any) -> bool:
        return bool(state.attempt == 2 and state.phase == "running" and state.reason)

    waiting = gang.wait("the second gang waits its turn", waits)
    assert waiting.gang is not None
    assert not waiting.gang.nodes
    report = finished(gang, baseline)

    first = report.incidents[0]
    assert (first.cause, first.class_) == ("preemption", "preemption"), first
    assert report.lost_steps == 0
    assert report.attempts[1].how == "new-gang"
    assert report.attempts[1].started_from_step >= MIDDLE
    other = gang.cluster.read("vcjob", "other", "-n", gang.namespace)
    assert other["status"]["state"]["phase"] == "Completed"


def full_gang(gang: Gang, **spec: Any) -> None:
    """Start training on every GPU."""
    gpus = sum(int(node["status"]["allocatable"][machines.GPU]) for node in gang.cluster.ready_nodes().values())
    document = traced(gang, replicas=REPLICAS, gpus=gpus // REPLICAS, delay_s=0.15, **spec)
    gang.start(document, policy={"capacity_wait_s": DEADLINE_S})
    gang.wait_step(MIDDLE)


def test_preemption_by_a_more_urgent_gang(cluster, gang, baseline, own):
    place = queue(cluster, own, "one")
    low, high = priority(cluster, own, "low", 10), priority(cluster, own, "high", 1000)
    full_gang(gang, queue=place, priorityClassName=low, pod={"priorityClassName": low})
    other_job(cluster, gang.namespace, queue=place, priorityClassName=high)
    gives_way(gang, baseline)


@pytest.fixture
def gangs_can_be_broken(cluster) -> Iterator[None]:
    """The plugin gang lets no queue take back what a whole gang holds; where it is told to, it keeps out of that."""
    if not cluster.ours:
        pytest.skip("only the scheduler of our own cluster can be configured")
    before = layout.SCHEDULER_CONF.read_text()
    conf = yaml.safe_load(before)
    (gang,) = (plugin for tier in conf["tiers"] for plugin in tier["plugins"] if plugin["name"] == "gang")
    gang["enableReclaimable"] = False
    layout.SCHEDULER_CONF.write_text(yaml.safe_dump(conf))
    yield
    layout.SCHEDULER_CONF.write_text(before)


@full
@pytest.mark.usefixtures("gangs_can_be_broken")
def test_reclaim_by_another_queue(cluster, gang, baseline, own):
    rich, poor = queue(cluster, own, "rich"), queue(cluster, own, "poor")
    full_gang(gang, queue=rich)
    other_job(cluster, gang.namespace, queue=poor)
    gives_way(gang, baseline)
