import multiprocessing
import os
import secrets
import signal
import subprocess
import sys

import pytest

from rerail.plugins.checkpoint.attempts import open_attempt
from rerail.plugins.gang.ports import GangBackend
from rerail.plugins.trainer import farewell, processes


def start(world, backend, spec, attempt=1):
    return open_attempt(
        world.run,
        attempt=attempt,
        how="fresh" if attempt == 1 else "new-gang",
        gang=spec.name,
        world_size=spec.world_size,
        rendezvous=backend.rendezvous(spec),
        writer=secrets.token_hex(8),
    )


def phases(backend, gang="run-a1"):
    return [pod.phase for pod in backend.view(gang).pods]


def test_it_is_a_gang_backend(world):
    assert isinstance(world.backend(), GangBackend)


def test_a_gang_runs_and_ends_by_its_farewells(world, wait_for, gang_of):
    world.create()
    backend = world.backend()
    spec = gang_of("run-a1", "n1", "n2")
    assert backend.view("run-a1").pods == ()
    backend.submit(spec)
    assert set(phases(backend)) <= {"pending", "running"}
    start(world, backend, spec)
    wait_for(lambda: phases(backend) == ["succeeded", "succeeded"])
    assert [(pod.exit_code, pod.farewell, pod.node) for pod in backend.view("run-a1").pods] == [
        (0, True, "n1"),
        (0, True, "n2"),
    ]
    assert world.ups() == ["1.0", "1.1"]
    assert backend.used() == {}
    wait_for(lambda: backend.end("run-a1", 0.0))
    assert backend.gangs("run") == ()


def test_a_pod_that_is_killed_is_gone_without_a_farewell_and_so_are_its_ranks(world, wait_for, gang_of):
    world.create()
    world.plan({"1.0": [0, 0], "1.1": [0, 0]})
    backend = world.backend()
    spec = gang_of("run-a1", "n1", "n2")
    backend.submit(spec)
    start(world, backend, spec)
    wait_for(lambda: world.ups() == ["1.0", "1.1"])
    assert backend.used() == {"n1": 1, "n2": 1}
    for found in backend.processes_on("n1"):
        processes.send_exactly(found.pid, found.started, signal.SIGKILL)
    wait_for(lambda: phases(backend) == ["gone", "running"])
    lost = backend.view("run-a1").pods[0]
    assert (lost.exit_code, lost.farewell) == (137, False)
    wait_for(lambda: backend.processes_on("n1") == [])
    assert backend.used() == {"n2": 1}


def test_ending_is_sigterm_once_and_sigkill_after_the_grace_by_whoever_asks(world, wait_for, gang_of):
    world.create()
    world.plan({"1.0": [0, 0]})  # never looks at its SIGTERM again
    first = world.backend()
    spec = gang_of("run-a1", "n1")
    first.submit(spec)
    start(world, first, spec)
    wait_for(lambda: world.ups() == ["1.0"])
    assert first.end("run-a1", 60.0) is False
    successor = world.backend()
    assert successor.end("run-a1", 60.0) is False
    assert phases(successor) == ["running"]
    wait_for(lambda: successor.end("run-a1", 0.2))
    assert world.left() == []
    assert phases(successor) == ["gone"]


def test_a_gang_that_was_ended_before_a_pod_came_up_never_comes_up(world, wait_for, gang_of):
    world.create()
    backend = world.backend()
    spec = gang_of("run-a1", "n1")
    backend.submit(spec)
    wait_for(lambda: backend.end("run-a1", 0.0))
    start(world, backend, spec)
    stale = world.backend()
    stale.submit(spec)
    wait_for(lambda: world.left() == [])
    assert world.ups() == []
    assert phases(stale) == ["gone"]


def test_pods_outlive_their_supervisor_and_are_adopted(world, wait_for, gang_of):
    world.create()
    world.plan({"1.0": [0, 0]})
    spec = gang_of("run-a1", "n1")
    context = multiprocessing.get_context("fork")
    supervisor = context.Process(target=lambda: (world.backend().submit(spec), os.kill(os.getpid(), signal.SIGKILL)))
    supervisor.start()
    supervisor.join(60)
    assert supervisor.exitcode == -signal.SIGKILL
    backend = world.backend()
    start(world, backend, spec)
    wait_for(lambda: world.ups() == ["1.0"])
    backend.submit(spec)
    wait_for(lambda: phases(backend) == ["running"])
    assert world.ups() == ["1.0"]
    assert backend.gangs("run") == ("run-a1",)
    wait_for(lambda: backend.end("run-a1", 0.0))
    assert world.left() == []


@pytest.mark.parametrize("supervisors", [2, 6])
def test_supervisors_at_once_never_start_a_pod_twice(world, wait_for, gang_of, supervisors):
    world.create()
    world.plan({"1.0": [0, 0], "1.1": [0, 0]})
    backends = [world.backend() for _ in range(supervisors)]
    spec = gang_of("run-a1", "n1", "n2")
    start(world, backends[0], spec)
    for backend in backends:
        backend.submit(spec)
    wait_for(lambda: all(not backend._children or phases(backend) == ["running"] * 2 for backend in backends))
    wait_for(lambda: world.ups() == ["1.0", "1.1"])
    # The losers leave without a word; two launches stay.
    wait_for(lambda: sum(len(backend._children) for backend in backends if not backend._collect()) == 2)
    assert world.ups() == ["1.0", "1.1"]
    assert phases(backends[-1]) == ["running", "running"]
    wait_for(lambda: backends[-1].end("run-a1", 0.0))


def test_a_pod_that_cannot_even_claim_itself_is_gone(world, wait_for, gang_of):
    backend = world.backend()
    backend.environment = {"PATH": "/nowhere", "PYTHONHOME": "/nowhere"}
    backend.submit(gang_of("run-a1", "n1"))
    wait_for(lambda: phases(backend) == ["gone"])
    assert (world.root / "pods/run-a1/run-a1-0/launch.log").stat().st_size


def test_a_reused_pid_is_not_the_pod(world, gang_of):
    backend = world.backend()
    folder = world.root / "pods/run-a1/run-a1-0"
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        spec = gang_of("run-a1", "n1")
        folder.mkdir(parents=True)
        found = processes.stat_of(other.pid)
        assert farewell.claim_for(folder / "claim.json", other.pid, found.started - 1)
        backend.submit(spec)
        assert phases(backend) == ["gone"]
        assert backend.end("run-a1", 0.0)
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_free_ports_and_fresh_ids_for_each_rendezvous(world, gang_of):
    backend = world.backend()
    one, two = (backend.rendezvous(gang_of("run-a1", "n1")) for _ in range(2))
    assert one.id != two.id
    assert 1024 < one.port <= 65535
