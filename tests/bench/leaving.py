"""From SIGTERM, in a random phase of a step, to the acknowledged commit; beside one step and one save."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from tests.bench.machine import clear
from tests.bench.pairs import Result, quantile, ratios
from tests.bench.subject import RUN, Subject

_ROOT = Path(__file__).parents[2]


def sigterm_to_commit(size_bytes: int, step_s: float, folder: Path, *, pairs: int) -> Iterator[Result]:
    """A real process each time; its own step and save, measured before the signal, are the yardstick."""
    chance = random.Random(11)
    took, bounds = [], []
    for turn in range(pairs + 1):
        store = folder / f"store{turn}"
        took_s, bound_s = _once(Subject(store), size_bytes, step_s, phase=chance.random())
        clear(store)
        if turn:
            took.append(took_s)
            bounds.append(bound_s)
    worst = max(above / below for above, below in zip(took, bounds, strict=True))
    yield Result(
        name="sigterm_to_commit",
        ours=quantile(took, 0.5),
        yardstick=quantile(bounds, 0.5),
        ratio=ratios(took, bounds),
        pairs=pairs,
        unit="s",
        note=f"{pairs} of {pairs} processes left with 85 and a commit; worst ratio {worst:.2f}",
    )


def _once(subject: Subject, size_bytes: int, step_s: float, *, phase: float) -> tuple[float, float]:
    subject.open(1)
    told = {key: value for key, value in os.environ.items() if not key.startswith("RERAIL_")}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.leaver", str(size_bytes), str(step_s)],
        env={**told, **subject.environ(1)},
        cwd=_ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        word, one_step_s, one_save_s = process.stdout.readline().split()
        assert word == "ready"
        time.sleep(step_s * (1 + phase))
        asked_s = time.monotonic()
        process.send_signal(signal.SIGTERM)
        word, left_s = process.stdout.readline().split()
        assert (word, process.wait(60)) == ("left", 85)
    finally:
        process.kill()
        process.wait()
    commits = list((subject.root / RUN / "commits").glob("*.2.*"))
    assert len(commits) == 4, commits
    return float(left_s) - asked_s, float(one_step_s) + float(one_save_s)
