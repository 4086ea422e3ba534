"""Argo's controller, runners and a runner's node are lost at twelve points of a run with one fault, on the real Argo.

Each time: one gang for each attempt and never two that live, two attempts, one incident, the same training bit by bit,
and the Workflow succeeds. A point is a condition that is seen, never a time.
"""

import json
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from rig import machines, network
from rig.argo import start_argo, stop_argo
from rig.gangs import full
from rig.library import Trained, installed, without_steps
from rig.training import MIDDLE, traced

from rerail.policies import keys

DELAY_S = 0.2
"""Of a step: attempt 1 is to be far from its end when the next runner comes."""
LOST_NODE_DELAY_S = 2.0
"""The same where the runner's node has to be found lost first."""
EARLY = 15
ENDED = ("Completed", "Failed", "Aborted", "Terminated", "Terminating", "Aborting", "Completing")
"""Phases of a vcjob that is over, or on its way there."""


@dataclass
class Jobs:
    """What happened to the gangs of a run, in order, as the API server told it."""

    process: subprocess.Popen[str]
    path: Path
    live: dict[str, str] = field(default_factory=dict)
    uids: dict[str, set[str]] = field(default_factory=dict)
    most: int = 0

    def read(self) -> None:
        """End the watch, and go through all that it told."""
        assert self.process.poll() is None, "the watch ended before its run"
        self.process.terminate()
        self.process.wait(timeout=30)
        text = self.path.read_text(encoding="utf-8")
        decoder, at = json.JSONDecoder(), 0
        while at < len(text):
            try:
                event, at = decoder.raw_decode(text, at)
            except ValueError:
                return  # the end was cut off
            self._take(event)
            while at < len(text) and text[at].isspace():
                at += 1

    def _take(self, event: dict[str, Any]) -> None:
        job = event["object"]
        name, uid = job["metadata"]["name"], job["metadata"]["uid"]
        self.uids.setdefault(name, set()).add(uid)
        phase = ((job.get("status") or {}).get("state") or {}).get("phase", "")
        if event["type"] == "DELETED" or job["metadata"].get("deletionTimestamp") or phase in ENDED:
            self.live.pop(uid, None)
        else:
            self.live[uid] = name
        self.most = max(self.most, len(self.live))


class Story:
    """One run with one fault, and who is lost in it."""

    def __init__(self, trained: Trained) -> None:
        self.trained, self.gang, self.cluster = trained, trained.gang, trained.gang.cluster
        self.cut: list[Any] = []

    # What is seen.

    def pod(self, *steps: str) -> dict[str, Any] | None:
        """The newest pod of a step that has not ended."""
        found = self.cluster.read(
            "pods", "-n", self.gang.namespace, "-l", f"workflows.argoproj.io/workflow={self.trained.name}"
        )["items"]
        named = [
            pod
            for pod in found
            if pod["metadata"]["annotations"]["workflows.argoproj.io/node-name"].rpartition(".")[2].partition("(")[0]
            in steps
            and pod["status"].get("phase") in ("Pending", "Running")
            and "deletionTimestamp" not in pod["metadata"]
        ]
        return max(named, key=lambda pod: str(pod["metadata"]["creationTimestamp"]), default=None)

    def runner(self) -> dict[str, Any] | None:
        return self.pod("fresh", "resume")

    def steps_made(self, attempt: int) -> int:
        path = self.gang.trace / f"trace-a{attempt}-r0.jsonl"
        return path.read_text().count("\n") if path.exists() else 0

    def submitted(self, attempt: int) -> bool:
        name = f"{self.gang.name}-a{attempt}"
        return bool(self.cluster.kubectl("get", "vcjob", name, "-n", self.gang.namespace, "-o", "name", check=False))

    def pending(self, attempt: int) -> bool:
        return self.submitted(attempt) and not self.steps_made(attempt)

    def phase(self) -> str:
        state = self.gang.state()
        return state.phase if state is not None else ""

    def attempt(self) -> int:
        state = self.gang.state()
        return state.attempt if state is not None else 0

    # Who is lost.

    def lose_controller(self, _: Any) -> None:
        """SIGKILL; it comes back when the run has gone on, or can go no further without it."""
        stop_argo(signal.SIGKILL)
        try:
            if self.submitted(1):
                self.trained.until("the run goes on by itself", lambda: self.steps_made(self.attempt()) > 0)
        finally:
            start_argo()

    def lose_pod(self, pod: dict[str, Any]) -> None:
        """A step's pod is gone at once."""
        name = pod["metadata"]["name"]
        gone = ("--force", "--grace-period=0", "--wait=false")
        self.cluster.kubectl("delete", "pod", name, "-n", self.gang.namespace, *gone)

    def lose_runner(self, _: Any) -> None:
        pod = self.runner()
        assert pod is not None, f"no runner is there\n{self.trained.told()}"
        self.lose_pod(pod)

    def lose_node(self, _: Any) -> None:
        """The runner's node leaves the network, its kubelet stops, and a person and the reaper give the runner up.

        When the next runner works, the node is back: its containers went on all the time, so there are two runners.
        """
        pod = self.runner()
        assert pod is not None
        node = self.cluster.node(pod["spec"]["nodeName"])
        assert node.name != self.place(), "the gang is elsewhere"
        self.cut.append(node)
        network.cut(node)
        machines.stop(node)
        self.trained.until("the node is lost", lambda: node.name not in self.cluster.ready_nodes())
        self.trained.give_up_on(node.name)
        self.trained.until("the next runner", self._works_elsewhere(node.name))
        self.mend()

    def _works_elsewhere(self, lost: str) -> Callable[[], bool]:
        def works() -> bool:
            pod = self.pod("fresh", "resume")
            return pod is not None and pod["status"]["phase"] == "Running" and pod["spec"]["nodeName"] != lost

        return works

    def mend(self) -> None:
        """Put every node back that was lost."""
        while self.cut:
            node = self.cut[-1]
            network.mend(node)
            machines.start_again(node)
            self.cut.pop()

    def place(self) -> str:
        """The node on which the gang of a story with a lost node is."""
        return min(layout_of(self.cluster))


def layout_of(cluster: Any) -> list[str]:
    return sorted(node["metadata"]["name"] for node in cluster.read("nodes")["items"])


@dataclass(frozen=True)
class Point:
    """When somebody is lost, and who; before the fault or after it. What is seen is handed to what is done."""

    name: str
    lost: str
    seen: Callable[[Story], Any]
    act: Callable[[Story, Any], None]
    before: bool = False


def between_the_steps(story: Story) -> bool:
    """The step that saw the fault is over, and the next one has not begun."""
    return story.attempt() == 2 and story.phase() == "running" and story.runner() is None


POINTS = (
    Point("before resolve ends", "controller", lambda s: s.pod("resolve"), Story.lose_controller, before=True),
    Point("the gang is pending", "runner", lambda s: s.pending(1) and s.runner(), Story.lose_runner, before=True),
    Point("training", "runner", lambda s: s.steps_made(1) >= EARLY, Story.lose_runner, before=True),
    Point("training", "node", lambda s: s.steps_made(1) >= EARLY, Story.lose_node, before=True),
    Point("right after the fault", "runner", lambda s: s.runner(), Story.lose_runner),
    Point("right after the fault", "node", lambda s: s.runner(), Story.lose_node),
    Point("the gang is being ended", "runner", lambda s: s.phase() == "ending", Story.lose_runner),
    Point("the next gang is pending", "controller", lambda s: s.pending(2), Story.lose_controller),
    Point("between two steps", "controller", between_the_steps, Story.lose_controller),
    Point("assess", "its pod", lambda s: s.pod("assess"), Story.lose_pod),
    Point("after the resume", "node", lambda s: s.steps_made(2) > 5 and s.pod("resume"), Story.lose_node),
    Point("report", "its pod", lambda s: s.pod("report"), Story.lose_pod),
)


def case(point: Point) -> Any:
    marks = [pytest.mark.alone] if point.lost in ("controller", "node") else []
    return pytest.param(point, id=f"{point.name}-{point.lost}".replace(" ", "-"), marks=marks)


@pytest.fixture
def story(cluster, argo, gang) -> Iterator[Story]:
    with installed(cluster, gang.namespace):
        one = Story(Trained(argo, gang))
        try:
            yield one
        finally:
            one.mend()


@contextmanager
def watched(story: Story) -> Iterator[Jobs]:
    gang, cluster = story.gang, story.cluster
    words = ("get", "vcjob", "-n", gang.namespace, "-l", f"rerail.dev/run={gang.name}", "-w", "--output-watch-events")
    path = gang.folder / "jobs.json"
    with path.open("w") as out:
        process = subprocess.Popen(
            [cluster.program, f"--kubeconfig={cluster.kubeconfig}", *words, "-o", "json"], stdout=out, text=True
        )
    try:
        yield Jobs(process, path)
    finally:
        process.kill()
        process.wait()


@contextmanager
def apart(story: Story) -> Iterator[dict[str, Any]]:
    """The gang on one node, and steps on the other as long as it is there; what the gang's pods need for it."""
    name = story.place()
    with without_steps(story.cluster, name):
        yield {"pod": {"nodeSelector": {"kubernetes.io/hostname": name}}}


@full
@pytest.mark.parametrize("point", [case(one) for one in POINTS])
def test_whoever_is_lost_nothing_is_lost_and_nothing_is_doubled(story, baseline, point):
    trained, gang = story.trained, story.gang
    begun_s = time.monotonic()
    with watched(story) as jobs, apart(story) if point.lost == "node" else nullcontext({}) as placed:
        lost_first = point.before and point.lost == "node"
        trained.submit(traced(gang, delay_s=LOST_NODE_DELAY_S if lost_first else DELAY_S, **placed))
        if point.before:
            point.act(story, trained.until(point.name, lambda: point.seen(story)))
        trained.wait_step(MIDDLE)
        gang.kill_pod(gang.pods()[1])
        if not point.before:
            point.act(story, trained.until(point.name, lambda: point.seen(story)))
        trained.ended("Succeeded")
        took_s = time.monotonic() - begun_s
        jobs.read()

    assert {name: len(uids) for name, uids in jobs.uids.items()} == {f"{gang.name}-a{n}": 1 for n in (1, 2)}
    assert jobs.most == 1, "never two gangs that live"
    listed = [keys.parse_commit(one.key) for one in gang.run.control.page(keys.COMMITS).entries]
    assert sorted(one.attempt for one in listed if one.kind == "start") == [1, 2]
    report = gang.report()
    assert (report.outcome, len(report.attempts), len(report.incidents)) == ("done", 2, 1), trained.told()
    found = gang.compare(baseline)
    assert found.identical, found.differences
    assert not [pod for pod in gang.pods() if pod["status"].get("phase") in ("Pending", "Running")]
    runners = [one for one in trained.argo.whole_nodes(trained.name) if one.get("templateName") == "run"]
    pods = sum(one["type"] == "Pod" for one in runners)
    print(f"\n| {point.name} | {point.lost} | {pods} | {took_s:.0f} |")
