"""`rerail evict` and `rerail drain` on real pods: every eviction comes after the commit, or at the deadline."""

import json
import os
import random
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from rig.training import BEFORE, MIDDLE, RANKS, STEPS, Gang, finished, traced

from rerail.plugins.evict.cluster import ClusterPods
from rerail.plugins.evict.preevict import Evicted, PreEvict, live_gang
from rerail.plugins.volcano import VolcanoClient
from rerail.policies.eviction import EvictionBounds

GRACE_S = 3


def command(gang: Gang, *words: str) -> tuple[int, dict[str, Any], str]:
    """One of the commands, as a person would give it: exit code, document, and what it told."""
    done = subprocess.run(
        [str(Path(sys.executable).with_name("rerail")), *words, "--output=json"],
        env={**os.environ, **gang.cluster.s3_env, "KUBECONFIG": str(gang.cluster.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.stdout, (done.returncode, done.stderr)
    return done.returncode, json.loads(done.stdout), done.stderr


@contextmanager
def kept(gang: Gang) -> Iterator[None]:
    """A PodDisruptionBudget that lets no pod of the gang go."""
    selector = {"matchLabels": {"rerail.dev/run": gang.name}}
    body = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "keep"},
        "spec": {"minAvailable": RANKS, "selector": selector},
    }
    gang.cluster.kubectl("create", "-n", gang.namespace, "-f", "-", document=body)
    yield
    gang.cluster.kubectl("delete", "pdb", "keep", "-n", gang.namespace)


def pre_evict(gang: Gang, *, deadline_s: float, refused_for_s: float) -> Evicted:
    """The library call."""
    target = live_gang(gang.run)
    bounds = EvictionBounds(deadline_s=deadline_s, refused_for_s=refused_for_s)
    with (
        VolcanoClient.connect(gang.cluster.kubeconfig, namespace=gang.namespace) as client,
        ClusterPods(client.api, gang.namespace, target.gang) as pods,
    ):
        return PreEvict(gang.run, target, pods, bounds, "a test", takeover_s=0.0).perform()


def test_every_eviction_comes_after_the_commit_and_nothing_is_lost(cluster, gang, baseline):
    trials = 10 if cluster.full else 3
    seed = secrets.randbits(32)
    print(f"seed {seed}")
    moment = random.Random(seed)
    gang.start(traced(gang, delay_s=0.3 if cluster.full else 0.12))
    found = []
    for attempt in range(1, trials + 1):
        gang.wait_step(moment.randint(1, STEPS // trials // 3), attempt)
        time.sleep(moment.uniform(0.0, 0.3))
        # By its name alone, and by the store: both find it.
        where = (f"--store={gang.store}",) if attempt % 2 else ()
        code, document, told = command(gang, "evict", f"--gang={gang.name}", "--deadline=60s", *where)
        assert (code, document["outcome"], document["attempt"]) == (0, "committed", attempt), (document, told)
        assert document["supervised"]
        assert document["evicted_at_s"] >= document["committed_at_s"] > document["asked_at_s"]
        found.append(document)
        gang.wait("the next attempt", lambda state, n=attempt + 1: (state.attempt, state.phase) == (n, "running"))
    report = finished(gang, baseline, attempts=trials + 1)

    assert report.lost_steps == 0
    assert [row.started_from_step for row in report.attempts[1:]] == [one["step"] for one in found]
    assert {incident.cause for incident in report.incidents} == {"preemption"}


def test_a_gang_that_hangs_is_evicted_as_a_whole_at_the_deadline(gang, baseline):
    hang = {"RERAIL_DRILL_HANG": f"step={MIDDLE},rank=1,attempt=1"}
    document = traced(gang, environment=hang, pod={"terminationGracePeriodSeconds": GRACE_S})
    gang.start(document, policy={"hang_after_s": 120.0, "end_grace_s": GRACE_S})
    gang.wait_step(MIDDLE - 1)
    with kept(gang):
        pods = [pod["metadata"]["uid"] for pod in gang.pods()]
        refused = pre_evict(gang, deadline_s=0.5, refused_for_s=2.0)
        assert (refused.outcome, refused.evicted_at_s, len(refused.left)) == ("deadline", None, 4), refused
        assert "disruption budget keep" in refused.why
        assert [pod["metadata"]["uid"] for pod in gang.pods()] == pods
        assert not any("deletionTimestamp" in pod["metadata"] for pod in gang.pods()), "all pods or none"
    code, document, told = command(gang, "evict", f"--gang={gang.name}-a1", "--deadline=2s")
    report = finished(gang, baseline)

    assert (code, document["outcome"], document["step"]) == (1, "deadline", BEFORE), (document, told)
    assert document["left"] == []
    assert document["evicted_at_s"] >= document["asked_at_s"] + 2.0
    assert report.incidents[0].cause == "preemption", "the eviction is nobody's fault"
    assert report.attempts[1].started_from_step == BEFORE


@pytest.mark.alone
def test_a_drained_node_is_empty_and_its_gang_lost_nothing(cluster, gang, baseline):
    gang.start(traced(gang))
    gang.wait_step(MIDDLE)
    node = str(gang.pods()[-1]["spec"]["nodeName"])
    try:
        code, document, told = command(gang, "drain", node, "--deadline=60s", "--force")
        report = finished(gang, baseline)
    finally:
        cluster.kubectl("uncordon", node)

    assert code == 0, (document, told)
    assert document["drained"], document
    assert [one["eviction"]["outcome"] for one in document["gangs"] if one["gang"] == f"{gang.name}-a1"] == [
        "committed"
    ]
    assert node not in report.attempts[1].nodes
    assert report.lost_steps == 0
    assert report.incidents[0].cause == "preemption"
