"""What all commands of ``rerail step`` do around their work: read the environment, tell Argo, reach the cluster."""

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rerail.policies.errors import RerailError, UsageError

if TYPE_CHECKING:
    from rerail.plugins.steps.inputs import Inputs
    from rerail.plugins.steps.outputs import Outputs

OutputsOption = Annotated[
    Path,
    typer.Option("--outputs", envvar="RERAIL_OUTPUTS", metavar="DIR", help="Where output parameters are written."),
]
FOLDER = Path("/tmp/rerail")  # noqa: S108  # an emptyDir of the pod's own


def say(line: str) -> None:
    """One line for people."""
    typer.echo(line, err=True)


@contextmanager
def telling(outputs: Path) -> Iterator[tuple["Inputs", "Outputs"]]:
    """The step's inputs and outputs; an error becomes the pod's last words before it ends the command."""
    from rerail.plugins.steps.inputs import Inputs

    inputs = Inputs.of(os.environ)
    told = inputs.outputs(outputs)
    try:
        yield inputs, told
    except RerailError as error:
        told.words(f"{error.headline}: {error}")
        raise
    except typer.Exit:
        raise
    except Exception as error:  # Whatever it is: the pod would end without a word, and it is raised again.
        told.words(f"{RerailError.headline}: {type(error).__name__}; see the log")
        raise


def required(held: ExitStack) -> Any:
    """The API server, until the stack ends."""
    from rerail.plugins.kube.api import KubeApi

    api = KubeApi.connect()
    held.callback(api.close)
    return api


def reachable(held: ExitStack) -> Any:
    """The API server; None where there is no way to it."""
    try:
        return required(held)
    except UsageError as error:
        say(str(error))
        return None
