"""Debian packages that the cluster needs on the host."""

import shutil
from pathlib import Path

from rig.builds import run
from rig.clock import ClusterError, stage

CNI = Path("/usr/lib/cni")
TOOLS = {
    "containerd": "containerd",
    "ctr": "containerd",
    "runc": "runc",
    "debootstrap": "debootstrap",
    "ip": "iproute2",
    "openssl": "openssl",
    "nsenter": "util-linux",
}


def ensure() -> None:
    """Install the packages that are missing, by apt-get where there is one.

    Raises:
        ClusterError: Some are missing, and this is no machine with apt-get.
    """
    missing = {package for tool, package in TOOLS.items() if not shutil.which(tool)}
    missing |= set() if (CNI / "bridge").exists() else {"containernetworking-plugins"}
    if not missing:
        return
    names = sorted(missing)
    if not shutil.which("apt-get"):
        raise ClusterError(f"the cluster needs {', '.join(names)} (names of Debian); install them")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    with stage(f"install {', '.join(names)}"):
        run(["apt-get", "update"], env=quiet)
        run(["apt-get", "install", "--yes", "--no-install-recommends", *names], env=quiet)
