"""``rerail status``, ``logs`` and ``report``: a run is looked at from its store alone."""

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from rerail.plugins.cli.main import build

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture
def ended(world):
    """A run that met one exception and ended well."""
    world.plan({"1.1": [7, 3]})
    (world.root / "policy.yaml").write_text("poll_s: 0.05\nsettle_s: 0.1\nhold_s: 10\n")
    words = ["run", "--nproc=2", f"--store={world.store}", "--run=mine", f"--policy={world.root / 'policy.yaml'}", "--"]
    says = ["sh", "-c", 'echo "rank $RANK of attempt $RERAIL_ATTEMPT"; echo last; exec "$@"', "sh"]
    done = subprocess.run(
        [sys.executable, "-m", "rerail.plugins.cli.main", *words, *says, *world.command()],
        env={name: value for name, value in os.environ.items() if not name.startswith("RERAIL_")}
        | {"TEST_WORLD": world.mark},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return world


def rerail(*words):
    return CliRunner().invoke(build(words[:1]), list(words))


def test_status_says_where_a_run_stands(ended):
    found = rerail("status", "mine", "--store", ended.store, "-o", "json")
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert (told["phase"], told["attempt"], told["step"]) == ("done", 2, 20)
    assert told["resume"]["step"] == 20
    assert [one["how"] for one in told["attempts"]] == ["fresh", "in-place"]
    assert [one["class"] for one in told["incidents"]] == ["app-error"]
    table = rerail("status", "mine-a1", "--store", ended.store)
    assert table.exit_code == 0
    assert "app-error" in table.stdout, "by the name of a gang as well"


def test_the_report_is_made_at_any_time(ended, tmp_path):
    found = rerail("report", "mine", "--store", ended.store, "--dir", str(tmp_path / "made"), "-o", "json")
    assert found.exit_code == 0, found.output
    told = json.loads(found.stdout)
    assert told["restarts"] == 1
    assert json.loads((tmp_path / "made/report.json").read_text())["run"] == "mine"
    assert "<svg" in (tmp_path / "made/report.html").read_text()
    assert "app-error" in rerail("report", "mine", "--store", ended.store).stdout
    assert "rerail_restarts 1.0" in rerail("report", "mine", "--store", ended.store, "--prometheus").stdout


def test_logs_are_those_of_the_newest_attempt_unless_another_is_named(ended):
    newest = rerail("logs", "mine", "--store", ended.store)
    assert newest.exit_code == 0, newest.output
    assert "rank 0: rank 0 of attempt 2" in newest.stdout.splitlines()
    assert "rank 1: rank 1 of attempt 2" in newest.stdout.splitlines()
    first = rerail("logs", "mine", "--store", ended.store, "--attempt", "1", "--rank", "1", "--tail", "1")
    assert first.stdout == "rank 1: last\n"


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("status", "other"), 4, "run 'other' is not known: neither a run nor a gang 'other' is at"),
        (("report", "other"), 4, "run 'other' is not known"),
        (("logs", "mine", "--attempt", "9"), 4, "no log of attempt 9 of run 'mine' is on this machine"),
        (("logs", "mine", "--follow"), 2, "--follow is for pods of a cluster"),
    ],
)
def test_what_is_not_there_is_named(ended, words, code, told, capsys):
    from rerail.plugins.cli.main import main

    with pytest.raises(SystemExit) as left:
        main([*words, "--store", ended.store])
    assert left.value.code == code
    assert told in capsys.readouterr().err


def test_without_a_store_and_a_cluster_the_way_out_is_said(tmp_path, monkeypatch, capsys):
    from rerail.plugins.cli.main import main

    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("RERAIL_STORE", raising=False)
    with pytest.raises(SystemExit) as left:
        main(["status", "mine"])
    assert left.value.code == 2
    assert "--store (or RERAIL_STORE)" in capsys.readouterr().err
