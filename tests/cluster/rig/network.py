"""The cluster's network: a namespace with a bridge for the control plane, and one for each node. No packet filter.

::

    host 10.231.77.254 --- rerail-cluster, with the bridge `fabric` 10.231.77.1 (API, DNS, S3)
                             |--- rerail-cluster-1, 10.231.77.11 --- pods 10.232.1.0/24
                             |--- rerail-cluster-2, 10.231.77.12 --- pods 10.232.2.0/24

The host gets one link to the bridge, so that kubectl and tests on the host reach the API server and S3. Nothing is
routed to the outside. The API server listens on port 443 of its Service's address itself, which spares kube-proxy.
"""

import subprocess
from pathlib import Path

from rig.layout import API_SERVICE, CONTROL, FABRIC_BITS, HOST, HOST_LINK, SPACE, Node

SPACES = Path("/run/netns")


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def _inside(space: str, *arguments: str) -> None:
    _ip("-n", space, *arguments)


def _make_space(space: str) -> None:
    _ip("netns", "add", space)
    _inside(space, "link", "set", "lo", "up")
    forward = "echo 1 >/proc/sys/net/ipv4/ip_forward"
    subprocess.run(["nsenter", f"--net={SPACES / space}", "sh", "-c", forward], check=True)


def make(nodes: list[Node]) -> None:
    """Make the namespaces, links, addresses and routes."""
    _make_space(SPACE)
    _inside(SPACE, "link", "add", "fabric", "type", "bridge", "forward_delay", "0")
    _inside(SPACE, "addr", "add", f"{CONTROL}/{FABRIC_BITS}", "dev", "fabric")
    _inside(SPACE, "addr", "add", f"{API_SERVICE}/32", "dev", "lo")
    _inside(SPACE, "link", "set", "fabric", "up")
    _ip("link", "add", HOST_LINK, "type", "veth", "peer", "name", "host", "netns", SPACE)
    _inside(SPACE, "link", "set", "host", "master", "fabric", "up")
    _ip("addr", "add", f"{HOST}/{FABRIC_BITS}", "dev", HOST_LINK)
    _ip("link", "set", HOST_LINK, "up")
    for node in nodes:
        _make_space(node.space)
        _inside(SPACE, "link", "add", node.name, "type", "veth", "peer", "name", "eth0", "netns", node.space)
        _inside(SPACE, "link", "set", node.name, "master", "fabric", "up")
        _inside(node.space, "addr", "add", f"{node.address}/{FABRIC_BITS}", "dev", "eth0")
        _inside(node.space, "link", "set", "eth0", "up")
        _inside(node.space, "route", "add", "default", "via", CONTROL)
        _inside(SPACE, "route", "add", node.pods, "via", node.address)


def cut(node: Node) -> None:
    """Take a node, and its pods, off the network."""
    _inside(SPACE, "link", "set", node.name, "down")


def mend(node: Node) -> None:
    """Put a node back on the network."""
    _inside(SPACE, "link", "set", node.name, "up")


def remove() -> None:
    """Remove all namespaces of the cluster, with their links; the host's link goes with its other end."""
    if (Path("/sys/class/net") / HOST_LINK).exists():
        _ip("link", "del", HOST_LINK)
    for path in sorted(SPACES.glob(f"{SPACE}*")):
        _ip("netns", "del", path.name)
