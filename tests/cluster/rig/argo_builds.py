"""Argo Workflows, built from its Go module; nothing of it is kept in this repository.

The module's archive cannot be built as it is: archives of modules hold no symbolic links, of which Argo has one, and
no web pages, which its server embeds. So a copy is built, with the link made again and a page that says what it is.

definitions  Argo's full resource definitions, and the rights it asks for: a download and a copy, no build
programs     workflow-controller, argoexec, and argo with the server
"""

import json
import os
import shutil
import subprocess
from pathlib import Path

import yaml

from rig.builds import GO, fingerprint, go_version, kept, run
from rig.clock import ClusterError

MODULE = "github.com/argoproj/argo-workflows/v4"
PROGRAMS = ("workflow-controller", "argoexec", "argo")
LINK = Path("workflow/executor/osspecific/signal_linux.go")
"""In Argo's repository a symbolic link to the file of another system beside it."""
LINKED = "signal_darwin.go"
PAGE = "<!doctype html><title>Argo</title><p>The server of Rerail's tests: its API is whole, its pages are not here.\n"
RIGHTS = ("cluster-install-no-crds/*-rbac", "base/*")
KINDS = ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding")
RECIPE = Path(__file__)
MANIFEST = GO / "argo" / "go.mod"
FLAGS = {"CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly -buildvcs=false"}


def version() -> str:
    """Argo's version, as go.mod pins it, such as ``v4.0.5``."""
    words = MANIFEST.read_text().split()
    return words[words.index(MODULE) + 1]


def _module() -> Path:
    """The folder of the module, downloaded first where it is not there; go.sum says what its content must be."""
    go_version()
    command = ["go", "mod", "download", "-json", MODULE]
    environment = {**os.environ, **FLAGS}
    done = subprocess.run(command, cwd=MANIFEST.parent, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterError(f"`{' '.join(command)}` failed: {(done.stdout + done.stderr)[-2000:]}")
    return Path(json.loads(done.stdout)["Dir"])


def _key(*parts: str, recipe: tuple[Path, ...] = ()) -> str:
    return fingerprint(*parts, files=[MANIFEST, MANIFEST.with_name("go.sum"), *recipe])


def definitions() -> Path:
    """The folder with Argo's full resource definitions, for tests that check documents without a cluster.

    RERAIL_ARGO_CRDS names another one. Ours holds ``argoproj.io_*.yaml`` as they come, the same as ``*.json``, which is
    read in a hundredth of the time, and ``install.json``, the list of Argo's accounts and rights. Several processes
    may ask at once.
    """
    named = os.environ.get("RERAIL_ARGO_CRDS")
    if named:
        return Path(named)

    def build(folder: Path) -> None:
        manifests = _module() / "manifests"
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        for file in sorted((manifests / "base/crds/full").glob("argoproj.io_*.yaml")):
            shutil.copyfile(file, folder / file.name)
            document = yaml.load(file.read_text(), loader)
            (folder / file.with_suffix(".json").name).write_text(json.dumps(document, separators=(",", ":")))
        found = [file for place in RIGHTS for file in sorted(manifests.glob(f"{place}/*.yaml"))]
        documents = [each for file in found for each in yaml.load_all(file.read_text(), loader) if each]
        rights = [document for document in documents if document["kind"] in KINDS]
        (folder / "install.json").write_text(json.dumps(rights, indent=1))

    return kept("argo-definitions", _key(recipe=(RECIPE,)), build)


def programs() -> Path:
    """The folder of Argo's programs."""
    release = {"version": version(), "gitTag": version(), "gitCommit": "module", "gitTreeState": "clean"}
    flags = " ".join(["-s", "-w", *(f"-X {MODULE}.{name}={value}" for name, value in release.items())])

    def build(folder: Path) -> None:
        source = folder / ".source"
        shutil.copytree(_module(), source)
        # The files of Go's own copy may not be written.
        run(["chmod", "-R", "u+w", source])
        shutil.copyfile(source / LINK.with_name(LINKED), source / LINK)
        page = source / "ui/dist/app/index.html"
        page.parent.mkdir(parents=True)
        page.write_text(PAGE)
        commands = [f"./cmd/{name}" for name in PROGRAMS]
        run(["go", "build", "-trimpath", "-ldflags", flags, "-o", f"{folder}/", *commands], cwd=source, env=FLAGS)
        shutil.rmtree(source)

    return kept("argo", _key(go_version(), flags, str(LINK), LINKED, PAGE, *PROGRAMS), build)
