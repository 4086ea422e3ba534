"""``rerail launch -- COMMAND``: the same as ``rerail-launch -- COMMAND``."""

from typing import Annotated

import typer

from rerail.plugins.trainer import launch as launcher


def register(app: typer.Typer) -> None:
    """Add the command."""

    @app.command(context_settings={"allow_extra_args": False, "ignore_unknown_options": True})
    def launch(
        command: Annotated[list[str], typer.Argument(metavar="COMMAND [ARGUMENT ...]", show_default=False)],
    ) -> None:
        """Start the ranks of one pod, watch and report them, and follow the run's store. One per pod.

        Its place in the run comes from the environment (RERAIL_RUN, RERAIL_STORE, RERAIL_GANG, RERAIL_POD ...).
        Exit codes: 0 done, 85 saved and left, 86 left without saving, 87 do not retry, 88 damaged checkpoint met, else
        the first abnormal rank's.
        """
        raise typer.Exit(launcher.main(["--", *command]))
