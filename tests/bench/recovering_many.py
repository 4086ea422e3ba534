"""A gang of 64 on fake nodes (kwok), from a fault to all pods running: control plane only, no process runs."""

import json
import signal
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.bench.pairs import Result, quantile, ratios, spread
from tests.bench.recovering import CONDITION, DEADLINE_S, Arms, Took, calls_told, real_volcano, until_running

RANKS = 64
NODES = 18
GPUS = 4


def recovering_many(folder: Path, *, rounds: int, say: Callable[[str], None]) -> Iterator[Result]:
    """The measures of a large gang; none, with a word why, where the real Volcano is not there."""
    settings = real_volcano(say)
    if settings is None:
        return
    from rig.fake_nodes import fake_nodes

    ours, theirs = Took(), Took()
    with Arms(settings, folder) as arms, fake_nodes(arms.cluster, NODES, GPUS):
        for turn in range(rounds + 1):
            for took, arm in ((ours, _moved), (theirs, _restart_job)):
                fresh = took if turn else Took()
                arm(arms, fresh)
                say(f"    {arm.__name__.strip('_')}: {fresh.running[-1]:.2f} s to all {RANKS} running")
    yield Result(
        name="recovery_n64",
        ours=quantile(ours.running, 0.5),
        yardstick=quantile(theirs.running, 0.5),
        ratio=ratios(ours.running, theirs.running),
        pairs=rounds,
        unit="s",
        note="fake nodes, whose pods run at once and hold no process: from the fault to all pods running",
    )
    totals = [float(sum(calls.values())) for calls in ours.calls]
    yield Result(
        name="api_calls_n64",
        ours=quantile(totals, 0.5),
        yardstick=None,
        ratio=spread(totals),
        pairs=rounds,
        unit="calls",
        note=calls_told(ours),
    )


def _document(gang: Any, **spec: Any) -> dict[str, Any]:
    from rig.fake_nodes import LABEL, TOLERATION
    from rig.training import manifest

    pod = {"nodeSelector": LABEL, "tolerations": [TOLERATION]}
    return manifest(gang.cluster, gang.name, replicas=RANKS, pod=pod, **spec)


def _moved(arms: Arms, took: Took) -> None:
    from rig.training import supervised

    with supervised(arms.cluster, arms.namespace, arms.place()) as gang:
        gang.start(_document(gang), policy={"load_within_s": 600.0, "end_wait_s": 60.0})
        until_running(gang, f"{gang.name}-a1", RANKS, set())
        node = gang.pods()[-1]["spec"]["nodeName"]
        wall, begin = datetime.now(UTC), time.monotonic()
        with arms.cluster.condition(node, CONDITION):
            until_running(gang, f"{gang.name}-a2", RANKS, set())
            took.running.append(time.monotonic() - begin)
            until = datetime.now(UTC)
            gang.supervisors[-1].send_signal(signal.SIGINT)
            gang.supervisors[-1].communicate(timeout=DEADLINE_S)
        took.calls.append(arms.calls(wall, until))


def _restart_job(arms: Arms, took: Took) -> None:
    from rig.training import supervised

    with supervised(arms.cluster, arms.namespace, arms.place()) as gang:
        told = {"policies": [{"event": "PodFailed", "action": "RestartJob"}], "maxRetry": 10}
        document = _document(gang, plugins={"svc": [], "env": []}, **told)
        document["spec"]["tasks"][0]["template"]["metadata"] = {"labels": {"rerail.dev/run": gang.name}}
        arms.cluster.kubectl("create", "-n", arms.namespace, "-f", "-", document=document)
        until_running(gang, gang.name, RANKS, set())
        before = {pod["metadata"]["uid"] for pod in gang.pods()}
        name = gang.pods()[0]["metadata"]["name"]
        begin = time.monotonic()
        failed = json.dumps({"status": {"phase": "Failed"}})
        arms.cluster.kubectl(
            "patch", "pod", name, "-n", arms.namespace, "--subresource=status", "--type=merge", f"--patch={failed}"
        )
        until_running(gang, gang.name, RANKS, before)
        took.running.append(time.monotonic() - begin)
        arms.cluster.kubectl("delete", "vcjob", gang.name, "-n", arms.namespace)
