"""Two supervisors drive one run; one of them is stopped at a boundary of an operation, and goes on later.

Whatever the boundary: exactly one start per attempt, no rank process twice, and the run ends as if there were one.
All boundaries where CI=true, else a sample of them, spread over the run.
"""

import os
import re
import signal
import sys
import time

import pytest

from rerail.plugins.checkpoint.commit import read_manifest
from rerail.plugins.gang.ledger import all_decisions
from rerail.plugins.trainer import processes
from rerail.policies import keys

FULL = os.environ.get("CI") == "true"
PARTS = 12
PLAN = {"1.1": [7, -9]}
POLICIES = {"new-gang": {"in_place": False, "settle_s": 0.1}, "in-place": {"settle_s": 0.1}}
# The places where a stop has most to break: between a decision and its effects, and between an effect's halves.
SAMPLE = [
    ("new-gang", "at-the-end", "before submit run-a2"),
    ("new-gang", "in-the-middle", "before end run-a1"),
    ("in-place", "in-the-middle", "before create start-2"),
    ("in-place", "at-the-end", "after create ledger-3"),
]
# Looks that come in every pass and change nothing are left out, but for those that a decision is made from.
WORTH = re.compile(r"(before|after) (create|submit|end|mark|upload|put|delete|rendezvous|view|get ledger|get start)")

_recorded: dict[str, list[str]] = {}


def cases(make_world, part):
    """Cases of one part of all boundaries that an undisturbed supervisor passes, continued at two times in turn."""
    if not FULL:
        return SAMPLE[part::PARTS]
    for how, policy in POLICIES.items():
        if how not in _recorded:
            world = make_world()
            world.create()
            world.plan(PLAN)
            record = world.root / "boundaries"
            supervisor = world.supervise("--record", str(record), policy=policy)
            assert supervisor.wait(timeout=120) == 0, world.said()
            _recorded[how] = [name for name in record.read_text().splitlines() if WORTH.match(name)]
    when = ("at-the-end", "in-the-middle")
    every = [(how, when[at % 2], name) for how, names in _recorded.items() for at, name in enumerate(names)]
    return every[part::PARTS]


def say(line):
    sys.stdout.write(line + "\n")


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


def one_case(world, wait_for, how, resumes, name):
    world.create()
    world.plan(PLAN)
    first = world.supervise("--stop-at", name, policy=POLICIES[how])
    wait_for(lambda: stopped(first))
    second = world.supervise(name="b", policy=POLICIES[how])
    if resumes == "in-the-middle":
        before = len(world.decisions())
        wait_for(lambda: len(world.decisions()) >= before + 2 or second.poll() is not None)
        first.send_signal(signal.SIGCONT)
    code = second.wait(timeout=120)
    first.send_signal(signal.SIGCONT)
    first_code = first.wait(timeout=120)
    said = f"stopped {name}\n--- first\n{world.said()}\n--- second\n{world.said('b')}"
    assert (code, first_code) == (0, 0), said
    judge(world, said)


@pytest.mark.parametrize("part", range(PARTS if FULL else len(SAMPLE)))
def test_stopped_anywhere_and_continued(make_world, wait_for, part):
    for how, resumes, name in cases(make_world, part):
        say(f"{how}: stopped {name}, continued {resumes}{'' if FULL else ' (a sample; all with CI=true)'}")
        one_case(make_world(), wait_for, how, resumes, name)


@pytest.mark.parametrize("how", list(POLICIES))
def test_two_at_once_from_the_first_moment(make_world, how):
    world = make_world()
    world.create()
    world.plan(PLAN)
    both = [world.supervise(name=name, policy=POLICIES[how]) for name in ("a", "b")]
    deadline = time.monotonic() + 120
    codes = [supervisor.wait(timeout=deadline - time.monotonic()) for supervisor in both]
    said = f"{world.said()}\n---\n{world.said('b')}"
    assert codes == [0, 0], said
    judge(world, said)
