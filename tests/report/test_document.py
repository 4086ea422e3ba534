"""The report as a document: the interface's keys, and the same numbers in the page, its twin and the terminal."""

import json

from rich.console import Console

from rerail.plugins.report import build_report, render, write
from rerail.plugins.report.document import Report
from rerail.plugins.report.facts import RunFacts
from rerail.plugins.report.timeline import timeline_table
from rerail.policies.recovery import DRILL_POLICY
from rerail.policies.supervisor.state import RunState

DRILL_KEYS = {
    "scenario", "verdict", "reason", "identical", "attempts", "incidents", "mttd_s", "mttr_s", "mttr_phases_s",
    "rpo_steps", "rpo_s", "lost_steps", "gpu_waste_ratio", "ettr_run", "ettr_job", "restarts", "resumed_from_step",
    "certificates", "report_html", "report_json",
}  # fmt: skip
ATTEMPT_KEYS = {"n", "gang", "nodes", "how", "started_from_step", "last_step", "end_cause", "exit_codes"}
INCIDENT_KEYS = {"id", "class", "scope", "codes", "node", "device", "action", "t_detect_s"}
PHASES = ["detect", "decide", "save", "end", "start", "load", "first_step"]


def test_the_twin_has_every_key_of_the_drill_document(gpu_report, tmp_path):
    html, twin = write(gpu_report, tmp_path / "new" / "folder")
    document = json.loads(twin.read_text())
    assert document.keys() >= DRILL_KEYS
    assert document["attempts"][0].keys() >= ATTEMPT_KEYS
    assert document["incidents"][0].keys() >= INCIDENT_KEYS
    assert "class_" not in document["incidents"][0]
    assert list(document["mttr_phases_s"]) == PHASES
    assert document["certificates"][1].keys() >= {"attempt", "exact", "ok"}
    assert (document["report_html"], document["report_json"]) == (str(html), str(twin))
    assert abs(sum(document["mttr_phases_s"].values()) - document["mttr_s"]) < 1e-5
    assert (document["verdict"], document["identical"], document["scenario"]) == ("pass", True, "gpu")
    assert Report.model_validate(document).document() == document


def test_attempts_say_what_was_lost_of_them(gpu_report):
    first, second = gpu_report.attempts
    assert (first.lost_from_step, first.lost_from_s) == (40, 5.1)  # begun is the submission, 0.1 s earlier
    assert second.lost_from_step is None
    assert gpu_report.lost_steps == 25


def test_a_run_without_any_attempt_still_has_a_report():
    state = RunState(run="new", world_size=2, phase="opening", attempt=1)
    report = build_report(state, RunFacts(), DRILL_POLICY)
    assert (report.verdict, report.identical, report.mttr_s, report.ettr_run) == (None, None, None, None)
    assert "No attempt has given one." in render(report)


def test_the_timeline_is_in_order_and_prints_without_a_terminal(gpu_report):
    times = [event.t_s for event in gpu_report.timeline]
    assert times == sorted(times)
    console = Console(width=100, no_color=True, force_terminal=False)
    with console.capture() as capture:
        console.print(timeline_table(gpu_report))
    printed = capture.get()
    assert "\x1b" not in printed
    order = ["attempt 1 is opened", "xid:79 on node-0", "detected: gpu_lost", "attempt 2 is opened", "loads step 40",
             "first step: 41", "commit of step 100 (final)", "the run is done"]  # fmt: skip
    at = [printed.index(words) for words in order]
    assert at == sorted(at)
