"""Retention against an opening: whoever sleeps anywhere, a start never loads what is deleted under it."""

import itertools

import pytest

from rerail.plugins.checkpoint import retention
from rerail.plugins.checkpoint.notes import mark_commit
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.checkpoint.verify import verify
from rerail.policies.retention import LatestN


class Interrupted:
    """A store before whose operation number ``at`` something else happens, whole."""

    def __init__(self, inner, at, happening):
        self._inner = inner
        self._at = at
        self._happening = happening
        self.operations = 0

    def __getattr__(self, name):
        found = getattr(self._inner, name)
        if name not in ("create", "get", "page", "delete", "put"):
            return found

        def call(*args, **how):
            if self.operations == self._at:
                self._happening()
            self.operations += 1
            return found(*args, **how)

        return call


def scene_with_commits(scene_of, memory):
    """Steps 100 to 400 are good, 100 is pinned, the policy keeps the newest two, and 200 may go."""
    scene = scene_of(memory)
    scene.submit()
    scene.open(1)
    for step in (100, 200, 300, 400):
        scene.save(1, step)
    mark_commit(scene.store, attempt=1, step=100, kind="pin", why="a person", writer="a-person-1")
    return scene


def find_damage(scene):
    for step in (300, 400):
        mark_commit(scene.store, attempt=1, step=step, kind="bad", why="damage", writer="rank-0-of-2")


def collect(run):
    return retention.collect(run, LatestN(n=2), wall=lambda: 0.0, keep_clean_s=1e9)


def seen_through(scene, at, happening):
    store = Interrupted(scene.store.control, at, happening)
    return RunStore(scene.store.run, store, store), store


def lost(scene, start):
    """What is wrong with the commit that a start loads."""
    if start is None or start.load is None:
        return ["nothing to load"]
    found = [verdict for verdict in verify(scene.store) if verdict.step == start.load.step]
    if not found:
        return [f"step {start.load.step} is gone, and the start loads it"]
    return list(found[0].problems)


def opened(scene):
    find_damage(scene)
    return scene.open(2)


def collector_sleeps(scene_of, memory_type, at):
    """An attempt is opened while the collector stands before its operation ``at``; None: it has no such operation."""
    scene = scene_with_commits(scene_of, memory_type())
    starts = []
    run, store = seen_through(scene, at, lambda: starts.append(opened(scene)))
    collect(run)
    return lost(scene, starts[0]) if store.operations > at else None


def opener_sleeps(scene_of, memory_type, at):
    """A collection happens while the opener stands before its operation ``at``."""
    scene = scene_with_commits(scene_of, memory_type())
    awake = scene.store
    run, store = seen_through(scene, at, lambda: collect(awake))
    scene.store = run
    try:
        start = opened(scene)
    finally:
        scene.store = awake
    return lost(scene, start) if store.operations > at else None


def outcomes(how, scene_of, memory_type):
    found = []
    for at in itertools.count():
        problems = how(scene_of, memory_type, at)
        if problems is None:
            return found
        found.append(problems)
    return found


@pytest.mark.parametrize("how", [collector_sleeps, opener_sleeps])
def test_a_start_never_loads_what_retention_deletes(how, scene_of, memory_type):
    found = outcomes(how, scene_of, memory_type)
    assert len(found) >= 8
    assert not any(found)


def test_without_the_mark_and_the_look_a_start_loads_what_is_deleted(scene_of, memory_type, monkeypatch):
    monkeypatch.setattr(retention, "_doom", lambda *_: True)
    assert any(outcomes(collector_sleeps, scene_of, memory_type))


def test_what_an_interrupted_collection_left_half_done_is_finished_by_the_next(scene_of, memory_type):
    scene = scene_with_commits(scene_of, memory_type())

    def killed():
        raise InterruptedError

    def survives(at):
        run, _ = seen_through(scene, at, killed)
        try:
            collect(run)
        except InterruptedError:
            return False
        return True

    last = next(at for at in itertools.count() if survives(at))
    assert last > 8
    assert [verdict.step for verdict in verify(scene.store) if verdict.ok] == [400, 300, 100]
