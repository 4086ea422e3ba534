"""Drills on real processes: their verdicts, the document's keys, and that a verdict can fail."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rerail.plugins.drill.runner import NODES, Baseline, Setting, run_drill
from rerail.plugins.drill.scenario import STEPS
from rerail.plugins.drill.scenarios import SCENARIOS

SAMPLE = ("gpu", "driver")
DRILLS = list(SCENARIOS) if os.environ.get("CI") == "true" else list(SAMPLE)

KEYS = (
    "scenario verdict reason identical attempts incidents mttd_s mttr_s mttr_phases_s rpo_steps rpo_s lost_steps "
    "gpu_waste_ratio ettr_run ettr_job restarts resumed_from_step certificates report_html report_json"
)
KEYS_OF = {
    "attempts": "n gang nodes how started_from_step last_step end_cause exit_codes",
    "incidents": "id class scope codes node device action t_detect_s",
    "certificates": "attempt exact ok",
    "mttr_phases_s": "detect decide save end start load first_step",
}
DEADLINE_S = 400.0


@pytest.mark.parametrize(
    "name", [pytest.param(name, id=f"{name}, {len(DRILLS)} of {len(SCENARIOS)}") for name in DRILLS]
)
def test_the_claim_holds(name: str, tmp_path: Path, baseline: Baseline) -> None:
    scenario = SCENARIOS[name]
    report = run_drill(scenario, tmp_path / name, Setting(), baseline=baseline)
    assert report.verdict == "pass", report.reason
    assert report.identical is (True if scenario.finishes else None)
    document = report.document()
    assert document.keys() >= set(KEYS.split())
    for key, inner in KEYS_OF.items():
        for row in document[key] if isinstance(document[key], list) else [document[key]]:
            if row is not None:
                assert row.keys() >= set(inner.split())
    assert json.loads(Path(report.report_json).read_text())["verdict"] == "pass"
    assert "<script" not in Path(report.report_html).read_text()
    for node in NODES:
        assert (tmp_path / name / "nodes" / node / "node.json").is_file()
    assert (tmp_path / name / "logs/1/0.log").is_file()
    assert _left(tmp_path) == []


def test_a_wrong_random_state_fails_the_verdict(tmp_path: Path) -> None:
    """One rank draws one number too many after its restore: nothing else of the drill is different."""
    run = _drill("preempt", "--keep", str(tmp_path), "--output", "json", RERAIL_DRILL_SKEW="rank=1,attempt=2")
    out, said = run.communicate(timeout=DEADLINE_S)
    assert run.returncode == 1, said
    document = json.loads(out)
    assert (document["verdict"], document["identical"]) == ("fail", False)
    assert "not identical to the uninterrupted run: rank" in document["reason"]
    assert _left(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_it_ends_everything_that_it_started(number: signal.Signals, tmp_path: Path) -> None:
    run = _drill("gpu", "--keep", str(tmp_path))
    _until(lambda: len(_left(tmp_path)) >= 4 + 2, "all ranks and launches run")
    run.send_signal(number)
    run.communicate(timeout=DEADLINE_S)
    assert run.returncode != 0
    assert _left(tmp_path) == []


def test_the_list_tells_every_claim() -> None:
    run = _drill("--list", "--output", "json")
    out, _ = run.communicate(timeout=DEADLINE_S)
    assert [row["drill"] for row in json.loads(out)] == list(SCENARIOS)
    assert all(row["claim"] for row in json.loads(out))


@pytest.mark.parametrize(("arguments", "code", "said"), [((), 2, "name a drill"), (("gpo",), 4, "no drill 'gpo'")])
def test_a_wrong_name(arguments: tuple[str, ...], code: int, said: str) -> None:
    run = _drill(*arguments)
    _, told = run.communicate(timeout=DEADLINE_S)
    assert run.returncode == code
    assert said in told


def test_a_folder_that_is_no_drills_is_not_touched(tmp_path: Path) -> None:
    mine = tmp_path / "gpu" / "thesis.txt"
    mine.parent.mkdir()
    mine.write_text("five years")
    run = _drill("gpu", "--keep", str(tmp_path))
    _, told = run.communicate(timeout=DEADLINE_S)
    assert run.returncode == 2
    assert "was not left by a drill" in told
    assert mine.read_text() == "five years"


def test_faults_are_injected_well_within_a_run() -> None:
    assert STEPS >= 120, "two epochs end in a run, one of them after any fault"


def _drill(*arguments: str, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-m", "rerail.plugins.cli.main", "drill", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def _left(folder: Path) -> list[int]:
    """Processes of pods whose store is below ``folder``."""
    needle = f"RERAIL_STORE={folder.as_uri()}/".encode()
    return [pid for pid, environment in _environments() if needle in environment]


def _environments() -> Iterator[tuple[int, bytes]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                yield int(entry.name), (entry / "environ").read_bytes()
            except OSError:
                continue


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline, f"waited for: {what}"
        time.sleep(0.02)
