"""The switch that holds all runs of one machine: a file beside the guard's."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

KEY: Final = "paused"
NO_REASON: Final = "paused without a reason"


@dataclass(frozen=True, slots=True)
class LocalPause:
    """All runs of this machine whose state lies in one folder.

    Attributes:
        folder: Beside the guard's file.
    """

    folder: Path

    @property
    def _file(self) -> Path:
        return self.folder / KEY

    def why(self) -> str:
        """Why all runs are held; empty while none is held by this."""
        try:
            return self._file.read_text(encoding="utf-8").strip() or NO_REASON
        except FileNotFoundError:
            return ""
        except (OSError, UnicodeDecodeError) as error:
            return f"{self._file} cannot be read: {error}"

    def pause(self, reason: str) -> None:
        """Hold them; a pause that stands gets the new reason."""
        self.folder.mkdir(parents=True, exist_ok=True)
        fresh = self._file.with_suffix(f".{os.getpid()}")
        fresh.write_text(reason + "\n", encoding="utf-8")
        fresh.replace(self._file)

    def resume(self) -> bool:
        """Let them go on; whether they were held."""
        try:
            self._file.unlink()
        except FileNotFoundError:
            return False
        return True
