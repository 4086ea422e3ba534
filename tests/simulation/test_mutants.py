"""The suite can fail: each broken variant is caught by a seed of the default budget."""

import pytest
from rerail_simulation.mutants import FOCUS, MUTANTS, Mutant
from rerail_simulation.world import World, plan_of

DEFAULT_SEEDS = 150


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_seed_catches(mutant: Mutant):
    for seed in range(DEFAULT_SEEDS):
        world = World(seed, plan_of(seed, faults=FOCUS.get(mutant)))
        with pytest.MonkeyPatch.context() as patch:
            mutant(patch, world)
            try:
                world.live()
            except AssertionError as caught:
                print(f"seed {seed}: {caught}")
                return
    pytest.fail(f"{mutant.__name__} was not caught by {DEFAULT_SEEDS} seeds")
