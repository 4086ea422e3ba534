"""How long training stands still for a save that is written in the background."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import numpy as np

from tests.bench.pairs import Arm, Result, compare, interleave
from tests.bench.subject import Subject, WhenAsked, flat, training_state


def async_stall(size_bytes: int, folder: Path, *, pairs: int) -> Iterator[Result]:
    """``step_done`` with a background save, beside one copy of the state into touched memory, and a save that waits."""
    state = training_state(size_bytes)
    subject = Subject(folder / "store")
    subject.open(1)
    client = subject.client(1, state, every=WhenAsked(), asynchronous=True)
    step = count(client.restore() + 1)
    targets = [np.empty_like(array) for array in flat(state)]
    for target in targets:
        target.fill(1)

    def memcpy() -> None:
        for target, array in zip(targets, flat(state), strict=True):
            np.copyto(target, array)

    def settled() -> None:
        assert client._saves is not None
        client._saves.wait()
        subject.drop_saves()

    seconds = interleave(
        [
            Arm("memcpy", memcpy),
            Arm("ours", lambda: client.step_done(next(step), epoch=0), after=settled),
        ],
        pairs,
    )
    assert client.failed_saves == 0
    subject.close()
    yield compare("async_stall", seconds, ours="ours", yardstick="memcpy")
