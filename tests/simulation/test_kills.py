"""A supervisor that is killed anywhere is followed by one that comes to the same end."""

import os
from dataclasses import replace

import pytest
from rerail_simulation.world import Plan, World, plan_of

from rerail.policies.recovery import Budgets

FULL = os.environ.get("CI") == "true"
EVERY = 1 if FULL else 17
ENDS = {
    "transient": "done",
    "sigkill": "done",
    "node": "done",
    "partition": "done",
    "xid": "done",
    "hang": "done",
    "preempt": "done",
    "evict": "done",
    "deterministic": "stopped",
    "do-not-retry": "stopped",
}


def plan(kind: str, seed: int, **changes) -> Plan:
    """One fault, and enough nodes and budget that only the fault decides the end."""
    drawn = plan_of(seed, faults=(kind,), calm=True)
    budgets = Budgets(application=4, without_progress=9)
    generous = drawn.policy.model_copy(update={"budgets": budgets, "suspect_margin_s": 0.3, "keep_last": 20})
    # Some commits are older, so that not all can be suspect, also where the first supervisor was killed at once.
    fault = replace(drawn.faults[0], at_s=7.0)
    return replace(
        drawn,
        policy=generous,
        faults=(fault,),
        node_count=drawn.world_size + 4,
        final=24,
        every=2,
        **{"slow_p": 0.0, **changes},
    )


def end(plan: Plan, seed: int, kill_at: int | None = None) -> tuple[str, int]:
    world = World(seed, plan, kill_at=kill_at).live()
    assert world.checks.newest
    return world.checks.newest.state.phase, world.supervised


@pytest.mark.parametrize("kind", list(ENDS))
def test_a_supervisor_killed_at_any_boundary_is_followed_by_one_that_ends_the_same(kind):
    seed = 3
    known = plan(kind, seed)
    phase, boundaries = end(known, seed)
    assert phase == ENDS[kind]
    first = 1 + sum(kind.encode()) % EVERY  # a sample does not take the same boundaries for each kind
    for boundary in range(first, boundaries + 1, EVERY):
        assert end(known, seed, boundary)[0] == phase, f"killed at boundary {boundary} of {boundaries}: other end"
    print(f"{kind}: killed at every {EVERY}. of {boundaries} boundaries")


@pytest.mark.parametrize("kind", list(ENDS))
def test_many_kills_stops_and_rivals_change_no_end(kind):
    for seed in range(20 if FULL else 4):
        rough = plan(kind, seed, kill_p=0.02, error_p=0.01, lost_p=0.01, stop_p=0.003, supervisors=2)
        assert end(rough, seed)[0] == end(plan(kind, seed), seed)[0] == ENDS[kind], f"seed {seed}"
