"""A Workflow's steps against the fake API server; controllers and ranks are played by a thread.

stage    a run's store, nodes, a Workflow, and who plays the cluster; steps as processes or in this one: Stage
"""

import importlib.util
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from rerail.plugins.checkpoint.attempts import read_start
from rerail.plugins.checkpoint.commit import Blob, commit, write_part
from rerail.plugins.checkpoint.notes import beat, certificate_ref, create_certificate, read_requests
from rerail.plugins.checkpoint.open import open_run
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.cli.main import build
from rerail.plugins.gang.ledger import all_decisions, newest_entry
from rerail.policies.documents import Certificate, Heartbeat
from rerail.policies.errors import CommitExistsError, CommitFencedError, NotFoundError, RerailError
from rerail.policies.manifest import PARTS, Layout, Snapshot
from rerail.policies.supervisor.state import LedgerEntry, RunState

TEAM = "team"
RUN = "run"
STEPS = 100
DEADLINE_S = 60.0
HERE = Path(__file__).parent
POLICY = {
    "poll_s": 0.05,
    "settle_s": 0.0,
    "backoff_s": 0.0,
    "end_grace_s": 1.0,
    "end_grace_untrusted_s": 1.0,
    "end_wait_s": 5.0,
    "capacity_wait_s": 20.0,
    "in_place": False,
}
XID = {"type": "NvidiaXID79Error", "status": "True", "reason": "XID79", "message": "GPU 0 has fallen off the bus"}


def load(name: str, path: Path) -> ModuleType:
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec
        assert spec.loader
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def fake() -> ModuleType:
    module = load("rerail_test_fake_api", HERE.parent / "kube" / "support" / "fake_api.py")
    module.KNOWN.setdefault("workflows", ("argoproj.io", "Workflow"))
    return module


def wait_for(what: Callable[[], Any], *, within_s: float = DEADLINE_S) -> Any:
    end = time.monotonic() + within_s
    while not (found := what()):
        assert time.monotonic() < end, "it did not come in time"
        time.sleep(0.01)
    return found


def manifest(store: Path, replicas: int = 2) -> dict[str, Any]:
    container = {
        "name": "main",
        "image": "registry.invalid/train",
        "command": ["train"],
        "volumeMounts": [{"name": "store", "mountPath": str(store)}],
    }
    spec = {"containers": [container], "volumes": [{"name": "store", "hostPath": {"path": str(store)}}]}
    return {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": RUN},
        "spec": {"queue": "training", "tasks": [{"name": "worker", "replicas": replicas, "template": {"spec": spec}}]},
    }


@dataclass
class Stage:
    """One Workflow and its run.

    Attributes:
        faults: What happens to an attempt: ``xid`` on its first node after its first commit, ``lost`` pods, ``hold``
            lets it train without end, ``answer`` the same, and a request to leave is answered by a commit.
        created: Names of the vcjobs that were created, in order.
    """

    api: Any
    folder: Path
    faults: dict[int, str] = field(default_factory=dict)
    created: list[str] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    trouble: list[BaseException] = field(default_factory=list)
    told: dict[str, str] = field(default_factory=dict)
    _begun: set[int] = field(default_factory=set)
    _struck: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.store.mkdir(parents=True)
        (self.folder / "termination-log").touch()
        (self.folder / "kubeconfig").write_text(fake().kubeconfig(self.api.url))
        self.api.put("queues", {"metadata": {"name": "training"}, "spec": {}, "status": {"state": "Open"}})
        for name in ("n1", "n2", "n3", "n4"):
            self.node(name)
        self.workflow("w1", "u1")
        self.api.hooks.append(self._asked)
        self.thread = threading.Thread(target=self._play, daemon=True)
        self.thread.start()

    # What a test says and sees.

    @property
    def store(self) -> Path:
        return self.folder / "store"

    @property
    def run(self) -> RunStore:
        return open_run(RUN, store=self.store.as_uri())

    @property
    def outputs(self) -> Path:
        return self.folder / "outputs"

    def output(self, name: str) -> str:
        return (self.outputs / name).read_text()

    def last_words(self) -> str:
        return (self.folder / "termination-log").read_text()

    def entry(self) -> LedgerEntry | None:
        try:
            return newest_entry(self.run)
        except NotFoundError:
            return None

    def state(self) -> RunState:
        entry = self.entry()
        assert entry is not None
        return entry.state

    def decisions(self) -> list[LedgerEntry]:
        return all_decisions(self.run)

    def workflow(self, name: str, uid: str, **more: Any) -> None:
        metadata = {"name": name, "namespace": TEAM, "uid": uid, **more.pop("metadata", {})}
        self.api.put("workflows", {"metadata": metadata, "spec": {}, "status": {"phase": "Running"}, **more})

    def annotations(self, name: str = "w1") -> dict[str, str]:
        (found,) = (one for one in self.api.find("workflows") if one["metadata"]["name"] == name)
        return found["metadata"].get("annotations") or {}

    def node(self, name: str, *conditions: dict[str, str]) -> None:
        with self.api.changed:  # no write of a step comes between the look and ours
            self._put_node(name, conditions)

    def _put_node(self, name: str, conditions: Sequence[dict[str, str]]) -> None:
        ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": stamp(), "lastTransitionTime": stamp()}
        found = [one for one in self.api.find("nodes") if one["metadata"]["name"] == name]
        one = (
            found[0]
            if found
            else {
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
                "spec": {},
            }
        )
        one["status"] = {
            "conditions": [ready, *({**one, "lastTransitionTime": stamp()} for one in conditions)],
            "allocatable": {"cpu": "64", "memory": "64Gi", "pods": "110"},
        }
        self.api.put("nodes", one)

    def environment(self, **more: str) -> dict[str, str]:
        return {
            "KUBECONFIG": str(self.folder / "kubeconfig"),
            "RERAIL_STORE": self.store.as_uri(),
            "RERAIL_RUN": RUN,
            "RERAIL_MANIFEST": yaml.safe_dump(manifest(self.store)),
            "RERAIL_POLICY": yaml.safe_dump(POLICY),
            "RERAIL_NAMESPACE": TEAM,
            "RERAIL_WORKFLOW": "w1",
            "RERAIL_WORKFLOW_UID": "u1",
            "RERAIL_DEADLINE_S": "60",
            "RERAIL_TERMINATION_LOG": str(self.folder / "termination-log"),
            "RERAIL_OUTPUTS": str(self.outputs),
            "ARGO_PROGRESS_FILE": str(self.folder / "progress"),
            **{key.upper(): value for key, value in more.items()},
        }

    def start(self, *options: str, **more: str) -> subprocess.Popen[bytes]:
        """``rerail step run`` as a process of its own."""
        with (self.folder / f"runner-{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, str(HERE / "support" / "runner.py"), str(self.outputs), *options],
                env=os.environ | self.environment(**more),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self.processes.append(process)
        return process

    def ended(self, process: subprocess.Popen[bytes]) -> int:
        try:
            return process.wait(timeout=DEADLINE_S)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.said()) from None

    def said(self) -> str:
        if self.trouble:
            raise self.trouble[0]
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("runner-*.log")))

    def step(self, name: str, monkeypatch: pytest.MonkeyPatch, **more: str) -> int:
        """Another step, in this process; returns its exit code, errors as the command line would."""
        for key, value in self.environment(**more).items():
            monkeypatch.setenv(key, value)
        done = CliRunner().invoke(build(["step"]), ["step", *name.split()])
        self.told[name] = done.output
        if isinstance(done.exception, RerailError):
            return done.exception.exit_code
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return done.exit_code

    def close(self) -> None:
        self.over.set()
        self.thread.join(10)
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()

    # The cluster and the ranks.

    def _asked(self, method: str, path: str) -> None:
        if method == "POST" and path.endswith("/jobs"):
            names = [one["metadata"]["name"] for one in self.api.find("jobs")]
            self.created += [name for name in names if name not in self.created]

    def _play(self) -> None:
        while not self.over.wait(0.01):
            try:
                for job in self.api.find("jobs"):
                    self._play_job(job)
                for group in self.api.find("podgroups"):
                    self._play_group(group)
            except (CommitFencedError, CommitExistsError):
                continue
            except BaseException as error:
                self.trouble.append(error)
                raise

    def _play_job(self, job: dict[str, Any]) -> None:
        name = job["metadata"]["name"]
        ordered = any(one["target"]["name"] == name for one in self.api.find("commands"))
        pods = [one for one in self.api.find("pods") if one["metadata"]["labels"]["rerail.dev/gang"] == name]
        phase = ((job.get("status") or {}).get("state") or {}).get("phase")
        if phase in ("Terminated", "Completed"):
            return
        if phase is None:
            self._begin(job)
            return
        for pod in pods:
            if pod["metadata"].get("deletionTimestamp"):
                self.api.remove("pods", TEAM, pod["metadata"]["name"])
        left = [one for one in self.api.find("pods") if one["metadata"]["labels"]["rerail.dev/gang"] == name]
        if ordered and not left:
            self._phase(name, "Terminated")
        elif not ordered and pods:
            self._train(int(name.rpartition("-a")[2]), pods)

    def _play_group(self, group: dict[str, Any]) -> None:
        """Bare pods; those that Argo would make are the tests' own."""
        name = group["metadata"]["name"]
        of_gang = [one for one in self.api.find("pods") if one["metadata"]["labels"]["rerail.dev/gang"] == name]
        pods = [one for one in of_gang if "rerail.dev/pod" not in one["metadata"]["labels"]]
        for number, pod in enumerate(pods, 1):
            if pod["metadata"].get("deletionTimestamp"):
                self.api.remove("pods", TEAM, pod["metadata"]["name"])
            elif not pod["spec"].get("nodeName"):
                pod["spec"]["nodeName"] = f"n{number}"
                self.api.put("pods", {**pod, "status": {"phase": "Running"}})
        if pods and all((pod.get("status") or {}).get("phase") == "Running" for pod in pods):
            self._train(int(name.rpartition("-a")[2]), pods)

    def _begin(self, job: dict[str, Any]) -> None:
        name = job["metadata"]["name"]
        (task,) = job["spec"]["tasks"]
        sick = {one["metadata"]["name"] for one in self.api.find("nodes") if len(one["status"]["conditions"]) > 1}
        free = [one for one in ("n1", "n2", "n3", "n4") if one not in sick]
        for number in range(task["replicas"]):
            labels = {**job["metadata"]["labels"]}
            metadata = {"name": f"{name}-{task['name']}-{number}", "namespace": TEAM, "labels": labels}
            status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
            spec = {**task["template"]["spec"], "nodeName": free[number], "terminationGracePeriodSeconds": 1}
            self.api.put("pods", {"metadata": metadata, "spec": spec, "status": status})
        self._phase(name, "Running")

    def _phase(self, name: str, phase: str) -> None:
        self.api.change("jobs", TEAM, name, lambda one: one.update(status={"state": {"phase": phase}}))

    def _train(self, attempt: int, pods: list[dict[str, Any]]) -> None:
        try:
            start = read_start(self.run, attempt)
        except NotFoundError:
            return
        first = start.load.step if start.load else 0
        fault = self.faults.get(attempt)
        if attempt not in self._begun:
            self._begun.add(attempt)
            certificate = Certificate(
                writer=start.writer, run=RUN, attempt=attempt, loaded=start.load, ok=True, exact=True, ranks=()
            )
            create_certificate(self.run, certificate)
            self._save(attempt, first + 10, "periodic")
            self._beat(attempt, first, first + 15)
            return
        requests = read_requests(self.run, attempt)
        if fault in ("answer", "hold") and (not requests or fault == "hold"):
            return
        if requests:
            self._save(attempt, first + 16, "request", answers=tuple(one.id for _, one in requests))
            self._leave(attempt, pods, 85)
        elif fault == "xid":
            if attempt not in self._struck:
                self._struck.add(attempt)
                self.node(pods[0]["spec"]["nodeName"], XID)
        elif fault == "lost":
            self._leave(attempt, pods, 1)
        else:
            self._save(attempt, STEPS, "final")
            self._leave(attempt, pods, 0)

    def _leave(self, attempt: int, pods: list[dict[str, Any]], code: int) -> None:
        for pod in pods:
            ended = {
                "name": "main",
                "state": {"terminated": {"exitCode": code, "reason": "Completed" if not code else "Error"}},
            }
            pod["status"] = {"phase": "Failed" if code else "Succeeded", "containerStatuses": [ended]}
            self.api.put("pods", pod)
        if self.api.find("jobs"):
            self._phase(f"{RUN}-a{attempt}", "Completed" if code == 0 else "Terminated")

    def _beat(self, attempt: int, first: int, step: int) -> None:
        now = time.time()
        beat(
            self.run,
            Heartbeat(
                writer=secrets.token_hex(8), run=RUN, attempt=attempt, step=step, phase="training", at_s=now,
                step_time_s=0.1, started_from_step=first, first_step=first + 1, first_step_at_s=now, loaded_at_s=now,
                total_steps=STEPS,
            ),
        )  # fmt: skip

    def _save(self, attempt: int, step: int, reason: str, answers: tuple[str, ...] = ()) -> None:
        start = read_start(self.run, attempt)
        certificate = Certificate(
            writer=start.writer, run=RUN, attempt=attempt, loaded=start.load, ok=True, exact=True, ranks=()
        )
        save_id = secrets.token_hex(8)
        write_part(
            self.run, attempt=attempt, step=step, save_id=save_id, rank=0,
            blobs=[Blob("count.bin", "model", 8, (step.to_bytes(8, "big"),))], values={"step": step},
            absent={part: "it only counts" for part in PARTS if part not in ("model", "step")},
            snapshot=Snapshot(rank=0, at_s=time.time() - 600, node="n1"), state_digest=None, writer=start.writer,
        )  # fmt: skip
        commit(
            self.run, attempt=attempt, step=step, save_id=save_id, world_size=1, reason=reason,
            layout=Layout(world_size=2), certificate=certificate_ref(certificate), writer=start.writer, deadline_s=5.0,
            answers=answers,
        )  # fmt: skip


def stamp() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


@pytest.fixture
def make_stage(tmp_path: Path) -> Iterator[Callable[[], Stage]]:
    made: list[tuple[Stage, Callable[[], None]]] = []

    def make() -> Stage:
        api, stop = fake().serve()
        made.append((Stage(api, tmp_path / f"stage{len(made)}"), stop))
        return made[-1][0]

    yield make
    for stage, stop in made:
        stage.close()
        stop()


@pytest.fixture
def stage(make_stage: Callable[[], Stage]) -> Stage:
    return make_stage()


@pytest.fixture(name="wait_for")
def _wait_for() -> Callable[..., Any]:
    return wait_for


def dump(one: Any) -> str:
    return json.dumps(one, indent=1)
