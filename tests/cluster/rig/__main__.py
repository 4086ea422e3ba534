"""``python -m rig up|down|volcano|argo|stop-node|start-node|cut-node|mend-node``: the cluster of the tests."""

import argparse
import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from rig import (
    api,
    argo_builds,
    argo_control,
    builds,
    control,
    images,
    layout,
    machines,
    network,
    packages,
    services,
    teardown,
    volcano,
)
from rig.clock import ClusterError, say, stage


@contextmanager
def alone() -> Iterator[None]:
    """Hold the machine's one cluster, so that two commands never work on it at once."""
    with layout.LOCK.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ClusterError(f"another command holds {layout.LOCK}: wait until it ends") from None
        yield


def up(count: int, gpus: int) -> None:
    """Bring a fresh cluster up, after removing what an earlier one left."""
    start = time.monotonic()
    nodes = layout.nodes(count)
    folder = volcano.programs()
    packages.ensure()
    with stage("remove what an earlier cluster left"):
        teardown.remove()
        teardown.sweep(wait=False)
        layout.STATE.mkdir(mode=0o755, parents=True)
    builds.sweep()
    with stage("programs"):
        builds.programs()
        argo_builds.programs()
    with stage("images"):
        pictures = (images.pause(), images.training(), images.argoexec())
    machines.save_tunables()
    with stage("network"):
        network.make(nodes)
    control.start(nodes)
    services.start_s3()
    with ThreadPoolExecutor() as pool:
        loads = [pool.submit(_load, node, pictures) for node in nodes]
        with stage("API server"):
            client = control.wait_ready()
        control.start_controllers()
        argo = pool.submit(_argo, client)
        services.start_dns()
        with stage("Volcano's definitions"):
            definitions = volcano.define(client)
        volcano.start(folder)
        with stage("service accounts"):
            control.wait_accounts(client)
        for load in loads:
            load.result()
        argo.result()
    with stage("nodes ready"):
        for node in nodes:
            machines.wait_ready(client, node, gpus)
    with stage("S3 and DNS"):
        services.wait_s3()
        services.wait_dns()
    with stage("Volcano"):
        volcano.wait_ready(client)
    settings = {
        "nodes": [node.name for node in nodes],
        "gpus_per_node": gpus,
        "image": layout.TRAINING_IMAGE,
        "bucket": services.BUCKET,
        "definitions": definitions,
        "volcano": volcano.called(folder),
        "argo": argo_builds.version(),
        "node_grace_s": control.NODE_GRACE_S,
        "toleration_s": control.TOLERATION_S,
        "kubectl": str(layout.BIN / "kubectl"),
    }
    layout.SETTINGS.write_text(json.dumps(settings, indent=1))
    api.publish()
    say(f"{time.monotonic() - start:7.1f} s  in all; Volcano: {settings['volcano']}")
    sys.stdout.write(f"{layout.KUBECONFIG}\n")


def _argo(client: api.Api) -> None:
    with stage("Argo"):
        argo_control.define(client)
        argo_control.start_argo()


def _argo_again() -> None:
    """Restart Argo alone, with what it was built of now; workflows and their pods stay as they are."""
    if not layout.SETTINGS.exists():
        raise ClusterError("the cluster is not up: make cluster-up")
    picture = images.argoexec()
    argo_control.stop_argo()
    for node in _nodes():
        machines.load(node, (picture,))
    _argo(api.Api())
    settings = json.loads(layout.SETTINGS.read_text()) | {"argo": argo_builds.version()}
    layout.SETTINGS.write_text(json.dumps(settings, indent=1))


def _load(node: layout.Node, pictures: tuple[images.Image, ...]) -> None:
    with stage(f"containerd and images of {node.name}"):
        machines.start_containerd(node)
        machines.load(node, pictures)
        machines.start_kubelet(node)


def _nodes() -> list[layout.Node]:
    return [node for node in layout.nodes(layout.MAX_NODES) if node.folder.exists()]


def _node(name: str) -> layout.Node:
    for node in _nodes():
        if node.name == name:
            return node
    raise ClusterError(f"the cluster has no node {name}")


NODE_COMMANDS = {
    "stop-node": (machines.stop, "kill a node's kubelet and containerd; its containers go on, unseen"),
    "start-node": (machines.start_again, "start them again, and wait until the node is ready"),
    "cut-node": (network.cut, "take a node and its pods off the network"),
    "mend-node": (network.mend, "put them back"),
}


def lacks() -> str:
    """What this machine lacks for a cluster, in words; empty where it lacks nothing that can be told beforehand."""
    if os.geteuid() != 0 or not sys.platform.startswith("linux"):
        return "it needs root on Linux, as it makes network namespaces and containers"
    if not shutil.which("go"):
        return "its programs are built with Go >= 1.26, and no `go` is on PATH"
    tried = subprocess.run(["unshare", "--net", "--mount", "true"], capture_output=True, text=True, check=False)
    return f"no network or mount namespace may be made here: {tried.stderr.strip()}" if tried.returncode else ""


def main() -> int:
    """Run one command; exit code 1 with a reason where it failed."""
    parser = argparse.ArgumentParser(prog="rig", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    upper = commands.add_parser("up", help="bring a fresh cluster up; the kubeconfig's path is the last line")
    upper.add_argument("--nodes", type=int, default=2, choices=range(2, layout.MAX_NODES + 1), metavar="N")
    upper.add_argument("--gpus", type=int, default=4, help="fake GPUs of each node")
    commands.add_parser("down", help="remove the cluster")
    commands.add_parser("check", help="whether this machine can have a cluster, and what it lacks")
    commands.add_parser("image", help="build the training image of this checkout anew, and bring it to the nodes")
    switcher = commands.add_parser("volcano", help="restart Volcano alone: the real one, or the stand-in for tests")
    which = switcher.add_mutually_exclusive_group(required=True)
    which.add_argument("--real", metavar="DIR", help="the folder of vc-controller-manager and vc-scheduler")
    which.add_argument("--standin", action="store_true")
    switcher = commands.add_parser("argo", help="restart Argo alone; workflows and their pods stay")
    switcher.add_argument("--stop", action="store_true", help="end it, and leave it ended")
    for name, (_, help_text) in NODE_COMMANDS.items():
        commands.add_parser(name, help=help_text).add_argument("node")
    arguments = parser.parse_args()
    lacking = lacks()
    if arguments.command == "check" or lacking:
        say(f"cluster: {lacking or 'this machine can have one'}")
        return 1 if lacking else 0
    try:
        with alone():
            if arguments.command == "up":
                up(arguments.nodes, arguments.gpus)
            elif arguments.command == "down":
                with stage("remove the cluster"):
                    teardown.remove()
                    teardown.sweep(wait=True)
            elif arguments.command == "image":
                picture = images.training()
                for node in _nodes():
                    machines.load(node, (picture,))
            elif arguments.command == "volcano":
                with stage("Volcano"):
                    volcano.switch(volcano.programs(arguments.real) if arguments.real else None)
            elif arguments.command == "argo":
                argo_control.stop_argo() if arguments.stop else _argo_again()
            else:
                NODE_COMMANDS[arguments.command][0](_node(arguments.node))
    except ClusterError as error:
        say(f"cluster: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
