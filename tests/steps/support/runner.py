"""``rerail step run`` in a process that can be killed at any effect: ``runner.py OUTPUTS [--kill-at BOUNDARY]``.

Every write to the store, every request that changes the cluster and every file for Argo has a boundary before and after
it, named by what it does. At ``--kill-at`` the process is gone, as if its node were.
"""

import argparse
import os
import re
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rerail.plugins.checkpoint.posix import PosixStore
from rerail.plugins.cli.main import main
from rerail.plugins.gang.submitted import ClusterBackend
from rerail.plugins.gang.vcjob import VcjobBackend
from rerail.plugins.nodes.kube import KubeNodes
from rerail.plugins.steps.outputs import Outputs
from rerail.policies import keys


def short(argument: Any) -> str:
    """What an operation is about, without what changes from run to run."""
    text = str(getattr(argument, "name", argument))
    if keys.LEDGER in text:
        return f"ledger-{keys.ledger_number(text[text.index(keys.LEDGER) :])}"
    parsed = keys.parse_commit(text[text.index(keys.COMMITS) :]) if keys.COMMITS in text else None
    return f"{parsed.kind}-{parsed.attempt}" if parsed else re.sub(r"[0-9a-f]{16}", "*", text)[:60]


def wrap(kind: type, method: str, boundary: Callable[[str], None]) -> None:
    inner = getattr(kind, method)

    def call(self: Any, *arguments: Any, **more: Any) -> Any:
        about = "" if method == "words" else short(arguments[0]) if arguments else "-".join(sorted(more))
        what = f"{method} {about}".strip()
        boundary(f"before {what}")
        result = inner(self, *arguments, **more)
        boundary(f"after {what}")
        return result

    setattr(kind, method, call)


def run() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("outputs", type=Path)
    parser.add_argument("--kill-at")
    parser.add_argument("--record", type=Path)
    given = parser.parse_args()
    seen: set[str] = set()

    def boundary(name: str) -> None:
        if name in seen:
            return
        seen.add(name)
        if given.record:
            with given.record.open("a") as file:
                file.write(name + "\n")
        if name == given.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    for kind, methods in (
        (PosixStore, ("create",)),
        (ClusterBackend, ("submit",)),
        (VcjobBackend, ("end",)),
        (KubeNodes, ("mark",)),
        (Outputs, ("write", "words")),
    ):
        for method in methods:
            wrap(kind, method, boundary)
    main(["step", "run", "--outputs", str(given.outputs)])


if __name__ == "__main__":
    sys.exit(run())
