"""The image of somebody who comes to Rerail with a training of their own, as the examples name its programs."""

from pathlib import Path

from rig import images, machines
from rig.access import Cluster
from rig.builds import fingerprint

NAME = "rerail.test/newcomer:1"
PROGRAMS = {
    "prepare.py": "import sys; print('prepared', *sys.argv[1:])",
    "train.py": (
        "import runpy, sys\n"
        "sys.argv[1:] = ['--steps=20', '--save-every=10', '--batch=70', '--samples=3640']\n"
        "runpy.run_module('rerail.examples.local_gang.train', run_name='__main__')\n"
    ),
    "evaluate.py": (
        "import argparse\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--store', required=True)\n"
        "parser.add_argument('--run', required=True)\n"
        "asked = parser.parse_args()\n"
        "assert asked.run and '{' not in asked.run, asked\n"
        "print('evaluated', asked.run, 'of', asked.store)\n"
    ),
}
"""In the folder where its commands begin: ``python train.py``."""


def load(cluster: Cluster) -> str:
    """Bring the image to every node: ours, with the programs over it. Returns its name."""

    def fill(root: Path) -> None:
        for name, text in PROGRAMS.items():
            (root / name).write_text(text)

    layer = images._layer("newcomer", fingerprint(*PROGRAMS, *PROGRAMS.values()), fill)
    picture = images.Image(NAME, (*images.training().layers, layer), ("python3",))
    for name in cluster.ready_nodes():
        machines.load(cluster.node(name), (picture,))
    return NAME
