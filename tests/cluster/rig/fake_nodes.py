"""Nodes and pods that only the API server knows, for scale: kwok's controller beside the real nodes."""

from collections.abc import Iterator
from contextlib import contextmanager

from rig import builds, machines, processes
from rig.access import Cluster
from rig.api import kubeconfig_of
from rig.layout import BIN, SPACE

LABEL = {"rerail.test/fake": "true"}
TAINT = {"key": "rerail.test/fake", "value": "true", "effect": "NoSchedule"}
TOLERATION = {"key": TAINT["key"], "operator": "Exists", "effect": "NoSchedule"}
_DAEMON = "kwok"


@contextmanager
def fake_nodes(cluster: Cluster, count: int, gpus: int) -> Iterator[tuple[str, ...]]:
    """Some nodes that take pods which tolerate ``TAINT``; they and kwok end with the block."""
    program = builds.go_program("kwok")
    names = tuple(f"fake-{number:03}" for number in range(count))
    BIN.mkdir(parents=True, exist_ok=True)
    command = [
        str(program),
        f"--kubeconfig={kubeconfig_of('kube-controller-manager')}",
        "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake",
        f"--config={builds.GO / 'kwok' / 'stages.yaml'}",
        "--node-lease-duration-seconds=40",
    ]
    processes.start(_DAEMON, command, space=SPACE)
    try:
        for name in names:
            cluster.kubectl("create", "-f", "-", document=_node(name, gpus))
        cluster.wait("the fake nodes are ready", lambda: set(names) <= set(cluster.ready_nodes()))
        yield names
    finally:
        cluster.kubectl("delete", "node", "--selector=rerail.test/fake=true", "--wait=false", check=False)
        processes.stop(_DAEMON)


def _node(name: str, gpus: int) -> dict[str, object]:
    room = {"cpu": "64", "memory": "512Gi", "pods": "110", machines.GPU: str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {**LABEL, "kubernetes.io/hostname": name, "kubernetes.io/os": "linux"},
        },
        "spec": {"taints": [TAINT]},
        "status": {"allocatable": room, "capacity": room, "conditions": []},
    }
