"""Whose turn it is in a cluster that several test sessions share: tests that mark, stop or fill nodes run alone."""

import fcntl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from rig import layout

WAIT_S = 900.0


@contextmanager
def taken(*, alone: bool) -> Iterator[None]:
    """Hold the cluster with others, or alone. Who waits to be alone is not overtaken."""
    gate_path, path = layout.STATE / "gate.lock", layout.STATE / "turn.lock"
    with path.open("w") as turn:
        with gate_path.open("w") as gate:
            _lock(gate, fcntl.LOCK_EX)
            _lock(turn, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        yield


@contextmanager
def slots() -> Iterator[None]:
    """Hold the slots of the contract's tests; another cluster than our own has no folder here, and one session."""
    if not layout.STATE.exists():
        yield
        return
    with (layout.STATE / "slots.lock").open("w") as file:
        _lock(file, fcntl.LOCK_EX)
        yield


def _lock(file: IO[str], how: int) -> None:
    """Take a lock, which ends with the open file. The kernel hands it out in turn: who polls would starve."""
    waiting = threading.Thread(target=fcntl.flock, args=(file, how), daemon=True)
    waiting.start()
    waiting.join(WAIT_S)
    if waiting.is_alive():
        raise AssertionError(f"another test session holds the cluster ({file.name})")
