"""A training process to measure: arrays as its state, the real client over a real folder."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rerail.plugins.checkpoint.attempts import create_run, open_attempt
from rerail.plugins.checkpoint.open import open_run
from rerail.plugins.checkpoint.store import RunStore, all_entries
from rerail.plugins.trainer import Checkpointer
from rerail.plugins.trainer.environment import read_environment
from rerail.policies import keys
from rerail.policies.cadence import Moment
from rerail.policies.documents import Rendezvous, RunDoc

RUN = "bench"
ABSENT = dict.fromkeys(("scheduler", "rng", "scaler", "data", "user"), "not in this benchmark")
MIB = 1 << 20


class WhenAsked:
    """A cadence that saves exactly where the benchmark wants it."""

    local = False

    def __init__(self) -> None:
        self.asked = True

    def due(self, _moment: Moment) -> bool:
        return self.asked


def arrays(size_bytes: int, *, count: int = 8, seed: int = 1) -> dict[str, np.ndarray]:
    """Random float32 arrays of about ``size_bytes`` together, in touched memory."""
    each = size_bytes // count // 4
    generator = np.random.default_rng(seed)
    return {f"layer{index}": generator.random(each, dtype=np.float32) for index in range(count)}


def training_state(size_bytes: int) -> dict[str, dict[str, np.ndarray]]:
    """Weights, and two moments of Adam for each: a third of the bytes and two thirds."""
    return {
        "model": arrays(size_bytes // 3, seed=1),
        "optimizer": arrays(size_bytes - size_bytes // 3, count=16, seed=2),
    }


def flat(state: Mapping[str, Mapping[str, np.ndarray]]) -> list[np.ndarray]:
    """All arrays of a state."""
    return [array for part in state.values() for array in part.values()]


@dataclass
class Subject:
    """One run in a folder, and clients of it."""

    root: Path
    clients: list[Checkpointer] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"file://{self.root}"

    @property
    def run(self) -> RunStore:
        return open_run(RUN, store=self.url)

    def open(self, attempt: int) -> None:
        """Open one attempt, as a supervisor does."""
        self.root.mkdir(parents=True, exist_ok=True)
        doc = RunDoc(writer="bench-submit", run=RUN, owner="bench", created_at_s=0.0, world_size=1)
        create_run(self.run, doc)
        open_attempt(
            self.run,
            attempt=attempt,
            how="fresh" if attempt == 1 else "new-gang",
            gang=f"{RUN}-a{attempt}",
            world_size=1,
            rendezvous=Rendezvous(id="bench", host="127.0.0.1", port=0),
            writer=os.urandom(8).hex(),
        )

    def environ(self, attempt: int) -> dict[str, str]:
        return {
            "RERAIL_RUN": RUN,
            "RERAIL_STORE": self.url,
            "RERAIL_ATTEMPT": str(attempt),
            "RERAIL_GANG": f"{RUN}-a{attempt}",
            "RERAIL_NODE": "bench-node",
            "RANK": "0",
            "WORLD_SIZE": "1",
        }

    def client(self, attempt: int, state: Mapping[str, dict[str, np.ndarray]], **options: object) -> Checkpointer:
        """The training client of the only rank."""
        made = Checkpointer(
            self.run,
            read_environment(self.environ(attempt)),
            shared=dict(state),
            absent=ABSENT,
            handle_signals=False,
            **options,
        )
        self.clients.append(made)
        return made

    def files(self) -> list[Path]:
        """All files of saves."""
        shards = self.run.shards
        return [self.root / RUN / entry.key for entry in all_entries(shards, keys.SHARDS)]

    def drop_saves(self) -> None:
        """Delete the files of all saves, as retention does; their manifests stay, to be small and to pile up."""
        shards = self.run.shards
        shards.delete(tuple(entry.key for entry in all_entries(shards, keys.SHARDS)))

    def close(self) -> None:
        """End the clients; returns when none of them writes any more."""
        for client in self.clients:
            client._close()
            client._background.give_up()
            if client._poller is not None:
                client._poller._thread.join()
