"""``rerail lint``: what will go wrong with anybody's Argo templates once something fails."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from rerail.plugins.cli.output import Output, OutputOption, emit

VERDICT_FAIL = 1


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("lint")(lint)


def lint(
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE ...", show_default=False, help="YAML; objects of other kinds are skipped."),
    ],
    *,
    output: OutputOption = Output.TABLE,
) -> None:
    """Look for what goes wrong with Argo workflows only when something fails: retries, conditions, outputs, recursion.

    Exit codes: 0 nothing found (or only notes), 1 something is wrong, 2 bad input.
    """
    from rerail.policies.argo_lint import lint as look

    found = []
    for path in files:
        for name, templates in _templates(path):
            found += [{"file": str(path), "object": name, **one.model_dump()} for one in look(templates)]
    if found or output is not Output.TABLE:
        emit(found, output)
    if any(one["severity"] == "error" for one in found):
        raise typer.Exit(VERDICT_FAIL)


def _templates(path: Path) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The templates of each workflow in a file, with the object's name.

    Raises:
        UsageError: The file cannot be read, is no YAML, or an object in it has another form.
    """
    from rerail.policies.errors import UsageError
    from rerail.policies.yaml_text import read_yaml

    try:
        documents = read_yaml(path.read_text(encoding="utf-8"), str(path))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}; pass YAML files with workflows or templates of Argo") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: no YAML: {error.reason} at byte {error.start}; write it in UTF-8") from None
    for document in documents:
        if not isinstance(document, dict) or not str(document.get("apiVersion", "")).startswith("argoproj.io/"):
            continue
        metadata, spec = document.get("metadata", {}), document.get("spec", {})
        if not isinstance(metadata, dict) or not isinstance(spec, dict):
            raise UsageError(f"{path}: metadata and spec of {document.get('kind')} have to be mappings")
        templates = (spec.get("workflowSpec") or spec).get("templates") or []
        if not isinstance(templates, list) or not all(isinstance(one, dict) for one in templates):
            raise UsageError(f"{path}: spec.templates of {document.get('kind')} has to be a list of templates")
        yield str(metadata.get("name") or metadata.get("generateName") or ""), templates
