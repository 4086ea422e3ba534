"""What a step tells Argo: output parameters as files, the pod's last words, and the progress bar."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TERMINATION_LOG: Final = Path("/dev/termination-log")
"""The container runtime makes it; elsewhere there is none."""

_MOST_BYTES: Final = 2048
"""Of the last words: kubelets keep 4 KiB, and Argo puts them into the Workflow's own object."""


@dataclass(frozen=True, slots=True)
class Outputs:
    """Files of one step.

    Attributes:
        folder: Of the output parameters.
        last_words: Where the pod's last words go, if that file is there.
        progress_file: Argo's; None where nobody asks.
    """

    folder: Path
    last_words: Path = TERMINATION_LOG
    progress_file: Path | None = None

    def write(self, **values: object) -> None:
        """Write output parameters; ``_`` in a keyword is ``-``. Each file is complete or not there."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for key, value in values.items():
            _replace(self.folder / key.replace("_", "-"), str(value))

    def words(self, text: str) -> None:
        """Write why, for people: as an output, and as the pod's last words, which become the node's message."""
        self.write(words=text)
        leave_words(self.last_words, text)

    def progress(self, done: int, total: int) -> None:
        """Move the progress bar."""
        if self.progress_file is not None and total > 0:
            _replace(self.progress_file, f"{min(done, total)}/{total}")


def leave_words(log: Path, text: str) -> None:
    """Write a pod's last words, cut to what Argo keeps, if their file is there."""
    if log.exists():
        # The file is a mount of its own: it can be written, not replaced.
        log.write_bytes(text.encode()[:_MOST_BYTES].decode(errors="ignore").encode())


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
