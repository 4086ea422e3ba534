"""The client in one process, or with ranks as threads: environment, damage, fences, requests, cases."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from rerail.plugins.checkpoint.commit import read_manifest
from rerail.plugins.checkpoint.notes import add_request, read_certificate, read_marks
from rerail.plugins.checkpoint.posix import PosixStore
from rerail.plugins.checkpoint.resolve import resolve
from rerail.plugins.trainer import Checkpointer, Every, Left, RandomState, Wish
from rerail.plugins.trainer.environment import differences, read_environment
from rerail.policies.errors import StoreUnreachableError, UsageError
from rerail.policies.keys import MarkKey
from rerail.policies.manifest import Layout

ABSENT = dict.fromkeys(("optimizer", "scheduler", "epoch", "rng", "scaler", "data", "user"), "not in this test")


def simple(run, attempt=1, model=None, **options):
    model = {"w": np.zeros(4)} if model is None else model
    options = {"shared": {"model": model}, "absent": ABSENT, **options}
    return run.client(attempt, **options), model


# environment


def test_nothing_set_is_no_environment():
    assert read_environment({"RANK": "0", "WORLD_SIZE": "1"}) is None


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"RERAIL_STORE": ""}, "RERAIL_STORE is not set"),
        ({"RERAIL_RUN": ""}, "RERAIL_RUN is not set"),
        ({"RERAIL_ATTEMPT": ""}, "RERAIL_ATTEMPT is not set"),
        ({"RERAIL_GANG": ""}, "RERAIL_GANG is not set"),
        ({"RERAIL_ATTEMPT": "two"}, "RERAIL_ATTEMPT='two'"),
        ({"RERAIL_ATTEMPT": "0"}, "RERAIL_ATTEMPT='0'"),
        ({"RANK": "-1"}, "RANK='-1'"),
        ({"RANK": "3", "WORLD_SIZE": "3"}, "RANK=3 is not below WORLD_SIZE=3"),
        ({"RERAIL_POLL_S": "soon"}, "RERAIL_POLL_S='soon'"),
        ({"RERAIL_GRACE_S": "nan"}, "RERAIL_GRACE_S='nan'"),
    ],
)
def test_a_wrong_environment_names_the_variable(run, change, said):
    with pytest.raises(UsageError, match=said):
        read_environment(run.environ(1) | change)


def test_a_disabled_client_changes_nothing(caplog):
    client = Checkpointer.from_env(environ={}, shared={"model": {}}, absent=ABSENT)
    assert client.restore() == 0
    client.step_done(7)
    assert client.wish() == Wish.NONE
    with client.phase("evaluation"):
        pass
    client.finish(7)
    assert caplog.text.count("are not set") == 1


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"shared": {"weights": {}}}, "unknown part 'weights'"),
        ({"shared": {"model": {}}, "per_rank": {"model": {}}}, "given twice"),
        ({"shared": {"model": 3}}, "no state_dict"),
        ({"absent": ABSENT | {"rng": " "}}, "has no reason"),
        ({"full_every": 0}, "full_every=0"),
        ({"save_deadline_s": 0}, "save_deadline_s"),
        ({"total_steps": -1}, "total_steps=-1"),
        ({"on_save_error": "ignore"}, "on_save_error='ignore'"),
        ({"layout": Layout(world_size=3)}, "layout.world_size=3"),
    ],
)
def test_wrong_options_are_named(run, options, said):
    with pytest.raises(UsageError, match=said):
        run.client(1, **{"shared": {"model": {}}, "absent": ABSENT, **options})


def test_more_ranks_need_a_group(run):
    with pytest.raises(UsageError, match="WORLD_SIZE=2 needs group"):
        run.client(1, world_size=2, shared={"model": {}}, absent=ABSENT)


def test_the_calls_have_an_order(run):
    run.open(1)
    client, _ = simple(run)
    with pytest.raises(UsageError, match="before restore"):
        client.step_done(1)
    client.restore()
    with pytest.raises(UsageError, match="twice"):
        client.restore()
    client.step_done(1)
    with pytest.raises(UsageError, match="only grow"):
        client.step_done(1)


def test_the_client_imports_nothing_heavy():
    heavy = ("hera", "kubernetes", "rich", "typer", "numpy", "torch", "yaml", "boto3", "jinja2")
    script = f"import sys, rerail.plugins.trainer\nprint([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_public_names_are_sorted():
    from rerail.plugins import trainer

    assert sorted(trainer.__all__) == list(trainer.__all__)
    assert all(hasattr(trainer, name) for name in trainer.__all__)


# who may run an attempt


def test_another_gang_leaves(run):
    run.open(1, gang="somebody-else")
    client, _ = simple(run)
    with pytest.raises(Left) as left:
        client.restore()
    assert left.value.code == 86
    assert "somebody-else" in left.value.reason


def test_a_newer_seal_and_a_missing_start_leave(run):
    run.open(1)
    run.open(2)
    for attempt in (1, 3):
        client, _ = simple(run, attempt)
        with pytest.raises(Left) as left:
            client.restore()
        assert left.value.code == 86


def test_a_second_start_of_the_process_group_leaves(run):
    run.open(1)
    simple(run)[0].restore()
    with pytest.raises(Left) as left:
        simple(run)[0].restore()
    assert left.value.code == 86
    assert "another start" in left.value.reason


def test_a_wrong_world_size_is_not_retried(run):
    run.open(1, world_size=2)
    with pytest.raises(Left) as left:
        simple(run)[0].restore()
    assert left.value.code == 87


def test_a_seal_that_comes_later_ends_training(run, until):
    run.open(1)
    client, _ = simple(run)
    client.restore()
    client.step_done(1)
    run.open(2)
    until(lambda: client._poller.superseded == 2, "the newer seal")
    assert client.wish() == Wish.LEAVE
    with pytest.raises(Left) as left:
        client.step_done(2)
    assert left.value.code == 86
    assert run.commits() == []


def test_a_save_that_a_newer_attempt_goes_on_without_is_fenced(run):
    run.open(1)
    client, _ = simple(run, every=Every(steps=2), environ={"RERAIL_POLL_S": "3600"})
    client.restore()
    client.step_done(1)
    run.open(2)
    with pytest.raises(Left) as left:
        client.step_done(2)
    assert left.value.code == 86
    assert "attempt 2" in left.value.reason
    assert resolve(run.run).step is None or resolve(run.run).decision == "fresh"


# damage


def saved(run, **options):
    run.open(1)
    client, model = simple(run, every=Every(steps=2), **options)
    client.restore()
    for step in range(1, 5):
        model["w"] += step
        client.step_done(step)
    client._close()
    return read_manifest(run.run, 1, 4)


@pytest.mark.parametrize("how", ["flipped", "missing", "truncated"])
def test_damage_is_marked_and_the_next_attempt_skips_it(run, how):
    manifest = saved(run)
    path = run.root / run.name / "shards" / manifest.files[0].path
    content = bytearray(path.read_bytes())
    run.open(2)
    path.chmod(0o644)
    if how == "missing":
        path.unlink()
    else:
        content[-1] ^= 1
        path.write_bytes(content if how == "flipped" else content[:-1])
    with pytest.raises(Left) as left:
        simple(run, 2)[0].restore()
    assert left.value.code == 88
    assert "model" in left.value.reason
    assert read_marks(run.run) == {MarkKey(1, 4, "bad")}
    assert not read_certificate(run.run, 2).ok
    start = run.open(3)
    assert start.load.step == 2
    client, model = simple(run, 3)
    assert client.restore() == 2
    assert model["w"][0] == 1 + 2


def test_a_store_that_is_away_while_loading_is_no_damage(run, monkeypatch):
    saved(run)
    run.open(2)

    def away(*_args, **_kwargs):
        raise StoreUnreachableError("the test's store is away")

    monkeypatch.setattr(PosixStore, "download", away)
    with pytest.raises(Left) as left:
        simple(run, 2)[0].restore()
    assert left.value.code == 86
    assert read_marks(run.run) == frozenset()


def test_another_environment_is_said(run, monkeypatch):
    saved(run)
    run.open(2)
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    client, _ = simple(run, 2)
    client.restore()
    assert client.certificate.ok
    assert not client.certificate.exact
    assert any("blas_threads" in reason and "OMP_NUM_THREADS=7" in reason for reason in client.certificate.reasons)
    assert {"python", "numpy", "blas", "machine"} <= set(client.certificate.environment)
    assert differences({"a": "1"}, {"b": "2"}) == ("a: 1 -> unknown", "b: unknown -> 2")


# requests


def test_a_request_is_answered_by_a_snapshot_later_than_its_sight(run, until):
    run.open(1)
    client, _ = simple(run)
    client.restore()
    agreed = client.wish()
    add_request(run.run, attempt=1, reason="test", within_s=60, then="stay", writer="w" * 8, id="one")
    until(client._book.waiting, "the sight")
    client.step_done(1, agreed=agreed)
    assert run.commits() == []
    client.step_done(2, agreed=client.wish())
    manifest = read_manifest(run.run, 1, 2)
    assert (manifest.reason, manifest.answers) == ("request", ("one",))
    client.step_done(3, agreed=client.wish())
    assert run.commits() == [(1, 2)]


def test_another_ranks_wish_does_not_answer_what_this_rank_saw_after_its_own(run, until):
    run.open(1)
    client, _ = simple(run)
    client.restore()
    client.wish()
    add_request(run.run, attempt=1, reason="test", within_s=60, then="stay", writer="w" * 8, id="one")
    until(client._book.waiting, "the sight")
    client.step_done(1, agreed=Wish.SAVE)
    assert read_manifest(run.run, 1, 1).answers == ()
    client.step_done(2, agreed=client.wish())
    assert read_manifest(run.run, 1, 2).answers == ("one",)


def test_c3_06_a_request_that_evaluation_outlives_is_recorded_with_its_phase(run, until, caplog):
    run.open(1)
    client, _ = simple(run, every=Every(steps=9))
    client.restore()
    for step in range(1, 13):
        client.step_done(step)
    with client.phase("evaluation"):
        add_request(run.run, attempt=1, reason="evict", within_s=0.1, then="leave", writer="w" * 8, id="evict")
        until(lambda: client.missed == {"evaluation": 1}, "the miss")
    assert "the ranks were in evaluation" in caplog.text
    assert resolve(run.run).step == 9


def test_sigterm_in_one_process(run):
    run.open(1)
    before = signal.getsignal(signal.SIGTERM)
    try:
        client, _ = simple(run, handle_signals=True)
        client.restore()
        client.step_done(1)
        os.kill(os.getpid(), 15)
        with pytest.raises(Left) as left:
            client.step_done(2)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert left.value.code == 85
    assert read_manifest(run.run, 1, 2).reason == "signal"


LEAVES = """
import atexit, os, sys
atexit.register(os.kill, os.getpid(), 15)  # registered first, so it comes last
from rerail.plugins.trainer.signals import TermSignal
term = TermSignal()
term.install()
getattr(term, sys.argv[1])()
os.kill(os.getpid(), 15)
sys.exit(85)
"""


@pytest.mark.parametrize(("how", "code"), [("disregard", 85), ("restore", -15)])
def test_sigterm_while_it_leaves_does_not_take_the_exit_code_away(how, code):
    assert subprocess.run([sys.executable, "-c", LEAVES, how], timeout=60, check=False).returncode == code


# progress


def test_c2_11_a_resume_that_is_not_applied_stops_before_the_first_commit(run, tmp_path):
    saved(run)
    run.open(2)
    report = tmp_path / "report"
    client, _ = simple(run, 2, every=Every(steps=1), environ={"RERAIL_RANK_REPORT": str(report)})
    assert client.restore() == 4
    with pytest.raises(Left) as left:
        client.step_done(1, loss=9.7)
    assert left.value.code == 87
    assert "resume not applied" in left.value.reason
    assert run.commits() == [(1, 2), (1, 4)]
    assert json.loads(report.read_text())["error"].startswith("ResumeNotApplied")


@pytest.mark.parametrize("told", [{"epoch": 1}, {"epoch": 2, "counters": {"micro_batches": 11}}])
def test_epoch_or_counters_that_go_back_are_a_resume_that_is_not_applied(run, told):
    run.open(1)
    absent = {part: reason for part, reason in ABSENT.items() if part != "epoch"}
    client, _ = simple(run, every=Every(steps=3), absent=absent)
    client.restore()
    for step in range(1, 4):
        client.step_done(step, epoch=2, counters={"micro_batches": 4 * step})
    client._close()
    run.open(2)
    client, _ = simple(run, 2, absent=absent)
    assert client.restore() == 3
    assert (client.restored_epoch, client.restored_counters["micro_batches"]) == (2, 12)
    with pytest.raises(Left) as left:
        client.step_done(4, **told)
    assert left.value.code == 87


@pytest.mark.parametrize("accumulation", [1, 4, 8])
def test_c2_03_04_05_counters_stand_at_optimizer_step_boundaries(run, accumulation):
    """SIGTERM inside an accumulation window: what is recorded is the boundary, and the stream goes on there."""
    run.open(1)
    seen = []

    def train(client, step, stop, signal_at=None):
        micro = client.restored_counters.get("micro_batches", 0)
        while step < stop:
            for _ in range(accumulation):
                seen.append(micro)
                micro += 1
                if micro == signal_at:
                    client._signal.seen_s = time.monotonic()
            step += 1
            client.step_done(step, counters={"micro_batches": micro})

    client, _ = simple(run)
    with pytest.raises(Left) as left:
        train(client, client.restore(), 10, signal_at=5 * accumulation + (accumulation + 1) // 2)
    assert left.value.code == 85
    manifest = read_manifest(run.run, 1, 6)
    assert manifest.counters == {"optimizer_steps": 6, "micro_batches": 6 * accumulation}
    run.open(2)
    client, _ = simple(run, 2)
    train(client, client.restore(), 10)
    assert seen == list(range(10 * accumulation))


def test_finish_is_final_once(run):
    run.open(1)
    client, _ = simple(run, total_steps=4, every=Every(steps=2))
    step = client.restore()
    for step in range(1, 5):
        client.step_done(step)
    client.finish(step)
    assert run.commits() == [(1, 2), (1, 4)]
    assert read_manifest(run.run, 1, 4).reason == "final"
    run.open(2)
    client, _ = simple(run, 2, total_steps=4)
    client.finish(client.restore())
    assert run.commits() == [(1, 2), (1, 4)]


def test_finish_on_a_periodic_commit_says_how_to_avoid_it(run):
    run.open(1)
    client, _ = simple(run, every=Every(steps=2))
    client.restore()
    client.step_done(1)
    client.step_done(2)
    with pytest.raises(UsageError, match="total_steps=2"):
        client.finish(2)


def test_an_epoch_that_is_never_told_is_refused(run):
    from rerail.policies.errors import IncompleteStateError

    run.open(1)
    client, _ = simple(run, absent={part: reason for part, reason in ABSENT.items() if part != "epoch"})
    client.restore()
    with pytest.raises(IncompleteStateError, match="epoch"):
        client.step_done(1)


def test_time_on_many_ranks_needs_agreement(run, ranks):
    run.open(1, world_size=2)

    def work(rank, group):
        client, _ = simple_rank(run, 1, rank, group, every=Every(seconds=1))
        client.restore()
        with pytest.raises(UsageError, match="agreed="):
            client.step_done(1)

    assert ranks(2, work) == [None, None]


# many ranks


def simple_rank(run, attempt, rank, group, **options):
    generator = np.random.default_rng([9, rank])
    absent = {part: reason for part, reason in ABSENT.items() if part != "rng"}
    client = run.client(
        attempt,
        rank=rank,
        world_size=group.world_size,
        group=group,
        shared={"model": {"w": np.zeros(3)}},
        per_rank={"rng": RandomState(generator, python=False)},
        absent=absent,
        **options,
    )
    return client, generator


def test_c2_07_each_rank_gets_its_own_random_state(run, ranks):
    run.open(1, world_size=4)

    def first(rank, group):
        client, generator = simple_rank(run, 1, rank, group, every=Every(steps=1))
        client.restore()
        generator.random(10 + rank)
        client.step_done(1)
        client._close()
        return float(generator.random())

    expected = ranks(4, first)
    assert len(set(expected)) == 4
    names = [entry.path.rsplit("/", 1)[-1] for entry in read_manifest(run.run, 1, 1).files if "rng" in entry.path]
    assert names == [f"rng.{rank:05d}.safetensors" for rank in range(4)]
    run.open(2, world_size=4)

    def second(rank, group):
        client, generator = simple_rank(run, 2, rank, group)
        assert client.restore() == 1
        client._close()
        return float(generator.random())

    assert ranks(4, second) == expected


def test_c2_08_more_ranks_than_were_saved_are_derived_and_said(run, ranks):
    run.open(1, world_size=8)

    def first(rank, group):
        client, generator = simple_rank(run, 1, rank, group, every=Every(steps=1), reshardable=True, seed=5)
        client.restore()
        client.step_done(1)
        client._close()
        return float(generator.random())

    before = ranks(8, first)
    run.open(2, world_size=16, layout=Layout(world_size=16, dp=16, reshardable=True))

    def second(rank, group):
        client, generator = simple_rank(run, 2, rank, group, reshardable=True)
        assert client.restore() == 1
        client._close()
        return float(generator.random()), client.certificate

    after = ranks(16, second)
    draws = [draw for draw, _ in after]
    assert draws[:8] == before
    assert len(set(draws)) == 16
    certificate = after[15][1]
    assert certificate == read_certificate(run.run, 2)
    assert (certificate.ok, certificate.exact) == (True, False)
    assert certificate.reasons == (
        "world size 8 -> 16",
        "RNG of ranks 8-15 derived",
        "global batch changes unless accumulation 2x -> 1x",
    )


def test_one_ranks_damage_ends_all_ranks_with_88(run, ranks):
    run.open(1, world_size=3)

    def first(rank, group):
        client, _ = simple_rank(run, 1, rank, group, every=Every(steps=1))
        client.restore()
        client.step_done(1)
        client._close()

    ranks(3, first)
    run.open(2, world_size=3)
    path = next((run.root / run.name / "shards").rglob("rng.00002.safetensors"))
    path.chmod(0o644)
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    results = ranks(3, lambda rank, group: simple_rank(run, 2, rank, group)[0].restore())
    assert [one.code for one in results] == [88, 88, 88]
    assert all("rank 2" in one.reason and "rng" in one.reason for one in results)
    assert read_marks(run.run) == {MarkKey(1, 1, "bad")}


def test_a_layout_that_cannot_be_resharded_is_not_loaded(run):
    from rerail.plugins.trainer.loading import Loader, RankLoad
    from rerail.plugins.trainer.state import collect

    manifest = saved(run)
    state = collect(shared={"model": {"w": np.zeros(4)}}, per_rank={}, absent=ABSENT, strict=True)
    found = RankLoad(0, "n", {})
    Loader(run.run, manifest, state, 0, 2, None).load(found)
    assert found.mismatch[0].startswith("distributed: saved by 1 ranks, loaded by 2")
    assert found.files == 0
