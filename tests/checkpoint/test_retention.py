import pytest

from rerail.plugins.checkpoint.notes import mark_commit, read_marks
from rerail.plugins.checkpoint.retention import collect
from rerail.plugins.checkpoint.verify import verify
from rerail.policies import keys
from rerail.policies.documents import CommitRef
from rerail.policies.errors import NewerFormatError, UsageError
from rerail.policies.retention import AnyOf, Best, CommitFact, EveryN, LatestN, MaxAge, plan

HOUR = 3600.0


def facts(*steps, attempt=1, **more):
    return [CommitFact(attempt=attempt, step=step, **more) for step in steps]


def steps_of(names):
    return [step for _, step in names]


def test_steps_are_numbers_and_not_text():
    decided = plan(facts(9000, 9100, 9200, 9300, 9400, 9500, 9600, 9700, 9800, 9900, 10000), LatestN(n=10), now_s=0)
    assert steps_of(decided.delete) == [9000]


def test_order_is_that_of_steps_whatever_the_clocks_say():
    stamps = {400: 300.0, 600: 600.0, 800: 900.0, 1000: 1.0}
    commits = [CommitFact(attempt=1, step=step, at_s=at_s) for step, at_s in stamps.items()]
    decided = plan(commits, LatestN(n=3), now_s=1000.0, keep_clean_s=0.0)
    assert steps_of(decided.delete) == [400]


def test_a_pin_that_is_not_there_is_a_warning():
    decided = plan(facts(900, 1000), LatestN(n=1), now_s=0, pins=[(1, 800)])
    assert steps_of(decided.delete) == [900]
    assert decided.warnings == ("protected checkpoint not found: attempt 1 step 800 (pin)",)


def test_a_temporary_commit_stays_while_it_is_the_newest_and_takes_nobodys_place():
    commits = [*facts(54000), *facts(58014, temporary=True)]
    assert not plan(commits, LatestN(n=1), now_s=0).delete
    decided = plan([*commits, *facts(59000)], LatestN(n=2), now_s=0)
    assert steps_of(decided.delete) == [58014]


def test_the_newest_good_one_and_all_newer_ones_stay():
    commits = [*facts(100, 200), *facts(300, 400, good=False)]
    decided = plan(commits, LatestN(n=1), now_s=0)
    assert steps_of(decided.delete) == [100]
    assert not plan(facts(100, 200, good=False), LatestN(n=1), now_s=0).delete


def test_bad_ones_count_for_nothing_and_go_once_a_newer_good_one_exists():
    commits = [*facts(100, 300), *facts(200, good=False)]
    assert steps_of(plan(commits, LatestN(n=2), now_s=0).delete) == [200]


def test_the_newest_good_one_that_a_late_finding_does_not_reach_stays():
    commits = [CommitFact(attempt=1, step=step, at_s=step * HOUR) for step in (1, 2, 3, 9, 10)]
    decided = plan(commits, LatestN(n=1), now_s=10 * HOUR)
    assert steps_of(name for name, _ in decided.keep) == [10, 9, 3]


def test_some_good_one_always_grows_old_enough():
    """With frequent saves and few kept, each would otherwise go before it is out of a late finding's reach."""
    kept = []
    for step in range(1, 400):
        now_s = step * 300.0
        kept.append(CommitFact(attempt=1, step=step, at_s=now_s))
        gone = set(plan(kept, LatestN(n=1), now_s=now_s, keep_clean_s=6 * HOUR).delete)
        kept = [commit for commit in kept if commit.name not in gone]
        assert len(kept) <= 3
        if now_s > 13 * HOUR:
            assert any(6 * HOUR < now_s - commit.at_s <= 12.2 * HOUR for commit in kept)


def test_what_the_current_start_loads_stays():
    decided = plan(facts(100, 200, 300), LatestN(n=1), now_s=0, load=CommitRef(attempt=1, step=100, digest="d"))
    assert steps_of(decided.delete) == [200]


def test_off_the_chain_goes_only_when_its_attempt_is_closed():
    commits = [*facts(100, 500, on_chain=False, closed=True), *facts(600, on_chain=False), *facts(200, attempt=2)]
    assert steps_of(plan(commits, LatestN(n=5), now_s=0).delete) == [100, 500]


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (LatestN(n=2), [500, 400]),
        (EveryN(steps=200), [500, 400, 200]),
        (Best(n=2), [500, 300, 200]),
        (MaxAge(max_age_s=250.0), [500, 400, 300]),
        (AnyOf(LatestN(n=2), Best(n=1)), [500, 400, 200]),
    ],
)
def test_policies_compose(policy, kept):
    losses = {100: None, 200: 0.1, 300: 0.2, 400: float("nan"), 500: 0.3}
    commits = [CommitFact(attempt=1, step=step, at_s=step, loss=loss) for step, loss in losses.items()]
    assert steps_of(name for name, _ in plan(commits, policy, now_s=500.5, keep_clean_s=0.0).keep) == kept


def test_no_policy_is_no_policy():
    with pytest.raises(UsageError, match="--keep-last"):
        AnyOf()


# Carried out


def gone(scene, attempt, step):
    return not scene.store.control.page(keys.manifest(attempt, step)).entries


def test_collecting_deletes_commits_and_exactly_their_files(scene, memory):
    scene.open(1)
    for step in (100, 200, 300):
        scene.save(1, step)
    dry = collect(scene.store, LatestN(n=2), dry_run=True, wall=lambda: 0.0)
    assert dry.dry_run
    assert not gone(scene, 1, 100)
    done = collect(scene.store, LatestN(n=2), wall=lambda: 0.0)
    assert (done.deleted, done.files, done.freed_bytes) == (dry.deleted, dry.files, dry.freed_bytes)
    assert done.deleted == ("1.100",)
    assert gone(scene, 1, 100)
    assert not any("/1.100." in key for key in memory.objects)
    assert all(verdict.ok for verdict in verify(scene.store))


def test_files_that_a_kept_incremental_commit_names_stay(scene, memory):
    scene.open(1)
    full = scene.save(1, 100)
    second = scene.save(1, 200, base=full)
    scene.save(1, 300, base=second)
    done = collect(scene.store, LatestN(n=1), wall=lambda: 0.0)
    assert done.deleted == ("1.100", "1.200")
    assert sum("frozen" in key for key in memory.objects) == scene.world_size
    assert sum("model" in key for key in memory.objects) == scene.world_size
    assert [(verdict.step, verdict.ok) for verdict in verify(scene.store)] == [(300, True)]


def test_shards_without_a_manifest_go_only_when_their_attempt_is_over(scene, memory):
    scene.open(1)
    scene.save(1, 100)
    scene.parts(1, 200, "aaaaaaaa")
    collect(scene.store, LatestN(n=1), wall=lambda: 0.0)
    assert any("aaaaaaaa" in key for key in memory.objects)  # the save may be under way
    scene.open(2)
    scene.parts(2, 200, "bbbbbbbb")
    collect(scene.store, LatestN(n=1), wall=lambda: 0.0)
    assert not any("aaaaaaaa" in key for key in memory.objects)
    assert any("bbbbbbbb" in key for key in memory.objects)


def test_another_runs_manifests_are_neither_resumed_nor_deleted(scene_of, memory):
    other = scene_of(memory)
    other.submit()
    other.open(1)
    for step in (500, 600, 700):
        other.save(1, step)
    for step in (500, 600, 700):
        other.rewrite(keys.manifest(1, step), lambda doc: doc.update(run="run-a"))
    other.save(1, 100)
    assert other.resolve().step == 100
    done = collect(other.store, LatestN(n=3), wall=lambda: 0.0)
    assert (done.deleted, done.foreign_runs) == ((), {"run-a": (500, 600, 700)})
    assert done.files == 0
    assert any("run-a" in warning for warning in done.warnings)


def test_pins_stay_and_a_bad_newest_one_is_not_what_counts(scene):
    scene.open(1)
    for step in (100, 200, 300, 400):
        scene.save(1, step)
    mark_commit(scene.store, attempt=1, step=100, kind="pin", why="paper", writer="a-person")
    mark_commit(scene.store, attempt=1, step=400, kind="bad", why="damage", writer="a-rank-of-2")
    mark_commit(scene.store, attempt=1, step=400, kind="bad", why="damage", writer="another-rank")
    done = collect(scene.store, LatestN(n=1), wall=lambda: 0.0)
    assert done.deleted == ("1.200",)
    assert done.kept["1.100"] == "pin"
    assert len(read_marks(scene.store)) == 2
    assert scene.resolve().step == 300


def test_nothing_is_deleted_beside_a_manifest_of_a_newer_format(scene):
    scene.open(1)
    for step in (100, 200, 300):
        scene.save(1, step)
    scene.rewrite(keys.manifest(1, 200), lambda doc: doc.update(format=9))
    with pytest.raises(NewerFormatError, match="nothing was deleted"):
        collect(scene.store, LatestN(n=1), wall=lambda: 0.0)
    assert not gone(scene, 1, 100)


def test_collecting_on_real_stores(scene_of, store):
    scene = scene_of(store)
    scene.submit()
    scene.open(1)
    base = None
    for step in (100, 200, 300):
        base = scene.save(1, step, base=base)
    scene.open(2)
    scene.save(2, 400)
    done = collect(scene.store, LatestN(n=1), wall=lambda: 0.0)
    assert done.deleted == ("1.100", "1.200")
    assert all(verdict.ok for verdict in verify(scene.store))
    found = scene.resolve()
    assert (found.step, found.requests) == (400, 5)
