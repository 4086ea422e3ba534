"""Worlds in which a person holds the run for a while: all guarantees hold, and no decision recovers meanwhile."""

import os
import random

import pytest
from rerail_simulation.world import World, plan_of

from rerail.policies import keys
from rerail.policies.documents import Pause
from rerail.policies.supervisor.effects import MarkNode, SealAttempt
from rerail.policies.supervisor.pausing import advance

BATCHES, SEEDS = (8, 100) if os.environ.get("CI") == "true" else (2, 20)


def held(seed: int) -> World:
    """A world whose run is held once or twice, at times of the seed's."""
    world = World(seed, plan_of(seed), decide=advance)
    rng = random.Random(f"pause {seed}")
    document = Pause(writer="a person", run="run", reason="maintenance", at_s=0.0).encode()
    at_s = 0.0
    for _ in range(rng.choice((1, 2))):
        at_s += rng.uniform(0.0, 9.0)
        world.kernel.after(at_s, lambda: world.disk.set(keys.PAUSE, document))
        at_s += rng.uniform(1.0, 25.0)
        world.kernel.after(at_s, lambda: world.disk.remove(keys.PAUSE))
    try:
        return world.live()
    except Exception:
        print("\n".join(world.notes))
        print(f"seed {seed} failed")
        raise


@pytest.mark.parametrize("batch", range(BATCHES))
def test_the_guarantees_hold_and_nothing_is_recovered_meanwhile(batch):
    noted = resumed = 0
    for seed in range(batch * SEEDS, (batch + 1) * SEEDS):
        world = held(seed)
        for decisions in world.checks.decisions.values():
            for state, seen, decision in decisions:
                if not seen.paused or seen.stop_asked:
                    continue
                assert decision.state.attempt == state.attempt, f"seed {seed}: {decision.note}"
                assert not any(isinstance(one, MarkNode | SealAttempt) for one in decision.effects), decision.note
                assert state.phase not in ("running", "waiting") or decision.state.phase in (state.phase, "done")
        entries = world.checks.entries
        noted += any("held back" in one.note for one in entries)
        resumed += any(one.note == "goes on after a pause" for one in entries)
    assert noted >= SEEDS / 20, "faults met a pause"
    assert resumed >= SEEDS / 4, "and runs went on after it"
