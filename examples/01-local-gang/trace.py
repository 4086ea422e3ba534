"""A line per finished step for proofs: where ``RERAIL_TRACE`` names a folder, what each rank did stands there.

Numbers are written in hexadecimal, so equal lines mean equal bits.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Self

from rerail.examples.local_gang.data import Ids
from rerail.examples.local_gang.model import Floats


class Trace:
    """Writes ``trace-a<attempt>-r<rank>.jsonl``; does nothing where no folder is named."""

    def __init__(self, rank: int) -> None:
        folder = os.environ.get("RERAIL_TRACE")
        self._file = None
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
            name = f"trace-a{os.environ.get('RERAIL_ATTEMPT', '0')}-r{rank}.jsonl"
            self._file = (Path(folder) / name).open("a", encoding="utf-8", buffering=1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def step(
        self,
        step: int,
        *,
        loss: float,
        samples: Ids,
        epoch: int,
        rate: float,
        scale: float,
        skipped: bool,
        parameters: Floats,
    ) -> None:
        """Record one finished step: ``epoch`` and ``scale`` as they are after it, ``rate`` as it was used."""
        if self._file is None:
            return
        line = {
            "step": step,
            "loss": loss.hex(),
            "samples": samples.tolist(),
            "skipped": skipped,
            "epoch": epoch,
            "lr": rate.hex(),
            "scale": scale,
            "params": hashlib.sha256(parameters.tobytes()).hexdigest(),
        }
        self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
