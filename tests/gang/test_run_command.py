import json
import os
import signal
import subprocess
import sys

import pytest

POLICY = "poll_s: 0.05\nsettle_s: 0.1\nhold_s: 10\n"


@pytest.fixture
def rerail(world):
    """``rerail run`` around the tiny trainer; its stdout and stderr go to files."""
    (world.root / "policy.yaml").write_text(POLICY)

    def start(*options, nproc=2, policy=True, command=None, number=[0]):  # noqa: B006 - counts the calls
        number[0] += 1
        out, err = (world.root / f"run{number[0]}.{kind}" for kind in ("out", "err"))
        given = ["--policy", str(world.root / "policy.yaml")] if policy else []
        words = ["run", "--nproc", str(nproc), "--store", world.store, "-o", "json", *given, *options, "--"]
        process = subprocess.Popen(
            [sys.executable, "-m", "rerail.plugins.cli.main", *words, *(command or world.command())],
            env={name: value for name, value in os.environ.items() if not name.startswith("RERAIL_")}
            | {"TEST_WORLD": world.mark},
            stdin=subprocess.DEVNULL,
            stdout=out.open("wb"),
            stderr=err.open("wb"),
            start_new_session=True,
        )

        def end():
            code = process.wait(timeout=120)
            text = out.read_text()
            return code, json.loads(text) if text else None, err.read_text()

        process.end = end
        return process

    return start


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_run_with_a_fault_ends_well_and_says_how(rerail, world):
    world.plan({"1.1": [7, 3]})
    code, document, told = rerail("--run", "mine").end()
    assert code == 0, told
    assert document["phase"] == "done"
    assert [(one["n"], one["how"], one["started_from_step"]) for one in document["attempts"]] == [
        (1, "fresh", 0),
        (2, "in-place", 5),
    ]
    assert document["incidents"][0]["class"] == "app-error"
    assert "opening attempt 1" in told
    assert "done at step 20" in told
    assert (world.root / "store/.local/mine/logs/2/1.log").exists()
    again, document, told = rerail("--run", "mine", policy=False).end()
    assert (again, document["phase"]) == (0, "done")
    assert world.ups() == ["1.0", "1.1", "2.0", "2.1"], "a run that is done is not run again"


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_sigterm_leaves_the_gang_to_a_successor_and_ctrl_c_saves_and_stops(rerail, world, wait_for):
    command = world.command(total=100_000, pace_s=0.02)
    first = rerail("--run", "mine", command=command)
    wait_for(lambda: world.ups() == ["1.0", "1.1"])
    first.terminate()
    code, document, told = first.end()
    assert code == 130, told
    assert document["left_running"] is True
    second = rerail("--run", "mine", command=command, policy=False)
    wait_for(lambda: "attempt 1 trains" in (world.root / "run2.err").read_text())
    second.send_signal(signal.SIGINT)
    code, document, told = second.end()
    assert code == 1, told
    assert document["phase"] == "stopped"
    assert "interrupted by a person" in document["reason"]
    assert world.ups() == ["1.0", "1.1"], "the gang was adopted"
    assert world.left() == []
    saved = document["attempts"][0]["last_commit_step"]
    assert saved is not None
    assert set(document["attempts"][0]["exit_codes"].values()) == {85}
    third = rerail("--run", "mine", command=world.command(total=saved + 5), policy=False)
    code, document, told = third.end()
    assert code == 0, told
    assert document["attempts"][-1]["started_from_step"] == saved


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("options", "policy", "says"),
    [
        (["--nodes", "three"], "", "N:SLOTS"),
        (["--nodes", "1:1"], "", "has 1 slots"),
        (["--run", "Not_A_Name"], "", "lower-case"),
        (["--from", "other"], "", "RUN@STEP"),
        (["--backend", "slurm"], "", "'slurm' is not known"),
        (["--backend", "fanout"], "", "submit the template rerail-train-fanout"),
        (["--backend", "vcjob"], "", "takes one FILE"),
        ([], "hold: 3", "did you mean 'hold_s'"),
        ([], "hold_s: two minutes", "'two minutes'"),
        ([], "hold_s: -3", "hold_s"),
        ([], "- 1", "a mapping"),
        ([], "{", "no YAML"),
        (["--policy", "/no/such.yaml"], "", "/no/such.yaml"),
    ],
)
def test_bad_input_is_named_with_the_way_out_and_nothing_is_started(rerail, world, options, policy, says):
    (world.root / "policy.yaml").write_text(policy)
    code, document, told = rerail(*options).end()
    assert (code, document) == (2, None)
    assert says in " ".join(told.split())
    assert "Traceback" not in told
    assert list((world.root / "store").iterdir()) == []


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_an_existing_run_of_another_shape_is_not_continued(rerail, world):
    assert rerail("--run", "mine").end()[0] == 0
    code, _, told = rerail("--run", "mine", nproc=3, policy=False).end()
    assert code == 2
    assert "has 2 ranks, not 3" in told
    (world.root / "policy.yaml").write_text("hold_s: 11")
    code, _, told = rerail("--run", "mine").end()
    assert code == 2
    assert "policy of its own" in told


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_fork_begins_from_another_runs_commit_and_needs_it_no_more(rerail, world):
    assert rerail("--run", "mine").end()[0] == 0
    code, _, told = rerail("--run", "lost", "--from", "mine@11").end()
    assert code == 4
    assert "step 11 not found" in told
    assert not (world.root / "store/lost/run.json").exists()
    fork = rerail("--run", "fork", "--from", "mine@15", command=world.command(total=25))
    code, document, told = fork.end()
    assert code == 0, told
    assert [(one["n"], one["started_from_step"], one["last_commit_step"]) for one in document["attempts"]] == [
        (2, 15, 25)
    ]
    verify = [
        sys.executable,
        "-m",
        "rerail.plugins.cli.main",
        "ckpt",
        "verify",
        "--run",
        "fork",
        "--store",
        world.store,
    ]
    assert subprocess.run([*verify, "-o", "json"], capture_output=True, check=False).returncode == 0
