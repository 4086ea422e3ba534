"""What turns a gradient into a step: Adam, the learning rate, the loss scale, the clip and the gradient's wire form.

Each keeps something that the next step depends on, so each is a part of the training state.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rerail.examples.local_gang.model import Floats

Halves = NDArray[np.float16]


class Adam:
    """Kingma and Ba (2015), on one flat vector of parameters."""

    def __init__(self, parameters: Floats, *, betas: tuple[float, float] = (0.9, 0.98), epsilon: float = 1e-8) -> None:
        self.parameters, self.betas, self.epsilon = parameters, betas, epsilon
        self.first, self.second = np.zeros_like(parameters), np.zeros_like(parameters)
        self.updates = 0

    def update(self, gradient: Floats, rate: float) -> None:
        """Move the parameters by one step of size ``rate``."""
        self.updates += 1
        fast, slow = self.betas
        self.first += np.float32(1 - fast) * (gradient - self.first)
        self.second += np.float32(1 - slow) * (gradient * gradient - self.second)
        mean = self.first * np.float32(rate / (1 - fast**self.updates))
        spread = np.sqrt(self.second * np.float32(1 / (1 - slow**self.updates))) + np.float32(self.epsilon)
        self.parameters -= mean / spread

    def state_dict(self) -> dict[str, Any]:
        """Both moments, and how often they were updated."""
        return {"first": self.first, "second": self.second, "updates": self.updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Copy saved moments in."""
        self.first[...] = np.asarray(state["first"])
        self.second[...] = np.asarray(state["second"])
        self.updates = int(state["updates"])


class WarmupThenDecay:
    """Linear warm-up, then linear decay to a tenth, counted in updates: a skipped step does not advance it."""

    def __init__(self, *, peak: float, warmup: int, horizon: int) -> None:
        self.peak, self.warmup, self.horizon = peak, warmup, horizon
        self.updates = 0

    @property
    def rate(self) -> float:
        """Learning rate of the next update."""
        if self.updates < self.warmup:
            return self.peak * (self.updates + 1) / self.warmup
        gone = min(1.0, (self.updates - self.warmup) / max(1, self.horizon - self.warmup))
        return self.peak * (1 - 0.9 * gone)

    def advance(self) -> None:
        """Count one update."""
        self.updates += 1

    def state_dict(self) -> dict[str, Any]:
        """The count, and the shape that it is a place in."""
        return {"updates": self.updates, "peak": self.peak, "warmup": self.warmup, "horizon": self.horizon}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on at the saved place of the saved shape."""
        self.updates, self.peak = int(state["updates"]), float(state["peak"])
        self.warmup, self.horizon = int(state["warmup"]), int(state["horizon"])


class LossScaler:
    """Scales gradients into the range of half precision: doubles after ``every`` good steps, halves on overflow.

    The scale always climbs until a gradient overflows, so that skipped steps are a regular part of the run.
    """

    def __init__(self, *, scale: float = 2.0**18, every: int = 8) -> None:
        self.scale, self.every = scale, every
        self.good = 0

    def update(self, *, finite: bool) -> None:
        """Account for one step; all ranks see the same sum, so all decide the same."""
        self.good = self.good + 1 if finite else 0
        if not finite:
            self.scale /= 2
        elif self.good == self.every:
            self.scale, self.good = self.scale * 2, 0

    def state_dict(self) -> dict[str, Any]:
        """The scale, and good steps since it last changed."""
        return {"scale": self.scale, "good": self.good}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the saved scale."""
        self.scale, self.good = float(state["scale"]), int(state["good"])


class ClipByLoss:
    """Clips the gradient's norm to a bound that follows a running mean of the loss: the user's own state."""

    def __init__(self, *, share: float = 0.04, memory: float = 0.95) -> None:
        self.share, self.memory = share, memory
        self.mean: float | None = None

    def clip(self, gradient: Floats, loss: float) -> Floats:
        """The gradient, shortened where it is longer than ``share`` of the mean loss."""
        self.mean = loss if self.mean is None else self.memory * self.mean + (1 - self.memory) * loss
        norm = float(np.sqrt(np.dot(gradient, gradient)))
        return gradient * np.float32(min(1.0, self.share * self.mean / max(norm, 1e-12)))

    def state_dict(self) -> dict[str, Any]:
        """The running mean."""
        return {"mean": self.mean}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the saved mean."""
        self.mean = None if state["mean"] is None else float(state["mean"])


class HalfWire:
    """Gradients as they travel: half precision, with the rounding error of one step added to the next one's.

    Error feedback is what this rank owes the group, so it is state of the distributed part, different on each rank.
    """

    def __init__(self, size: int) -> None:
        self.owed: Floats = np.zeros(size, dtype=np.float32)
        self._new = self.owed

    def pack(self, gradient: Floats, scale: float) -> Halves:
        """The scaled gradient in half precision; what overflows becomes infinite."""
        whole = gradient + self.owed
        scaled = whole * np.float32(scale)
        with np.errstate(over="ignore"):
            halves = scaled.astype(np.float16)
        with np.errstate(invalid="ignore"):
            self._new = (scaled - halves) * np.float32(1 / scale)
        return halves

    def settle(self) -> None:
        """The group used what was packed. A skipped step is not settled: what was owed before it stays owed."""
        self.owed = self._new

    def state_dict(self) -> dict[str, Any]:
        """The debt."""
        return {"owed": self.owed}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the saved debt."""
        self.owed = np.array(state["owed"], dtype=np.float32)
