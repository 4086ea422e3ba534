"""Images, built here from Debian, constraints.txt and this checkout: no registry, no Docker.

pause     a static Go program
argoexec  Argo's executor, static as well
training  ranks, and the steps of workflows: Debian's Python 3.11; what all of rerail needs, by constraints.txt; rerail

The Containerfile at the root says the same for whoever has a registry.
"""

import hashlib
import importlib.metadata
import io
import json
import platform
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from rig import argo_builds
from rig.builds import fingerprint, go_program, kept, run, unfinished
from rig.layout import ARGOEXEC_IMAGE, CHECKOUT, PAUSE_IMAGE, TRAINING_IMAGE

SUITE = "bookworm"
PYTHON = "3.11"
SITE = f"usr/local/lib/python{PYTHON}/dist-packages"
EXTRA = "all"
"""What the image has of pyproject.toml's extras."""
FILES = ("pyproject.toml", "README.md", "LICENSE")
ROOMS = ("policies", "plugins", "workflows", "examples")
"""What rerail is built from."""
UNUSED_MODULES = ("kubernetes/aio",)
"""What nothing imports, and is half of a large library."""
SETUPTOOLS = 80
"""As pyproject.toml requires."""
UNUSED = ("var/cache", "var/lib/apt", "var/log", "usr/share/doc", "usr/share/man", "usr/share/locale", "usr/share/i18n")
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Image:
    """An image as ``ctr images import`` takes it, in one stream."""

    name: str
    layers: tuple[Path, ...]
    command: tuple[str, ...]

    def write(self, stream: IO[bytes]) -> None:
        """Write it as a docker archive: a configuration, the layers, and a manifest that names them."""
        digests = [f"sha256:{layer.with_suffix('.sha256').read_text()}" for layer in self.layers]
        config = {
            "architecture": ARCHITECTURES[platform.machine()],
            "os": "linux",
            "config": {"Cmd": list(self.command), "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"], "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": digests},
        }
        names = [f"{digest.removeprefix('sha256:')}.tar" for digest in digests]
        manifest = [{"Config": "config.json", "RepoTags": [self.name], "Layers": names}]
        with tarfile.open(fileobj=stream, mode="w|") as archive:
            for name, content in (("manifest.json", manifest), ("config.json", config)):
                data = json.dumps(content).encode()
                entry = tarfile.TarInfo(name)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
            for name, layer in zip(names, self.layers, strict=True):
                archive.add(layer, arcname=name)


def _layer(name: str, key: str, fill: Callable[[Path], None]) -> Path:
    """A layer: the tar of what ``fill`` puts into a folder, with its hash beside it."""

    def build(folder: Path) -> None:
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=unfinished(name)) as root:
            Path(root).chmod(0o755)
            fill(Path(root))
            # GNU tar keeps devices and hard links of a whole system as they are.
            ordered = ["--sort=name", "--numeric-owner", "--mtime=@0"]
            run(["tar", "-C", root, *ordered, "-cf", folder / "layer.tar", "."])
        with (folder / "layer.tar").open("rb") as tar:
            (folder / "layer.sha256").write_text(hashlib.file_digest(tar, "sha256").hexdigest())

    return kept(name, key, build) / "layer.tar"


def _debian_mirror() -> list[str]:
    """The mirror this machine already uses for the suite, if any: debootstrap has a default of its own."""
    if not shutil.which("apt-get"):
        return []
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages", f"Codename: {SUITE}"]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()
    return found[:1]


def _debian(root: Path) -> None:
    include = f"--include=python{PYTHON}"
    run(["debootstrap", "--variant=minbase", include, SUITE, root, *_debian_mirror()])
    for unused in UNUSED:
        shutil.rmtree(root / unused, ignore_errors=True)
        (root / unused).mkdir(parents=True)
    (root / "usr/bin/python3").unlink(missing_ok=True)
    (root / "usr/bin/python3").symlink_to(f"python{PYTHON}")
    (root / "usr/bin/python").symlink_to(f"python{PYTHON}")


def _pip(target: Path, *arguments: str | Path) -> None:
    """Install for the image's Python, whichever Python runs this; scripts get the image's interpreter."""
    run([sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", target / SITE, *arguments])
    scripts = target / SITE / "bin"
    if scripts.exists():
        (target / "usr/local/bin").mkdir(parents=True)
        for script in scripts.iterdir():
            head, _, body = script.read_bytes().partition(b"\n")
            if head.startswith(b"#!"):
                script.write_bytes(f"#!/usr/bin/python{PYTHON}\n".encode() + body)
            script.rename(target / "usr/local/bin" / script.name)
        scripts.rmdir()


def _builder() -> list[str]:
    """Build with this Python's setuptools, where it is new enough: that is fast, and asks nobody for one."""
    try:
        major = int(importlib.metadata.version("setuptools").split(".")[0])
    except importlib.metadata.PackageNotFoundError:
        return []
    return ["--no-build-isolation", "--no-index"] if major >= SETUPTOOLS else []


def _compile(target: Path) -> None:
    """Compile all modules, by hash, so that no import in a pod has to; the tar does not keep the times of files.

    Only a Python of the image's version can. With another one pods start slower, and are otherwise the same.
    """
    if sys.version_info[:2] == tuple(map(int, PYTHON.split("."))):
        places = ["-s", str(target), "-p", "/", "--invalidation-mode", "unchecked-hash"]
        run([sys.executable, "-m", "compileall", "-q", *places, target / SITE])


def requirements(extra: str = EXTRA) -> list[str]:
    """What rerail with an extra asks for, by pyproject.toml, without rerail itself."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]
    found = list(project["dependencies"])
    names = [extra]
    for name in names:
        for line in project["optional-dependencies"][name]:
            if own := re.fullmatch(r"rerail\[(.+)\]", line):
                names += own[1].split(",")
            else:
                found.append(line)
    return sorted(set(found))


def training() -> Image:
    """The image of ranks and of steps: rerail as a user installs it, with all of its extras but those for its tests."""
    recipe = Path(__file__)
    base = _layer("debian", fingerprint(SUITE, PYTHON, *UNUSED, platform.machine()), _debian)

    def libraries(root: Path) -> None:
        platforms = [f"--platform=manylinux{tag}_{platform.machine()}" for tag in ("_2_28", "2014", "_2_17")]
        only = ["--only-binary=:all:", f"--python-version={PYTHON}", "--implementation=cp", *platforms]
        _pip(root, *only, "--constraint", CHECKOUT / "constraints.txt", *requirements())
        for unused in UNUSED_MODULES:
            shutil.rmtree(root / SITE / unused)
        _compile(root)

    needs = fingerprint(*requirements(), files=[CHECKOUT / "constraints.txt", recipe])
    sources = [CHECKOUT / name for name in FILES]
    for room in ROOMS:
        files = (path for path in (CHECKOUT / room).rglob("*") if path.is_file())
        sources += [path for path in files if "__pycache__" not in path.parts]

    def rerail(root: Path) -> None:
        # A build in the checkout would leave its folders there.
        with tempfile.TemporaryDirectory(dir=root.parent, prefix=unfinished("source")) as copy:
            for source in sources:
                target = Path(copy) / source.relative_to(CHECKOUT)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
            _pip(root, "--no-deps", *_builder(), copy)
        _compile(root)

    layers = (
        base,
        _layer("libraries", needs, libraries),
        _layer("rerail", fingerprint(files=[*sources, recipe]), rerail),
    )
    return Image(TRAINING_IMAGE, layers, ("python3",))


def pause() -> Image:
    """The image of the process that holds a pod's namespaces; `sleep` as process 1 would ignore SIGTERM."""
    program = go_program("pause")

    def fill(root: Path) -> None:
        shutil.copy(program, root / "pause")

    return Image(PAUSE_IMAGE, (_layer("pause-image", fingerprint(str(program)), fill),), ("/pause",))


def argoexec() -> Image:
    """The image that Argo puts beside each step, and runs resource templates in."""
    program = argo_builds.programs() / "argoexec"

    def fill(root: Path) -> None:
        (root / "bin").mkdir()
        shutil.copy(program, root / "bin" / "argoexec")
        # A resource template writes its manifest there, as any user.
        (root / "tmp").mkdir()
        (root / "tmp").chmod(0o1777)

    layer = _layer("argoexec-image", fingerprint(str(program)), fill)
    return Image(ARGOEXEC_IMAGE, (layer,), ("argoexec",))
