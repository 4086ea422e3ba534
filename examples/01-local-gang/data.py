"""The text, and the order in which a gang reads it: a function of (seed, epoch), plus an offset."""

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

CONTEXT = 8
"""Characters that the model sees before each one that it predicts."""
WINDOW = 64
"""Characters that one sample predicts."""

Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Text:
    """English text as numbers.

    Attributes:
        codes: One small integer per character.
        alphabet: The characters, by their integer.
    """

    codes: Ids
    alphabet: str

    @classmethod
    def of_python(cls) -> "Text":
        """The language reference that every Python carries for its ``help()``, about 465,000 characters."""
        from pydoc_data.topics import topics

        return cls.of("".join(topics[name] for name in sorted(topics)))

    @classmethod
    def of(cls, text: str) -> "Text":
        """Number the characters of ``text`` in their Unicode order."""
        points = np.array([ord(character) for character in text], dtype=np.int64)
        kinds, codes = np.unique(points, return_inverse=True)
        return cls(codes.astype(np.int64), "".join(chr(point) for point in kinds))

    @property
    def samples(self) -> int:
        """How many windows the text holds; every character is predicted once in an epoch."""
        return (len(self.codes) - CONTEXT) // WINDOW

    def windows(self, ids: Ids) -> Ids:
        """Rows of ``CONTEXT + WINDOW`` characters, one for each sample id."""
        rows: Ids = self.codes[ids[:, None] * WINDOW + np.arange(CONTEXT + WINDOW)]
        return rows


class Sampler:
    """Shuffled batches without replacement, whose position is two numbers.

    No generator is kept: the order of an epoch follows from (seed, epoch) alone, so reading ahead changes nothing that
    a checkpoint holds. The last batch of an epoch is short when the epoch is no multiple of the batch; after it the
    position is the start of the next epoch.

    Attributes:
        epoch: Finished epochs.
        offset: Samples of this epoch that all ranks together have consumed.
        seen: Digest of every sample id that this rank consumed, in order.
    """

    def __init__(self, samples: int, batch: int, *, seed: int, rank: int = 0, world_size: int = 1) -> None:
        self.samples, self.batch, self.seed, self.rank, self.world_size = samples, batch, seed, rank, world_size
        self.epoch, self.offset, self.seen = 0, 0, ""
        self._order: tuple[int, Ids] | None = None

    def order(self, epoch: int) -> Ids:
        """The permutation of ``epoch``."""
        if self._order is None or self._order[0] != epoch:
            drawn = np.random.default_rng([self.seed, epoch]).permutation(self.samples)
            self._order = epoch, drawn
        return self._order[1]

    def upcoming(self, count: int) -> list[Ids]:
        """The next ``count`` batches of all ranks, for a loader that reads ahead; the position stays."""
        epoch, offset, found = self.epoch, self.offset, []
        for _ in range(count):
            found.append(self.order(epoch)[offset : offset + self.batch])
            offset += self.batch
            if offset >= self.samples:
                epoch, offset = epoch + 1, 0
        return found

    def take(self) -> tuple[Ids, int]:
        """Consume one batch: this rank's sample ids, and the number of samples of all ranks."""
        (whole,) = self.upcoming(1)
        mine = whole[self.rank :: self.world_size]
        self.offset += len(whole)
        if self.offset >= self.samples:
            self.epoch, self.offset = self.epoch + 1, 0
        self.seen = hashlib.sha256(self.seen.encode() + mine.tobytes()).hexdigest()
        return mine, len(whole)

    def enter_epoch(self, epoch: int) -> None:
        """Go on in ``epoch``."""
        self.epoch = epoch

    def state_dict(self) -> dict[str, Any]:
        """Where in the epoch the stream stands, and what it is a stream of; ``epoch`` is a part of its own."""
        return {"offset": self.offset, "seen": self.seen, "stream": [self.samples, self.batch, self.seed]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved position in the epoch.

        Raises:
            ValueError: The position belongs to another stream (other text, batch or seed).
        """
        mine = [self.samples, self.batch, self.seed]
        if list(state["stream"]) != mine:
            raise ValueError(
                f"the saved position is one in (samples, batch, seed) {state['stream']}, this is {mine}: "
                "resume with the text (Python version) and the options of the run"
            )
        self.offset, self.seen = int(state["offset"]), str(state["seen"])
