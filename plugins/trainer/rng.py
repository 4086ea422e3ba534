"""Random state as a part of the training state: Python's own generator, and numpy's and torch's where given."""

import hashlib
import importlib
import random
from typing import Any


def derived_seed(seed: int, step: int, rank: int) -> int:
    """A seed for a rank that a checkpoint knows nothing about: a function of the run's seed, the step and the rank.

    Args:
        seed: The run's seed.
        step: Completed optimizer steps of the checkpoint that is loaded.
        rank: The new rank.

    Returns:
        128 bits, different for every (seed, step, rank).
    """
    return int.from_bytes(hashlib.sha256(f"rerail.rng.{seed}.{step}.{rank}".encode()).digest()[:16], "little")


class RandomState:
    """The random generators of one rank, to be saved per rank (``per_rank={"rng": RandomState(generator)}``).

    Attributes:
        python: Whether Python's global generator belongs to it.
        generators: ``numpy.random.Generator``, ``numpy.random.RandomState`` or ``torch.Generator`` objects.
        torch_global: Whether torch's global CPU and CUDA generators belong to it.
    """

    def __init__(self, *generators: Any, python: bool = True, torch_global: bool = False) -> None:
        self.python = python
        self.generators = generators
        self.torch_global = torch_global

    def state_dict(self) -> dict[str, Any]:
        """The state of all generators, in plain numbers."""
        state: dict[str, Any] = {"generators": [_get(generator) for generator in self.generators]}
        if self.python:
            state["python"] = random.getstate()
        if self.torch_global:
            torch: Any = importlib.import_module("torch")
            state["torch"] = torch.get_rng_state()
            state["cuda"] = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put all generators into a saved state.

        Raises:
            ValueError: The state is of another number of generators.
        """
        saved = state["generators"]
        if len(saved) != len(self.generators):
            raise ValueError(f"saved state of {len(saved)} generators, this process has {len(self.generators)}")
        for generator, one in zip(self.generators, saved, strict=True):
            _set(generator, one)
        if self.python and "python" in state:
            random.setstate(state["python"])
        if self.torch_global and "torch" in state:
            torch: Any = importlib.import_module("torch")
            torch.set_rng_state(state["torch"])
            if state["cuda"]:
                torch.cuda.set_rng_state_all(state["cuda"])

    def reseed(self, seed: int) -> None:
        """Start all generators from one derived seed (for a rank that the checkpoint does not know)."""
        for index, generator in enumerate(self.generators):
            _seed(generator, derived_seed(seed, index, 0))
        if self.python:
            random.seed(seed)
        if self.torch_global:
            torch: Any = importlib.import_module("torch")
            torch.manual_seed(seed % 2**63)


def _get(generator: Any) -> Any:
    if hasattr(generator, "bit_generator"):
        return generator.bit_generator.state
    return generator.get_state()


def _set(generator: Any, state: Any) -> None:
    if hasattr(generator, "bit_generator"):
        generator.bit_generator.state = state
    else:
        generator.set_state(state)


def _seed(generator: Any, seed: int) -> None:
    if hasattr(generator, "bit_generator"):
        bits = generator.bit_generator
        bits.state = type(bits)(seed).state
    elif hasattr(generator, "manual_seed"):
        generator.manual_seed(seed % 2**63)
    else:
        generator.seed(seed % 2**32)
