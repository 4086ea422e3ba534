"""Remove a cluster, whole or half made, by what it recorded: pids, cgroups, mounts, namespaces, files."""

import re
import signal
import subprocess
from pathlib import Path

from rig import cgroups, machines, network, processes
from rig.layout import KUBECONFIG, PIDS, STATE

POD_LOG_LINKS = Path("/var/log/containers")
SHIM_SOCKETS = "io.containerd.runtime.v2.task/k8s.io/*/address"


def remove() -> None:
    """Remove everything but the caches. Does nothing where nothing is left."""
    KUBECONFIG.unlink(missing_ok=True)
    for record in sorted(PIDS.glob("*.json")):
        processes.stop(record.stem, signal.SIGKILL)
    sockets = [Path(file.read_text().removeprefix("unix://")) for file in STATE.glob(f"nodes/*/state/{SHIM_SOCKETS}")]
    cgroups.end_all()
    for socket in sockets:
        socket.unlink(missing_ok=True)
    network.remove()
    for mount in reversed(_mounts()):
        subprocess.run(["umount", "--lazy", mount], check=True, capture_output=True)
    machines.restore_tunables()
    for link in POD_LOG_LINKS.glob("*.log") if POD_LOG_LINKS.is_dir() else ():
        if link.is_symlink() and link.readlink().is_relative_to(STATE):
            link.unlink()
    # Ten thousands of files of images: rm is several times faster than shutil.rmtree.
    subprocess.run(["rm", "-rf", "--one-file-system", STATE], check=True)


def _mounts() -> list[str]:
    """What is mounted under the cluster's folder, in the order in which it was mounted."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    decoded = [re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), point) for point in points]
    return [point for point in decoded if point.startswith(f"{STATE}/")]
