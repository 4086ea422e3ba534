"""A character language model after Bengio et al. (2003), forward and backward, in numpy."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerail.examples.local_gang.data import CONTEXT, WINDOW, Ids

Floats = NDArray[np.float32]

WIDTH = 16
HIDDEN = 160
KEEP = np.float32(0.9)
"""Share of hidden units that dropout keeps."""


def dropout(generator: np.random.Generator, shape: tuple[int, int]) -> Floats:
    """A mask that keeps the share ``KEEP``, scaled so that the expected value stays."""
    kept = generator.random(shape, dtype=np.float32) < KEEP
    return kept.astype(np.float32) * np.float32(1 / KEEP)


class Model:
    """Embeddings of the last ``CONTEXT`` characters, one hidden layer with dropout, a softmax over the alphabet.

    Attributes:
        flat: All parameters in one vector; the named ones are views into it.
        named: Parameters by name.
    """

    def __init__(self, alphabet: int, *, seed: int) -> None:
        shapes = {
            "embedding": (alphabet, WIDTH),
            "hidden.weight": (CONTEXT * WIDTH, HIDDEN),
            "hidden.bias": (HIDDEN,),
            "output.weight": (HIDDEN, alphabet),
            "output.bias": (alphabet,),
        }
        self.shapes = shapes
        self.flat: Floats = np.zeros(sum(int(np.prod(shape)) for shape in shapes.values()), dtype=np.float32)
        self.named = self._views(self.flat)
        start = np.random.default_rng([seed, 2**31])
        for name, scale in (("embedding", 1.0), ("hidden.weight", (CONTEXT * WIDTH) ** -0.5), ("output.weight", 0.05)):
            view = self.named[name]
            view[...] = scale * start.standard_normal(view.shape, dtype=np.float32)

    def _views(self, flat: Floats) -> dict[str, Floats]:
        views, begin = {}, 0
        for name, shape in self.shapes.items():
            size = int(np.prod(shape))
            views[name] = flat[begin : begin + size].reshape(shape)
            begin += size
        return views

    def loss_and_gradient(self, windows: Ids, generator: np.random.Generator, *, total: int) -> tuple[float, Floats]:
        """This rank's share of the batch's mean loss (nats per character), and of its gradient.

        Args:
            windows: Rows of ``CONTEXT + WINDOW`` characters; a rank may have none in a short batch.
            generator: Source of the dropout mask: this rank's own, or all ranks would drop the same units.
            total: Samples of all ranks in this batch; shares of all ranks add up to the mean.
        """
        weights = self.named
        gradient = np.zeros_like(self.flat)
        if not len(windows):
            return 0.0, gradient
        rows = len(windows) * WINDOW
        embedded = weights["embedding"][windows[:, :-1]]
        inputs = np.concatenate([embedded[:, at : at + WINDOW] for at in range(CONTEXT)], axis=2).reshape(rows, -1)
        hidden = inputs @ weights["hidden.weight"] + weights["hidden.bias"]
        mask = dropout(generator, hidden.shape) * (hidden > 0)
        hidden *= mask
        logits = hidden @ weights["output.weight"] + weights["output.bias"]
        logits -= logits.max(axis=1, keepdims=True)
        chances = np.exp(logits)
        sums = chances.sum(axis=1, keepdims=True)
        answers = windows[:, CONTEXT:].reshape(-1)
        every = np.arange(rows)
        loss = float((np.log(sums[:, 0]) - logits[every, answers]).sum(dtype=np.float64)) / (total * WINDOW)

        into = self._views(gradient)
        chances /= sums
        chances[every, answers] -= 1
        chances *= np.float32(1 / (total * WINDOW))
        into["output.weight"][...] = hidden.T @ chances
        into["output.bias"][...] = chances.sum(axis=0)
        back = (chances @ weights["output.weight"].T) * mask
        into["hidden.weight"][...] = inputs.T @ back
        into["hidden.bias"][...] = back.sum(axis=0)
        toward = (back @ weights["hidden.weight"].T).reshape(len(windows), WINDOW, CONTEXT, WIDTH)
        spread = np.zeros_like(embedded)
        for at in range(CONTEXT):
            spread[:, at : at + WINDOW] += toward[:, :, at]
        characters = windows[:, :-1].reshape(-1)
        which = (characters[:, None] == np.arange(len(weights["embedding"]))).astype(np.float32)
        into["embedding"][...] = which.T @ spread.reshape(-1, WIDTH)
        return loss, gradient

    def state_dict(self) -> dict[str, Floats]:
        """Parameters by name."""
        return dict(self.named)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy saved parameters in; KeyError or ValueError where a name or a shape differs."""
        for name, view in self.named.items():
            view[...] = np.asarray(state[name], dtype=np.float32).reshape(view.shape)
