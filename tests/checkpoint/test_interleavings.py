"""All interleavings of saving and opening, by the real code: no acknowledged commit lost, none off the chain chosen.

Every actor is a thread that parks before each operation that others can see or change: creates, and looks at
``commits/``. Reads of documents that never change commute with everything, so they do not multiply the schedules.
A scheduler lets one actor run at a time, and goes through all orders by replaying prefixes.
"""

import os
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from rerail.plugins.checkpoint import attempts as attempts_module
from rerail.plugins.checkpoint import commit as commit_module
from rerail.plugins.checkpoint.attempts import read_start, seal_attempt, start_attempt
from rerail.plugins.checkpoint.listing import Commits
from rerail.plugins.checkpoint.resolve import resolve_below
from rerail.plugins.checkpoint.store import RunStore
from rerail.policies import keys
from rerail.policies.documents import Rendezvous, Seal, Start
from rerail.policies.errors import CommitExistsError, CommitFencedError, RerailError, SupersededError
from rerail.policies.lineage import holds, links

WAIT_S = 30.0
EVERYTHING = os.environ.get("CI") == "true"


class Actor:
    """One thread of the world, stopped between its visible operations."""

    def __init__(self, name, work):
        self.name = name
        self.result = None
        self.error = None
        self.done = False
        self.acknowledged = []
        self.asleep_at = None  # version of the world that it waits to change
        self.next_op = None  # the operation that it is parked before: its kind and key
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(work,), name=name, daemon=True)
        self._thread.start()
        self._await()

    def _run(self, work):
        try:
            self.result = work(self)
        except RerailError as error:
            self.error = error
        except BaseException as error:  # noqa: BLE001 - reported by the schedule that met it
            self.error = error
        self.done = True
        self._stopped.release()

    def pause(self, kind, key):
        self.next_op = (kind, key)
        self._stopped.release()
        assert self._go.acquire(timeout=WAIT_S)

    def _await(self):
        assert self._stopped.acquire(timeout=WAIT_S), f"{self.name} hangs"

    def step(self):
        self._go.release()
        self._await()


@dataclass
class World:
    """One schedule's store and actors."""

    scene: object
    actors: list[Actor] = field(default_factory=list)
    version: int = 0
    late: bool = False  # nobody else can move any more: waiting actors' deadlines pass

    def parked(self, actor):
        """The scene's store as ``actor`` sees it."""
        return ParkedStore(self.scene.store.control, self, actor)

    def run(self, actor):
        store = self.parked(actor)
        return RunStore(self.scene.store.run, store, store)

    def clock(self):
        return 1e9 if self.late else 0.0

    def sleeping(self, actor):
        def sleep(_seconds):
            actor.asleep_at = self.version
            actor.pause("look", keys.COMMITS)

        return sleep


class ParkedStore:
    def __init__(self, inner, world, actor):
        self._inner, self._world, self._actor = inner, world, actor

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def create(self, key, data):
        if key.startswith(keys.COMMITS):
            self._actor.pause("create", key)
        outcome = self._inner.create(key, data)
        self._world.version += 1
        return outcome

    def page(self, prefix, **how):
        if prefix.startswith(keys.COMMITS):
            self._actor.pause("look", prefix)
        return self._inner.page(prefix, **how)


def commute(one, other):
    """Whether two neighbouring operations give the same world in either order."""
    return one[0] == other[0] and (one[0] == "look" or one[1] != other[1])


def run_schedule(make_world, choices, everything):
    """Run one schedule that begins with ``choices``.

    Of orders that differ only in neighbours that commute, one is judged: the one with the lower actor first.

    Returns:
        The world, what was chosen, what could have been at each point, and whether this is an order to judge.
    """
    world = make_world()
    chosen, could, canonical = [], [], True
    before, last = [], None
    while True:
        ready = [at for at, actor in enumerate(world.actors) if not actor.done and actor.asleep_at != world.version]
        if not ready:
            ready = [at for at, actor in enumerate(world.actors) if not actor.done]
            if not ready:
                return world, chosen, could, canonical
            world.late = True
        wanted = [
            at
            for at in ready
            if everything or not (last and at < last[0] and at in before and commute(last[1], world.actors[at].next_op))
        ]
        if not canonical or not wanted:
            canonical, wanted = False, ready[:1]
        at = choices[len(chosen)] if len(chosen) < len(choices) else wanted[0]
        could.append(wanted)
        chosen.append(at)
        before, last = ready, (at, world.actors[at].next_op)
        world.actors[at].asleep_at = None
        world.actors[at].step()


def all_schedules(make_world, everything):
    """Every order in which the actors' operations can happen; without ``everything`` one of those that are equal."""
    prefix = []
    while True:
        world, chosen, could, canonical = run_schedule(make_world, prefix, everything)
        if canonical:
            yield world, tuple(chosen)
        while chosen and chosen[-1] == could[len(chosen) - 1][-1]:
            chosen.pop()
        if not chosen:
            return
        options = could[len(chosen) - 1]
        prefix = [*chosen[:-1], options[options.index(chosen[-1]) + 1]]


# What actors do


def saves(world, attempt, *steps):
    save_ids = {step: world.scene.save_id() for step in steps}
    for step, save_id in save_ids.items():
        world.scene.parts(attempt, step, save_id)

    def work(actor):
        seen = replace(world.scene, store=world.run(actor))
        for step, save_id in save_ids.items():
            seen.finish(attempt, step, save_id, clock=world.clock, sleep=world.sleeping(actor))
            actor.acknowledged.append((attempt, step))
        return "saved"

    return work


def opens(world, attempt, writer):
    def work(actor):
        return attempts_module.open_attempt(
            world.run(actor),
            attempt=attempt,
            how="new-gang",
            gang=f"llama-a{attempt}",
            world_size=2,
            rendezvous=Rendezvous(id=f"r{attempt}", host="127.0.0.1", port=0),
            writer=writer,
        )

    return work


def opens_and_saves(world, attempt, step):
    world.scene.certify(attempt)
    save = saves(world, attempt, step)

    def work(actor):
        start = opens(world, attempt, f"opener-of-{attempt}")(actor)
        save(actor)
        return start

    return work


def scenario(scene_of, memory_type, *actors):
    """A run whose attempt 1 has step 100 acknowledged, and actors beginning at once."""

    def make_world():
        scene = scene_of(memory_type())
        scene.submit()
        scene.open(1)
        scene.save(1, 100)
        world = World(scene)
        works = [make(world) for make in actors]
        world.actors = [Actor(f"actor-{at}", work) for at, work in enumerate(works)]
        return world

    return make_world


def violations(world):
    """What a schedule broke, in words. Judged from the store as it is at the end, by plain rules."""
    scene, found = world.scene, []
    for actor in world.actors:
        allowed = CommitFencedError | CommitExistsError | SupersededError
        if actor.error is not None and not isinstance(actor.error, allowed):
            raise actor.error
    acknowledged = {(1, 100)}.union(*(actor.acknowledged for actor in world.actors))
    resolution = scene.resolve()
    newest = Commits(scene.store.control).newest("start")
    readable = links(read_start(scene.store, newest))
    for attempt, step in sorted(acknowledged):
        if not holds(readable, attempt, step):
            found.append(f"acknowledged commit {attempt}.{step} is off the chain of attempt {newest}")
    if not holds(readable, resolution.attempt, resolution.step):
        found.append(f"resolve chose {resolution.attempt}.{resolution.step}, which is off the chain")
    best = max(acknowledged, key=lambda name: (name[1], name[0]))
    if resolution.step < best[1]:
        found.append(f"resolve goes back to step {resolution.step} behind the acknowledged step {best[1]}")
    return found + start_violations(world)


def start_violations(world):
    """What is wrong with the starts that actors act upon."""
    found, by_attempt = [], {}
    for start in (actor.result for actor in world.actors if isinstance(actor.result, Start)):
        if by_attempt.setdefault(start.attempt, start) != start:
            found.append(f"two starts of attempt {start.attempt} were acted upon")
        if start != read_start(world.scene.store, start.attempt):
            found.append(f"somebody acts upon a start of attempt {start.attempt} that does not stand")
    for older, newer in pairwise(by_attempt[attempt] for attempt in sorted(by_attempt)):
        if older.load and newer.load and newer.load.step < older.load.step:
            found.append(f"attempt {newer.attempt} loads an older commit than attempt {older.attempt}")
    return found


def outcomes(make_world, *, everything=True):
    """Number of schedules, those that broke something, and how the actors ended."""
    total, broken, ends = 0, [], Counter()
    for world, schedule in all_schedules(make_world, everything):
        total += 1
        wrong = violations(world)
        if wrong:
            broken.append((schedule, wrong))
        for actor in world.actors:
            ends[type(actor.error or actor.result).__name__] += 1
    return total, broken, ends


def report(total, broken, ends, *, everything=True):
    kind = "interleavings" if everything else "interleavings up to what commutes (CI=true: all, but for four parties)"
    sys.stdout.write(f"{total} {kind}, {len(broken)} broken, ends: {dict(ends)}" + "\n")
    assert not broken, f"{len(broken)} of {total}: first {broken[0]}"


def test_a_running_save_one_that_follows_and_an_opening(scene_of, memory_type):
    total, broken, ends = outcomes(
        scenario(scene_of, memory_type, lambda w: saves(w, 1, 200, 300), lambda w: opens(w, 2, "opener-a"))
    )
    report(total, broken, ends)
    assert total >= 19
    assert ends["str"]
    assert ends["CommitFencedError"]  # both ends are reached, so the proof is about something


def test_two_openers_of_one_attempt_agree_on_one_start(scene_of, memory_type):
    total, broken, ends = outcomes(
        scenario(scene_of, memory_type, lambda w: opens(w, 2, "opener-a"), lambda w: opens(w, 2, "opener-b"))
    )
    report(total, broken, ends)
    assert total >= 20
    assert set(ends) == {"Start"}


def test_a_save_and_two_openers_of_one_attempt(scene_of, memory_type):
    total, broken, ends = outcomes(
        scenario(
            scene_of,
            memory_type,
            lambda w: saves(w, 1, 200),
            lambda w: opens(w, 2, "opener-a"),
            lambda w: opens(w, 2, "opener-b"),
        ),
        everything=EVERYTHING,
    )
    report(total, broken, ends, everything=EVERYTHING)
    assert total >= 300


def test_a_save_and_openers_of_two_attempts(scene_of, memory_type):
    total, broken, ends = outcomes(
        scenario(
            scene_of,
            memory_type,
            lambda w: saves(w, 1, 200),
            lambda w: opens(w, 2, "opener-a"),
            lambda w: opens(w, 3, "opener-b"),
        ),
        everything=EVERYTHING,
    )
    report(total, broken, ends, everything=EVERYTHING)
    assert total >= 100
    assert ends["SupersededError"]


@pytest.mark.skipif(not EVERYTHING, reason="hundreds of schedules of four parties: where CI=true")
def test_a_zombie_a_successor_that_saves_and_its_successor(scene_of, memory_type):
    total, broken, ends = outcomes(
        scenario(
            scene_of,
            memory_type,
            lambda w: saves(w, 1, 200),
            lambda w: opens_and_saves(w, 2, 250),
            lambda w: opens(w, 3, "opener-b"),
        ),
        everything=False,
    )
    report(total, broken, ends, everything=False)
    assert total >= 100


def test_two_writers_of_one_step_and_an_opening(scene_of, memory_type):
    total, broken, ends = outcomes(
        scenario(
            scene_of,
            memory_type,
            lambda w: saves(w, 1, 200),
            lambda w: saves(w, 1, 200),
            lambda w: opens(w, 2, "opener-a"),
        )
    )
    report(total, broken, ends)
    assert ends["CommitExistsError"] == total  # never both, never none


def test_a_zombies_save_after_the_new_attempts_start(scene_of, memory_type):
    def with_attempt_2(world):
        world.scene.open(2)
        return saves(world, 2, 150)

    total, broken, ends = outcomes(scenario(scene_of, memory_type, lambda w: saves(w, 1, 200), with_attempt_2))
    report(total, broken, ends)
    assert ends["CommitFencedError"] == total  # the zombie, every time


# The same harness on broken code


def opens_listing_first(world, attempt, writer):
    """Broken: LIST, then seal and start from the old list."""

    def work(actor):
        run = world.run(actor)
        found = resolve_below(run, Commits(run.control), below=attempt)
        seal_attempt(run, Seal(writer=writer, run=run.run, attempt=attempt, how="new-gang", gang=f"llama-a{attempt}"))
        start = Start(
            writer=writer,
            run=run.run,
            attempt=attempt,
            how="new-gang",
            gang=f"llama-a{attempt}",
            world_size=2,
            rendezvous=Rendezvous(id="r", host="127.0.0.1", port=0),
            load=found.load,
            chain=found.chain,
        )
        run.control.create(keys.start(attempt), start.encode())
        return read_start(run, attempt)

    return work


def opens_without_seal(world, attempt, writer):
    """Broken: no seal at all, the LIST decides and the start is recorded after."""

    def work(actor):
        run = world.run(actor)
        found = resolve_below(run, Commits(run.control), below=attempt)
        start = Start(
            writer=writer,
            run=run.run,
            attempt=attempt,
            how="new-gang",
            gang=f"llama-a{attempt}",
            world_size=2,
            rendezvous=Rendezvous(id="r", host="127.0.0.1", port=0),
            load=found.load,
            chain=found.chain,
        )
        run.control.create(keys.start(attempt), start.encode())
        return start

    return work


@pytest.mark.parametrize("opener", [opens_listing_first, opens_without_seal])
def test_the_harness_catches_an_opener_that_lists_before_it_seals(scene_of, memory_type, opener):
    total, broken, _ = outcomes(
        scenario(scene_of, memory_type, lambda w: saves(w, 1, 200), lambda w: opener(w, 2, "opener-a"))
    )
    sys.stdout.write(f"{len(broken)} of {total} interleavings lose an acknowledged commit" + "\n")
    assert any("acknowledged commit 1.200 is off the chain" in wrong for _, wrongs in broken for wrong in wrongs)


def test_the_harness_catches_a_writer_that_does_not_look(scene_of, memory_type, monkeypatch):
    monkeypatch.setattr(commit_module, "acknowledge", lambda *_args, **_how: None)
    total, broken, _ = outcomes(
        scenario(scene_of, memory_type, lambda w: saves(w, 1, 200), lambda w: opens(w, 2, "opener-a"))
    )
    sys.stdout.write(f"{len(broken)} of {total} interleavings lose an acknowledged commit" + "\n")
    assert broken


def test_the_harness_catches_a_writer_that_looks_too_early(scene_of, memory_type, monkeypatch):
    real_look = commit_module.acknowledge
    monkeypatch.setattr(commit_module, "acknowledge", lambda *_args, **_how: None)

    def early(world):
        work = saves(world, 1, 200)

        def looked(actor):
            real_look(world.run(actor), attempt=1, step=200, clock=world.clock, sleep=world.sleeping(actor))
            return work(actor)

        return looked

    _, broken, _ = outcomes(scenario(scene_of, memory_type, early, lambda w: opens(w, 2, "opener-a")))
    assert broken


def test_the_harness_catches_a_start_that_overwrites(scene_of, memory_type):
    class Overwriting(memory_type):
        def create(self, key, data):
            self.objects.pop(self.prefix + key, None)
            return super().create(key, data)

    _, broken, _ = outcomes(
        scenario(scene_of, Overwriting, lambda w: opens(w, 2, "opener-a"), lambda w: opens(w, 2, "opener-b"))
    )
    assert any("does not stand" in wrong for _, wrongs in broken for wrong in wrongs)


def test_a_seal_without_a_start_is_finished_by_whoever_finds_it(scene):
    scene.open(1)
    scene.save(1, 100)
    seal = Seal(writer="supervisor-that-dies", run="llama", attempt=2, how="in-place", gang="llama-a1")
    seal_attempt(scene.store, seal)
    start = scene.open(2, writer="next-supervisor")
    assert (start.how, start.gang, start.load.step) == ("in-place", "llama-a1", 100)


def test_a_commit_that_waits_for_a_start_which_never_comes_is_not_acknowledged(scene):
    scene.open(1)
    seal_attempt(scene.store, Seal(writer="supervisor", run="llama", attempt=2, how="new-gang", gang="g"))
    with pytest.raises(CommitFencedError, match="sealed and not started within 0 s"):
        scene.save(1, 100, deadline_s=0.0)
    rendezvous = Rendezvous(id="r", host="127.0.0.1", port=0)
    start = start_attempt(
        scene.store, attempt=2, how="new-gang", gang="g", world_size=2, rendezvous=rendezvous, writer="supervisor-b"
    )
    assert start.load.step == 100  # unacknowledged, and yet not wasted
