"""Where the cluster keeps its files, and which name and address each part has.

There is one cluster on a machine, whatever the checkout: so the next ``up`` or ``down`` finds what a killed one left.
"""

import os
from dataclasses import dataclass
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parents[3]
STATE = Path("/var/lib/rerail-cluster")
"""All files of a running cluster; removed by ``down``."""
LOCK = Path("/run/lock/rerail-cluster.lock")
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rerail" / "cluster"
"""What was built, by the hash of what it was built from."""

KUBECONFIG = STATE / "kubeconfig"
LOGS = STATE / "logs"
PIDS = STATE / "pids"
BIN = STATE / "bin"
SETTINGS = STATE / "cluster.json"
"""Written last by ``up``: a cluster without it is not up."""
AUDIT_LOG = LOGS / "audit.jsonl"
SCHEDULER_CONF = STATE / "volcano" / "scheduler.conf"
"""Volcano's scheduler reads it again whenever it changes."""

SPACE = "rerail-cluster"
"""The network namespace of the control plane; each node has its own beside it. Also the cgroup of everything."""
HOST_LINK = "rerail-cluster"
"""The only thing that the host's network sees: one end of a link to the control plane's bridge."""
CONTROL = "10.231.77.1"
HOST = "10.231.77.254"
FABRIC_BITS = 24
PODS = "10.232.0.0/16"
SERVICES = "10.96.0.0/16"
API_SERVICE = "10.96.0.1"
DNS_DOMAIN = "cluster.local"

MAX_NODES = 16
PAUSE_IMAGE = "rerail.test/pause:1"
TRAINING_IMAGE = "rerail.test/training:1"
ARGOEXEC_IMAGE = "rerail.test/argoexec:1"


@dataclass(frozen=True)
class Node:
    """One machine of the cluster: a kubelet and a containerd in a network namespace, with a range of pod addresses."""

    number: int
    """From 1."""

    @property
    def name(self) -> str:
        """Its name in Kubernetes."""
        return f"node-{self.number}"

    @property
    def space(self) -> str:
        """Its network namespace."""
        return f"{SPACE}-{self.number}"

    @property
    def address(self) -> str:
        """Its own address."""
        return f"10.231.77.{10 + self.number}"

    @property
    def pods(self) -> str:
        """The range of its pods' addresses."""
        return f"10.232.{self.number}.0/24"

    @property
    def folder(self) -> Path:
        """Its files."""
        return STATE / "nodes" / self.name

    @property
    def socket(self) -> Path:
        """Where its containerd listens."""
        return self.folder / "containerd.sock"

    @property
    def cgroup(self) -> str:
        """The cgroup of its pods. Two kubelets in one cgroup would clean up each other's pods."""
        return f"{SPACE}/{self.name}"


def nodes(count: int) -> list[Node]:
    """All nodes of a cluster of this size."""
    return [Node(number) for number in range(1, count + 1)]
