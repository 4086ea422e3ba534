"""Saves of the client: in the background, skipped, failed, incremental, and by measured cost."""

import threading
import time

import numpy as np
import pytest

from rerail.plugins.checkpoint.commit import read_manifest
from rerail.plugins.checkpoint.posix import PosixStore
from rerail.plugins.trainer import Every, Left, YoungDaly
from rerail.policies.errors import SaveFailedError, StoreUnreachableError

ABSENT = dict.fromkeys(("optimizer", "scheduler", "epoch", "rng", "scaler", "data", "user"), "not in this test")


class Slow(PosixStore):
    """Uploads wait, or fail, as the test says."""

    gate = threading.Event()
    fail = False

    def below(self, prefix):
        made = super().below(prefix)
        made.__class__ = Slow
        return made

    def upload(self, key, buffers, *, size):
        Slow.gate.wait(30)
        if Slow.fail:
            raise StoreUnreachableError("the test's store is away")
        return super().upload(key, buffers, size=size)


@pytest.fixture
def slow(new_run):
    Slow.gate.set()
    Slow.fail = False
    made = new_run("slow", store=Slow)
    made.open(1)
    yield made
    Slow.fail = False
    Slow.gate.set()
    for client in made.clients:
        client._close()


def simple(run, attempt=1, model=None, **options):
    model = {"w": np.zeros(4)} if model is None else model
    options = {"shared": {"model": model}, "absent": ABSENT, **options}
    return run.client(attempt, **options), model


def test_c2_12_what_a_background_save_says_is_frozen_with_the_state(slow, until):
    client, model = simple(slow, every=Every(steps=1000), asynchronous=True)
    client.restore()
    Slow.gate.clear()
    for step in range(1, 1004):
        model["w"] += 1
        client.step_done(step, loss=float(step), counters={"samples": step * 4})
    assert client._saves.running
    Slow.gate.set()
    until(lambda: not client._saves.running, "the commit")
    client.step_done(1004)
    manifest = client.last_commit
    assert (manifest.step, manifest.loss) == (1000, 1000.0)
    assert manifest.counters == {"optimizer_steps": 1000, "samples": 4000}
    assert manifest.parts["step"].value == 1000
    client._close()
    slow.open(2)
    again, restored = simple(slow, 2)
    assert again.restore() == 1000
    assert restored["w"][0] == 1000
    assert again.restored_counters == {"optimizer_steps": 1000, "samples": 4000}


def test_a_due_save_beside_a_running_one_is_skipped_and_counted(slow, until):
    client, _ = simple(slow, every=Every(steps=2), asynchronous=True)
    client.restore()
    Slow.gate.clear()
    for step in range(1, 8):
        agreed = client.wish()
        client.wish()
        client.step_done(step, agreed=agreed)
    assert client.skipped_saves == 2
    Slow.gate.set()
    until(lambda: not client._saves.running, "the commit")
    client.step_done(8)
    client.finish(9)
    assert slow.commits() == [(1, 2), (1, 8), (1, 9)]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_one_failed_save_is_borne_and_the_second_in_a_row_is_raised(slow, until, caplog, asynchronous):
    client, _ = simple(slow, every=Every(steps=2), asynchronous=asynchronous)
    client.restore()
    Slow.fail = True
    client.step_done(1)
    client.step_done(2)
    until(lambda: not client._saves.running, "the failure")
    client.step_done(3)
    assert client.failed_saves == 1
    assert "step 2 did not become a commit" in caplog.text

    def go_on():
        for step in range(4, 50):
            client.step_done(step)
            until(lambda: not client._saves.running, "the failure")

    with pytest.raises(SaveFailedError, match=r"step 4 .*2 failed in a row"):
        go_on()
    assert slow.commits() == []


def test_a_success_between_forgives(slow):
    client, _ = simple(slow, every=Every(steps=1))
    client.restore()
    for step in range(1, 9):
        Slow.fail = step % 2 == 1
        client.step_done(step)
    assert client.failed_saves == 4
    Slow.fail = True
    with pytest.raises(SaveFailedError, match="step 9"):
        client.finish(9)


def test_raise_at_once_where_the_script_wants_it(slow):
    client, _ = simple(slow, every=Every(steps=1), on_save_error="raise")
    client.restore()
    Slow.fail = True
    with pytest.raises(SaveFailedError, match="the test's store is away"):
        client.step_done(1)


def test_leaving_after_a_failed_save_is_86(slow):
    client, _ = simple(slow)
    client.restore()
    client._signal.seen_s = time.monotonic()
    Slow.fail = True
    with pytest.raises(Left) as left:
        client.step_done(1)
    assert left.value.code == 86


def test_an_incremental_save_reuses_files_that_did_not_change(run):
    run.open(1)
    frozen, moving = {"w": np.ones(1000)}, {"m": np.zeros(1000)}
    absent = {part: reason for part, reason in ABSENT.items() if part != "optimizer"}
    options = {"shared": {"model": frozen, "optimizer": moving}, "absent": absent, "every": Every(steps=1)}
    client = run.client(1, full_every=3, **options)
    client.restore()
    for step in range(1, 6):
        moving["m"] += 1
        client.step_done(step)
    manifests = [read_manifest(run.run, 1, step) for step in range(1, 6)]
    assert [manifest.full for manifest in manifests] == [True, False, False, True, False]
    paths = [{entry.path.rsplit("/", 1)[-1]: entry.path for entry in manifest.files} for manifest in manifests]
    assert paths[0]["model.safetensors"] == paths[1]["model.safetensors"] == paths[2]["model.safetensors"]
    assert paths[2]["model.safetensors"] != paths[3]["model.safetensors"] == paths[4]["model.safetensors"]
    assert len({one["optimizer.safetensors"] for one in paths}) == 5
    client._close()
    run.open(2)
    moving["m"][:] = 0
    again = run.client(2, **options)
    assert again.restore() == 5
    assert moving["m"][0] == 5
    assert again.certificate.ok


def test_young_and_daly_by_measured_cost(run):
    run.open(1)
    client, _ = simple(run, every=YoungDaly(mtbf_s=0.5, floor_s=0.01, first_s=0.01))
    client.restore()
    step = 0
    while len(run.commits()) < 3:
        time.sleep(0.01)
        step += 1
        client.step_done(step)
        assert step < 2000
    assert client._pacing._stalls
