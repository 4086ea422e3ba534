"""Argo's own program beside each step: it says which Argo runs the step."""

import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Final

from rerail.plugins.steps.inputs import Inputs
from rerail.policies.doctor.cluster import argo_too_old
from rerail.policies.errors import RefusedError

EXECUTOR: Final = Path("/var/run/argo/argoexec")
"""Where Argo puts it, in every container of a step."""

_WITHIN_S: Final = 10.0


def refuse_old_argo(inputs: Inputs) -> None:
    """Refuse to begin under an Argo that is too old for the templates; where nobody can tell, nothing is refused.

    Raises:
        RefusedError: Names the version, and the way out.
    """
    program = Path(inputs.text("argoexec") or EXECUTOR)
    said = ""
    with suppress(OSError, subprocess.SubprocessError):
        said = subprocess.run(
            [program, "version", "--short"], capture_output=True, text=True, check=True, timeout=_WITHIN_S
        ).stdout
    why = argo_too_old(said.strip().rpartition(" ")[2])
    if why:
        raise RefusedError(why)
