"""Gangs of real processes: leaving together, resuming exactly, signals in every phase, kill in mid-save."""

import os
import signal
from pathlib import Path

import pytest

from rerail.plugins.checkpoint.commit import read_manifest
from rerail.plugins.checkpoint.notes import add_request, read_certificate, read_heartbeat
from rerail.plugins.checkpoint.resolve import resolve

WORLD = 4 if os.environ.get("CI") == "true" else 2  # fewer ranks where a person waits


def whole(gang, run, world_size, total):
    """An uninterrupted run of the same training."""
    run.open(1, world_size=world_size)
    made = gang(run, 1, world_size=world_size, TOY_TOTAL=total)
    assert made.wait() == [0] * world_size, made.stderr()
    return made


@pytest.mark.parametrize("form", ["flag", "kv"])
def test_sigterm_to_one_rank_saves_on_all_at_one_step_and_the_next_attempt_is_bitwise_equal(gang, new_run, until, form):
    world = WORLD
    run = new_run("cut")
    run.open(1, world_size=world)
    first = gang(run, 1, world_size=world, TOY_TOTAL=100_000, TOY_AGREE=form, TOY_EVERY=5, TOY_PACE_S=0.05)
    until(lambda: 8 in first.steps(world - 1), "step 8")
    os.kill(first.processes[world - 1].pid, signal.SIGTERM)
    assert first.wait() == [85] * world, first.stderr()
    last = {max(first.steps(rank)) for rank in range(world)}
    assert len(last) == 1
    step = last.pop()
    total = step + 15
    manifest = read_manifest(run.run, 1, step)
    assert manifest.reason == "signal"
    assert resolve(run.run).step == step
    assert sorted(manifest.state_digests) == [str(rank) for rank in range(world)]
    assert len([entry for entry in manifest.files if "/rng." in entry.path]) == world

    run.open(2, world_size=world)
    second = gang(run, 2, world_size=world, TOY_TOTAL=total, TOY_AGREE=form)
    assert second.wait() == [0] * world, second.stderr()
    certificate = read_certificate(run.run, 2)
    assert (certificate.ok, certificate.exact, certificate.reasons) == (True, True, ())

    straight = whole(gang, new_run("whole"), world, total)
    for rank in range(world):
        assert {**first.steps(rank), **second.steps(rank)} == straight.steps(rank)
        assert min(second.steps(rank)) == step + 1
        assert second.log(rank)[-1] == straight.log(rank)[-1]
    assert read_manifest(run.run, 2, total).reason == "final"


def test_a_request_to_leave_is_answered_by_the_commit(gang, new_run, until):
    run = new_run("asked")
    run.open(1, world_size=2)
    made = gang(run, 1, world_size=2, TOY_TOTAL=10_000, TOY_PACE_S=0.01)
    until(made.steps, "a step")
    add_request(run.run, attempt=1, reason="test", within_s=60, then="stay", writer="w" * 8, id="q1")
    until(run.commits, "commit")
    until(lambda: (read_heartbeat(run.run) or made).step and read_heartbeat(run.run).first_step == 1, "heartbeat")
    add_request(run.run, attempt=1, reason="test", within_s=60, then="leave", writer="w" * 8, id="q2")
    assert made.wait() == [85, 85], made.stderr()
    answers = [read_manifest(run.run, *commit).answers for commit in run.commits()]
    assert answers == [("q1",), ("q2",)]
    assert made.report()["exit_code"] == 85


def test_sigterm_in_evaluation_waits_for_the_boundary(gang, new_run, until, tmp_path):
    run = new_run("evaluation")
    run.open(1)
    release = tmp_path / "release"
    made = gang(run, 1, TOY_TOTAL=20, TOY_EVALUATE=6, TOY_RELEASE=release, RERAIL_GRACE_S=0.1)
    until(lambda: any("evaluating" in line for line in made.log()), "evaluation")
    assert made.report()["phase"] == "evaluation"
    os.kill(made.processes[0].pid, signal.SIGTERM)
    until(lambda: made.report().get("missed") == {"evaluation": 1}, "the miss with its phase")
    assert run.commits() == []
    release.touch()
    assert made.wait() == [85], made.stderr()
    assert run.commits() == [(1, 7)]


def test_sigterm_while_loading_leaves_without_a_save(gang, new_run, until, tmp_path):
    run = new_run("loading")
    run.open(1, world_size=2)
    # Rank 1 is held back, so rank 0 stands in the exchange of the certificate.
    script = tmp_path / "late.py"
    script.write_text(
        "import os, sys, time, runpy, pathlib\n"
        "while os.environ['RANK'] == '1' and not pathlib.Path(os.environ['TOY_RELEASE']).exists(): time.sleep(0.01)\n"
        f"sys.argv = ['toy']; runpy.run_path({str((tmp_path / 'toy').resolve())!r}, run_name='__main__')\n"
    )
    (tmp_path / "toy").symlink_to(Path(__file__).parent / "toy.py")
    release = tmp_path / "release"
    made = gang(run, 1, world_size=2, script=script, TOY_RELEASE=release)
    until((made.folder / "report.0").exists, "rank 0")
    os.kill(made.processes[0].pid, signal.SIGTERM)
    release.touch()
    codes = made.wait()
    # The signal came before the exchange (both leave at once), or after it (both save the first step and leave).
    assert codes in ([86, 86], [85, 85]), made.stderr()
    assert run.commits() == ([] if codes[0] == 86 else [(1, 1)])


def test_sigterm_during_a_background_save_waits_for_it_and_saves_again(gang, new_run, until, tmp_path):
    run = new_run("saving")
    run.open(1)
    held, release = tmp_path / "held", tmp_path / "release"
    made = gang(
        run,
        1,
        TOY_TOTAL=100_000,
        TOY_ASYNC=1,
        TOY_EVERY=5,
        TOY_HOLD_AFTER=5,
        TOY_HELD=held,
        TOY_RELEASE=release,
        TOY_PACE_S=0.005,
    )
    until(held.exists, "the held save")
    os.kill(made.processes[0].pid, signal.SIGTERM)
    until(lambda: made.report()["phase"] == "saving", "the save that was asked for")
    assert run.commits() == [(1, 5)]
    release.touch()
    assert made.wait() == [85], made.stderr()
    commits = run.commits()
    assert commits[:2] == [(1, 5), (1, int(held.read_text()))]
    assert len(commits) == 3
    assert read_manifest(run.run, *commits[2]).reason == "signal"


def test_kill_9_in_a_background_save_leaves_the_older_commit_usable(gang, new_run, until, tmp_path):
    run = new_run("killed")
    run.open(1)
    held = tmp_path / "held"
    made = gang(
        run,
        1,
        TOY_TOTAL=100_000,
        TOY_ASYNC=1,
        TOY_EVERY=5,
        TOY_HOLD_AFTER=5,
        TOY_HELD=held,
        TOY_RELEASE=tmp_path / "never",
    )
    until(held.exists, "the held save")
    until(lambda: max(made.steps()) > int(held.read_text()) + 2, "training beside it")
    os.killpg(made.processes[0].pid, signal.SIGKILL)
    assert made.wait() == [-9]
    assert run.commits() == [(1, 5)]
    assert resolve(run.run).step == 5
    run.open(2)
    second = gang(run, 2, TOY_TOTAL=20)
    assert second.wait() == [0], second.stderr()
    assert min(second.steps()) == 6
    assert read_certificate(run.run, 2).exact
    straight = whole(gang, new_run("whole"), 1, 20)
    assert second.log()[-1] == straight.log()[-1]


def test_an_exception_is_in_the_report_with_the_last_step(gang, new_run):
    run = new_run("broken")
    run.open(1)
    made = gang(run, 1, TOY_TOTAL=20, TOY_RAISE="0.7")
    assert made.wait() == [1]
    report = made.report()
    assert (report["step"], report["first_step"], report["error"]) == (7, 1, "ValueError: the toy was told to break")
    assert "Traceback" in made.stderr()


def test_without_rerail_the_script_runs_and_says_so(gang, new_run):
    run = new_run("none")
    made = gang(run, 1, TOY_TOTAL=5, RERAIL_RUN="", RERAIL_STORE="", RERAIL_RANK_REPORT="")
    assert made.wait() == [0], made.stderr()
    assert made.stderr().count("RERAIL_RUN and RERAIL_STORE are not set") == 1
    assert list(run.root.iterdir()) == []


def test_argo_progress_is_written(gang, new_run, tmp_path):
    run = new_run("argo")
    run.open(1)
    progress = tmp_path / "progress"
    made = gang(run, 1, TOY_TOTAL=6, ARGO_PROGRESS_FILE=progress)
    assert made.wait() == [0], made.stderr()
    assert progress.read_text() == "6/6"
