"""Take the measures, write results.json and the README's table: ``python -m tests.bench.run [--full]``."""

import argparse
import datetime as dt
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.bench import machine, table
from tests.bench.commits import commit
from tests.bench.consenting import extender_answer
from tests.bench.evicting import eviction_lateness
from tests.bench.goals import GOALS, OPTIONAL
from tests.bench.imports import import_client
from tests.bench.leaving import sigterm_to_commit
from tests.bench.lines import lines_per_s
from tests.bench.loads import verified_load
from tests.bench.pairs import Result
from tests.bench.recovering import recovering
from tests.bench.recovering_argo import ATTEMPTS, recovering_argo, workflow_bytes
from tests.bench.recovering_many import recovering_many
from tests.bench.resolving import resolving
from tests.bench.stall import async_stall
from tests.bench.subject import MIB
from tests.bench.uploads import upload

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
RESULTS, README = HERE / "results.json", ROOT / "README.md"

Measure = Callable[[Path], Iterator[Result]]


def measures(*, full: bool, small: bool) -> dict[str, Measure]:
    """Groups of measures by name. ``small`` is for trying the benchmark itself: its figures mean nothing."""
    unit = 1 if small else MIB
    counts = (10, 1_000, 10_000, 100_000) if full else (10, 1_000, 10_000)
    pairs = 7 if small else 11
    found: dict[str, Measure] = {
        "commit_pv_64m": lambda at: commit("commit_pv_64m", max(64 * unit, MIB), at, pairs=15),
        "commit_pv_256m": lambda at: commit("commit_pv_256m", max(256 * unit, 4 * MIB), at, pairs=pairs),
        "async_stall": lambda at: async_stall(max(256 * unit, 4 * MIB), at, pairs=pairs),
        "s3_upload_256m": lambda at: upload("s3_upload_256m", max(256 * unit, 20 * MIB), at, pairs=7),
        "verified_load": lambda at: verified_load(max(256 * unit, 4 * MIB), at, pairs=9),
        "resolve": lambda at: resolving((10,) if small else counts, at, pairs=15),
        "lines_per_s": lambda _: lines_per_s(2_000 if small else 30_000, pairs=9),
        "sigterm_to_commit": lambda at: sigterm_to_commit(max(64 * unit, MIB), 0.5, at, pairs=9),
        "eviction_lateness": lambda at: eviction_lateness(at, trials=2 if small else 40),
        "extender_p99": lambda at: extender_answer(at, questions=20 if small else 1000),
        "import_client": lambda _: import_client(pairs=9),
        "recovery_n64": lambda at: recovering_many(at, rounds=1 if small else 5, say=_say),
        "recovery": lambda at: recovering(at, rounds=1 if small else 5, say=_say),
        "workflow_recovery": lambda at: recovering_argo(at, rounds=1 if small else 4, say=_say),
        "workflow_bytes": lambda at: workflow_bytes(at, attempts=2 if small else ATTEMPTS, say=_say),
    }
    if full:
        found["commit_pv_1g"] = lambda at: commit("commit_pv_1g", max(1024 * unit, MIB), at, pairs=7)
        found["s3_upload_1g"] = lambda at: upload("s3_upload_1g", max(1024 * unit, 20 * MIB), at, pairs=7)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Take the measures."""
    asked = _arguments(arguments)
    chosen = measures(full=asked.full, small=asked.small)
    unknown = sorted(set(asked.only) - set(chosen))
    if unknown:
        sys.stderr.write(f"no measure {unknown[0]!r}; there are {', '.join(chosen)}\n")
        return 2
    folder = (asked.dir or ROOT / "build").resolve() / f"bench-{os.getpid()}"
    folder.mkdir(parents=True)
    before = machine.load_1m()
    begin = time.monotonic()
    taken: list[Result] = []
    try:
        for name, take in chosen.items():
            if asked.only and name not in asked.only:
                continue
            sys.stderr.write(f"{name} ...\n")
            for result in take(folder / name):
                taken.append(result)
                sys.stderr.write(f"  {_told(result)}\n")
            shutil.rmtree(folder / name, ignore_errors=True)
        where = machine.describe(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    idle = "idle" if before <= machine.IDLE_LOAD else "NOT idle, so these figures are no verdict"
    where = f"{where}, load before {before:.1f} ({idle})"
    sys.stderr.write(f"{len(taken)} measures in {time.monotonic() - begin:.0f} s on {where}\n")
    if asked.small or asked.dry:
        return 0
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    rows = table.merge(
        table.read_results(RESULTS), [(one, GOALS[one.name]) for one in taken], date=today, machine=where
    )
    table.write_results(RESULTS, rows)
    table.write_between_marks(README, table.table(rows, GOALS, optional=OPTIONAL))
    return 0


def _arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--full", action="store_true", help="add 1 GiB and 100,000 checkpoints")
    parser.add_argument("--only", nargs="+", default=[], metavar="MEASURE", help="take only these")
    parser.add_argument("--dir", type=Path, help="folder on the disk to measure; by default build/ in the checkout")
    parser.add_argument("--small", action="store_true", help="try the benchmark with tiny sizes; writes nothing")
    parser.add_argument("--dry", action="store_true", help="write neither results.json nor the README")
    return parser.parse_args(arguments)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _told(result: Result) -> str:
    goal = GOALS[result.name]
    met = {True: "met", False: "MISSED", None: "no goal"}[goal.met(result.ratio.median)]
    held = "" if result.yardstick is None else f" against {result.yardstick:.4g}"
    arms = "".join(f"\n    {name}: {value:.4g} ({ratio:.2f}x)" for name, (value, ratio) in result.arms.items())
    note = f"\n    {result.note}" if result.note else ""
    return (
        f"{result.name}: {result.ours:.4g} {result.unit}{held}, ratio {result.ratio.median:.3f} "
        f"({result.ratio.p5:.3f}-{result.ratio.p95:.3f}), goal {goal.goal}: {met}{arms}{note}"
    )


if __name__ == "__main__":
    sys.exit(main())
