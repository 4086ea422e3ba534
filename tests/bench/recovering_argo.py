"""Recovery through the whole workflow, on the tests' cluster with the real Argo and the real Volcano.

Every round has three gangs of the same image, one after the other, and the same fault: a pod of the gang dies.
rerail-train recovers one, Argo's retryStrategy over a resource template that makes a vcjob another one, Volcano's
RestartJob the third. The cluster's Argo looks every second (DEFAULT_REQUEUE_TIME), not every ten as it is delivered,
which makes its retries faster; a resource template polls its object every 5 s.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Self

import yaml

from tests.bench.audit import pods_of_argo
from tests.bench.pairs import Result, Spread, quantile, ratios, spread
from tests.bench.recovering import (
    DELAY_S,
    FIRST_STEP,
    LONELY,
    MIDDLE,
    RANKS,
    STEPS,
    Arms,
    Took,
    lines_in,
    lonely,
    phases_of,
    phases_told,
    real_volcano,
    steps_in,
    until_running,
    until_step,
    wait_until,
)

ATTEMPTS = 20
ATTEMPTS_DEADLINE_S = 1800.0
_FAILS = "step=2,rank=1"
_PATIENT = {
    "in_place": False,
    "max_attempts": 100,
    "budgets": {"application": 100, "identical": 100, "without_progress": 100},
}


@dataclass
class TookInArgo(Took):
    """The same, and how many pods Argo made before there was a new gang."""

    pods: list[int] = field(default_factory=list)


def recovering_argo(folder: Path, *, rounds: int, say: Callable[[str], None]) -> Iterator[Result]:
    """The measures of recovery through Argo; none, with a word why, where the cluster cannot tell them."""
    settings = _with_argo(say)
    if settings is None:
        return
    ours, plain, restart = TookInArgo(), TookInArgo(), TookInArgo()
    with ArgoArms(settings, folder) as arms:
        for turn in range(rounds + 1):
            for name, took, arm in (
                ("rerail-train", ours, arms.workflow),
                ("retryStrategy", plain, arms.retry_strategy),
                ("RestartJob", restart, arms.restart_job),
            ):
                fresh = took if turn else TookInArgo()
                arm(fresh)
                say(f"    {name}: {fresh.running[-1]:.2f} s to all running, {fresh.stepping[-1]:.2f} s to a new step")
    lost = "the others' pods train alone and from the beginning: they meet nobody, load nothing and lose every step"
    for name, end, note in (
        ("workflow_recovery", "running", f"{lost}. Phases, medians: {phases_told(ours)}"),
        ("workflow_step", "stepping", f"ours to the first step that was not made before, theirs to step 1: {lost}"),
    ):
        mine = getattr(ours, end)
        for other, theirs in (("", plain), ("_restartjob", restart)):
            yield Result(
                name=f"{name}{other}_n4",
                ours=quantile(mine, 0.5),
                yardstick=quantile(getattr(theirs, end), 0.5),
                ratio=ratios(mine, getattr(theirs, end)),
                pairs=rounds,
                unit="s",
                note="" if other else note,
            )
    counts = [float(count) for count in ours.pods]
    yield Result(
        name="workflow_pods_before_gang",
        ours=quantile(counts, 0.5),
        yardstick=None,
        ratio=spread(counts),
        pairs=rounds,
        unit="pods",
        note=f"from the audit log: Argo's pods made between the fault and the new vcjob; a retryStrategy makes "
        f"{median(plain.pods):.0f}",
    )


def workflow_bytes(folder: Path, *, attempts: int = ATTEMPTS, say: Callable[[str], None]) -> Iterator[Result]:
    """The size of a Workflow whose gang failed again and again, until it gave up."""
    settings = _with_argo(say)
    if settings is None:
        return
    with ArgoArms(settings, folder, alone=False) as arms:
        size, nodes = arms.size_after(attempts)
    yield Result(
        name="workflow_bytes_20",
        ours=size,
        yardstick=None,
        ratio=Spread(size, size, size),
        pairs=1,
        unit="bytes",
        note=f"JSON as the API server gives it, with {attempts} gangs of {RANKS}, give-up and report: {nodes} nodes",
    )


def _with_argo(say: Callable[[str], None]) -> dict[str, Any] | None:
    settings = real_volcano(say)
    if settings is not None and "argo" not in settings:
        say("  the cluster has no Argo (python -m rig argo): the rows of recovery through it stay as they are")
        return None
    return settings


class ArgoArms(Arms):
    """The cluster with Rerail's templates in a namespace; use it in a ``with`` statement."""

    def __enter__(self) -> Self:
        from rig.argo import Argo
        from rig.library import installed

        super().__enter__()
        self._held.enter_context(installed(self.cluster, self.namespace))
        self.argo = Argo.prepare(self.cluster, self.namespace)
        return self

    def workflow(self, took: TookInArgo) -> None:
        """A gang of rerail-train: the run goes on from its newest commit."""
        from rig.library import Trained
        from rig.training import supervised, traced

        with supervised(self.cluster, self.namespace, self.place()) as gang:
            trained = Trained(self.argo, gang)
            trained.submit(traced(gang, steps=STEPS, delay_s=DELAY_S))
            trained.wait_step(MIDDLE)
            victim, steps = gang.pods()[1], steps_in(gang.trace / "trace-a1-r0.jsonl")
            since, begin = datetime.now(UTC), time.monotonic()
            gang.kill_pod(victim)
            until_running(gang, f"{gang.name}-a2", RANKS, set())
            took.running.append(time.monotonic() - begin)
            until_step(gang.trace / "trace-a2-r0.jsonl", steps, begin, took)
            took.pods.append(self._pods_before(f"{gang.name}-a2", since))
            gang.wait("the recovery is told", lambda state: all(one.recovered_at_s for one in state.incidents))
            took.phases.append(phases_of(gang))
            self._remove(trained.name)

    def retry_strategy(self, took: TookInArgo) -> None:
        """Argo alone: a resource template makes a vcjob that ends with its first pod, and a retry makes the next."""
        from rig.training import supervised

        with supervised(self.cluster, self.namespace, self.place()) as gang:
            document = lonely(gang, {"event": "PodFailed", "action": "TerminateJob"}, most=1)
            document["metadata"]["name"] = f"{gang.name}-{{{{retries}}}}"
            name = self.argo.submit(_retried(gang.name, document))
            first, second = (gang.trace / f"{gang.name}-{n}-worker-0" / "trace-a0-r0.jsonl" for n in (0, 1))
            wait_until(f"step {MIDDLE}", lambda: steps_in(first) >= MIDDLE)
            victim = gang.pods()[1]
            since, begin = datetime.now(UTC), time.monotonic()
            gang.kill_pod(victim, run_variable=LONELY)
            until_running(gang, f"{gang.name}-1", RANKS, set())
            took.running.append(time.monotonic() - begin)
            wait_until("a step after the retry", lambda: lines_in(second, FIRST_STEP) > 0)
            took.stepping.append(time.monotonic() - begin)
            took.pods.append(self._pods_before(f"{gang.name}-1", since))
            self._remove(name)

    def size_after(self, attempts: int) -> tuple[int, int]:
        """Bytes of a Workflow that gave up after so many attempts, and how many nodes it has."""
        from rig.library import Trained
        from rig.training import supervised, traced

        with supervised(self.cluster, self.namespace, self.place()) as gang:
            trained = Trained(self.argo, gang)
            raises = {"RERAIL_DRILL_RAISE": _FAILS}
            trained.submit(traced(gang, environment=raises), policy=_PATIENT, max_attempts=str(attempts))
            self.argo.wait(trained.name, "Failed", deadline_s=ATTEMPTS_DEADLINE_S)
            state = gang.state()
            assert state is not None
            assert (len(state.attempts), state.phase) == (attempts, "stopped"), trained.told()
            path = f"/apis/argoproj.io/v1alpha1/namespaces/{self.namespace}/workflows/{trained.name}"
            size = len(self.cluster.kubectl("get", "--raw", path).encode())
            nodes = len(self.argo.whole_nodes(trained.name))
            self._remove(trained.name)
        return size, nodes

    def _pods_before(self, job: str, since: datetime) -> int:
        with self.audit.open(encoding="utf-8") as lines:
            stamp = since.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            found = pods_of_argo(lines, namespace=self.namespace, since=stamp, gang=job)
        assert found is not None, f"the audit log does not tell who created {job}"
        return found

    def _remove(self, workflow: str) -> None:
        """Remove a workflow with all that it made, and wait until nothing of it runs beside the next arm."""
        for kind, name in (("workflow", workflow), ("vcjob", "--all")):
            self.cluster.kubectl("delete", kind, name, "-n", self.namespace, "--wait=false")
        # Asked in a friendly way, ranks and their runner would save first.
        at_once = ("--all", "--force", "--grace-period=0", "--wait=false")
        self.cluster.kubectl("delete", "pods", *at_once, "-n", self.namespace, check=False)
        wait_until("its pods are gone", lambda: not self.cluster.read("pods", "-n", self.namespace)["items"])


def _retried(name: str, job: dict[str, Any]) -> dict[str, Any]:
    """A Workflow as Argo's users write it for one job of another kind."""
    gang = {
        "name": "gang",
        "retryStrategy": {"limit": "5", "retryPolicy": "Always"},
        "resource": {
            "action": "create",
            "setOwnerReference": True,
            "successCondition": "status.state.phase = Completed",
            "failureCondition": "status.state.phase in (Failed,Aborted,Terminated)",
            "manifest": yaml.safe_dump(job, sort_keys=False),
        },
    }
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": name},
        "spec": {"entrypoint": "gang", "serviceAccountName": "rerail-runner", "templates": [gang]},
    }
