"""Names that carry the version: an upgrade adds templates beside those that workflows of users refer to."""

import re
from importlib.metadata import version
from typing import Final

from rerail.policies.errors import UsageError

VERSION: Final = version("rerail")
"""Of the package; the image's tag is the same."""

IMAGE: Final = f"rerail:{VERSION}"
"""The image with the command line. It names no registry: the parameter ``rerail-image`` names yours."""

MAINTAINER: Final = "rerail"

_MINOR: Final = re.compile(r"(\d+)\.(\d+)")


def versioned(name: str, of: str = VERSION) -> str:
    """The name of a template with the version's first two numbers, as ``rerail-train-v0-1``.

    Args:
        name: Without the version.
        of: The version.

    Raises:
        UsageError: The version does not begin with two numbers.
    """
    found = _MINOR.match(of)
    if not found:
        raise UsageError(f"version {of!r} does not begin with two numbers (for example 0.1.0)")
    return f"{name}-v{found[1]}-{found[2]}"


def about(title: str, description: str, *tags: str) -> dict[str, str]:
    """The annotations from which Argo's pages explain a template."""
    prefix = "workflows.argoproj.io"
    return {
        f"{prefix}/title": title,
        f"{prefix}/description": description,
        f"{prefix}/maintainer": MAINTAINER,
        f"{prefix}/tags": ", ".join(("rerail", *tags)),
        f"{prefix}/version": ">= 4.0.5",
    }


LABELS: Final = {
    "app.kubernetes.io/name": "rerail",
    "app.kubernetes.io/part-of": "rerail",
    "app.kubernetes.io/version": VERSION,
    "app.kubernetes.io/managed-by": "rerail-render",
}
"""On every rendered object."""
