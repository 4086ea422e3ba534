from dataclasses import replace

import pytest

from rerail.plugins.checkpoint.attempts import newest_opening, read_run, seal_attempt, start_attempt
from rerail.plugins.checkpoint.commit import read_entry, read_manifest
from rerail.plugins.checkpoint.notes import mark_commit, unmark_commit
from rerail.policies import keys
from rerail.policies.documents import ChainLink, Rendezvous, Seal
from rerail.policies.errors import (
    DamagedError,
    NewerFormatError,
    NotFoundError,
    RefusedError,
    ResumeBlockedError,
    StoreUnreachableError,
    SupersededError,
    UsageError,
)
from rerail.policies.manifest import Layout


def mark(scene, attempt, step, kind):
    mark_commit(scene.store, attempt=attempt, step=step, kind=kind, why="test", writer="test-writer")


def test_a_run_that_never_began_is_fresh(scene):
    found = scene.resolve()
    assert (found.decision, found.step, found.attempt, found.manifest) == ("fresh", 0, None, None)
    assert found.requests <= 5


def test_the_first_attempt_starts_fresh_and_with_no_chain(scene):
    start = scene.open(1)
    assert (start.load, start.chain, start.skipped) == (None, (), ())


def test_an_attempt_that_died_before_its_first_commit_loses_nothing_by_a_fresh_start(scene):
    scene.open(1)
    assert scene.resolve().decision == "fresh"
    assert scene.open(2).load is None


def test_the_newest_commit_of_the_chain_is_taken_within_five_requests(scene):
    scene.open(1)
    scene.save(1, 100)
    newest = scene.save(1, 200)
    found = scene.resolve()
    assert (found.decision, found.step, found.attempt) == ("resume", 200, 1)
    assert found.manifest == keys.manifest(1, 200)
    assert found.chain == (ChainLink(attempt=1, step=200),)
    assert found.requests == 5
    assert newest.step == 200


@pytest.mark.parametrize(("attempts", "saves"), [(1, 1), (1, 250), (12, 10)])
def test_five_requests_whatever_has_piled_up(scene, attempts, saves):
    step = 0
    for attempt in range(1, attempts + 1):
        scene.open(attempt)
        for _ in range(saves):
            step += 1
            scene.save(attempt, step)
    found = scene.resolve()
    assert (found.step, found.requests) == (step, 5)
    assert scene.open(attempts + 1).load.step == step
    found = scene.resolve()  # the newest attempt has no commit of its own yet
    assert (found.step, found.requests) == (step, 5)


def test_files_beyond_one_page_do_not_cost_more_requests(scene_of, memory):
    scene = scene_of(memory, world_size=600)
    scene.submit()
    scene.open(1)
    scene.save(1, 10)
    found = scene.resolve()
    assert (found.decision, found.requests) == ("resume", 5)


def test_a_chain_leaves_out_what_came_after_the_loaded_commit(scene):
    scene.open(1)
    scene.save(1, 100)
    scene.save(1, 200)
    mark(scene, 1, 200, "bad")
    start = scene.open(2)
    assert start.load.step == 100
    assert start.chain == (ChainLink(attempt=1, step=100),)
    assert [(skip.step, skip.why) for skip in start.skipped] == [(200, "marked bad")]
    unmark_commit(scene.store, attempt=1, step=200, kind="bad")
    assert scene.resolve().step == 100  # off the chain for good


def test_the_chain_goes_back_over_attempts_with_and_without_commits(scene):
    scene.open(1)
    scene.save(1, 100)
    scene.open(2)
    scene.open(3)
    scene.save(3, 150)
    scene.save(3, 250)
    start = scene.open(4)
    assert start.chain == (ChainLink(attempt=3, step=250), ChainLink(attempt=1, step=100))
    for step in (150, 250):
        mark(scene, 3, step, "suspect")
    found = scene.resolve()
    assert (found.attempt, found.step) == (1, 100)
    assert [skip.step for skip in found.skipped] == [250, 150]
    assert scene.open(5).chain == (ChainLink(attempt=1, step=100),)


def test_only_suspect_commits_left_blocks_and_says_what_to_do(scene):
    scene.open(1)
    scene.save(1, 100)
    mark(scene, 1, 100, "suspect")
    found = scene.resolve()
    assert found.decision == "blocked"
    assert "only suspect checkpoints are left (1)" in found.reason
    assert any("--step 100" in option for option in found.options)
    with pytest.raises(ResumeBlockedError, match="only suspect"):
        scene.open(2)
    assert scene.resolve(step=100).decision == "resume"


def test_a_missing_file_or_wrong_size_leads_to_the_commit_before_and_costs_two_requests_more(scene, memory):
    scene.open(1)
    scene.save(1, 100)
    two = scene.save(1, 200)
    path = f"llama/shards/{two.files[0].path}"
    memory.objects[path] = memory.objects[path][:-1]
    found = scene.resolve()
    assert (found.step, found.requests) == (100, 7)
    assert "has 5999 bytes, expected 6000" in found.skipped[0].why
    memory.objects[path] = b""
    assert "is empty" in scene.resolve().skipped[0].why
    del memory.objects[path]
    assert "is missing" in scene.resolve().skipped[0].why


def test_files_that_are_away_are_judged_by_the_ranks_that_load_them(scene, memory):
    scene.open(1)
    scene.save(1, 100)
    for entry in scene.save(1, 200).files:
        del memory.objects[f"llama/shards/{entry.path}"]
    assert scene.resolve().step == 100
    scene.store = replace(scene.store, away=True)
    assert scene.resolve().step == 200
    mark(scene, 1, 200, "bad")
    assert scene.resolve().step == 100


def test_all_damaged_is_blocked_and_never_fresh(scene, memory):
    scene.open(1)
    for entry in scene.save(1, 100).files:
        del memory.objects[f"llama/shards/{entry.path}"]
    found = scene.resolve()
    assert found.decision == "blocked"
    assert "1 damaged or bad" in found.reason
    with pytest.raises(ResumeBlockedError):
        scene.open(2)


def test_the_loaded_commit_that_is_gone_is_said(scene):
    scene.open(1)
    scene.save(1, 100)
    scene.save(1, 200)
    scene.open(2)
    scene.store.control.delete((keys.manifest(1, 200),))
    found = scene.resolve()
    assert found.step == 100
    assert "no commit of step 200" in found.skipped[0].why


def test_another_manifest_than_the_start_named_is_damage(scene):
    scene.open(1)
    scene.save(1, 100)
    scene.save(1, 200)
    scene.open(2)
    scene.rewrite(keys.manifest(1, 200), lambda doc: doc.update(loss=0.5))
    found = scene.resolve()
    assert found.step == 100
    assert "another manifest than a start loaded" in found.skipped[0].why


def test_an_explicit_step_that_is_not_there_names_those_that_are(scene):
    scene.open(1)
    for step in (400, 600):
        scene.save(1, step)
    with pytest.raises(NotFoundError, match=r"^step 500 not found \(have 400, 600\)$"):
        scene.resolve(step=500)
    assert scene.resolve(step=400).step == 400


def test_an_explicit_step_that_is_damaged_is_not_replaced(scene, memory):
    scene.open(1)
    scene.save(1, 400)
    del memory.objects[f"llama/shards/{scene.save(1, 600).files[1].path}"]
    found = scene.resolve(step=600)
    assert (found.decision, found.step) == ("blocked", None)


def test_an_explicit_step_of_an_unstarted_run_is_not_there(scene):
    with pytest.raises(NotFoundError, match="have none"):
        scene.resolve(step=5)


def test_run_json_gone_is_blocked_when_an_attempt_is_known_and_not_found_else(scene_of, memory):
    scene = scene_of(memory)
    with pytest.raises(NotFoundError, match=r"run\.json of run 'llama' is not at"):
        scene.resolve()
    found = scene.resolve(known=True)
    assert found.decision == "blocked"
    assert any("wrong mount" in option for option in found.options)
    with pytest.raises(ResumeBlockedError, match="although the run had an attempt before"):
        scene.open(1, known=True)
    with pytest.raises(NotFoundError, match="check the name"):
        read_run(scene.store)


def test_a_later_attempt_in_a_store_that_knows_no_earlier_one_is_blocked(scene):
    with pytest.raises(ResumeBlockedError, match="no earlier attempt is in this store"):
        scene.open(3)


def test_commits_without_any_start_are_blocked(scene):
    scene.open(1)
    scene.save(1, 100)
    scene.store.control.delete((keys.start(1),))
    assert scene.resolve().decision == "blocked"


def test_a_damaged_start_is_blocked(scene):
    scene.open(1)
    scene.save(1, 100)
    scene.rewrite(keys.start(1), lambda doc: doc.update(gang="another"), redigest=False)
    found = scene.resolve()
    assert found.decision == "blocked"
    assert "lineage cannot be read" in found.reason


def test_a_newer_format_blocks_instead_of_falling_back(scene):
    scene.open(1)
    scene.save(1, 100)
    scene.save(1, 200)
    scene.rewrite(keys.manifest(1, 200), lambda doc: doc.update(format=2))
    found = scene.resolve()
    assert (found.decision, found.step) == ("blocked", None)
    assert "format 2 is newer than 1" in found.reason
    assert "upgrade" in found.options[0]
    with pytest.raises(NewerFormatError):
        scene.open(2)


def test_an_unknown_algorithm_blocks(scene):
    scene.open(1)
    scene.save(1, 100)
    scene.save(1, 200)
    scene.rewrite(keys.manifest(1, 200), lambda doc: doc["files"][0].update(digest="blake9:00"))
    assert "unknown algorithm" in scene.resolve().reason


def test_unknown_fields_are_kept(scene):
    scene.open(1)
    scene.save(1, 100)
    scene.rewrite(keys.manifest(1, 100), lambda doc: (doc.update(colour="red"), doc["files"][0].update(tier=2)))
    manifest = read_manifest(scene.store, 1, 100)
    assert manifest.model_extra == {"colour": "red"}
    assert manifest.encode() == scene.store.control.get(keys.manifest(1, 100))
    assert scene.resolve().step == 100


@pytest.mark.parametrize("path", ["../../etc/passwd", "/etc/passwd", "1.100.00000001/../../x", "a//b", "."])
def test_a_hostile_path_in_a_manifest_is_damage_that_names_it(scene, path):
    scene.open(1)
    scene.save(1, 50)
    scene.save(1, 100)

    def change(doc):
        old = doc["files"][0]["path"]
        doc["files"][0]["path"] = path
        files = doc["parts"]["model"]["files"]
        files[files.index(old)] = path

    scene.rewrite(keys.manifest(1, 100), change)
    with pytest.raises(DamagedError) as caught:
        read_manifest(scene.store, 1, 100)
    assert repr(path) in str(caught.value)
    found = scene.resolve()
    assert found.step == 50
    assert repr(path) in found.skipped[0].why


def test_a_hostile_folder_in_a_manifest_is_damage_that_names_it(scene):
    scene.open(1)
    scene.save(1, 100)
    scene.rewrite(keys.manifest(1, 100), lambda doc: doc.update(folder=""))
    with pytest.raises(DamagedError, match="folder ''"):
        read_manifest(scene.store, 1, 100)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"run": "other"}, "belongs to run 'other'"),
        ({"step": 99}, "stale or copied"),
        ({"attempt": 2}, "stale or copied"),
        ({"save_id": "deadbeef"}, "is not that of save"),
    ],
)
def test_a_stale_or_copied_manifest_is_damage(scene, change, word):
    scene.open(1)
    scene.save(1, 100)
    scene.rewrite(keys.manifest(1, 100), lambda doc: doc.update(change))
    with pytest.raises(DamagedError, match=word):
        read_manifest(scene.store, 1, 100)


def test_another_world_size_is_blocked_with_options_and_no_older_commit(scene_of, memory):
    scene = scene_of(memory, world_size=32)
    scene.submit()
    scene.open(1)
    scene.save(1, 3800)
    scene.save(1, 4000)
    found = scene.resolve(layout=Layout(world_size=24))
    assert (found.decision, found.step) == ("blocked", None)
    assert found.reason == "topology mismatch: checkpoint dp=32, gang dp=24, format not reshardable"
    assert found.options == (
        "wait for 32 GPUs",
        "convert to universal/resharded checkpoint",
        "explicit weights-only resume (optimizer reset)",
    )
    with pytest.raises(ResumeBlockedError, match="dp=24"):
        scene.open(2, world_size=24)


def test_a_reshardable_format_resumes_on_another_world_size(scene):
    scene.open(1)
    scene.save(1, 100, layout=Layout(world_size=2, reshardable=True))
    assert scene.resolve(layout=Layout(world_size=24)).decision == "resume"


def test_a_temporary_commit_is_equal_for_resume(scene):
    scene.open(1)
    scene.save(1, 54000)
    scene.save(1, 58014, temporary=True)
    assert scene.resolve().step == 58014


def test_forbidden_blocks_and_unreachable_is_raised_and_neither_goes_back(scene, monkeypatch):
    scene.open(1)
    scene.save(1, 100)
    scene.save(1, 200)
    store = scene.store.control

    def refuse(key):
        raise RefusedError(f"403 for {key}")

    def lost(key):
        raise StoreUnreachableError(f"503 for {key}")

    real = store.get
    monkeypatch.setattr(store, "get", lambda key: refuse(key) if "2.9" in key else real(key))
    found = scene.resolve()
    assert (found.decision, found.step) == ("blocked", None)
    assert "403" in found.reason
    monkeypatch.setattr(store, "get", lambda key: lost(key) if "2.9" in key else real(key))
    with pytest.raises(StoreUnreachableError):
        scene.resolve()


def test_incremental_saves_share_files_and_one_list_finds_them_all(scene, memory):
    scene.open(1)
    full = scene.save(1, 100)
    second = scene.save(1, 200, base=full)
    third = scene.save(1, 300, base=second)
    shared = {entry.path for entry in full.files} & {entry.path for entry in third.files}
    assert len(shared) == scene.world_size
    assert second.folder == third.folder == full.folder == third.base
    assert not third.full
    assert sum("frozen" in key for key in memory.objects) == scene.world_size
    start = scene.open(2)
    assert start.load.step == 300
    fourth = scene.save(2, 400, base=third)  # the start's commit may be a base too
    found = scene.resolve()
    assert (found.step, found.requests) == (400, 5)
    for entry in fourth.files:
        read_entry(scene.store, entry, memoryview(bytearray(entry.size)))


def test_a_sealed_attempt_does_not_hide_the_newest_start(scene):
    scene.open(1)
    scene.save(1, 100)
    seal = Seal(writer="supervisor", run="llama", attempt=2, how="new-gang", gang="llama-a2")
    seal_attempt(scene.store, seal)
    opening = newest_opening(scene.store)
    assert (opening.sealed, opening.started) == (2, 1)
    assert scene.resolve().step == 100


def test_an_attempt_is_started_only_when_sealed_and_never_behind_a_newer_seal(scene):
    scene.open(1)
    how = {
        "how": "new-gang",
        "gang": "llama-a2",
        "world_size": 2,
        "rendezvous": Rendezvous(id="r", host="h", port=1),
        "writer": "supervisor",
    }
    with pytest.raises(UsageError, match="not sealed"):
        start_attempt(scene.store, attempt=2, **how)
    for attempt in (2, 3):
        seal = Seal(writer="supervisor", run="llama", attempt=attempt, how="new-gang", gang="g")
        seal_attempt(scene.store, seal)
    with pytest.raises(SupersededError, match="attempt 3"):
        start_attempt(scene.store, attempt=2, **how)
    assert start_attempt(scene.store, attempt=3, **how).attempt == 3


def test_opening_again_gives_the_start_that_stands(scene):
    first = scene.open(1)
    assert scene.open(1, writer="another-one") == first


def test_another_owner_is_refused_unless_it_takes_over(scene):
    with pytest.raises(RefusedError, match="belongs to 'test'"):
        scene.submit(owner="somebody", writer="somebody-else")
    assert read_run(scene.store).owner == "test"


def test_the_final_commit_is_told(scene):
    scene.open(1)
    scene.save(1, 100)
    assert not scene.resolve().final
    scene.save(1, 200, reason="final")
    assert scene.resolve().final
