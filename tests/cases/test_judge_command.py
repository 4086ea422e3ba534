"""``rerail judge`` on files."""

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from rerail.plugins.cli.judge import register

_CASES = Path(__file__).parent / "recovery-cases.jsonl"


@pytest.fixture
def run():
    app = typer.Typer()

    @app.callback()
    def _root() -> None:
        """Several commands, as the real app has them."""

    register(app)
    return lambda *args: CliRunner().invoke(app, ["judge", *map(str, args)])


def test_one_document_per_line_for_cases_and_for_bare_inputs(run, tmp_path):
    cases = [json.loads(line) for line in _CASES.read_text(encoding="utf-8").splitlines()]
    bare = tmp_path / "inputs.jsonl"
    bare.write_text("\n\n".join(json.dumps(case["input"]) for case in cases), encoding="utf-8")
    of_cases, of_inputs = run("--file", _CASES, "--output", "jsonl"), run("--file", bare)
    assert of_cases.exit_code == of_inputs.exit_code == 0
    assert of_cases.stdout == of_inputs.stdout
    documents = [json.loads(line) for line in of_cases.stdout.splitlines()]
    for case, document in zip(cases, documents, strict=True):
        assert case["expected"].items() <= document.items(), case["id"]
    as_list = run("--file", _CASES, "--output", "json")
    assert json.loads(as_list.stdout) == documents


def test_lines_that_cannot_be_judged_are_told_in_place(run, tmp_path):
    path = tmp_path / "mixed.jsonl"
    good = {"kind": "async_save", "scheduled_step": 5}
    path.write_text(f'{{"kind": "weather"}}\n{json.dumps(good)}\nnot json\n[1]\n', encoding="utf-8")
    result = run("--file", path)
    documents = [json.loads(line) for line in result.stdout.splitlines()]
    assert result.exit_code == 2
    assert [set(document) for document in documents] == [
        {"error", "exit_code"},
        {"committed_step", "metrics_rpo_step"},
        {"error", "exit_code"},
        {"error", "exit_code"},
    ]
    assert f"{path}:3" in documents[2]["error"]


def test_a_missing_file_and_an_unknown_form_are_usage_errors(run, tmp_path):
    missing = run("--file", tmp_path / "none.jsonl")
    assert (missing.exit_code, missing.stdout) == (2, "")
    assert "none.jsonl" in missing.stderr
    assert run("--file", _CASES, "--output", "xml").exit_code == 2
