"""Remove a cluster, whole or half made, by what it recorded: pids, cgroups, mounts, namespaces, files."""

import os
import re
import signal
import subprocess
import tempfile
from pathlib import Path

from rig import cgroups, machines, network, processes
from rig.layout import KUBECONFIG, PIDS, STATE

POD_LOG_LINKS = Path("/var/log/containers")
ASIDE = ".rerail-cluster-old-"
SHIM_SOCKETS = "io.containerd.runtime.v2.task/k8s.io/*/address"


def remove() -> None:
    """End everything, and put the files aside for ``sweep``. Does nothing where nothing is left."""
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
    if STATE.exists():
        STATE.rename(Path(tempfile.mkdtemp(prefix=ASIDE, dir=STATE.parent)) / STATE.name)


def sweep(*, wait: bool) -> None:
    """Delete what ``remove`` put aside: ten thousands of files, which takes a busy disk a minute.

    Without ``wait`` this goes on behind the caller, and a later sweep deletes what is still left.
    """
    aside = [str(path) for path in STATE.parent.glob(f"{ASIDE}*")]
    command = ["rm", "-rf", "--one-file-system", *aside]
    if wait:
        subprocess.run(command, check=True)
    elif aside:
        os.posix_spawnp("nice", ["nice", "-n", "19", *command], os.environ, setsid=True)


def _mounts() -> list[str]:
    """What is mounted under the cluster's folder, in the order in which it was mounted."""
    points = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    decoded = [re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), point) for point in points]
    return [point for point in decoded if point.startswith(f"{STATE}/")]
