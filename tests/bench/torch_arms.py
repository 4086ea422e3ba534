"""What torch writes, where torch is there: a worker in the environment that RERAIL_BENCH_TORCH names.

The benchmark's own environment has no torch (0.5 GB, 6 GB with CUDA). A worker process of another one holds the same
bytes as tensors, and saves when it is told to, so that its arms run in the same rounds.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import ClassVar, Self

_WORKER = r"""
import os, sys, time
import torch
import torch.distributed.checkpoint as dcp
folder, size = sys.argv[1], int(sys.argv[2])
def tensors(size, count): return {f"layer{n}": torch.rand(size // count // 4) for n in range(count)}
state = {"model": tensors(size // 3, 8), "optimizer": tensors(size - size // 3, 16)}
def sync(name):
    file = os.open(name, os.O_RDONLY)
    os.fsync(file)
    os.close(file)
def save(kind):
    if kind == "DCP FileSystemWriter":
        writer = dcp.FileSystemWriter(os.path.join(folder, "dcp"), sync_files=True)
        dcp.save(state, storage_writer=writer, no_dist=True)
        return
    os.mkdir(os.path.join(folder, "checkpoint-1"))
    for part, content in state.items():
        name = os.path.join(folder, "checkpoint-1", part + ".pt")
        torch.save(content, name)
        if kind == "torch.save + fsync":
            sync(name)
print("ready", flush=True)
for line in sys.stdin:
    begin = time.perf_counter()
    save(line.strip())
    print(time.perf_counter() - begin, flush=True)
"""


class TorchArms:
    """A worker process with torch."""

    KINDS: ClassVar = ("DCP FileSystemWriter", "torch.save + fsync", "torch.save, HF layout, no fsync")

    def __init__(self, python: Path, folder: Path, size_bytes: int) -> None:
        self._process = subprocess.Popen(
            [str(python), "-c", _WORKER, str(folder), str(size_bytes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=sys.stderr,
            text=True,
        )
        self._hear()

    @classmethod
    def from_env(cls, folder: Path, size_bytes: int) -> Self | None:
        """The worker; None where no environment with torch is named."""
        venv = os.environ.get("RERAIL_BENCH_TORCH")
        return cls(Path(venv) / "bin" / "python", folder, size_bytes) if venv else None

    def _hear(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the worker with torch ended; does RERAIL_BENCH_TORCH name a venv with torch?")
        return line

    def save(self, kind: str) -> float:
        """Seconds that one save took, by the worker's own clock."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{kind}\n")
        self._process.stdin.flush()
        return float(self._hear())

    def close(self) -> None:
        """End the worker."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
