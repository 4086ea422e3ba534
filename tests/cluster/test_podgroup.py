"""The training of examples/01 as a PodGroup of bare pods; other forms of a manifest; and how ranks find each other."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from rig.gangs import full
from rig.training import BEFORE, MIDDLE, Gang, finished, supervised, traced

MEET = """
import json, os, runpy, socket, sys, time

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])

def not_found():
    (search,) = (line.split()[1] for line in open("/etc/resolv.conf") if line.startswith("search"))
    try:
        socket.getaddrinfo(f"{host}.{search}.", port)
    except socket.gaierror as error:
        return error.errno == socket.EAI_NONAME  # the answer NXDOMAIN
    return False

until, unknown, joined = time.monotonic() + 60, 0, {0: os.environ["RERAIL_NODE"]}
if rank == 0:
    with socket.create_server(("", port)) as server:
        server.settimeout(60)
        while len(joined) < world:
            peer, _ = server.accept()
            with peer:
                said = json.loads(peer.makefile().readline())
                joined[said["rank"]] = said["node"]
                peer.sendall(b"+")
else:
    while True:
        try:
            with socket.create_connection((host, port), timeout=5) as peer:
                peer.sendall(json.dumps({"rank": rank, "node": os.environ["RERAIL_NODE"]}).encode() + b"\\n")
                assert peer.recv(1) == b"+"
                break
        except socket.gaierror:
            unknown += not_found()
            os.makedirs("/trace/gate", exist_ok=True)  # only now may the pod of rank 0 begin
        except OSError:
            pass
        assert time.monotonic() < until, f"rank 0 is not at {host}:{port}"
        time.sleep(0.2)
names = ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
seen = {name: value for name, value in os.environ.items() if name in names or name.startswith("PET_")}
with open(f"/trace/met-{rank}.json", "w") as file:
    json.dump({"unknown": unknown, "joined": joined, "seen": seen}, file)
runpy.run_module("rerail.examples.local_gang.train", run_name="__main__")
"""
"""What torchrun's static rendezvous does, with plain sockets; then the training."""


@pytest.fixture
def bare(cluster, namespace, s3, tmp_path) -> Iterator[Gang]:
    """A gang of bare pods."""
    assert s3 is None
    with supervised(cluster, namespace, tmp_path, backend="podgroup") as one:
        yield one


def left(gang: Gang) -> dict[str, int]:
    """How many objects of each kind the run has."""
    counts = {}
    for kind in ("vcjob", "podgroup", "service", "pod"):
        found = gang.cluster.read(kind, "-n", gang.namespace, "-l", f"rerail.dev/run={gang.name}")["items"]
        counts[kind] = len(found)
    return counts


@full
def test_bare_pods_train_to_the_end(bare, baseline):
    bare.start(traced(bare))
    bare.wait_step(10)
    assert left(bare) == {"vcjob": 0, "podgroup": 1, "service": 1, "pod": 4}
    assert [pod["metadata"]["name"] for pod in bare.pods()] == [f"{bare.name}-a1-{index}" for index in range(4)]
    finished(bare, baseline, attempts=1)


def test_a_killed_bare_pod_moves_the_gang(bare, baseline):
    bare.start(traced(bare))
    bare.wait_step(MIDDLE)
    bare.kill_pod(bare.pods()[1])
    bare.wait("the second gang is there", lambda state: state.attempt == 2 and state.phase == "running")
    bare.wait_step(1, attempt=2)
    names = [pod["metadata"]["name"] for pod in bare.pods()]
    assert names == [f"{bare.name}-a2-{index}" for index in range(4)], "the first went with its group"
    report = finished(bare, baseline)

    assert report.attempts[1].how == "new-gang"
    assert report.attempts[1].started_from_step >= BEFORE
    assert report.incidents[0].class_ == "pod-lost"


@full
def test_a_rank_that_raises_is_restarted_in_its_bare_pods(bare, baseline):
    bare.start(traced(bare, environment={"RERAIL_DRILL_RAISE": f"step={MIDDLE},rank=1,attempt=1"}))
    bare.wait("the second attempt", lambda state: state.attempt == 2 and state.phase == "running")
    assert [pod["metadata"]["name"] for pod in bare.pods()] == [f"{bare.name}-a1-{index}" for index in range(4)]
    report = finished(bare, baseline)

    assert report.attempts[1].how == "in-place"
    assert report.incidents[0].class_ == "app-error"


@full
@pytest.mark.alone
def test_a_drained_node_is_left_by_bare_pods_after_a_save(cluster, bare, baseline):
    bare.start(traced(bare))
    bare.wait_step(MIDDLE)
    drained = bare.pods()[-1]["spec"]["nodeName"]
    try:
        cluster.kubectl(
            "drain", drained, "--force", "--ignore-daemonsets", f"--pod-selector=rerail.dev/run={bare.name}"
        )
        report = finished(bare, baseline)
    finally:
        cluster.kubectl("uncordon", drained)

    assert drained not in report.attempts[1].nodes
    assert report.lost_steps == 0
    assert report.incidents[0].cause == "preemption"


def run_manifest(gang: Gang) -> dict[str, Any]:
    """The same training as a Run, with the store and a policy of its own in it."""
    job = traced(gang)
    pod = job["spec"]["tasks"][0]["template"]["spec"]
    main = pod["containers"][0]
    return {
        "apiVersion": "rerail.dev/v1alpha1",
        "kind": "Run",
        "metadata": {"name": gang.name, "labels": {"team": "tests"}},
        "spec": {
            "image": main["image"],
            "imagePullPolicy": main["imagePullPolicy"],
            "command": [*main["command"], *main["args"]],
            "replicas": 4,
            "gpusPerReplica": 1,
            "queue": job["spec"]["queue"],
            "store": gang.store,
            "env": main["env"],
            "volumes": pod["volumes"],
            "volumeMounts": main["volumeMounts"],
        },
    }


@full
def test_a_run_manifest_becomes_a_vcjob(gang, baseline):
    gang.start(run_manifest(gang))
    gang.wait_step(MIDDLE)
    job = gang.cluster.read("vcjob", f"{gang.name}-a1", "-n", gang.namespace)
    assert job["metadata"]["labels"]["team"] == "tests"
    gang.kill_pod(gang.pods()[0])
    report = finished(gang, baseline)

    assert report.attempts[1].how == "new-gang"


@full
def test_ranks_meet_on_two_nodes_although_the_first_names_are_not_known_yet(cluster, gang, baseline):
    job = traced(gang, gpus=2)
    (task,) = job["spec"]["tasks"]
    task["replicas"] = 1
    del task["template"]["metadata"]  # a rank for each GPU
    task["template"]["spec"]["containers"][0]["command"] = ["python3", "-uc", MEET]
    first, second = json.loads(json.dumps([{**task, "name": "first"}, {**task, "name": "second"}]))
    for one, node in zip((first, second), sorted(cluster.ready_nodes()), strict=True):
        one["template"]["spec"]["nodeSelector"] = {"kubernetes.io/hostname": node}
    # A volume that is not there yet keeps the first pod without an address, so nobody knows its name.
    gate = {"name": "gate", "hostPath": {"path": f"{gang.trace}/gate", "type": "Directory"}}
    first["template"]["spec"]["volumes"].append(gate)
    first["template"]["spec"]["containers"][0]["volumeMounts"].append({"name": "gate", "mountPath": "/gate"})
    job["spec"] |= {"tasks": [first, second], "minAvailable": 2}
    gang.start(job, policy={"load_within_s": 120.0})
    finished(gang, baseline, attempts=1)

    met = [json.loads((gang.trace / f"met-{rank}.json").read_text()) for rank in range(4)]
    assert len(met[0]["joined"]) == 4
    assert sorted(met[0]["joined"].values()) == sorted(2 * list(cluster.ready_nodes()))
    assert all(one["unknown"] > 0 for one in met[2:]), "the name was not known at first"
    for rank, one in enumerate(met):
        host = f"{gang.name}-a1-first-0.{gang.name}-a1"
        assert one["seen"] == {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank % 2),
            "LOCAL_WORLD_SIZE": "2",
            "WORLD_SIZE": "4",
            "MASTER_ADDR": host,
            "MASTER_PORT": "29400",
            "PET_MASTER_ADDR": host,
            "PET_MASTER_PORT": "29400",
            "PET_NNODES": "4",
            "PET_NODE_RANK": str(rank),
            "PET_MAX_RESTARTS": "0",
        }
