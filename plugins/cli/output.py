"""Output: the document alone on stdout, as a table for people, or as JSON, JSON lines or YAML for programs."""

import json
import sys
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, TextIO

import typer
from pydantic import BaseModel


class Output(StrEnum):
    """How a document is shown."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    YAML = "yaml"


OutputOption = Annotated[
    Output, typer.Option("--output", "-o", help="Form of the document on stdout.", show_default=True)
]


def emit(document: Any, output: Output | str = Output.TABLE, *, stream: TextIO | None = None) -> None:
    """Write one document, or a list of them, to stdout and nothing else.

    Args:
        document: JSON-like content, a pydantic model, or a list of either. ``jsonl`` writes a list one per line.
        output: The form.
        stream: Where to; stdout by default.
    """
    to = stream or sys.stdout
    plain = _plain(document)
    form = Output(output)
    if form is Output.JSON:
        to.write(json.dumps(plain, indent=2, ensure_ascii=False) + "\n")
    elif form is Output.JSONL:
        for line in plain if isinstance(plain, list) else [plain]:
            to.write(json.dumps(line, ensure_ascii=False) + "\n")
    elif form is Output.YAML:
        import yaml

        yaml.safe_dump(plain, to, sort_keys=False, allow_unicode=True)
    else:
        _table(plain, to)


def _plain(document: Any) -> Any:
    if isinstance(document, BaseModel):
        return document.model_dump(mode="json")
    if isinstance(document, Mapping):
        return {str(key): _plain(value) for key, value in document.items()}
    if isinstance(document, Sequence) and not isinstance(document, str | bytes):
        return [_plain(item) for item in document]
    return document


def _cell(value: Any) -> str:
    if value is None or value in ("", [], {}):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return "\n".join(_cell(item) for item in value)
    if isinstance(value, dict):
        return " ".join(f"{key}={_cell(item)}" for key, item in value.items())
    return str(value)


def _table(plain: Any, to: TextIO) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    # Without a terminal the width is nobody's: let no line be cut or wrapped.
    console = Console(file=to, highlight=False, width=None if to.isatty() else 4096)
    if isinstance(plain, list) and plain and all(isinstance(row, dict) for row in plain):
        table = Table(box=box.SIMPLE, pad_edge=False)
        columns = list(dict.fromkeys(name for row in plain for name in row))
        numeric = {
            name
            for name in columns
            if all(isinstance(row.get(name), int | float | None) and row.get(name) is not True for row in plain)
        }
        for name in columns:
            table.add_column(name.upper(), justify="right" if name in numeric else "left", overflow="fold")
        for row in plain:
            table.add_row(*(_literal(_cell(row.get(name))) for name in columns))
    elif isinstance(plain, dict):
        table = Table(box=box.SIMPLE, pad_edge=False, show_header=False)
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        for name, value in plain.items():
            table.add_row(name, _literal(_cell(value)))
    else:
        to.write(_cell(plain) + "\n")
        return
    console.print(table)


def _literal(text: str) -> str:
    """Text as it is: square brackets in it are no markup."""
    from rich.markup import escape

    return escape(text)
