"""The training of examples/01 as a supervised gang in the cluster: `rerail run` as a process, faults, and the proof."""

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rerail.plugins.checkpoint.attempts import read_run
from rerail.plugins.checkpoint.open import open_run
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.drill.identical import Comparison, compare, final_commit
from rerail.plugins.gang.ledger import newest_entry
from rerail.plugins.report import build_report, read_facts
from rerail.plugins.report.document import Report
from rerail.plugins.trainer import processes
from rerail.policies.errors import NotFoundError, TransientError
from rerail.policies.recovery import RecoveryPolicy
from rerail.policies.supervisor.state import RunState
from rig import layout, machines
from rig.access import Cluster

STEPS = 100
SAVE_EVERY = 10
MIDDLE = 45
"""A step at which faults come, and the last commit before it."""
BEFORE = 40
RANKS = 4
DEADLINE_S = 240.0
QUEUE = "rerail-training"
"""Of these tests alone: jobs of others neither preempt nor reclaim what runs in it."""

SHARED = layout.STATE / "shared"
"""A folder of this machine that every node mounts: it stands for a volume that many nodes can write."""

POLICY: Mapping[str, Any] = {
    "suspect_margin_s": 0.5,
    "save_within_s": 20.0,
    "end_grace_s": 10.0,
    "end_grace_untrusted_s": 1.0,
    "end_wait_s": 20.0,
    "hang_after_s": 60.0,
    "node_lost_after_s": 4.0,
    "load_within_s": 240.0,
    "prepare_s": 60.0,
    "hold_s": 20.0,
    "settle_s": 0.5,
    "backoff_s": 0.2,
    "backoff_max_s": 2.0,
    "capacity_wait_s": 200.0,
    "store_wait_s": 60.0,
    "poll_s": 0.2,
}


def manifest(
    cluster: Cluster,
    name: str,
    *,
    kind: str = "Job",
    replicas: int = RANKS,
    gpus: int = 1,
    steps: int = STEPS,
    delay_s: float = 0.15,
    queue: str = QUEUE,
    environment: Mapping[str, str] | None = None,
    mounts: Mapping[str, str] | None = None,
    claims: Mapping[str, str] | None = None,
    pod: Mapping[str, Any] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """A user's own vcjob, of one rank per pod, without anything else of Rerail's.

    ``mounts`` are folders of the machine by their path in pods, ``claims`` names of volume claims by theirs; ``pod``
    goes into the pods' spec, ``spec`` into the job's.
    """
    variables = {**cluster.s3_env, **(environment or {})}
    places: dict[str, dict[str, Any]] = {
        path: {"hostPath": {"path": where, "type": "DirectoryOrCreate"}} for path, where in (mounts or {}).items()
    }
    places |= {path: {"persistentVolumeClaim": {"claimName": claim}} for path, claim in (claims or {}).items()}
    container = {
        "name": "main",
        "image": cluster.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-u", "-m", "rerail.examples.local_gang.train"],
        "args": [
            f"--steps={steps}",
            f"--save-every={SAVE_EVERY}",
            "--batch=70",
            "--samples=3640",
            f"--step-delay-s={delay_s}",
        ],
        "env": [{"name": key, "value": value} for key, value in variables.items()],
        "resources": {"limits": {machines.GPU: str(gpus)}},
        "volumeMounts": [{"name": f"v{number}", "mountPath": path} for number, path in enumerate(places)],
    }
    volumes = [{"name": f"v{number}", **volume} for number, volume in enumerate(places.values())]
    template = {
        "metadata": {"annotations": {"rerail.dev/ranks-per-pod": "1"}},
        "spec": {"restartPolicy": "Never", "containers": [container], "volumes": volumes, **(pod or {})},
    }
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": kind,
        "metadata": {"name": name},
        "spec": {
            "schedulerName": "volcano",
            "minAvailable": replicas,
            "queue": queue,
            **spec,
            "tasks": [{"name": "worker", "replicas": replicas, "template": template}],
        },
    }


@dataclass
class Gang:
    """One supervised run.

    Attributes:
        trace: Where its ranks write what they did, for the comparison.
        store: Its address for pods, and for ``rerail run``.
        seen_at: The same store for this process, where that is another address.
        supervisors: Processes of ``rerail run``, the newest last.
    """

    cluster: Cluster
    namespace: str
    name: str
    backend: str
    folder: Path
    trace: Path
    store: str
    control: str | None = None
    seen_at: str | None = None
    supervisors: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, document: Mapping[str, Any] | None = None, policy: Mapping[str, Any] | None = None) -> None:
        """Start ``rerail run``; again for the same run where no document is given."""
        path, rules = self.folder / "job.yaml", self.folder / "policy.yaml"
        again = document is None
        if document is not None:
            path.write_text(yaml.safe_dump(dict(document), sort_keys=False))
            rules.write_text(yaml.safe_dump({**POLICY, **(policy or {})}))
        control = () if self.control is None else ("--control", self.control)
        with (self.folder / f"supervisor-{len(self.supervisors)}.log").open("w") as log:
            self.supervisors.append(
                subprocess.Popen(
                    [
                        str(Path(sys.executable).with_name("rerail")),
                        "run",
                        f"--backend={self.backend}",
                        f"--run={self.name}",
                        f"--store={self.store}",
                        f"--namespace={self.namespace}",
                        "--output=json",
                        *control,
                        *(() if again else (f"--policy={rules}",)),
                        str(path),
                    ],
                    env={**os.environ, **self.cluster.s3_env, "KUBECONFIG": str(self.cluster.kubeconfig)},
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                )
            )

    def kill_supervisor(self) -> None:
        """SIGKILL to the newest ``rerail run``."""
        self.supervisors[-1].kill()
        self.supervisors[-1].wait()

    def stop(self) -> None:
        """End every process that this test started."""
        for process in self.supervisors:
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()

    @property
    def run(self) -> RunStore:
        """The run's stores, from here."""
        return open_run(self.name, store=self.seen_at or self.store, control=self.control)

    def state(self) -> RunState | None:
        """What the newest decision knows."""
        try:
            entry = newest_entry(self.run)
        except (NotFoundError, TransientError):
            return None
        return entry.state if entry else None

    def said(self) -> str:
        """What the supervisors told people."""
        logs = sorted(self.folder.glob("supervisor-*.log"))
        return "\n".join(path.read_text() for path in logs)

    def wait(self, what: str, condition: Callable[[RunState], bool], deadline_s: float = DEADLINE_S) -> RunState:
        """Wait for a state of the run."""
        deadline = time.monotonic() + deadline_s
        while True:
            state = self.state()
            if state is not None and condition(state):
                return state
            over = state is not None and state.phase in ("done", "stopped")
            if over or time.monotonic() > deadline:
                told = self.cluster.kubectl("get", "vcjob,podgroups,pods", "-n", self.namespace, "-o", "wide")
                phase = state.phase if state else None
                raise AssertionError(f"{what}: not so; phase {phase}\n{self.said()}\n{told}")
            time.sleep(0.1)

    def wait_step(self, step: int, attempt: int = 1) -> None:
        """Wait until a rank has made a step, as its trace says."""
        path = self.trace / f"trace-a{attempt}-r0.jsonl"
        deadline = time.monotonic() + DEADLINE_S
        while not path.exists() or path.read_text().count("\n") < step:
            if time.monotonic() > deadline or self.supervisors[-1].poll() is not None:
                raise AssertionError(f"step {step} of attempt {attempt} did not come\n{self.said()}")
            time.sleep(0.05)

    def end(self, expected: int = 0) -> dict[str, Any]:
        """Wait until the newest ``rerail run`` ends with this exit code; returns its document."""
        process = self.supervisors[-1]
        try:
            out, _ = process.communicate(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            told = self.cluster.kubectl("get", "vcjob,podgroups,pods", "-n", self.namespace, "-o", "wide")
            raise AssertionError(f"the run does not end\n{self.said()}\n{told}") from None
        if process.returncode != expected:
            logs = self.cluster.kubectl(
                "logs", "-n", self.namespace, "-l", f"rerail.dev/run={self.name}", "--tail=20", "--prefix", check=False
            )
            raise AssertionError(f"rerail run ended with {process.returncode}\n{self.said()}\n{out}\n{logs}")
        return dict(json.loads(out)) if out else {}

    def pods(self) -> list[dict[str, Any]]:
        """The pods of all its gangs."""
        found = self.cluster.read("pods", "-n", self.namespace, "-l", f"rerail.dev/run={self.name}")["items"]
        return sorted(found, key=lambda pod: pod["metadata"]["name"])

    def report(self) -> Report:
        """The report, as anybody would make it from the store."""
        state = self.state()
        assert state is not None
        policy = RecoveryPolicy.from_mapping(dict(read_run(self.run).policy), "run.json")
        return build_report(state, read_facts(self.run), policy)

    def compare(self, baseline: "Gang") -> Comparison:
        """Bit by bit with the uninterrupted run."""
        state = self.state()
        assert state is not None
        last = max(record.n for record in state.attempts)
        return compare(self.run, self.trace, baseline.run, baseline.trace, attempts=last)

    def kill_pod(self, pod: Mapping[str, Any], run_variable: str = "RERAIL_RUN") -> None:
        """SIGKILL to every process of a pod at once, launch included: no word is left behind."""
        self._kill(f"{run_variable}={self.name}", f"RERAIL_POD={pod['metadata']['name']}")

    def kill_rank(self, rank: int) -> None:
        """SIGKILL to the process of one rank; its launch lives on."""
        self._kill(f"RERAIL_RUN={self.name}", f"RANK={rank}")

    def kill_runner(self, workflow: str) -> None:
        """SIGKILL to the step of a Workflow that drives this run: it hears of nothing."""
        self._kill(f"RERAIL_RUN={self.name}", f"RERAIL_WORKFLOW={workflow}")

    def _kill(self, *marks: str) -> None:
        wanted = {mark.encode() for mark in marks}
        killed = 0
        for found in processes.all_stats():
            try:
                words = set(Path(f"/proc/{found.pid}/environ").read_bytes().split(b"\0"))
            except OSError:
                continue
            if wanted <= words:
                processes.send_exactly(found.pid, found.started, signal.SIGKILL)
                killed += 1
        assert killed, f"no process with {' and '.join(marks)} is on this machine"


@contextmanager
def supervised(
    cluster: Cluster, namespace: str, folder: Path, *, backend: str = "vcjob", store: str | None = None, **more: Any
) -> Iterator[Gang]:
    """A run that is not started yet; its processes end with the block."""
    name = f"t{secrets.token_hex(3)}"
    trace = SHARED / namespace / name
    trace.mkdir(parents=True, exist_ok=True)
    address = store or f"s3://{cluster.bucket}/{namespace}"
    gang = Gang(cluster, namespace, name, backend, folder, trace, address, **more)
    try:
        yield gang
    finally:
        gang.stop()
        shutil.rmtree(trace, ignore_errors=True)


def traced(gang: Gang, mounts: Mapping[str, str] | None = None, **more: Any) -> dict[str, Any]:
    """The manifest of a run whose ranks write their trace to the machine."""
    environment = {"RERAIL_TRACE": "/trace", **more.pop("environment", {})}
    return manifest(
        gang.cluster, gang.name, environment=environment, mounts={"/trace": str(gang.trace), **(mounts or {})}, **more
    )


def is_whole(gang: Gang) -> bool:
    """Whether the final commit stands."""
    return final_commit(gang.run) is not None


def finished(gang: Gang, baseline: Gang, *, attempts: int = 2) -> Report:
    """The end of each story: the same training, by certificates and bit by bit, and the report says so."""
    gang.end()
    found = gang.compare(baseline)
    assert found.identical, found.differences
    report = gang.report()
    assert report.outcome == "done"
    assert len(report.attempts) == attempts, gang.said()
    assert all(certificate.ok for certificate in report.certificates)
    assert {certificate.attempt for certificate in report.certificates} == {row.n for row in report.attempts}
    assert all(incident.recovered_s is not None for incident in report.incidents)
    return report
