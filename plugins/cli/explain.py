"""``rerail explain``: what a fault code, or every line of a log, means."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import typer

from rerail.plugins.cli.output import Output, OutputOption, emit
from rerail.policies.catalog import OVERLAYS, builtin_overlay, load_catalogue
from rerail.policies.errors import NotFoundError, UsageError
from rerail.policies.faults import Diagnosis
from rerail.policies.faults.catalogue import Overlay, overlay_from_text
from rerail.policies.faults.correlation import correlate
from rerail.policies.faults.explain import explain_code, explain_line
from rerail.policies.faults.kernel_envelope import MAX_TEXT
from rerail.policies.loads import Load, plan_for

_STDIN = "-"
_BYTES_PER_CHARACTER = 4


def register(app: typer.Typer) -> None:
    """Add ``explain`` to the ``rerail`` command."""
    app.command("explain")(explain)


def explain(
    *,
    code: Annotated[str | None, typer.Argument(help="A code: 79, xid:79, sxid:20034.", show_default=False)] = None,
    file: Annotated[
        str | None, typer.Option("--file", "-f", help="A log; - is stdin. Each line is judged alone.")
    ] = None,
    joined: Annotated[
        bool, typer.Option("--correlate", help="With --file: one document per incident instead of one per line.")
    ] = False,
    overlay: Annotated[
        list[str] | None,
        typer.Option(
            "--overlay", help=f"What a cloud or you do otherwise: {', '.join(OVERLAYS)}, or a YAML file. Repeatable."
        ),
    ] = None,
    load: Annotated[
        Load | None,
        typer.Option("--load", help="With a code: what it means for this kind of load.", show_default=False),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say what a fault code means, what NVIDIA advises, what Rerail does, and who disagrees.

    With `--file`, say it of every line of a kernel log or of Fabric Manager's log. An unknown code is a document with
    class unknown, not an error.
    """
    if (code is None) == (file is None):
        raise UsageError("give either a code (rerail explain xid:79) or a log (rerail explain --file kern.log)")
    if joined and file is None:
        raise UsageError("--correlate joins the lines of a log; give one with --file")
    catalogue = load_catalogue([_overlay(name) for name in overlay or ()])
    if load is not None and code is None:
        raise UsageError("--load goes with a code (rerail explain 79 --load inference)")
    if code is not None:
        document = explain_code(code, catalogue)
        emit({**document, "plan": _plan(load, document)} if load else document, output)
        return
    with ExitStack() as stack:
        lines = _lines(_opened(str(file), stack))
        if joined:
            emit(correlate(lines, catalogue), output)
        elif output is Output.JSONL:
            for line in lines:
                sys.stdout.write(json.dumps(explain_line(line, catalogue), ensure_ascii=False) + "\n")
        else:
            emit([explain_line(line, catalogue) for line in lines], output)


def _plan(load: Load, document: dict[str, Any]) -> dict[str, Any]:
    known = {
        name: document[name] for name in ("class", "scope", "action", "quarantine", "suspects") if name in document
    }
    found = Diagnosis.model_validate({**known, "evidence": (), "confidence": 1.0})
    return plan_for(load, found).model_dump(mode="json")


def _overlay(name: str) -> Overlay:
    path = Path(name)
    if name in OVERLAYS or not ("/" in name or path.suffix in {".yaml", ".yml"} or path.is_file()):
        return builtin_overlay(name)
    try:
        text = path.read_bytes().decode()
    except FileNotFoundError:
        raise NotFoundError(f"overlay {name} is not there; give a YAML file, or one of {', '.join(OVERLAYS)}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"overlay {name}: not UTF-8 at byte {error.start}; save it as UTF-8") from None
    except OSError as error:
        raise UsageError(f"overlay {name} cannot be read: {error.strerror}") from None
    return overlay_from_text(text, name)


def _opened(name: str, stack: ExitStack) -> BinaryIO:
    if name == _STDIN:
        return sys.stdin.buffer
    try:
        return stack.enter_context(Path(name).open("rb"))
    except FileNotFoundError:
        raise NotFoundError(f"log {name} is not there; check --file") from None
    except OSError as error:
        raise UsageError(f"log {name} cannot be read: {error.strerror}; check --file") from None


def _lines(file: BinaryIO) -> Iterator[str]:
    """Lines as text: bytes that are no UTF-8 are replaced, and of an endless line only the beginning is kept."""
    limit = MAX_TEXT * _BYTES_PER_CHARACTER
    while line := file.readline(limit):
        cut = line
        while not cut.endswith(b"\n") and len(cut) == limit:
            cut = file.readline(limit)
        yield line.decode(errors="replace").rstrip("\r\n")
