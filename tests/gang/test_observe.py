"""`rerail run --observe`: it says what would be done, and nothing changes."""

import os
import signal
import subprocess
import sys
from contextlib import ExitStack

import pytest

from rerail.plugins.checkpoint.attempts import create_run
from rerail.plugins.checkpoint.open import open_run
from rerail.plugins.checkpoint.readonly import read_only
from rerail.plugins.cli.main import main
from rerail.plugins.gang.clusters import observed
from rerail.plugins.gang.ledger import all_decisions, append, newest_entry
from rerail.plugins.gang.observing import Observer
from rerail.plugins.nodes.local import LocalNodes
from rerail.plugins.trainer import processes
from rerail.plugins.volcano import VolcanoClient
from rerail.policies import keys
from rerail.policies.documents import RunDoc
from rerail.policies.errors import RefusedError
from rerail.policies.recovery import DRILL_POLICY
from rerail.policies.supervisor.advance import Decision
from rerail.policies.supervisor.state import AttemptRecord, RunState


def everything(folder):
    """Every file below a folder with its content."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_nobody_drives_is_said_and_left_as_it_is(world, wait_for):
    world.create()
    world.plan({"1.1": [7, 0]})
    supervisor = world.supervise()
    wait_for(lambda: newest_entry(world.run) and newest_entry(world.run).state.phase == "running")
    step = world.trainer / "step.1.0"
    wait_for(lambda: step.exists() and step.read_text() == "8")
    # Rank 0 waits for rank 1 now: nothing writes any more.
    supervisor.kill()
    supervisor.wait()
    for found in world.backend().processes_on("n2"):
        processes.send_exactly(found.pid, found.started, signal.SIGKILL)
    pods = world.backend()
    wait_for(lambda: any(pod.phase == "gone" for pod in pods.view("run-a1").pods))
    said = []
    told = []
    observer = Observer(
        world.run,
        pods,
        LocalNodes(world.root / "nodes", used=pods.used),
        DRILL_POLICY,
        on_event=lambda entry: told.append(entry.number),
        log=said.append,
    )
    observer.step()
    before = everything(world.root / "store") | everything(world.root / "nodes") | everything(world.root / "pods")
    for _ in range(3):
        assert observer.step().phase == "running"
    after = everything(world.root / "store") | everything(world.root / "nodes") | everything(world.root / "pods")
    changed = {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}
    assert not {path for path in changed if "heartbeat" not in path.name}
    assert len(said) == 1, said
    assert "node-lost" in said[0]
    assert "would keep new work off node n2" in said[0]
    assert "end gang run-a1" in said[0]
    assert len(told) == 1
    assert [pod.phase for pod in pods.view("run-a1").pods] == ["running", "gone"]
    with pytest.raises(RefusedError):
        observer.run.control.put(keys.HEARTBEAT, b"x")


def test_the_command_looks_until_the_run_is_over(world, wait_for):
    world.create()
    supervisor = world.supervise(command=world.command(total=40, pace_s=0.1))
    wait_for(lambda: world.ups() == ["1.0", "1.1"])
    words = [
        "run",
        "--observe",
        "--run",
        "run",
        "--store",
        world.store,
        "--state",
        str(world.root / "none"),
        "-o",
        "json",
    ]
    looks = subprocess.run(
        [sys.executable, "-m", "rerail.plugins.cli.main", *words],
        env=os.environ | {"TEST_WORLD": world.mark},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert looks.returncode == 0, looks.stderr
    assert supervisor.wait(timeout=60) == 0, world.said()
    assert '"phase": "done"' in looks.stdout
    assert "nothing is written, marked or ended" in looks.stderr
    assert "done at step 40" in looks.stderr, "what the run's supervisor decided"


@pytest.mark.parametrize("kind", ["vcjob", "fanout"])
def test_in_a_cluster_only_reads_are_sent(world, make_rig, wait_for, tmp_path, kind):
    rig = make_rig(kind)  # writes the kubeconfig
    run = open_run("run", store=world.store)
    job = {**rig.backend.workload.document}
    create_run(
        run, RunDoc(writer="w" * 8, run="run", owner="cluster/team", created_at_s=0.0, world_size=2, workload=job)
    )
    record = AttemptRecord(n=1, gang="run-a1", nodes=("n1",), how="fresh", opened_at_s=0.0)
    state = RunState(
        run="run",
        world_size=2,
        phase="running",
        attempt=1,
        gang=rig.spec.model_copy(
            update={"pods": tuple(pod.model_copy(update={"node": "n1"}) for pod in rig.spec.pods)}
        ),
        layout=rig.backend.shape,
        attempts=(record,),
    )
    append(run, 0, Decision(state=state, note="made"), at_s=1.0)
    said = []
    before = len(rig.api.requests)
    with ExitStack() as held:
        client = held.enter_context(VolcanoClient.connect(tmp_path / "kubeconfig"))
        observer = observed(run, client, held, kind=kind, store=world.store, log=said.append)

        def seen():
            observer.step()
            return [line for line in said if "would" in line]

        lines = wait_for(seen)
    assert "end gang run-a1" in lines[0], said
    assert {method for method, _ in rig.api.requests[before:]} == {"GET"}
    assert newest_entry(run).number == 0


def test_what_is_no_entry_of_the_ledger_is_passed_over(tmp_path):
    run = open_run("run", store=tmp_path.as_uri())
    for name in ("000-notes.txt", "000000000.json~"):
        run.control.put(f"{keys.LEDGER}{name}", b"x")
    assert newest_entry(run) is None
    made = Decision(state=RunState(run="run", world_size=2, phase="running", attempt=1), note="made")
    for number in (0, 1):
        append(run, number, made, at_s=1.0)
    assert newest_entry(run).number == 1
    assert [entry.number for entry in all_decisions(run)] == [0, 1]


def test_a_store_that_is_only_read_refuses_every_write(world):
    world.create()
    run = read_only(world.run)
    assert run.control.create(keys.RUN, b"other").data == world.run.control.get(keys.RUN)
    for write in (
        lambda: run.control.create("marks/x", b"x"),
        lambda: run.control.put(keys.HEARTBEAT, b"x"),
        lambda: run.shards.upload("shards/x", [b"x"], size=1),
        lambda: run.control.delete((keys.RUN,)),
        run.control.prove,
        lambda: run.control.below("x").put("y", b"x"),
    ):
        with pytest.raises(RefusedError, match="only looked at"):
            write()
    assert everything(world.root / "store").keys() == {world.root / "store/run" / keys.RUN}


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("--observe",), 2, "name it with --run"),
        (("--observe", "--run", "none"), 4, "run 'none' is not known"),
        (("--observe", "--run", "x", "--take-over"), 2, "--observe takes --run"),
        (("--observe", "--run", "run", "--backend", "slurm"), 2, "'slurm' is not known"),
        ((), 2, "give COMMAND"),
    ],
)
def test_what_cannot_be_observed_is_said(world, words, code, told, capsys):
    world.create()
    with pytest.raises(SystemExit) as left:
        main(["run", *words, "--store", world.store])
    assert left.value.code == code
    assert told in capsys.readouterr().err
