"""One uninterrupted run for all drills of a test session, over all of xdist's workers."""

import fcntl
import os
from pathlib import Path

import pytest

from rerail.plugins.checkpoint.open import open_run
from rerail.plugins.drill.runner import Baseline, Setting, run_baseline
from rerail.plugins.drill.world import Folders


@pytest.fixture(scope="session", autouse=True)
def _no_orders() -> None:
    """What the caller's own environment says to ranks is not for these."""
    for name in [name for name in os.environ if name.startswith(("RERAIL_", "PET_"))]:
        del os.environ[name]


@pytest.fixture(scope="session")
def baseline(tmp_path_factory: pytest.TempPathFactory, _no_orders: None) -> Baseline:
    """The run that nothing happens to; the first worker that asks makes it."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if os.environ.get("PYTEST_XDIST_WORKER") else base
    folders, done = Folders(shared / "drill-baseline"), shared / "drill-baseline.done"
    with (shared / "drill-baseline.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            _interrupted_earlier(folders.root)
            made = run_baseline(folders.root, Setting())
            assert made.attempts == 1, "the machine interrupted the run that nothing should happen to"
            done.touch()
    return Baseline(open_run("baseline", store=folders.store.as_uri()), folders.trace)


def _interrupted_earlier(root: Path) -> None:
    assert not root.exists(), f"{root}: a worker died while it made the run to compare with"
