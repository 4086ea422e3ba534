"""Gangs of real processes that are evicted: a small script on the public client, under ``rerail run``.

What the ranks do is steered by files in their folder: ``evaluate`` holds them in an evaluation, ``fail`` lets saves
fail, ``slow`` makes each upload take as many seconds as it says.
"""

import importlib.util
import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from rerail.plugins.checkpoint.attempts import create_run, seal_attempt, start_attempt
from rerail.plugins.checkpoint.commit import Blob, commit, write_part
from rerail.plugins.checkpoint.notes import certificate_ref, create_certificate, read_heartbeat, read_requests
from rerail.plugins.checkpoint.open import open_run
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.evict.local import LocalPods
from rerail.plugins.evict.preevict import PreEvict, live_gang
from rerail.plugins.gang.ledger import newest_entry
from rerail.plugins.gang.local import LocalBackend
from rerail.plugins.kube.api import KubeApi
from rerail.plugins.trainer import processes
from rerail.policies.documents import Certificate, How, Rendezvous, RunDoc, Seal
from rerail.policies.errors import CommitFencedError, NotFoundError
from rerail.policies.eviction import EvictionBounds
from rerail.policies.manifest import PARTS, Layout, Snapshot
from rerail.policies.supervisor.state import RunState

RUN = "run"
DEADLINE_S = 60.0
GRACE_S = 1.5
POLICY = f"""\
poll_s: 0.05
settle_s: 0.1
hold_s: 10
backoff_s: 0.05
end_grace_s: {GRACE_S}
end_grace_untrusted_s: 0.5
"""

TRAINER = r"""
import json, os, pathlib, sys, time
from rerail.plugins.checkpoint.posix import PosixStore
from rerail.plugins.trainer import Checkpointer, Every, KeyValueClient, KeyValueGroup, KeyValueServer
folder, total, pace_s, every = pathlib.Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
attempt, rank, world = (int(os.environ[n]) for n in ("RERAIL_ATTEMPT", "RANK", "WORLD_SIZE"))
upload = PosixStore.upload

def slowly(self, key, buffers, *, size):
    slow, fail = folder / "slow", folder / "fail"
    if fail.exists():
        raise OSError("the test lets saves fail")
    if slow.exists():
        time.sleep(float(slow.read_text()))
    return upload(self, key, buffers, size=size)

PosixStore.upload = slowly
port = int(os.environ["MASTER_PORT"])
server = KeyValueServer(port=port) if rank == 0 else None
store = KeyValueClient("127.0.0.1", port, timeout_s=60)
why = "it only counts"
with KeyValueGroup(store, rank=rank, world_size=world) as group:
    state, place = {"count": 0}, {"count": 0}
    ckpt = Checkpointer.from_env(
        group=group, shared={"model": state}, per_rank={"data": place}, every=Every(steps=every), total_steps=total,
        absent={part: why for part in ("optimizer", "scheduler", "epoch", "rng", "scaler", "user")},
        save_deadline_s=30.0,
    )
    step = ckpt.restore()
    assert state["count"] == step, (state, step)
    with (folder / f"steps.{attempt}.{rank}").open("a", buffering=1) as log:
        while step < total:
            mine = (int(ckpt.wish()), int((folder / "evaluate").exists()))
            told = [json.loads(one) for one in group.all_gather(json.dumps(mine).encode())]
            agreed, evaluates = (max(one) for one in zip(*told, strict=True))
            time.sleep(pace_s)
            step += 1
            state["count"] = place["count"] = step
            log.write(f"{step}\n")
            ckpt.step_done(step, agreed=agreed)
            if evaluates:
                with ckpt.phase("evaluation"):
                    (folder / f"evaluating.{attempt}.{rank}").touch()
                    while (folder / "evaluate").exists():
                        time.sleep(0.01)
    ckpt.finish(step)
if server:
    server.close()
"""


def wait_for(what: Callable[[], Any], *, within_s: float = DEADLINE_S, told: Callable[[], str] = str) -> Any:
    """Wait for a condition; the deadline only bounds a failing test."""
    end = time.monotonic() + within_s
    while not (found := what()):
        assert time.monotonic() < end, f"it did not come in time\n{told()}"
        time.sleep(0.01)
    return found


@dataclass
class Training:
    """One run on this machine, and everything that was started for it."""

    root: Path
    mark: str = field(default_factory=lambda: secrets.token_hex(8))
    supervisors: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def store(self) -> str:
        return f"file://{self.root / 'store'}"

    @property
    def folder(self) -> Path:
        return self.root / "trainer"

    @property
    def run(self) -> RunStore:
        return open_run(RUN, store=self.store)

    def start(self, *, total: int = 100_000, pace_s: float = 0.01, every: int = 50, nproc: int = 2) -> None:
        """Start ``rerail run``; again for the same run."""
        self.folder.mkdir(exist_ok=True)
        (self.root / "store").mkdir(exist_ok=True)
        (self.folder / "train.py").write_text(TRAINER)
        (self.root / "policy.yaml").write_text(POLICY)
        again = bool(self.supervisors)
        script = [str(self.folder / "train.py"), str(self.folder), str(total), str(pace_s), str(every)]
        policy = () if again else ("--policy", str(self.root / "policy.yaml"))
        with (self.root / f"run{len(self.supervisors)}.err").open("wb") as err:
            self.supervisors.append(
                subprocess.Popen(
                    [
                        *(sys.executable, "-m", "rerail.plugins.cli.main", "run", "--nproc", str(nproc)),
                        *("--run", RUN, "--store", self.store, *policy, "--", sys.executable, *script),
                    ],
                    env={name: value for name, value in os.environ.items() if not name.startswith("RERAIL_")}
                    | {"TEST_WORLD": self.mark},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=err,
                    start_new_session=True,
                )
            )

    def said(self) -> str:
        """What the supervisors told people, and the launches."""
        files = [*sorted(self.root.glob("run*.err")), *sorted(self.root.glob("store/.local/run/**/launch.log"))]
        return "\n".join(path.read_text(errors="replace") for path in files)

    def state(self) -> RunState | None:
        try:
            entry = newest_entry(self.run)
        except NotFoundError:
            return None
        return entry.state if entry else None

    def steps(self, attempt: int, rank: int = 0) -> list[int]:
        """Steps that a rank made in an attempt."""
        path = self.folder / f"steps.{attempt}.{rank}"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def trains(self, attempt: int) -> None:
        """Wait until an attempt makes steps, and its supervisor knows."""

        def so() -> bool:
            state = self.state()
            return state is not None and (state.attempt, state.phase) == (attempt, "running") and self.known(attempt)

        wait_for(lambda: self.steps(attempt) and so(), told=self.said)

    def known(self, attempt: int) -> bool:
        state = self.state()
        return state is not None and any(one.n == attempt and one.first_step_at_s for one in state.attempts)

    def evaluates(self, attempt: int) -> None:
        """Hold the ranks in an evaluation, and wait until their heartbeat says so."""
        (self.folder / "evaluate").touch()
        wait_for(lambda: len(list(self.folder.glob(f"evaluating.{attempt}.*"))) == 2)
        wait_for(lambda: (beat := read_heartbeat(self.run)) and (beat.attempt, beat.phase) == (attempt, "evaluation"))

    def backend(self) -> LocalBackend:
        return LocalBackend(RUN, self.root / "store/.local" / RUN / "pods", (), {})

    def pre_evict(self, *, deadline_s: float = 30.0, **more: Any) -> PreEvict:
        run = self.run
        target = live_gang(run)
        return PreEvict(
            run,
            target,
            LocalPods(self.backend(), target.gang, GRACE_S),
            EvictionBounds(deadline_s=deadline_s),
            more.pop("reason", "a test"),
            **{"poll_s": 0.02, "takeover_s": 20.0, **more},
        )

    def left(self) -> list[processes.Stat]:
        """Every living process of this run."""
        mark = f"TEST_WORLD={self.mark}".encode()
        found = []
        for stat in processes.all_stats():
            try:
                if stat.state not in "ZX" and mark in Path(f"/proc/{stat.pid}/environ").read_bytes().split(b"\0"):
                    found.append(stat)
            except OSError:
                continue
        return found

    def end(self) -> None:
        while left := self.left():
            for stat in left:
                processes.send_exactly(stat.pid, stat.started, 9)
            time.sleep(0.01)
        for process in self.supervisors:
            process.wait()


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    one = Training(tmp_path)
    yield one
    one.end()


def load(name: str, *, of: str = "kube") -> Any:
    """A module beside the tests of ``of``, loaded once."""
    known = f"rerail_test_{name}"
    if known not in sys.modules:
        path = Path(__file__).parents[1] / of / "support" / f"{name}.py"
        spec = importlib.util.spec_from_file_location(known, path)
        assert spec
        assert spec.loader
        sys.modules[known] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[known])
    return sys.modules[known]


@dataclass
class Budget:
    """A PodDisruptionBudget that lets no pod with a label go."""

    name: str
    label: tuple[str, str]


def evicting(base: type[Any], api: Any) -> type[Any]:
    """The fake API server's handler with the eviction subresource, and a kubelet that ends what is to go."""

    class Evicting(base):  # type: ignore[misc]
        def create(self, plural, group, namespace, name, sub, query, body):  # noqa: PLR0917
            if sub != "eviction":
                return super().create(plural, group, namespace, name, sub, query, body)
            pod = api.objects.get((plural, namespace, name))
            if pod is None:
                return self.missing(plural, group, name)
            uid = (body["deleteOptions"].get("preconditions") or {}).get("uid")
            if uid not in (None, pod["metadata"]["uid"]):
                return 409, load("fake_api").status(409, "the UID in the precondition does not match")
            labels = pod["metadata"].get("labels") or {}
            for budget in api.budgets:
                if labels.get(budget.label[0]) == budget.label[1]:
                    text = f"The disruption budget {budget.name} needs 4 healthy pods and has 4 currently"
                    causes = [{"reason": "DisruptionBudget", "message": text}]
                    words = "Cannot evict pod as it would violate the pod's disruption budget."
                    return 429, load("fake_api").status(429, words, causes=causes)
            if query.get("dryRun") != "All":
                api.evicted.append(name)
                api.change(plural, namespace, name, lambda one: one["metadata"].update(deletionTimestamp="2026-01-01"))
                if pod["spec"]["nodeName"] not in api.dead:
                    api.remove(plural, namespace, name)
            return 201, {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 201}

    return Evicting


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The small API server with two nodes, and evictions; KUBECONFIG leads to it."""
    module = load("fake_api")
    plain = module.handler
    with monkeypatch.context() as patch:
        patch.setattr(module, "handler", lambda api: evicting(plain(api), api))
        api, stop = module.serve()
    api.budgets, api.evicted, api.dead = [], [], set()
    api.keep = lambda name, *label: api.budgets.append(Budget(name, label))
    path = tmp_path / "kubeconfig"
    path.write_text(module.kubeconfig(api.url))
    monkeypatch.setenv("KUBECONFIG", str(path))
    for name in ("n1", "n2"):
        ready = {"conditions": [{"type": "Ready", "status": "True"}]}
        api.put("nodes", {"metadata": {"name": name}, "spec": {}, "status": ready})
    with ExitStack() as held:
        held.callback(stop)
        yield api


@dataclass
class PodGang:
    """A gang of pods that no kubelet runs, whose ranks are a thread of the test that answers requests."""

    api: Any
    root: Path
    name: str
    nodes: tuple[str, ...]
    namespace: str = "team"
    may_answer: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)
    step: int = 7
    thread: threading.Thread | None = None

    @property
    def gang(self) -> str:
        return f"{self.name}-a1"

    @property
    def store(self) -> str:
        return (self.root / "store").as_uri()

    @property
    def run(self) -> RunStore:
        return open_run(self.name, store=self.store, create=True)

    def start(self) -> "PodGang":
        """Open attempt 1, place its pods and start its ranks."""
        doc = RunDoc(
            writer=secrets.token_hex(8),
            run=self.name,
            owner=f"cluster/{self.namespace}",
            created_at_s=0.0,
            world_size=1,
        )
        create_run(self.run, doc)
        self.open(1, "fresh", self.gang)
        for number, node in enumerate(self.nodes):
            self.pod(f"{self.gang}-{number}", node)
        self.thread = threading.Thread(target=self.live, daemon=True)
        self.thread.start()
        return self

    def open(self, attempt: int, how: How, gang: str) -> None:
        """Seal and start an attempt, as a supervisor does."""
        seal = Seal(writer=secrets.token_hex(8), run=self.name, attempt=attempt, how=how, gang=gang)
        seal_attempt(self.run, seal)
        start_attempt(
            self.run,
            attempt=attempt,
            how=how,
            gang=gang,
            world_size=1,
            rendezvous=Rendezvous(id="x", host="h", port=1),
            writer=secrets.token_hex(8),
        )

    def pod(self, name: str, node: str) -> None:
        labels = {"rerail.dev/run": self.name, "rerail.dev/gang": self.gang}
        env = [{"name": "RERAIL_STORE", "value": self.store}]
        container = {"name": "main", "image": "registry.invalid/x", "env": env}
        spec = {"nodeName": node, "terminationGracePeriodSeconds": 1, "containers": [container]}
        metadata = {"name": name, "namespace": self.namespace, "labels": labels}
        self.api.put("pods", {"metadata": metadata, "spec": spec, "status": {"phase": "Running"}})

    def live(self) -> None:
        """Wait for a request, commit with its answer once the test lets it, and leave."""
        while not (asked := read_requests(self.run, 1)):
            if self.over.wait(0.01):
                return
        while not self.may_answer.wait(0.01):
            if self.over.is_set():
                return
        with suppress(CommitFencedError):
            self.commit(asked[0][1].id)
        self.leave()

    def leave(self) -> None:
        for number in range(len(self.nodes)):
            self.api.remove("pods", self.namespace, f"{self.gang}-{number}")

    def commit(self, answer: str, attempt: int = 1) -> None:
        certificate = Certificate(
            writer=secrets.token_hex(8), run=self.name, attempt=attempt, loaded=None, ok=True, exact=True, ranks=()
        )
        create_certificate(self.run, certificate)
        save_id = secrets.token_hex(8)
        write_part(
            self.run,
            attempt=attempt,
            step=self.step,
            save_id=save_id,
            rank=0,
            blobs=[Blob("count.bin", "model", 1, (b"x",))],
            values={"step": self.step},
            absent={part: "it only counts" for part in PARTS if part not in ("model", "step")},
            snapshot=Snapshot(rank=0, at_s=time.time()),
            state_digest=None,
            writer=secrets.token_hex(8),
        )
        commit(
            self.run,
            attempt=attempt,
            step=self.step,
            save_id=save_id,
            world_size=1,
            reason="request",
            layout=Layout(world_size=1),
            certificate=certificate_ref(certificate),
            writer=secrets.token_hex(8),
            answers=(answer,),
        )


@pytest.fixture
def pod_gang(fake: Any, tmp_path: Path) -> Iterator[Callable[..., PodGang]]:
    made: list[PodGang] = []

    def make(name: str, *nodes: str) -> PodGang:
        made.append(PodGang(fake, tmp_path, name, nodes).start())
        return made[-1]

    yield make
    for one in made:
        one.over.set()
        assert one.thread is not None
        one.thread.join(10)


@pytest.fixture
def pod_gang_type() -> type[PodGang]:
    return PodGang


@pytest.fixture
def real() -> Iterator[Any]:
    """A namespace and two nodes on a real API server (RERAIL_TEST_KUBECONFIG)."""
    path = os.environ.get("RERAIL_TEST_KUBECONFIG", "")
    if not path:
        pytest.skip("no real API server: RERAIL_TEST_KUBECONFIG is not set (make cluster-up prints it)")
    api = KubeApi.connect(path)
    one = load("real", of="evict").RealApi(api)
    yield one
    one.close()
    api.close()


@pytest.fixture
def load_support() -> Callable[..., Any]:
    return load


@pytest.fixture(name="wait_for")
def _wait_for() -> Callable[..., Any]:
    return wait_for


@pytest.fixture(name="as_json")
def _as_json() -> Callable[[str], Any]:
    return json.loads
