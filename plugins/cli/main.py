"""The ``rerail`` command: commands come from the entry points ``rerail.commands``, errors become exit codes."""

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.metadata import EntryPoint, entry_points, version
from pathlib import Path
from typing import Annotated

import typer

from rerail.policies.errors import RerailError, TransientError

_GROUP = "rerail.commands"


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"rerail {version('rerail')}")
        raise typer.Exit


def build(arguments: Sequence[str] = ()) -> typer.Typer:
    """The app with its commands. If the first argument names a command's entry point, only that one is imported."""
    app = typer.Typer(
        name="rerail",
        help="Recovery of gang-scheduled GPU training: resume from the right step, elsewhere, and prove it.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def root(
        _version: Annotated[
            bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
        ] = False,
    ) -> None:
        """Recovery of gang-scheduled GPU training: resume from the right step, elsewhere, and prove it."""

    points = sorted(entry_points(group=_GROUP), key=lambda point: point.name)
    named = [point for point in points if arguments and point.name == arguments[0]]
    for point in named or points:
        _register(app, point, required=bool(named))
    return app


def _register(app: typer.Typer, point: EntryPoint, *, required: bool) -> None:
    try:
        register = point.load()
    except ImportError as error:
        # One package's missing dependency must not take all other commands away.
        if required:
            raise
        typer.echo(f"rerail: command {point.name!r} is not available: {error}", err=True)
        return
    register(app)


def _completing(environ: Mapping[str, str]) -> list[str]:
    """The words before the one that a shell asks to complete; none where it asks for nothing."""
    if "_RERAIL_COMPLETE" not in environ:
        return []
    words = (environ.get("COMP_WORDS") or environ.get("_TYPER_COMPLETE_ARGS") or "").split()
    return words[1:2] if len(words) > 2 or environ.get("COMP_CWORD", "1") != "1" else []  # noqa: PLR2004 -- rerail COMMAND ...


def _tell_workflow(said: str, environ: Mapping[str, str]) -> None:
    """In a pod of a Workflow, an error is the node's message too: any command may be a step there."""
    if not environ.get("RERAIL_WORKFLOW_UID"):
        return
    from rerail.plugins.steps.outputs import TERMINATION_LOG, leave_words

    with suppress(OSError):  # a log that cannot be written changes nothing about the error
        leave_words(Path(environ.get("RERAIL_TERMINATION_LOG") or TERMINATION_LOG), said)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its code.

    Errors of Rerail go to stderr as a headline and a message, in a pod of a Workflow to its termination log too, and
    exit with the code of their class. A reader of stdout that has gone ends the command quietly.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        build(given or _completing(os.environ))(given, prog_name="rerail")
    except RerailError as error:
        said = f"{error.headline}: {error}"
        typer.echo(said, err=True)
        _tell_workflow(said, os.environ)
        if isinstance(error, TransientError) and error.retry_after_s is not None:
            typer.echo(f"Trying again may work after {error.retry_after_s:g} s.", err=True)
        sys.exit(error.exit_code)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)


if __name__ == "__main__":
    main()
