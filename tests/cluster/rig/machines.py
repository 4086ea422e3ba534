"""The nodes: a containerd and a kubelet each, in a network namespace, with fake GPUs."""

import contextlib
import json
import signal
import subprocess
from collections.abc import Iterable

from rig import cgroups, processes
from rig.api import Api, kubeconfig_of
from rig.clock import ClusterError, wait_for
from rig.images import Image
from rig.layout import BIN, CONTROL, DNS_DOMAIN, LOGS, PAUSE_IMAGE, SETTINGS, STATE, Node
from rig.packages import CNI

READY_DEADLINE_S = 120.0
LEASE_S = 12
"""A node renews its lease four times in this."""
GPU = "nvidia.com/gpu"
TUNABLES = {
    "vm.overcommit_memory": "the kubelet sets it to 1",
    "vm.panic_on_oom": "the kubelet sets it to 0",
    "kernel.panic": "the kubelet sets it to 10",
    "kernel.panic_on_oops": "the kubelet sets it to 1",
    "kernel.keys.root_maxkeys": "the kubelet sets it to 1000000",
    "kernel.keys.root_maxbytes": "the kubelet sets it to 25000000",
}


def containerd_of(node: Node) -> str:
    """The name of its containerd among the daemons."""
    return f"containerd-{node.name}"


def kubelet_of(node: Node) -> str:
    """The name of its kubelet among the daemons."""
    return f"kubelet-{node.name}"


def _write_containerd(node: Node) -> None:
    network = {
        "cniVersion": "1.0.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "pods",
                "isGateway": True,
                "hairpinMode": True,
                "ipam": {
                    "type": "host-local",
                    "dataDir": str(node.folder / "addresses"),
                    "ranges": [[{"subnet": node.pods}]],
                    "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
        ],
    }
    (node.folder / "cni").mkdir(parents=True)
    (node.folder / "cni" / "pods.conflist").write_text(json.dumps(network, indent=1))
    # A root without CAP_SYS_RESOURCE, as in many sandboxes, may not lower an oom_score_adj.
    # Strings of JSON are strings of TOML.
    quoted = {name: json.dumps(str(node.folder / name)) for name in ("root", "state", "cni", "containerd.sock", "runc")}
    cri = 'plugins."io.containerd.grpc.v1.cri"'
    (node.folder / "containerd.toml").write_text(f"""version = 2
root = {quoted["root"]}
state = {quoted["state"]}
disabled_plugins = ["io.containerd.internal.v1.opt"]
[grpc]
address = {quoted["containerd.sock"]}
[{cri}]
sandbox_image = "{PAUSE_IMAGE}"
netns_mounts_under_state_dir = true
restrict_oom_score_adj = true
[{cri}.cni]
bin_dir = "{CNI}"
conf_dir = {quoted["cni"]}
[{cri}.containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[{cri}.containerd.runtimes.runc.options]
Root = {quoted["runc"]}
""")


def _write_kubelet(node: Node) -> None:
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": node.address,
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "containerRuntimeEndpoint": f"unix://{node.socket}",
        "podLogsDir": str(node.folder / "pod-logs"),
        "resolvConf": "",
        "clusterDNS": [CONTROL],
        "clusterDomain": DNS_DOMAIN,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node.cgroup}",
        "failCgroupV1": False,
        "enforceNodeAllocatable": [],
        "localStorageCapacityIsolation": False,
        "failSwapOn": False,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "nodeLeaseDurationSeconds": LEASE_S,
        "nodeStatusUpdateFrequency": "4s",
        "nodeStatusReportFrequency": "4s",
        "syncFrequency": "10s",
        "makeIPTablesUtilChains": False,
        "volumePluginDir": str(node.folder / "volume-plugins"),
        "containerLogMaxSize": "50Mi",
        "maxPods": 110,
    }
    (node.folder / "kubelet.json").write_text(json.dumps(config, indent=1))


def start_containerd(node: Node) -> None:
    """Start a node's containerd, and wait until it answers."""
    if not (node.folder / "containerd.toml").exists():
        _write_containerd(node)
    command = ["containerd", "--config", str(node.folder / "containerd.toml")]
    processes.start(containerd_of(node), command, space=node.space)

    def answers() -> bool:
        processes.check(containerd_of(node))
        version = ["ctr", "--address", str(node.socket), "version"]
        return node.socket.exists() and subprocess.run(version, capture_output=True, check=False).returncode == 0

    log = str(LOGS / f"{containerd_of(node)}.log")
    wait_for(f"containerd of {node.name} answers", answers, deadline_s=READY_DEADLINE_S, hint=log)


def load(node: Node, images: Iterable[Image]) -> None:
    """Put images into a node.

    Raises:
        ClusterError: containerd refused one.
    """
    for image in images:
        command = ["ctr", "--address", str(node.socket), "--namespace", "k8s.io", "images", "import", "-"]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as ctr:
            assert ctr.stdin
            assert ctr.stderr
            with contextlib.suppress(BrokenPipeError), ctr.stdin:
                image.write(ctr.stdin)
            said = ctr.stderr.read().decode(errors="replace")
        if ctr.returncode:
            raise ClusterError(f"{node.name} does not take the image {image.name}: {said[-1000:]}")


def start_kubelet(node: Node) -> None:
    """Start a node's kubelet."""
    if not (node.folder / "kubelet.json").exists():
        _write_kubelet(node)
    cgroups.make(node.cgroup)
    command = [
        str(BIN / "kubelet"),
        f"--config={node.folder / 'kubelet.json'}",
        f"--kubeconfig={kubeconfig_of(node.name)}",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
        f"--root-dir={node.folder / 'kubelet'}",
        f"--cert-dir={node.folder / 'certificates'}",
    ]
    processes.start(kubelet_of(node), command, space=node.space)


def ready(client: Api, node: Node) -> bool:
    """Whether the node says so itself, and the control plane agrees."""
    conditions = client.get(f"/api/v1/nodes/{node.name}").get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def wait_ready(client: Api, node: Node, gpus: int) -> None:
    """Wait until pods can run on the node, and give it GPUs.

    The GPUs are a line of the node's status: the scheduler counts them; no container sees one.
    """

    def good() -> bool:
        processes.check(kubelet_of(node))
        return ready(client, node)

    hint = str(LOGS / f"{kubelet_of(node)}.log")
    wait_for(f"{node.name} is ready", good, deadline_s=READY_DEADLINE_S, hint=hint)
    key = GPU.replace("/", "~1")
    patch = [{"op": "add", "path": f"/status/{part}/{key}", "value": str(gpus)} for part in ("capacity", "allocatable")]
    client.call("PATCH", f"/api/v1/nodes/{node.name}/status", patch, "application/json-patch+json")


def stop(node: Node) -> None:
    """Kill a node's kubelet and containerd, as when a machine hangs; its containers go on, unseen."""
    for name in (kubelet_of(node), containerd_of(node)):
        processes.stop(name, signal.SIGKILL)


def start_again(node: Node) -> None:
    """Start a stopped node again, and wait until it is ready and has said so since."""
    client, before = Api(), _heartbeat(Api(), node)
    start_containerd(node)
    start_kubelet(node)
    hint = str(LOGS / f"{kubelet_of(node)}.log")

    def alive() -> bool:
        if processes.pid_of(kubelet_of(node)) is None:
            # containerd answers before it has found its containers again, and a kubelet that meets it then gives up.
            start_kubelet(node)
        return _heartbeat(client, node) not in {"", before}

    wait_for(f"{node.name} says it lives", alive, deadline_s=READY_DEADLINE_S, hint=hint)
    wait_ready(client, node, json.loads(SETTINGS.read_text())["gpus_per_node"])


def _heartbeat(client: Api, node: Node) -> str:
    lease = client.get(f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node.name}")
    return str(lease.get("spec", {}).get("renewTime", ""))


def save_tunables() -> None:
    """Keep the settings of the host's kernel that a kubelet changes."""
    found = {
        name: subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, check=False).stdout.strip()
        for name in TUNABLES
    }
    (STATE / "sysctl.json").write_text(json.dumps({name: value for name, value in found.items() if value}))


def restore_tunables() -> None:
    """Set them back."""
    with contextlib.suppress(FileNotFoundError):
        for name, value in json.loads((STATE / "sysctl.json").read_text()).items():
            subprocess.run(["sysctl", "-q", "-w", f"{name}={value}"], capture_output=True, check=False)
