"""Three gangs that a more urgent job sends away at once: free, back in order, and before who came meanwhile.

A gang that comes back is a new one for Volcano, as after its own RestartJob: of its priority it is the last. So it is
before those that came meanwhile only with a priority class of its own.
"""

from contextlib import ExitStack
from typing import Any

import pytest
from rig import machines
from rig.gangs import full
from rig.training import DEADLINE_S, Gang, supervised, traced
from test_eviction import own, priority, queue

pytestmark = pytest.mark.alone

__all__ = ["own"]

NEWCOMER_S = 25
URGENT_S = 20
"""Long enough that all three are in the queue again, short enough that nobody gives up."""


def plain(gang: Gang, name: str, seconds: int, *, pods: int, queue: str, priority_class: str) -> None:
    """A vcjob of others, of one GPU per pod."""
    container = {
        "name": "main",
        "image": gang.cluster.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", str(seconds)],
        "resources": {"limits": {machines.GPU: "1"}},
    }
    pod = {"restartPolicy": "Never", "containers": [container], "priorityClassName": priority_class}
    job = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": name},
        "spec": {
            "schedulerName": "volcano",
            "minAvailable": pods,
            "queue": queue,
            "priorityClassName": priority_class,
            "tasks": [{"name": "all", "replicas": pods, "template": {"spec": pod}}],
        },
    }
    gang.cluster.kubectl("create", "-n", gang.namespace, "-f", "-", document=job)


def begun(gang: Gang) -> int:
    """How many newcomers have run, or do."""
    jobs = gang.cluster.read("vcjob", "-n", gang.namespace)["items"]
    states = [job["status"].get("state", {}) for job in jobs if job["metadata"]["name"].startswith("newcomer")]
    return sum(state.get("phase") in ("Running", "Completing", "Completed") for state in states)


def phase(gang: Gang, job: str) -> str:
    return str(
        (gang.cluster.read("vcjob", job, "-n", gang.namespace).get("status") or {}).get("state", {}).get("phase")
    )


@full
@pytest.mark.parametrize("first", [True, False], ids=["own-class", "same-class"])
@pytest.mark.usefixtures("s3")
def test_gangs_that_were_sent_away_come_back_in_order(cluster, namespace, tmp_path, own, first):
    place = queue(cluster, own, "one")
    low, urgent = priority(cluster, own, "low", 10), priority(cluster, own, "urgent", 1000)
    again = f"{own}-again"
    body = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": again, "labels": {"rerail.test": own}},
        "value": 11,
        "preemptionPolicy": "Never",
    }
    cluster.kubectl("create", "-f", "-", document=body)
    policy = {"yielded_wait_s": DEADLINE_S, "restart_priority_class": again if first else ""}
    with ExitStack() as held:
        gangs = []
        for number in range(3):
            folder = tmp_path / str(number)
            folder.mkdir()
            gangs.append(held.enter_context(supervised(cluster, namespace, folder)))
            document = traced(
                gangs[-1], replicas=2, delay_s=0.7, queue=place, priorityClassName=low, pod={"priorityClassName": low}
            )
            gangs[-1].start(document, policy=policy)
            gangs[-1].wait_step(3)
            if number == 0:  # three gangs of two have all that is left
                rest = len(cluster.ready_nodes()) * cluster.gpus() - 6
                plain(gangs[0], "filler", 600, pods=rest, queue=place, priority_class=urgent)
                cluster.wait("the rest is taken", lambda: phase(gangs[0], "filler") == "Running")
        for number in range(3):
            plain(gangs[0], f"newcomer-{number}", NEWCOMER_S, pods=2, queue=place, priority_class=low)
        plain(gangs[0], "urgent", URGENT_S, pods=6, queue=place, priority_class=urgent)
        for gang in gangs:
            gang.wait("it is in the queue again", waits)
        jobs = [cluster.read("vcjob", f"{gang.name}-a2", "-n", namespace) for gang in gangs]
        made = [str(job["metadata"]["creationTimestamp"]) for job in jobs]
        assert phase(gangs[0], "urgent") == "Running"
        if not first:
            cluster.wait("newcomers are first", lambda: begun(gangs[0]) == 3)
            assert not any(is_placed(gang.state()) for gang in gangs)
        for gang in gangs:
            gang.wait("it trains again", is_placed)
        if first:
            assert begun(gangs[0]) == 0, "who gave its room is before who came later"
        for gang in gangs:
            gang.end()
        reports = [gang.report() for gang in gangs]

    assert len(set(made)) == 3, f"one a second, so that the scheduler can tell them apart: {made}"
    later = [stamp for stamp in made if stamp != min(made)]
    assert later == sorted(later), f"the older run first, apart from the first that asked: {made}"
    for report in reports:
        assert report.outcome == "done"
        assert report.lost_steps == 0
        assert [incident.cause for incident in report.incidents] == ["preemption"]


def waits(state: Any) -> bool:
    return bool(state.attempt == 2 and state.phase == "running" and state.reason)


def is_placed(state: Any) -> bool:
    return bool(state.attempt == 2 and state.gang and state.gang.nodes)
