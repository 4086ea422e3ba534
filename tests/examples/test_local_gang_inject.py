"""Faults of the application, as drills order them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rerail.examples.local_gang import inject

HANGS = """
from rerail.examples.local_gang import inject
for step in range(1, 5):
    print("before", step, flush=True)
    inject.before_step(step, 0)
"""


@pytest.fixture(autouse=True)
def _no_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RERAIL_DRILL_RAISE", "RERAIL_DRILL_HANG"):
        monkeypatch.delenv(name, raising=False)


def test_without_orders_nothing_happens() -> None:
    inject.before_step(1, 0)


def test_raises_at_its_step_and_rank_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RERAIL_DRILL_RAISE", "step=60,rank=1")
    inject.before_step(59, 1)
    inject.before_step(60, 0)
    for _ in range(2):
        with pytest.raises(ValueError, match="drill: bad batch at step 60"):
            inject.before_step(60, 1)


def test_once_is_once_over_all_attempts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RERAIL_DRILL_RAISE", f"step=60,rank=1,once={tmp_path / 'done'}")
    with pytest.raises(ValueError, match="step 60"):
        inject.before_step(60, 1)
    inject.before_step(60, 1)


def test_hang_stays_alive(gangs: Any, until: Callable[..., None], tmp_path: Path) -> None:
    done = tmp_path / "done"
    order = {"RERAIL_DRILL_HANG": f"step=3,rank=0,once={done}"}
    gang = gangs.start(world_size=1, code=[HANGS], env=order)
    until(done.exists, "the order was taken", gang.output)
    assert gang.processes[0].poll() is None
    assert "before 4" not in gang.output()
    again = gangs.start(world_size=1, code=[HANGS], env=order)
    assert again.wait() == [0]
    assert "before 4" in again.output()
