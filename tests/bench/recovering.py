"""From a fault to training that goes on, on the tests' cluster with the real Volcano: ours beside its RestartJob.

Every round has three gangs of the same image, one after the other: moved by Rerail (the fault is a condition of a node
and the death of a pod there, so diagnosis, mark, exclusion and resolution are on the path), restarted in place by
Rerail (a rank dies), and restarted by Volcano (a pod dies; the policy RestartJob). Two ends are timed for each: all
pods run, and the first step that had not been made before.
"""

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Self

from tests.bench.pairs import Result, quantile, ratios, spread

RANKS = 4
STEPS = 400
DELAY_S = 0.05
MIDDLE = 45
DEADLINE_S = 180.0
CONDITION = {
    "type": "NvidiaXID79Error",
    "status": "True",
    "reason": "XID79",
    "message": "GPU 0000:3b:00.0 has fallen off the bus",
}
LONELY = "RERAIL_RUN_NAME"
"""Where a pod that nobody supervises is told its gang's name, to be found by it."""
FIRST_STEP = '"step":1,'
TRIED = (
    "Tried for speed: changes of the gang and faults told by nodes wake the supervisor, and between attempts it looks "
    "four times as often (about 1 s less). What is left is the platform's: the old pods end, two rounds of the "
    "scheduler for a new PodGroup (RestartJob keeps its own), containers begin"
)
TRIED_IN_PLACE = (
    "Tried for speed: once a rank failed, launches look for orders four times as often, and so does the supervisor. "
    "What is left: 1 s in which evidence is waited for (policy settle_s), and the ranks' own start and load"
)
_RIG = str(Path(__file__).parents[1] / "cluster")
_OURS = ("rerail/",)
_VOLCANO = ("vc-controller-manager", "vc-scheduler")


@dataclass
class Took:
    """Seconds from the fault, by end, and what else a round says."""

    running: list[float] = field(default_factory=list)
    stepping: list[float] = field(default_factory=list)
    phases: list[dict[str, float]] = field(default_factory=list)
    calls: list[dict[str, int]] = field(default_factory=list)


def recovering(folder: Path, *, rounds: int, say: Callable[[str], None]) -> Iterator[Result]:
    """The measures of recovery; none, with a word why, where the cluster or the real Volcano is not there."""
    settings = real_volcano(say)
    if settings is None:
        return
    arms = Arms(settings, folder)
    took = {"moved": Took(), "in place": Took(), "RestartJob": Took()}
    with arms:
        for turn in range(rounds + 1):
            for name, arm in (("moved", arms.moved), ("in place", arms.in_place), ("RestartJob", arms.restart_job)):
                fresh = Took() if not turn else took[name]
                arm(fresh)
                say(f"    {name}: {fresh.running[-1]:.2f} s to all running, {fresh.stepping[-1]:.2f} s to a new step")
    theirs, moved, stayed = took["RestartJob"], took["moved"], took["in place"]
    alone = "RestartJob's pods train alone here and from the beginning: they meet nobody and load nothing"
    yield Result(
        name="recovery_n4",
        ours=quantile(moved.running, 0.5),
        yardstick=quantile(theirs.running, 0.5),
        ratio=ratios(moved.running, theirs.running),
        pairs=rounds,
        unit="s",
        note=(
            f"to all pods running; to the first step that was not made before {_beside(moved.stepping, theirs)}. "
            f"{alone}. Phases, medians: {phases_told(moved)}. {TRIED}"
        ),
    )
    yield Result(
        name="inplace_n4",
        ours=quantile(stayed.stepping, 0.5),
        yardstick=quantile(theirs.stepping, 0.5),
        ratio=ratios(stayed.stepping, theirs.stepping),
        pairs=rounds,
        unit="s",
        note=(
            "to the first step that was not made before; no pod begins anew. "
            f"Phases, medians: {phases_told(stayed)}. {TRIED_IN_PLACE}"
        ),
    )
    totals = [float(sum(calls.values())) for calls in took["moved"].calls]
    yield Result(
        name="api_calls_n4",
        ours=quantile(totals, 0.5),
        yardstick=None,
        ratio=spread(totals),
        pairs=rounds,
        unit="calls",
        note=calls_told(took["moved"]),
    )


def calls_told(took: Took) -> str:
    """Whose the calls were, for the table."""
    parts = ", ".join(f"{name} {median(one[name] for one in took.calls):.0f}" for name in took.calls[0])
    return f"fault to last pod running, from the audit log: {parts}; no kubelets, leases and events"


def real_volcano(say: Callable[[str], None]) -> dict[str, Any] | None:
    """The settings of the cluster that is up with the real Volcano; None, with a word why, where there is none."""
    sys.path.insert(0, _RIG)
    from rig import layout

    if not layout.SETTINGS.exists():
        say("  no cluster is up (make cluster-up): the rows of recovery stay as they are")
        return None
    settings: dict[str, Any] = json.loads(layout.SETTINGS.read_text())
    if not str(settings["volcano"]).startswith("real"):
        say(f"  Volcano is {settings['volcano']}, not the real one (RERAIL_VOLCANO_BIN): the rows stay as they are")
        return None
    return settings


def _beside(ours: list[float], theirs: Took) -> str:
    """The other end point, for the note."""
    above, below = quantile(ours, 0.5), quantile(theirs.stepping, 0.5)
    return f"{above:.2f} s against {below:.2f} s ({ratios(ours, theirs.stepping).median:.2f}x)"


def phases_told(took: Took) -> str:
    names = list(took.phases[0]) if took.phases else []
    return ", ".join(f"{name} {median(one[name] for one in took.phases):.2f} s" for name in names)


class Arms:
    """The cluster, and the three ways to lose a rank in it; use it in a ``with`` statement.

    Args:
        settings: Of the cluster.
        folder: For gangs' own files.
        alone: Whether no test of another session may run meanwhile, as where time is measured.
    """

    def __init__(self, settings: dict[str, Any], folder: Path, *, alone: bool = True) -> None:
        from rig import layout, services
        from rig.access import Cluster

        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.alone = folder, alone
        self.namespace = f"rerail-bench-{os.getpid()}-{time.monotonic_ns() % 10**6}"
        self.cluster = Cluster(
            layout.KUBECONFIG,
            settings["image"],
            settings["bucket"],
            services.s3_env(),
            settings["volcano"],
            full=True,
            program=settings["kubectl"],
            ours=True,
        )
        self.audit = layout.LOGS / "audit.jsonl"
        self._held = ExitStack()

    def __enter__(self) -> Self:
        from rig import turn
        from rig.training import QUEUE

        self._held.enter_context(turn.taken(alone=self.alone))
        os.environ.update(self.cluster.s3_env)
        queue = {
            "apiVersion": "scheduling.volcano.sh/v1beta1",
            "kind": "Queue",
            "metadata": {"name": QUEUE},
            "spec": {"weight": 1, "reclaimable": False},
        }
        self.cluster.kubectl("apply", "-f", "-", document=queue)
        self.cluster.kubectl("create", "namespace", self.namespace)
        return self

    def __exit__(self, *_: object) -> None:
        self.cluster.kubectl("delete", "namespace", self.namespace, "--wait=false")
        self._held.close()

    def moved(self, took: Took) -> None:
        """A node says that a GPU fell off the bus, and a pod there dies."""
        with self._gang() as gang:
            victim = gang.pods()[-1]
            node = victim["spec"]["nodeName"]
            steps = steps_in(gang.trace / "trace-a1-r0.jsonl")
            wall = datetime.now(UTC)
            with self.cluster.condition(node, CONDITION):
                begin = time.monotonic() - (datetime.now(UTC) - wall).total_seconds()
                gang.kill_pod(victim)
                self._until_running(gang, begin, took, f"{gang.name}-a2")
                until = datetime.now(UTC)
                until_step(gang.trace / "trace-a2-r0.jsonl", steps, begin, took)
                self._finish(gang)
            took.phases.append(phases_of(gang))
            took.calls.append(self.calls(wall, until))

    def in_place(self, took: Took) -> None:
        """A rank dies, its launch does not."""
        with self._gang() as gang:
            steps = steps_in(gang.trace / "trace-a1-r0.jsonl")
            begin = time.monotonic()
            gang.kill_rank(1)
            until_step(gang.trace / "trace-a2-r0.jsonl", steps, begin, took)
            took.running.append(took.stepping[-1])
            self._finish(gang)
            took.phases.append(phases_of(gang))

    def restart_job(self, took: Took) -> None:
        """A pod dies, and the policy makes all anew. Each trains alone: no peer to meet, no state to load."""
        from rig.training import supervised

        with supervised(self.cluster, self.namespace, self.place()) as gang:
            policy = {"event": "PodFailed", "action": "RestartJob"}
            self.cluster.kubectl("create", "-n", self.namespace, "-f", "-", document=lonely(gang, policy, most=10))
            first = gang.trace / f"{gang.name}-worker-0" / "trace-a0-r0.jsonl"
            wait_until(f"step {MIDDLE}", lambda: steps_in(first) >= MIDDLE)
            pods = gang.pods()
            before = {pod["metadata"]["uid"] for pod in pods}
            begin = time.monotonic()
            gang.kill_pod(pods[1], run_variable=LONELY)
            self._until_running(gang, begin, took, gang.name, before)
            wait_until("a step after the restart", lambda: lines_in(first, FIRST_STEP) > 1)
            took.stepping.append(time.monotonic() - begin)
            self.cluster.kubectl("delete", "vcjob", gang.name, "-n", self.namespace)

    def place(self) -> Path:
        """A fresh folder for one gang."""
        place = self.folder / f"{time.monotonic_ns()}"
        place.mkdir()
        return place

    def _gang(self) -> Any:
        from contextlib import contextmanager

        from rig.training import supervised, traced

        @contextmanager
        def running() -> Iterator[Any]:
            with supervised(self.cluster, self.namespace, self.place()) as gang:
                gang.start(traced(gang, steps=STEPS, delay_s=DELAY_S))
                gang.wait_step(MIDDLE)
                yield gang

        return running()

    def _finish(self, gang: Any) -> None:
        """The recovery is told when new steps were made; then the run is over for us."""
        gang.wait("the recovery is told", lambda state: all(one.recovered_at_s is not None for one in state.incidents))
        gang.supervisors[-1].send_signal(signal.SIGINT)
        gang.supervisors[-1].communicate(timeout=DEADLINE_S)

    def _until_running(self, gang: Any, begin: float, took: Took, job: str, before: set[str] | None = None) -> None:
        until_running(gang, job, RANKS, before or set())
        took.running.append(time.monotonic() - begin)

    def calls(self, since: datetime, until: datetime) -> dict[str, int]:
        """Requests by whose they were, from the audit log; without events and leases."""
        counts = {"ours": 0, "Volcano": 0}
        with self.audit.open(encoding="utf-8") as lines:
            for line in lines:
                call = json.loads(line)
                at = datetime.fromisoformat(call["requestReceivedTimestamp"])
                kind = (call.get("objectRef") or {}).get("resource", "")
                if not since <= at <= until or kind in ("events", "leases"):
                    continue
                agent = call.get("userAgent", "")
                if agent.startswith(_OURS):
                    counts["ours"] += 1
                elif agent.startswith(_VOLCANO):
                    counts["Volcano"] += 1
        return counts


def lonely(gang: Any, policy: dict[str, str], *, most: int) -> dict[str, Any]:
    """A vcjob that nobody supervises: each pod trains alone, and only Volcano's policy answers a fault."""
    from rig.training import traced

    told = {"policies": [policy], "maxRetry": most, "plugins": {"svc": [], "env": []}}
    # As process 1 it does not hear SIGTERM: the default grace of 30 s would be all that is measured.
    document = traced(gang, steps=STEPS, delay_s=DELAY_S, pod={"terminationGracePeriodSeconds": 1}, **told)
    template = document["spec"]["tasks"][0]["template"]
    template["metadata"] = {"labels": {"rerail.dev/run": gang.name}}
    container = template["spec"]["containers"][0]
    named = {"name": "RERAIL_POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    trace = {"name": "RERAIL_TRACE", "value": "/trace/$(RERAIL_POD)"}
    container["env"] = [one for one in container["env"] if one["name"] != "RERAIL_TRACE"]
    container["env"] = [named, {"name": LONELY, "value": gang.name}, trace, *container["env"]]
    return dict(document)


def phases_of(gang: Any) -> dict[str, float]:
    """Seconds of each phase, of the first incident."""
    phases = gang.report().incidents[0].phases_s
    return {} if phases is None else {name: value or 0.0 for name, value in phases.model_dump().items()}


def steps_in(path: Path) -> int:
    return lines_in(path, '"step"')


def lines_in(path: Path, word: str) -> int:
    return path.read_text().count(word) if path.exists() else 0


def until_step(path: Path, steps: int, begin: float, took: Took) -> None:
    """Wait for a step beyond those that were made before the fault."""

    def newer() -> bool:
        if not path.exists():
            return False
        lines = path.read_text().splitlines()
        made = [json.loads(line)["step"] for line in lines if line.endswith("}")]
        return bool(made) and max(made) > steps

    wait_until("a new step", newer)
    took.stepping.append(time.monotonic() - begin)


def until_running(gang: Any, job: str, ranks: int, before: set[str]) -> None:
    """Wait until so many pods of a job run that are not among those of before, by uid."""

    def all_run() -> bool:
        pods = [pod for pod in gang.pods() if pod["metadata"]["name"].startswith(f"{job}-")]
        new = [pod for pod in pods if pod["metadata"]["uid"] not in before]
        return sum(pod["status"].get("phase") == "Running" for pod in new) == ranks

    wait_until(f"all {ranks} pods of {job} run", all_run)


def wait_until(what: str, condition: Callable[[], bool]) -> None:
    """Wait for a condition, with a deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what}: not within {DEADLINE_S:.0f} s")
        time.sleep(0.05)
