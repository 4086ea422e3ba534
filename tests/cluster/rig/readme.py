"""The README's own words, for tests that do what it says."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from rig.layout import BIN, CHECKOUT, KUBECONFIG

README = CHECKOUT / "README.md"


def section(title: str) -> str:
    """The text of a section of the second level."""
    return README.read_text(encoding="utf-8").split(f"\n## {title}\n")[1].split("\n## ")[0]


def block(text: str, language: str) -> str:
    """The only block of a language in a text."""
    (found,) = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
    return str(found)


def commands(text: str) -> list[str]:
    """What a text tells to type, in its order."""
    return re.findall(r"^\$ (.*)$", text, re.MULTILINE)


def typed(command: str, instead: Mapping[str, str], folder: Path, *, code: int = 0) -> subprocess.CompletedProcess[str]:
    """Type a command of the README in a shell, with what names things of a user's own replaced.

    Args:
        command: As it stands there.
        instead: What to write for what stands there.
        folder: Where it is typed.
        code: The exit code that is expected.
    """
    for old, new in instead.items():
        command = command.replace(old, new)
    ours = {name: value for name, value in os.environ.items() if not name.startswith("RERAIL_")}
    path = f"{Path(sys.executable).parent}:{BIN}:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        cwd=folder,
        env={**ours, "PATH": path, "KUBECONFIG": str(KUBECONFIG), "HOME": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, (
        f"{command}\nended with {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    )
    return done
