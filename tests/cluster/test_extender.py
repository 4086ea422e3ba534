"""Consent before preemption on the scheduler itself: with the extender nothing is lost, and without it something is.

The training here does not hear SIGTERM and has a grace of one second, as one whose save takes longer than its grace.
"""

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from rig import layout, machines
from rig.gangs import full
from rig.training import DEADLINE_S, Gang, finished, traced
from test_eviction import REPLICAS, other_job, own, priority, queue

pytestmark = pytest.mark.alone

__all__ = ["own"]

PORT = 8766
FAR = 30
"""Steps between commits: far enough that an eviction without a save falls between two."""
AT = 35
"""The step from which the other job is there."""

DEAF = (
    "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]); "
    "os.execvp(sys.argv[1], sys.argv[1:])"
)


def deaf_gang(
    gang: Gang,
    annotations: Mapping[str, str] | None = None,
    *,
    at: int = AT,
    delay_s: float = 0.2,
    **spec: Any,
) -> None:
    """Start training on every GPU; it does not hear SIGTERM."""
    gpus = sum(int(node["status"]["allocatable"][machines.GPU]) for node in gang.cluster.ready_nodes().values())
    document = traced(gang, replicas=REPLICAS, gpus=gpus // REPLICAS, delay_s=delay_s, **spec)
    document["metadata"]["annotations"] = dict(annotations or {})
    template = document["spec"]["tasks"][0]["template"]
    template["spec"]["terminationGracePeriodSeconds"] = 1
    container = template["spec"]["containers"][0]
    container["command"] = ["python3", "-c", DEAF, *container["command"]]
    container["args"] = [f"--save-every={FAR}" if "save-every" in one else one for one in container["args"]]
    gang.start(document, policy={"capacity_wait_s": DEADLINE_S, "end_grace_s": 1.0})
    gang.wait_step(at)


@contextmanager
def asking(change: Any) -> Iterator[None]:
    """The scheduler's configuration, changed for a while."""
    before = layout.SCHEDULER_CONF.read_text()
    conf = yaml.safe_load(before)
    change(conf)
    layout.SCHEDULER_CONF.write_text(yaml.safe_dump(conf))
    try:
        time.sleep(1.5)  # nothing tells when the scheduler has read it
        yield
    finally:
        layout.SCHEDULER_CONF.write_text(before)


def plugin(conf: Any, name: str) -> Any:
    return next(one for one in conf["tiers"][0]["plugins"] if one["name"] == name)


def asks(conf: Any) -> None:
    printed = subprocess.run(
        [str(Path(sys.executable).with_name("rerail")), "serve", "extender", "--print=scheduler-conf"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    extender = plugin(yaml.safe_load(printed), "extender")
    extender["arguments"] |= {
        "extender.urlPrefix": f"http://{layout.HOST}:{PORT}",
        "extender.managedResources": [machines.GPU],
    }
    conf["tiers"][0]["plugins"].append(extender)


def breakable(conf: Any) -> None:
    """The plugin gang lets no queue take back what a whole gang holds; told so, it keeps out of that."""
    plugin(conf, "gang")["enableReclaimable"] = False


class Extender:
    """``rerail serve extender`` as a process."""

    def __init__(self, cluster: Any, folder: Path, more: Mapping[str, str], **options: Any) -> None:
        self.log = folder / "extender.log"
        named = {key.replace("_", "-"): value for key, value in options.items()}
        words = [f"--{key}" if value is True else f"--{key}={value}" for key, value in named.items()]
        command = [str(Path(sys.executable).with_name("rerail")), "serve", "extender", f"--listen={layout.HOST}:{PORT}"]
        environment = {**os.environ, **cluster.s3_env, "KUBECONFIG": str(cluster.kubeconfig), **more}
        # Its port is fixed: one that outlived a killed session would keep every later one from starting.
        dies_with_us = ("setpriv", "--pdeathsig", "TERM")
        with self.log.open("a") as log:
            self.process = subprocess.Popen([*dies_with_us, *command, *words], env=environment, stderr=log)
        cluster.wait("the extender is ready", self._is_ready)

    def _is_ready(self) -> bool:
        assert self.process.poll() is None, f"the extender ended: {self.log.read_text()}"
        return self.get("healthz") == "ok\n"

    def get(self, path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://{layout.HOST}:{PORT}/{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except urllib.error.HTTPError as error:
            return str(error.read().decode())
        except OSError as error:
            return str(error)

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
        self.process.wait(10)


@pytest.fixture
def extender(cluster, tmp_path) -> Iterator[Any]:
    """Starts the extender; it ends with the test."""
    if not cluster.ours:
        pytest.skip("only the scheduler of our own cluster can be configured")
    started: list[Extender] = []

    def start(environment: Mapping[str, str] | None = None, **options: Any) -> Extender:
        started.append(Extender(cluster, tmp_path, environment or {}, **options))
        return started[-1]

    yield start
    for one in started:
        one.stop()


def taken_unseen(gang: Gang) -> None:
    """Wait until the gang was evicted, and supervise it again: no request of its supervisor was in time."""

    def gone() -> bool:
        return not any(pod["status"]["phase"] == "Running" for pod in gang.pods())

    gang.cluster.wait("it is taken", gone, DEADLINE_S)
    gang.start()


def events(gang: Gang) -> dict[str, Mapping[str, Any]]:
    """What the extender said about the gang, by reason."""
    found = gang.cluster.read("events", "-n", gang.namespace)["items"]
    return {one["reason"]: one for one in found if one.get("source", {}).get("component") == "rerail-extender"}


def told(gang: Gang) -> bool:
    """Whether a PodGroup of the run says when its last checkpoint was taken."""
    groups = gang.cluster.read("podgroups", "-n", gang.namespace, "-l", f"rerail.dev/run={gang.name}")["items"]
    return any("volcano.sh/last-checkpoint-time" in one["metadata"]["annotations"] for one in groups)


def saved_first(gang: Gang, baseline: Gang, extender: Extender) -> None:
    """The story with consent: the gang left after a commit, the other job ran, nothing was lost."""
    report = finished(gang, baseline)
    first = report.incidents[0]
    assert (first.cause, first.class_) == ("preemption", "preemption"), first
    assert report.lost_steps == 0
    assert report.attempts[1].started_from_step >= AT
    assert gang.cluster.read("vcjob", "other", "-n", gang.namespace)["status"]["state"]["phase"] == "Completed"
    said = events(gang)
    assert {"EvictionHeld", "EvictionAfterCommit"} <= said.keys(), extender.log.read_text()
    assert "EvictionAtDeadline" not in said
    metrics = extender.get("metrics")
    assert 'rerail_extender_consents_total{by="commit"} 1' in metrics
    assert "rerail_extender_gangs_held 0" in metrics
    print("\n" + extender.log.read_text() + metrics)


def test_a_training_gang_saves_before_a_more_urgent_one_takes_its_room(cluster, gang, baseline, own, extender):
    place = queue(cluster, own, "one")
    low, high = priority(cluster, own, "low", 10), priority(cluster, own, "high", 1000)
    server = extender(hold_s=90)
    with asking(asks):
        deaf_gang(gang, queue=place, priorityClassName=low, pod={"priorityClassName": low})
        other_job(cluster, gang.namespace, queue=place, priorityClassName=high)
        gang.wait("it goes on", lambda state: state.attempt == 2 and state.phase == "running")
        cluster.wait("the last checkpoint is told", lambda: told(gang), DEADLINE_S)
        saved_first(gang, baseline, server)


@full
def test_a_training_gang_saves_before_another_queue_takes_its_share_back(cluster, gang, baseline, own, extender):
    rich, poor = queue(cluster, own, "rich"), queue(cluster, own, "poor")
    server = extender(hold_s=90)

    def both(conf: Any) -> None:
        breakable(conf)
        asks(conf)

    with asking(both):
        deaf_gang(gang, queue=rich)
        other_job(cluster, gang.namespace, queue=poor)
        saved_first(gang, baseline, server)
        assert 'decisions_total{kind="hold",verb="reclaimable"}' in server.get("metrics")


@full
def test_without_an_extender_the_same_gang_loses_steps(cluster, gang, baseline, own):
    place = queue(cluster, own, "one")
    low, high = priority(cluster, own, "low", 10), priority(cluster, own, "high", 1000)
    deaf_gang(gang, queue=place, priorityClassName=low, pod={"priorityClassName": low})
    gang.kill_supervisor()
    other_job(cluster, gang.namespace, queue=place, priorityClassName=high)
    taken_unseen(gang)
    report = finished(gang, baseline)
    assert report.attempts[1].started_from_step == FAR
    assert report.lost_steps > 0


@full
def test_a_gang_that_does_not_answer_goes_at_the_deadline_also_across_a_restart(cluster, gang, baseline, own, extender):
    """The extender does not reach its store, and so cannot ask it."""
    place = queue(cluster, own, "one")
    low, high = priority(cluster, own, "low", 10), priority(cluster, own, "high", 1000)
    hold_s = 10.0
    unreachable = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    server = extender(unreachable, hold_s=hold_s)
    with asking(asks):
        deaf_gang(gang, queue=place, priorityClassName=low, pod={"priorityClassName": low})
        gang.kill_supervisor()
        begun = time.monotonic()
        other_job(cluster, gang.namespace, queue=place, priorityClassName=high)
        cluster.wait("it is held", lambda: "EvictionHeld" in events(gang))
        note = cluster.read("podgroups", "-n", gang.namespace, "-l", f"rerail.dev/run={gang.name}")["items"][0]
        assert json.loads(note["metadata"]["annotations"]["rerail.dev/asked-to-leave-at"])["asked"]
        server.stop()
        extender(unreachable, hold_s=hold_s)
        cluster.wait("it goes", lambda: "EvictionAtDeadline" in events(gang))
        assert time.monotonic() - begun < hold_s + 12
        taken_unseen(gang)
        report = finished(gang, baseline)
    assert report.lost_steps > 0
