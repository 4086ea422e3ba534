"""Evictions of a gang of real processes: how late they come after the commit or the deadline that they waited for."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rerail.plugins.checkpoint.open import open_run
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.evict.local import LocalPods
from rerail.plugins.evict.preevict import PreEvict, live_gang
from rerail.plugins.gang.ledger import newest_entry
from rerail.plugins.gang.local import LocalBackend
from rerail.policies.eviction import EvictionBounds
from tests.bench.pairs import Result, Spread, quantile

RUN = "evicted"
WITHIN_S = 60.0
GRACE_S = 5.0
POLICY = f"poll_s: 0.1\nsettle_s: 0.1\nbackoff_s: 0.05\nend_grace_s: {GRACE_S}\nend_grace_untrusted_s: 0.5\n"


def eviction_lateness(folder: Path, *, trials: int) -> Iterator[Result]:
    """Evict one run's gang again and again at random moments, every fourth time with a deadline that no save meets.

    Late is what passes from the acknowledged commit, or from the deadline, until the last pod is gone.
    """
    chance = random.Random(6)
    late: list[float] = []
    outcomes: dict[str, int] = {}
    with _supervised(folder) as store:
        for trial in range(1, trials + 1):
            _until(lambda number=trial: _trains(store, number), f"attempt {trial} trains")
            time.sleep(chance.uniform(0.0, 1.0))
            deadline_s = 0.001 if trial % 4 == 0 else 30.0
            target = live_gang(store)
            backend = LocalBackend(RUN, folder / "store/.local" / RUN / "pods", (), {})
            pods = LocalPods(backend, target.gang, GRACE_S)
            found = PreEvict(
                store, target, pods, EvictionBounds(deadline_s=deadline_s), "bench", takeover_s=30.0
            ).perform()
            assert found.evicted_at_s is not None, found
            assert found.outcome != "unsaved", found
            due_s = found.committed_at_s if found.outcome == "committed" else found.asked_at_s + deadline_s
            assert due_s is not None
            late.append(found.evicted_at_s - due_s)
            outcomes[found.outcome] = outcomes.get(found.outcome, 0) + 1
    p95_s = quantile(late, 0.95)
    told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    yield Result(
        name="eviction_lateness",
        ours=p95_s,
        yardstick=None,
        ratio=Spread(p95_s, quantile(late, 0.05), max(late)),
        pairs=trials,
        unit="s",
        note=f"p95, and in brackets p5 and the worst, of {trials} evictions of a gang of 2 processes: {told}; "
        f"median {quantile(late, 0.5):.2f} s",
    )


def _trains(store: RunStore, attempt: int) -> bool:
    entry = newest_entry(store)
    if entry is None or (entry.state.attempt, entry.state.phase) != (attempt, "running"):
        return False
    return any(one.n == attempt and one.first_step_at_s for one in entry.state.attempts)


def _until(what: Callable[[], bool], name: str) -> None:
    end_s = time.monotonic() + WITHIN_S
    while not what():
        if time.monotonic() > end_s:
            raise TimeoutError(f"{name}: not within {WITHIN_S:g} s")
        time.sleep(0.05)


@contextmanager
def _supervised(folder: Path) -> Iterator[RunStore]:
    """The example's training under ``rerail run``, long enough for every trial."""
    (folder / "store").mkdir(parents=True)
    (folder / "policy.yaml").write_text(POLICY)
    address = f"file://{folder / 'store'}"
    told = {key: value for key, value in os.environ.items() if not key.startswith("RERAIL_")}
    command = [
        sys.executable,
        "-m",
        "rerail.plugins.cli.main",
        "run",
        f"--run={RUN}",
        f"--store={address}",
        "--nproc=2",
    ]
    training = [sys.executable, "-m", "rerail.examples.local_gang.train", "--steps=100000", "--save-every=1000"]
    with (folder / "run.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, f"--policy={folder / 'policy.yaml'}", "--", *training],
            env=told,
            stdout=subprocess.DEVNULL,
            stderr=log,
        )
    store: RunStore | None = None
    try:
        _until((folder / "store" / RUN / "run.json").exists, "the run begins")
        store = open_run(RUN, store=address)
        yield store
    finally:
        process.terminate()  # the supervisor leaves its gang to a successor
        process.wait(30)
        if store is not None:
            LocalBackend(RUN, folder / "store/.local" / RUN / "pods", (), {}).end(live_gang(store).gang, 0.0)
