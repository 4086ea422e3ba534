"""Two supervisors drive one run; one of them is stopped at a boundary of an operation, and goes on later.

Whatever the boundary: exactly one start per attempt, no rank process twice, and the run ends as if there were one.
All boundaries where CI=true, else a sample of them, spread over the run.
"""

import os
import re
import signal
import time

import pytest
from rerail.plugins.checkpoint.commit import read_manifest
from rerail.plugins.gang.ledger import all_decisions
from rerail.plugins.trainer import processes
from rerail.policies import keys

FULL = os.environ.get("CI") == "true"
SAMPLE = 3
PLAN = {"1.1": [7, -9]}
POLICIES = {"new-gang": {"in_place": False, "settle_s": 0.1}, "in-place": {"settle_s": 0.1}}
# Looks that come in every pass and change nothing are one boundary each; what creates, submits or ends counts each time.
WORTH = re.compile(r"(before|after) (create|submit|end|mark|upload|put|delete|rendezvous|view|get ledger|get start)")


def boundaries(world, policy):
    """The boundaries that one undisturbed supervisor passes, in their order."""
    world.create()
    world.plan(PLAN)
    record = world.root / "boundaries"
    supervisor = world.supervise("--record", str(record), policy=policy)
    assert supervisor.wait(timeout=60) == 0, world.said()
    found = [name for name in record.read_text().splitlines() if WORTH.match(name)]
    return found if FULL else found[len(found) // (2 * SAMPLE) :: max(1, len(found) // SAMPLE)][:SAMPLE]


def stopped(supervisor):
    """Whether it stands at its boundary; it may also never come there, since the other one was first."""
    found = processes.stat_of(supervisor.pid)
    return supervisor.poll() is not None or (found is not None and found.state == "T")


def judge(world, said):
    entries = all_decisions(world.run)
    last = entries[-1].state
    assert last.phase == "done", said
    assert [entry.number for entry in entries] == list(range(len(entries)))
    starts = [key for entry in world.run.control.page(keys.COMMITS).entries if (key := keys.parse_commit(entry.key))]
    assert sorted(key.attempt for key in starts if key.kind == "start") == [record.n for record in last.attempts]
    assert len(last.attempts) == 2, said
    ups = world.ups()
    assert len(ups) == len(set(ups)), f"a rank came up twice: {ups}"
    assert {"2.0", "2.1"} <= set(ups)
    assert read_manifest(world.run, 2, 20).reason == "final"
    assert world.left() == [], "something is left running"


@pytest.mark.parametrize("how", list(POLICIES))
@pytest.mark.parametrize("resumes", ["at-the-end", "in-the-middle"])
def test_stopped_anywhere_and_continued(make_world, wait_for, how, resumes):
    policy = POLICIES[how]
    names = boundaries(make_world(), policy)
    print(f"{len(names)} boundaries{'' if FULL else ' (a sample; all with CI=true)'}")
    for name in names:
        world = make_world()
        world.create()
        world.plan(PLAN)
        first = world.supervise("--stop-at", name, policy=policy)
        wait_for(lambda first=first: stopped(first))
        second = world.supervise(name="b", policy=policy)
        if resumes == "in-the-middle":
            before = len(world.decisions())
            wait_for(lambda: len(world.decisions()) >= before + 2 or second.poll() is not None)
            first.send_signal(signal.SIGCONT)
        code = second.wait(timeout=60)
        first.send_signal(signal.SIGCONT)
        first_code = first.wait(timeout=60)
        said = f"stopped {name}\n--- first\n{world.said()}\n--- second\n{world.said('b')}"
        assert (code, first_code) == (0, 0), said
        judge(world, said)


@pytest.mark.parametrize("how", list(POLICIES))
def test_two_at_once_from_the_first_moment(make_world, how):
    world = make_world()
    world.create()
    world.plan(PLAN)
    both = [world.supervise(name=name, policy=POLICIES[how]) for name in ("a", "b")]
    deadline = time.monotonic() + 60
    codes = [supervisor.wait(timeout=deadline - time.monotonic()) for supervisor in both]
    said = f"{world.said()}\n---\n{world.said('b')}"
    assert codes == [0, 0], said
    judge(world, said)
