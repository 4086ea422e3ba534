"""``rerail judge``: answers to described situations, one per line, by the rules that the product decides by."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from rerail.policies.errors import RerailError, UsageError
from rerail.policies.judging import answer


def _input_of(line: str, where: str) -> Mapping[str, Any]:
    """The input that a line asks about: the line itself, or the ``input`` of a whole case."""
    try:
        document = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{where}: no JSON document ({error}); give one JSON object a line") from None
    if not isinstance(document, dict):
        raise UsageError(f"{where}: {line.strip()[:40]!r} is no JSON object; give one JSON object a line")
    inner = document.get("input")
    return inner if isinstance(inner, dict) else document


def judge_lines(text: str, where: str) -> list[dict[str, Any]]:
    """Answer each line that is not blank.

    Args:
        text: JSON objects, one a line: inputs, or whole cases with an ``input`` key.
        where: Name of the text's source, for messages.

    Returns:
        One document per line: the answer, or ``error`` and ``exit_code`` where the line cannot be judged.
    """
    documents = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            documents.append(answer(_input_of(line, f"{where}:{number}")))
        except RerailError as error:
            documents.append({"error": str(error), "exit_code": error.exit_code})
    return documents


def _judge(
    file: Annotated[
        Path, typer.Option("--file", help="JSON objects, one a line: inputs, or whole cases with an 'input'.")
    ],
    output: Annotated[str, typer.Option("--output", help="jsonl: one document a line; json: one list.")] = "jsonl",
) -> None:
    """Answer described situations: listings, traces, endings. One document per line of the file, in order."""
    try:
        if output not in ("jsonl", "json"):
            raise UsageError(f"--output {output!r} is unknown; use jsonl or json")
        try:
            text = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"cannot read --file {file}: {error}; give a text file of JSON lines") from None
        documents = judge_lines(text, str(file))
    except RerailError as error:
        typer.echo(f"{error.headline}: {error}", err=True)
        raise typer.Exit(error.exit_code) from None
    if output == "json":
        typer.echo(json.dumps(documents, ensure_ascii=False))
    else:
        for document in documents:
            typer.echo(json.dumps(document, ensure_ascii=False))
    failed = [int(document["exit_code"]) for document in documents if "error" in document]
    if failed:
        raise typer.Exit(max(failed))


def register(app: typer.Typer) -> None:
    """Add ``judge`` to the command line."""
    app.command("judge")(_judge)
