import json
import signal

from rerail.plugins.checkpoint.attempts import seal_attempt, start_attempt
from rerail.plugins.checkpoint.commit import read_manifest
from rerail.plugins.checkpoint.notes import read_marks
from rerail.plugins.gang.ledger import all_decisions
from rerail.plugins.trainer import processes
from rerail.policies import keys
from rerail.policies.documents import Seal
from rerail.policies.supervisor.state import Suspicion
from rerail.policies.supervisor.suspicion import doubt


def end_of(supervisor, world, name="a", within_s=120.0):
    code = supervisor.wait(timeout=within_s)
    return code, world.said(name)


def committed(world, attempt, step):
    return (world.root / "store/run" / keys.manifest(attempt, step)).exists()


def test_a_run_without_faults(world):
    world.create()
    code, said = end_of(world.supervise(), world)
    assert code == 0, said
    entries = all_decisions(world.run)
    assert [entry.number for entry in entries] == list(range(len(entries)))
    state = entries[-1].state
    assert state.phase == "done"
    assert [(record.n, record.how, record.nodes, record.last_commit_step) for record in state.attempts] == [
        (1, "fresh", ("n1", "n2"), 20)
    ]
    assert world.ups() == ["1.0", "1.1"]
    assert world.left() == []


def test_an_exception_is_answered_in_the_same_pods(world):
    world.create()
    world.plan({"1.1": [7, 3]})
    code, said = end_of(world.supervise(), world)
    assert code == 0, said
    state = all_decisions(world.run)[-1].state
    assert [(record.how, record.gang) for record in state.attempts] == [("fresh", "run-a1"), ("in-place", "run-a1")]
    assert state.attempts[0].failure.error == "ValueError: planned"
    assert state.attempts[1].started_from_step == 5
    assert world.ups() == ["1.0", "1.1", "2.0", "2.1"]
    assert read_manifest(world.run, 2, 20).reason == "final"


def test_a_lost_node_is_left_out_of_the_next_gang(world, wait_for):
    world.create()
    world.plan({"1.1": [10, 0]})
    supervisor = world.supervise()
    wait_for(lambda: committed(world, 1, 5))
    for found in world.backend().processes_on("n2"):
        processes.send_exactly(found.pid, found.started, signal.SIGKILL)
    code, said = end_of(supervisor, world)
    assert code == 0, said
    state = all_decisions(world.run)[-1].state
    assert [record.nodes for record in state.attempts] == [("n1", "n2"), ("n1", "n3")]
    assert "n2" in state.quarantined
    node = json.loads((world.root / "nodes/n2/node.json").read_text())
    assert "rerail.dev/quarantined" in node["taints"]
    assert world.left() == []


def test_a_successor_adopts_what_a_killed_supervisor_left(world, wait_for):
    world.create()
    first = world.supervise(command=world.command(pace_s=0.1))
    wait_for(lambda: world.ups() == ["1.0", "1.1"])
    first.kill()
    first.wait()
    code, said = end_of(world.supervise(name="b", command=world.command(pace_s=0.1)), world, "b")
    assert code == 0, said
    assert world.ups() == ["1.0", "1.1"], "the gang was adopted, not started again"


def test_a_suspect_commit_is_marked_and_skipped_while_the_start_is_resolved(world, wait_for, gang_of):
    world.create()
    world.plan({"1.0": [12, 0], "1.1": [12, 0]})
    supervisor = world.supervise()
    wait_for(lambda: committed(world, 1, 10))
    supervisor.kill()
    supervisor.wait()
    backend = world.backend()
    wait_for(lambda: backend.end("run-a1", 0.0))
    taken = read_manifest(world.run, 1, 10).snapshots[0]
    before = Suspicion(attempt=1, node=taken.node, since_s=taken.at_s - 0.01, why="xid-79 on n1")
    elsewhere = Suspicion(attempt=1, node="n3", since_s=None, why="another node's clock says nothing here")
    seal_attempt(world.run, Seal(writer="tests-own", run="run", attempt=2, how="new-gang", gang="run-a2"))
    start = start_attempt(
        world.run,
        attempt=2,
        how="new-gang",
        gang="run-a2",
        world_size=2,
        rendezvous=backend.rendezvous(gang_of("run-a2", "n1")),
        writer="tests-own",
        suspect=lambda manifest: doubt((elsewhere, before), manifest),
    )
    assert start.load.step == 5
    assert [(skip.step, skip.why[:8]) for skip in start.skipped] == [(10, "suspect:")]
    assert keys.MarkKey(1, 10, "suspect") in read_marks(world.run)


def test_without_the_store_a_node_is_marked_and_a_dead_gang_ended_but_nothing_is_started(world, wait_for):
    world.create()
    world.plan({"1.0": [10, 0], "1.1": [10, 0]})
    supervisor = world.supervise()
    wait_for(lambda: committed(world, 1, 5) and "running" in world.said())
    (world.root / "outage").touch()
    wait_for(lambda: "going on without it" in world.said())
    before = world.decisions()
    for found in world.backend().processes_on("n2"):
        processes.send_exactly(found.pid, found.started, signal.SIGKILL)
    node = world.root / "nodes/n2/node.json"
    wait_for(lambda: "rerail.dev/quarantined" in node.read_text())
    backend = world.backend()
    wait_for(lambda: not backend.view("run-a1").alive)
    assert world.decisions() == before
    assert not (world.root / "pods/run-a2").exists()
    (world.root / "outage").unlink()
    code, said = end_of(supervisor, world)
    assert code == 0, said
    assert [record.nodes for record in all_decisions(world.run)[-1].state.attempts] == [("n1", "n2"), ("n1", "n3")]


def test_an_outage_is_not_waited_out_for_ever_and_a_living_gang_is_left_alone(world, wait_for):
    world.create()
    world.plan({"1.0": [10, 0], "1.1": [10, 0]})
    supervisor = world.supervise(policy={"store_wait_s": 0.5})
    wait_for(lambda: world.ups() == ["1.0", "1.1"])
    (world.root / "outage").touch()
    code, said = end_of(supervisor, world)
    assert code != 0
    assert "given up after 0.5 s (policy store_wait_s)" in said
    assert world.backend().view("run-a1").alive


def test_a_ledger_that_vanishes_is_no_second_beginning(world, wait_for):
    world.create()
    world.plan({"1.0": [10, 0], "1.1": [10, 0]})
    supervisor = world.supervise(policy={"store_wait_s": 0.5})
    wait_for(lambda: world.ups() == ["1.0", "1.1"])
    (world.root / "store").rename(world.root / "unmounted")
    (world.root / "store").mkdir()
    code, said = end_of(supervisor, world)
    assert code != 0
    assert "is the right volume mounted?" in said
    assert not (world.root / "store/run/ledger").exists()


def test_a_run_that_was_never_created_is_not_begun(world):
    code, said = end_of(world.supervise(), world)
    assert code != 0
    assert "NotFoundError" in said
