"""Four real ranks lose one, and go on from any save point to the same bits as a run that nothing happened to."""

import json
import os
import secrets
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rerail.plugins.checkpoint.attempts import create_run, open_attempt
from rerail.plugins.checkpoint.manifests import read_manifest
from rerail.plugins.checkpoint.notes import read_certificate
from rerail.plugins.checkpoint.open import open_run
from rerail.plugins.checkpoint.resolve import resolve
from rerail.policies.documents import Rendezvous, RunDoc, Start

WORLD_SIZE, STEPS, KILLED_AFTER = 4, 42, 30
OPTIONS = ["--steps", str(STEPS), "--batch", "16", "--samples", "200"]
RUN = "gang"

Lines = dict[int, list[dict[str, Any]]]
"""By rank, what it did in each step."""


def read_trace(folder: Path, attempt: int) -> Lines:
    files = [folder / f"trace-a{attempt}-r{rank}.jsonl" for rank in range(WORLD_SIZE)]
    return {rank: [json.loads(line) for line in file.read_text().splitlines()] for rank, file in enumerate(files)}


def after(lines: Lines, step: int) -> Lines:
    return {rank: [line for line in found if line["step"] > step] for rank, found in lines.items()}


def open_next(root: Path, attempt: int, port: int, *, step: int | None = None) -> tuple[Start, dict[str, str]]:
    """Open an attempt as the supervisor does; returns the start, and what launch would tell the ranks."""
    store = root.as_uri()
    run = open_run(RUN, store=store)
    start = open_attempt(
        run,
        attempt=attempt,
        how="new-gang" if attempt > 1 else "fresh",
        gang=f"{RUN}-a{attempt}",
        world_size=WORLD_SIZE,
        rendezvous=Rendezvous(id=secrets.token_hex(8), host="127.0.0.1", port=port),
        writer=secrets.token_hex(8),
        step=step,
    )
    return start, {
        "RERAIL_RUN": RUN,
        "RERAIL_STORE": store,
        "RERAIL_ATTEMPT": str(attempt),
        "RERAIL_GANG": start.gang,
        "RERAIL_RENDEZVOUS": start.rendezvous.id,
        "MASTER_PORT": str(port),
    }


@dataclass
class Runs:
    """A run that nothing happened to, and one that lost rank 2."""

    whole: Lines
    lost: Lines
    store: Path

    @property
    def epoch_ends(self) -> list[int]:
        pairs = zip(self.whole[0], self.whole[0][1:], strict=False)
        return [after["step"] for before, after in pairs if after["epoch"] > before["epoch"]]

    @property
    def skips(self) -> list[int]:
        return [line["step"] for line in self.whole[0] if line["skipped"]]


@pytest.fixture(scope="module")
def runs(module_gangs: Any, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    folder = tmp_path_factory.mktemp("runs")
    whole = module_gangs.start(*OPTIONS, env={"RERAIL_TRACE": str(folder)})
    assert whole.wait() == [0] * WORLD_SIZE, whole.output()

    store = folder / "store"
    store.mkdir()
    run = open_run(RUN, store=store.as_uri())
    create_run(run, RunDoc(writer=secrets.token_hex(8), run=RUN, owner="test", created_at_s=0, world_size=WORLD_SIZE))
    _, env = open_next(store, 1, module_gangs.port())
    env["RERAIL_DRILL_HANG"] = f"step={KILLED_AFTER + 1},rank=2"  # so that the kill comes between two known steps
    lost = module_gangs.start(*OPTIONS, "--save-every", "1", env={**env, "RERAIL_TRACE": str(folder)})
    module_gangs.until(lambda: resolve(run).step == KILLED_AFTER, f"commit of step {KILLED_AFTER}", lost.output)
    lost.kill(2)
    codes = lost.wait(60)
    assert codes[2] == -9
    assert all(code not in (0, 85) for code in codes), lost.output()
    assert "ConnectionError" in lost.logs[0].read_text()
    return Runs(read_trace(folder, 0), read_trace(folder, 1), store)


def test_the_fault_has_an_epoch_end_and_a_skipped_step_on_both_sides(runs: Runs) -> None:
    for steps in (runs.epoch_ends, runs.skips):
        assert steps[0] < KILLED_AFTER < steps[-1] <= STEPS


def test_rerail_does_not_change_the_run(runs: Runs) -> None:
    assert runs.lost == {rank: lines[:KILLED_AFTER] for rank, lines in runs.whole.items()}


def test_ranks_hold_the_same_parameters_and_share_the_samples(runs: Runs) -> None:
    for lines in zip(*runs.whole.values(), strict=True):
        assert len({(line["params"], line["loss"]) for line in lines}) == 1
        ids = [sample for line in lines for sample in line["samples"]]
        assert len(ids) == len(set(ids))


SAVE_POINTS: dict[str, Callable[[Runs], int]] = {
    "newest": lambda _: KILLED_AFTER,
    "mid epoch 0": lambda _: 6,
    "mid epoch 1": lambda runs: runs.epoch_ends[1] - 5,
    "exact epoch end": lambda runs: runs.epoch_ends[1],
    "before epoch end": lambda runs: runs.epoch_ends[1] - 1,
    "after a skipped step": lambda runs: runs.skips[0],
    "before a skipped step": lambda runs: runs.skips[0] - 1,
}


ALWAYS = ("exact epoch end", "after a skipped step")
POINTS = [
    point
    if point in ALWAYS
    else pytest.param(
        point, marks=[pytest.mark.slow, pytest.mark.skipif(os.environ.get("CI") != "true", reason="only where CI=true")]
    )
    for point in SAVE_POINTS
]


@pytest.mark.parametrize("point", POINTS)
def test_resumed_run_is_bitwise_identical(point: str, runs: Runs, module_gangs: Any, tmp_path: Path) -> None:
    step = SAVE_POINTS[point](runs)
    store = tmp_path / "store"
    shutil.copytree(runs.store, store)
    start, env = open_next(store, 2, module_gangs.port(), step=None if point == "newest" else step)
    assert start.load is not None
    assert start.load.step == step
    gang = module_gangs.start(*OPTIONS, "--save-every", "9", env={**env, "RERAIL_TRACE": str(tmp_path)})
    assert gang.wait() == [0] * WORLD_SIZE, gang.output()
    assert read_trace(tmp_path, 2) == after(runs.whole, step)

    run = open_run(RUN, store=store.as_uri())
    certificate = read_certificate(run, 2)
    assert (certificate.ok, certificate.exact, certificate.reasons) == (True, True, ())
    assert [rank.rank for rank in certificate.ranks] == list(range(WORLD_SIZE))
    found = resolve(run)
    assert (found.attempt, found.step) == (2, STEPS)
    assert read_manifest(run, 2, STEPS).reason == "final"


def test_two_faults_with_saves_in_the_background(runs: Runs, module_gangs: Any, tmp_path: Path) -> None:
    store = tmp_path / "store"
    shutil.copytree(runs.store, store)
    run = open_run(RUN, store=store.as_uri())
    _, env = open_next(store, 2, module_gangs.port(), step=runs.epoch_ends[0])
    env |= {"RERAIL_TRACE": str(tmp_path), "RERAIL_DRILL_HANG": f"step={KILLED_AFTER},rank=1"}
    second = module_gangs.start(*OPTIONS, "--save-every", "2", "--async", env=env)
    module_gangs.until(lambda: resolve(run).attempt == 2, "a commit of attempt 2", second.output)
    second.kill(0, 1)  # rank 1 hangs by now, or was about to
    assert all(code not in (0, 85) for code in second.wait(60)), second.output()

    start, env = open_next(store, 3, module_gangs.port())
    assert start.load is not None
    assert start.load.attempt == 2
    third = module_gangs.start(*OPTIONS, "--async", env={**env, "RERAIL_TRACE": str(tmp_path)})
    assert third.wait() == [0] * WORLD_SIZE, third.output()
    whole, done = read_trace(tmp_path, 3), start.load.step
    assert whole == after(runs.whole, done)
    for rank, lines in read_trace(tmp_path, 2).items():
        assert lines == after(runs.whole, runs.epoch_ends[0])[rank][: len(lines)]


def test_a_signal_to_one_rank_makes_all_save_at_one_step_and_leave(
    runs: Runs, module_gangs: Any, tmp_path: Path
) -> None:
    store = tmp_path / "store"
    shutil.copytree(runs.store, store)
    run = open_run(RUN, store=store.as_uri())
    start, env = open_next(store, 2, module_gangs.port(), step=6)
    env["RERAIL_TRACE"] = str(tmp_path)
    gang = module_gangs.start(*OPTIONS, "--save-every", "1000", "--step-delay-s", "1", env=env)
    first = tmp_path / "trace-a2-r3.jsonl"
    module_gangs.until(lambda: first.exists() and first.read_text().count("\n") > 1, "two steps", gang.output)
    gang.processes[3].terminate()
    assert gang.wait(60) == [85] * WORLD_SIZE, gang.output()
    found = resolve(run)
    lines = read_trace(tmp_path, 2)
    assert found.attempt == 2
    assert {len(done) for done in lines.values()} == {found.step - 6}  # no step was lost
    assert lines == {rank: done[: found.step - 6] for rank, done in after(runs.whole, 6).items()}
    assert start.load is not None
