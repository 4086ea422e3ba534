"""What is built once and kept: each thing in a folder named by the hash of all that it was built from."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from rig.clock import ClusterError, stage
from rig.layout import BIN, CACHE, CHECKOUT

KUBERNETES = "v1.36.1"
COMPONENTS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl")
GO = Path(__file__).resolve().parents[1] / "go"


def fingerprint(*parts: str, files: Iterable[Path] = ()) -> str:
    """The hash of some strings and of some files with their names."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode() + b"\0")
    for file in sorted(files):
        digest.update(str(file.relative_to(CHECKOUT)).encode() + b"\0" + hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:24]


def kept(name: str, key: str, build: Callable[[Path], None]) -> Path:
    """The folder of a built thing, built first if there is none of this key; older ones of this name are removed.

    Whoever asks for the same thing meanwhile, from this checkout or another one, waits until it is there.
    """
    folder = CACHE / f"{name}@{key}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f".{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            for old in CACHE.glob(f"{name}@*"):
                shutil.rmtree(old)
            with stage(f"build {name}"):
                # Open to all: the image's root folder keeps these rights.
                fresh = Path(tempfile.mkdtemp(prefix=unfinished(name), dir=CACHE))
                fresh.chmod(0o755)
                build(fresh)
                fresh.rename(folder)
    return folder


def unfinished(name: str) -> str:
    """What the name of a folder in the cache begins with while this process works on it."""
    return f".new-{os.getpid()}-{name}-"


def sweep() -> None:
    """Remove what killed builds left; tests may fetch Argo's definitions meanwhile."""
    CACHE.mkdir(parents=True, exist_ok=True)
    for left in CACHE.glob(".new-*"):
        builder = left.name.split("-")[1]
        if not Path(f"/proc/{builder}").exists():
            shutil.rmtree(left)


def run(command: list[str | Path], *, cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    """Run a build step.

    Raises:
        ClusterError: It failed; the message has the end of what it said.
    """
    environment = {**os.environ, **(env or {})}
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        words = " ".join(map(str, command[:6]))
        raise ClusterError(
            f"`{words} ...` failed with exit code {done.returncode}:\n{(done.stdout + done.stderr)[-3000:]}"
        )


def go_version() -> str:
    """The version of Go.

    Raises:
        ClusterError: There is none.
    """
    if not shutil.which("go"):
        raise ClusterError("the cluster's programs are built with Go >= 1.26, and no `go` is on PATH; install it")
    return subprocess.run(["go", "env", "GOVERSION"], check=True, capture_output=True, text=True).stdout.strip()


def go_program(name: str, ldflags: str = "") -> Path:
    """A program of ``tests/cluster/go/NAME``; all are built without C, so that they share Go's build cache."""
    source, version = GO / name, go_version()
    flags = f"-s -w {ldflags}".strip()

    def build(folder: Path) -> None:
        command: list[str | Path] = ["go", "build", "-trimpath", "-ldflags", flags, "-o", folder / name, "."]
        run(command, cwd=source, env={"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false"})

    key = fingerprint(version, flags, files=[path for path in source.iterdir() if path.is_file()])
    return kept(name, key, build) / name


def programs() -> None:
    """Build all programs and put them into ``bin``, each component under its own name."""
    version = "k8s.io/component-base/version"
    major, minor, _ = KUBERNETES.removeprefix("v").split(".")
    ldflags = f"-X {version}.gitVersion={KUBERNETES} -X {version}.gitMajor={major} -X {version}.gitMinor={minor}"
    kube = go_program("kube", ldflags)
    BIN.mkdir(parents=True, exist_ok=True)
    for component in COMPONENTS:
        (BIN / component).symlink_to(kube)
    (BIN / "coredns").symlink_to(go_program("dns"))
