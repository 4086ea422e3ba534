"""`rerail evict` and `rerail drain` on real pods: every eviction comes after the commit, or at the deadline."""

import json
import math
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
from rig.gangs import full
from rig.training import BEFORE, MIDDLE, RANKS, Gang, finished, traced

from rerail.plugins.checkpoint.notes import read_requests
from rerail.plugins.evict.cluster import ClusterPods
from rerail.plugins.evict.preevict import Evicted, PreEvict, live_gang
from rerail.plugins.report.document import Report
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


def pre_evict(gang: Gang, *, deadline_s: float, refused_for_s: float, takeover_s: float = 0.0) -> Evicted:
    """The library call."""
    target = live_gang(gang.run)
    bounds = EvictionBounds(deadline_s=deadline_s, refused_for_s=refused_for_s)
    with (
        VolcanoClient.connect(gang.cluster.kubeconfig, namespace=gang.namespace) as client,
        ClusterPods(client.api, gang.namespace, target.gang) as pods,
    ):
        return PreEvict(gang.run, target, pods, bounds, "a test", takeover_s=takeover_s).perform()


FULL = os.environ.get("RERAIL_CLUSTER") == "full"
TRIALS = 10 if FULL else 5
ROUNDS = range(5 if FULL else 1)
HASTY_S = 0.4
"""A deadline within which no save is sure to come."""


@pytest.mark.parametrize("number", ROUNDS)
def test_every_eviction_comes_after_the_commit_or_at_the_deadline_and_nothing_is_lost(gang, baseline, number):
    """One gang is evicted again and again at random moments, and resumes each time."""
    seed = secrets.randbits(32)
    print(f"round {number}, seed {seed}")
    moment = random.Random(seed)
    gang.start(traced(gang, delay_s=0.6))
    found: list[Evicted] = []
    for attempt in range(1, TRIALS + 1):
        gang.wait_step(moment.randint(1, 3), attempt)
        time.sleep(moment.uniform(0.0, 0.4))
        if attempt in (1, 2):
            # As a person does it, by the name alone or by the store as well: both find it.
            where = (f"--store={gang.store}",) if attempt == 1 else ()
            code, document, told = command(gang, "evict", f"--gang={gang.name}", "--deadline=60s", *where)
            assert code == 0, (document, told)
            one = Evicted.model_validate(document)
            deadline_s = 60.0
        else:
            deadline_s = moment.choice((60.0, 60.0, HASTY_S))
            one = pre_evict(gang, deadline_s=deadline_s, refused_for_s=10.0, takeover_s=30.0)
        print(f"{attempt}: {one.outcome} at step {one.step} within {deadline_s:g} s")
        assert (one.attempt, one.left, one.supervised) == (attempt, (), True), one
        assert one.evicted_at_s is not None
        assert one.outcome == "committed" or (one.outcome, deadline_s) == ("deadline", HASTY_S), one
        committed_at_s = math.inf if one.committed_at_s is None else one.committed_at_s
        assert committed_at_s > one.asked_at_s
        assert one.evicted_at_s >= min(committed_at_s, one.asked_at_s + deadline_s), one
        found.append(one)
        gang.wait("the next attempt", lambda state, n=attempt + 1: (state.attempt, state.phase) == (n, "running"))
    report = finished(gang, baseline, attempts=TRIALS + 1)

    assert report.lost_steps == 0, "at the deadline SIGTERM leaves time for a save"
    for one, row in zip(found, report.attempts[1:], strict=True):
        assert one.outcome != "committed" or row.started_from_step == one.step
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
    gang.start(traced(gang, delay_s=0.3))
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


def all_left_saved(gang: Gang, report: Report, attempts: int) -> None:
    """Every rank of the first attempts left with 85, by a request of the run's supervisor or of the hook."""
    state = gang.state()
    assert state is not None
    assert report.lost_steps == 0
    for record in state.attempts[:attempts]:
        ranks = {name: code for name, code in record.exit_codes.items() if name.startswith("rank-")}
        assert set(ranks.values()) == {85}, (record.n, record.exit_codes)
        assert record.charged_to == "preemption"
    assert [incident.cause for incident in report.incidents] == ["preemption"] * attempts


def asked(gang: Gang, attempt: int) -> set[str]:
    """Who asked the ranks of an attempt to leave."""
    return {request.id for _, request in read_requests(gang.run, attempt)}


@full
def test_one_member_is_taken_away_and_all_save_and_all_leave(cluster, gang, baseline):
    """First it is marked and nobody deletes it; then one is deleted, and its preStop hook asks before its SIGTERM."""
    document = traced(gang, delay_s=0.12)
    hook = {"preStop": {"exec": {"command": ["rerail-launch", "--pre-stop", "--within=20s"]}}}
    document["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["lifecycle"] = hook
    gang.start(document)
    gang.wait_step(10)
    victim = gang.pods()[2]["metadata"]["name"]
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    mark = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "lastTransitionTime": now}
    where = ("-n", gang.namespace, "--subresource=status", "--type=strategic", "-p")
    cluster.kubectl("patch", "pod", victim, *where, json.dumps({"status": {"conditions": [mark]}}))
    gang.wait_step(10, 2)
    assert f"{gang.name}-a1-preemption" in asked(gang, 1)
    victim = next(
        pod["metadata"]["name"] for pod in gang.pods() if pod["metadata"]["name"].startswith(f"{gang.name}-a2")
    )
    cluster.kubectl("delete", "pod", victim, "-n", gang.namespace, "--wait=false")
    report = finished(gang, baseline, attempts=3)
    all_left_saved(gang, report, 2)
    assert f"pre-stop-{gang.name}-a2-2" in asked(gang, 2)


@full
@pytest.mark.alone
def test_a_node_that_is_announced_to_go_is_left_before_and_kept_free(cluster, gang, baseline):
    gang.start(traced(gang, delay_s=0.3))
    gang.wait_step(MIDDLE)
    node = str(gang.pods()[-1]["spec"]["nodeName"])
    try:
        cluster.kubectl("label", "node", node, "rerail.dev/maintenance=now")
        report = finished(gang, baseline)
    finally:
        cluster.kubectl("label", "node", node, "rerail.dev/maintenance-")
    all_left_saved(gang, report, 1)
    assert report.incidents[0].class_ == "maintenance"
    assert node in report.attempts[0].nodes
    assert node not in report.attempts[1].nodes
    assert "rerail.dev/quarantined" not in json.dumps(cluster.read("node", node)["spec"]), "it is no fault"
