"""``rerail render``: the templates as files for Git, and whether files that stand there are still the same."""

import sys
from pathlib import Path
from typing import Annotated

import typer

VERDICT_DRIFT = 1


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("render")(render)


def render(
    *,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="DIR", help="Write the files there. [default: print the namespaced overlay's]"
        ),
    ] = None,
    namespace: Annotated[str, typer.Option("--namespace", "-n", help="Namespace of the overlays.")] = "rerail",
    image: Annotated[
        str, typer.Option("--image", help="Image of Rerail's own steps. [default: rerail:VERSION, of no registry]")
    ] = "",
    nodes: Annotated[
        bool,
        typer.Option(
            "--nodes", help="Print only the accounts' rights to look at nodes and mark them; an admin applies them."
        ),
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; show how DIR differs, and exit with 1 if it does.")
    ] = False,
) -> None:
    """Render the Argo templates: WorkflowTemplates, accounts and rights, as kustomize base and overlays.

    Without --output all objects of one namespace are printed: rerail render -n team | kubectl apply -f -. With it the
    rights of --nodes are the folder components/nodes.
    With --check and no DIR the files that came with this installation are checked.

    Exit codes: 0 done, 1 files differ, 2 bad input.
    """
    from rerail.policies.errors import UsageError
    from rerail.workflows.naming import IMAGE
    from rerail.workflows.render import NAMESPACE, drift, files, flat, flat_rights, packaged, write

    steps = image or IMAGE
    where = "" if namespace == NAMESPACE else namespace

    if check:
        folder = output or packaged()
        if not folder.is_dir():
            raise UsageError(f"--output {folder}: there is no such folder; leave --check out to write it")
        difference = drift(folder, files(namespace, steps))
        sys.stdout.write(difference)
        if difference:
            asked = "".join(f" {option} {value}" for option, value in (("-n", where), ("--image", image)) if value)
            sys.stderr.write(
                f"{folder} differs from what is rendered; `rerail render{asked} --output {folder}` writes it\n"
            )
            raise typer.Exit(VERDICT_DRIFT)
        return
    if output is None:
        sys.stdout.write(flat_rights(namespace) if nodes else flat(namespace, steps))
        return
    for path in write(output, files(namespace, steps)):
        sys.stderr.write(f"wrote {output / path}\n")
