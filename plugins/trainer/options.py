"""What a script may choose about its training client."""

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypedDict

from rerail.plugins.trainer.agree import Agreement, Group
from rerail.plugins.trainer.state import State
from rerail.policies.cadence import Cadence
from rerail.policies.errors import UsageError
from rerail.policies.manifest import Layout


def random_id() -> str:
    """A random id for one write."""
    return secrets.token_hex(8)


@dataclass(frozen=True, slots=True)
class Settings:
    """The choices, with their defaults.

    Attributes:
        shared: Parts that are the same on all ranks: rank 0 writes them, all ranks read them.
        per_rank: Parts of which each rank has its own.
        absent: Parts that do not exist here, each with the reason.
        every: When a periodic save is due; None saves only when asked, and at the end.
        group: The process group, for the certificate (needed with more than one rank).
        agreement: The second form of agreement, for loops that pass no ``agreed=``.
        total_steps: Steps of the whole training. The last step is then saved by ``finish`` alone, as the end of the
            run, and Argo's progress bar works.
        strict: Refuse a state with forgotten parts; False warns, and says so in the certificate.
        asynchronous: Write in the background; training waits only for a copy of the state in memory.
        full_every: Every k-th save is full, the others reuse equal files of the newest commit; 1 = all full.
        on_save_error: ``warn`` bears one failed periodic save and raises at the second in a row; ``raise`` at once.
        layout: Parallel layout; by default pure data parallel.
        reshardable: Whether another world size may load the state.
        seed: The run's seed, for the random state of ranks that a checkpoint does not know.
        save_deadline_s: Seconds within which all ranks' parts have to be there.
        handle_signals: Take SIGTERM as "save together and leave".
        clock: Monotonic seconds.
        wall: Wall clock, epoch seconds; for stamps only.
        new_id: Gives a random writer id.
    """

    shared: Mapping[str, State] = field(default_factory=dict)
    per_rank: Mapping[str, State] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    every: Cadence | None = None
    group: Group | None = None
    agreement: Agreement | None = None
    total_steps: int | None = None
    strict: bool = True
    asynchronous: bool = False
    full_every: int = 1
    on_save_error: Literal["warn", "raise"] = "warn"
    layout: Layout | None = None
    reshardable: bool = False
    seed: int | None = None
    save_deadline_s: float = 600.0
    handle_signals: bool = True
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    new_id: Callable[[], str] = random_id

    def __post_init__(self) -> None:
        if self.full_every < 1:
            raise UsageError(f"full_every={self.full_every}: every k-th save is full, so at least 1")
        if self.total_steps is not None and self.total_steps < 0:
            raise UsageError(f"total_steps={self.total_steps}: a number of optimizer steps, or None where unknown")
        if not self.save_deadline_s > 0:
            raise UsageError(f"save_deadline_s={self.save_deadline_s}: seconds above 0")
        if self.on_save_error not in ("warn", "raise"):
            raise UsageError(f"on_save_error={self.on_save_error!r}: 'warn' or 'raise'")

    def layout_for(self, world_size: int) -> Layout:
        """The layout, which has to be of this many ranks."""
        if self.layout is None:
            return Layout(world_size=world_size, dp=world_size, reshardable=self.reshardable)
        if self.layout.world_size != world_size:
            raise UsageError(f"layout.world_size={self.layout.world_size}, but WORLD_SIZE={world_size}")
        return self.layout


class Options(TypedDict, total=False):
    """The same as keyword arguments; see ``Settings`` for their meaning."""

    shared: Mapping[str, State]
    per_rank: Mapping[str, State]
    absent: Mapping[str, str]
    every: Cadence | None
    group: Group | None
    agreement: Agreement | None
    total_steps: int | None
    strict: bool
    asynchronous: bool
    full_every: int
    on_save_error: Literal["warn", "raise"]
    layout: Layout | None
    reshardable: bool
    seed: int | None
    save_deadline_s: float
    handle_signals: bool
    clock: Callable[[], float]
    wall: Callable[[], float]
    new_id: Callable[[], str]
