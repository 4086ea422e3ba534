"""Saves on a volume, from the call to the acknowledged commit, beside what others write for the same state."""

import hashlib
import os
import pickle
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import numpy as np

from tests.bench.machine import clear, settle
from tests.bench.pairs import Arm, Result, compare, interleave, quantile
from tests.bench.subject import MIB, Subject, WhenAsked, flat, training_state
from tests.bench.torch_arms import TorchArms

_PIECE_BYTES = 8 << 20
State = Mapping[str, Mapping[str, np.ndarray]]


def commit(name: str, size_bytes: int, folder: Path, *, pairs: int) -> Iterator[Result]:
    """Ours beside the bare write, a renamed file, and pickles without fsync as torch.save and the HF layout write."""
    state = training_state(size_bytes)
    subject = Subject(folder / "store")
    subject.open(1)
    client = subject.client(1, state, every=WhenAsked())
    step = count(client.restore() + 1)

    def forget() -> None:
        subject.drop_saves()
        clear(folder / "other")
        (folder / "other").mkdir()

    def of_others() -> None:
        settle(path for path in (folder / "other").rglob("*") if path.is_file())
        forget()

    forget()
    arms = [
        Arm("raw", lambda: raw(folder / "other", state), after=of_others),
        Arm("ours", lambda: client.step_done(next(step), epoch=0), after=forget),
        Arm("fsync, rename, folder fsync", lambda: renamed(folder / "other", state), after=of_others),
        Arm("pickles without any fsync", lambda: pickled(folder / "other", state), after=of_others),
    ]
    with ExitStack() as stack:
        torch = TorchArms.from_env(folder / "other", size_bytes)
        if torch is not None:
            stack.callback(torch.close)
            arms += [Arm(kind, lambda kind=kind: torch.save(kind), after=of_others) for kind in torch.KINDS]
        seconds = interleave(arms, pairs)
    committed = client.last_commit
    assert committed is not None
    assert committed.step == next(step) - 1, "a save of the benchmark was not acknowledged"
    subject.close()
    beside = "" if torch else "DCP and torch.save: not run, torch is not installed (RERAIL_BENCH_TORCH); "
    yield compare(name, seconds, ours="ours", yardstick="raw", note=f"{beside}{_limits(state, seconds['raw'])}")


def _limits(state: State, raw_s: list[float]) -> str:
    """How fast the digest alone is beside the disk: no save that hashes can be faster than that."""
    begin = time.perf_counter()
    digest = hashlib.sha256()
    for array in flat(state):
        digest.update(memoryview(array).cast("B"))
    size_mib = sum(array.nbytes for array in flat(state)) / MIB
    hashed, written = size_mib / (time.perf_counter() - begin), size_mib / quantile(raw_s, 0.5)
    why = "so hashing and the disk compete for the cores" if written > hashed / 2 else "so the disk is what limits"
    return f"SHA-256 on one core does {hashed:.0f} MiB/s, write + fsync {written:.0f} MiB/s here, {why}"


def raw(folder: Path, state: State) -> None:
    """The bare minimum that is durable: one file, written and synced."""
    _write(folder / "raw", state)


def _write(path: Path, state: State) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        for array in flat(state):
            view = memoryview(array).cast("B")
            for at in range(0, len(view), _PIECE_BYTES):
                done = 0
                piece = view[at : at + _PIECE_BYTES]
                while done < len(piece):
                    done += os.write(file, piece[done:])
        os.fsync(file)
    finally:
        os.close(file)


def renamed(folder: Path, state: State) -> None:
    """The careful idiom: a temporary file per part, synced, renamed, and its folder synced."""
    for part, content in state.items():
        temporary = folder / f"{part}.tmp"
        _write(temporary, {part: content})
        temporary.rename(folder / part)
        settle([folder])


def pickled(folder: Path, state: State) -> None:
    """A stand-in for torch.save in the layout of HF's Trainer: a file per part in checkpoint-N, nothing synced."""
    inside = folder / "checkpoint-1"
    inside.mkdir()
    for part, content in state.items():
        with (inside / f"{part}.pkl").open("wb") as file:
            pickle.dump(dict(content), file, protocol=5)
