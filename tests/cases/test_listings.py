"""Siblings of the listing cases: other numbers, names and layouts, and the limits of each rule."""

import pytest

from rerail.policies.errors import UsageError
from rerail.policies.judging import answer
from rerail.policies.judging.listings import list_calls, prune_steps
from rerail.policies.judging.names import step_of


def _listing(paths, **more):
    """A listing from paths (size 1000), (path, size) pairs or whole entries."""
    entries = []
    for path in paths:
        if isinstance(path, dict):
            entries.append({"size": 1000, **path})
        else:
            name, size = (path, 1000) if isinstance(path, str) else path
            entries.append({"path": name, "size": size})
    return answer({"kind": "checkpoint_listing", "layout": "generic", "entries": entries, **more})


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("checkpoint-10000", 10000),
        ("iter_0000900", 900),
        ("step-900", 900),
        ("step_1900", 1900),
        ("global_step1200", 1200),
        ("epoch418", 418),
        ("ep3-ba300", 300),
        ("epoch=3-step=200.ckpt", 200),
        ("step=200-v1.ckpt", 200),
        ("checkpoint_epoch_2_step_40", 40),
        ("00012000", 12000),
        ("/old/run-17/out/checkpoint-800/", 800),
        ("s3://bucket/run-3/ckpt/ep2-ba200", 200),
        ("best", None),
        ("run-17/model.pt", None),
    ],
)
def test_steps_are_integers_wherever_the_name_has_them(name, step):
    assert step_of(name) == step


def test_any_number_of_empty_checkpoints_is_walked_over():
    good = ["iter_0000040/weights.pt", "iter_0000040/optim.pt"]
    bad = [(f"iter_{step:07d}/{name}", 0) for step in (50, 60, 70, 80) for name in ("weights.pt", "optim.pt")]
    got = _listing(good + bad, tracker=None)
    assert got["resolve_step"] == 40
    assert got["rejected"] == dict.fromkeys(("80", "70", "60", "50"), "zero-byte files")


def test_one_empty_shard_is_named_and_an_empty_marker_is_no_damage():
    got = _listing(
        [
            "step-1/a.pt",
            "step-1/b.pt",
            ("step-1/_SUCCESS", 0),
            "step-2/a.pt",
            ("step-2/b.pt", 0),
            ("step-2/_SUCCESS", 0),
        ]
    )
    assert got["resolve_step"] == 1
    assert got["rejected"] == {"2": "zero-byte files: b.pt"}


def test_nothing_usable_is_blocked_and_never_fresh():
    got = _listing([("step-5/a.pt", 0)])
    assert (got["resolve_step"], got["decision"]) == (None, "blocked")
    assert _listing([])["decision"] == "fresh"


def test_older_bad_checkpoints_are_not_reported_once_a_newer_good_one_is_found():
    got = _listing(["step-3/a.pt", ("step-2/a.pt", 0), "step-1/a.pt"])
    assert (got["resolve_step"], got["rejected"]) == (3, {})


def test_temporary_names_and_markers_of_a_save_in_progress():
    got = _listing(
        ["step-10/a.pt", "tmp-step-20/a.pt", "step-30.partial/a.pt", "step-40/a.pt", ("step-40/.in_progress", 0)]
    )
    assert got["resolve_step"] == 10
    assert set(got["rejected"]) == {"20", "30", "40"}
    assert all("incomplete" in why for why in got["rejected"].values())


def test_a_marker_that_the_others_have_is_demanded():
    got = _listing(["step-10/a.pt", "step-10/COMPLETE", "step-20/a.pt"])
    assert (got["resolve_step"], got["rejected"]) == (10, {"20": "incomplete: COMPLETE missing"})


def test_a_file_that_all_others_have_is_missed_and_a_short_one_is_found():
    got = _listing(
        [
            ("e1/model.bin", 900),
            ("e1/optim.bin", 900),
            ("e2/model.bin", 900),
            ("e2/optim.bin", 900),
            ("e3/model.bin", 900),
            ("e4/model.bin", 90),
            ("e4/optim.bin", 900),
        ]
    )
    assert got["resolve_step"] == 2
    assert "optim.bin" in got["rejected"]["3"]
    assert got["rejected"]["4"].startswith("truncated: model.bin")


def test_numbered_shards_must_all_be_there():
    got = _listing(
        [f"checkpoint-1/model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
        + [f"checkpoint-2/model-0000{n}-of-00003.safetensors" for n in (1, 3)]
    )
    assert got["resolve_step"] == 1
    assert "model-00002-of-00003.safetensors" in got["rejected"]["2"]


def test_single_file_checkpoints():
    got = _listing(["run-7/epoch=1-step=100.ckpt", ("run-7/epoch=1-step=200.ckpt", 0), "run-7/step-300.ckpt.tmp"])
    assert (got["resolve_step"], set(got["rejected"])) == (100, {"200", "300"})


def test_a_bare_number_in_a_file_counts_where_nothing_else_names_a_step():
    assert _listing(["out/lora-000090.safetensors", "out/lora-000100.safetensors"])["resolve_step"] == 100


def test_files_that_name_no_step_are_no_fresh_start():
    assert _listing(["model.safetensors", "model-00001-of-00002.bin"])["decision"] == "blocked"


def _trainer(step, ranks, *leave_out):
    names = ["model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json"]
    names += [f"rng_state_{rank}.pth" for rank in range(ranks)]
    return [f"checkpoint-{step}/{name}" for name in names if name not in leave_out]


def test_hf_trainer_on_four_ranks():
    entries = (
        _trainer(900, 4)
        + _trainer(1000, 4, "rng_state_2.pth")
        + _trainer(1100, 4, "optimizer.pt", "trainer_state.json")
    )
    got = _listing(entries, layout="hf-trainer", world_size=4)
    assert got["resolve_step"] == 900
    assert got["rejected"]["1000"] == "incomplete: rng_state_2.pth missing"
    assert got["rejected"]["1100"] == "incomplete: optimizer.pt and trainer_state.json missing"
    assert got["delete_rejected"] is False


def test_hf_trainer_under_deepspeed_keeps_its_optimizer_in_a_folder_of_its_own():
    entries = ["checkpoint-20/global_step20/zero_pp_rank_0_mp_rank_00_optim_states.pt", "checkpoint-20/latest"]
    entries += ["checkpoint-20/trainer_state.json", "checkpoint-20/rng_state.pth"]
    assert _listing(entries, layout="hf-trainer", world_size=1)["resolve_step"] == 20


def _dcp(step, ranks, *, metadata=True):
    return [f"step_{step}/__{rank}_0.distcp" for rank in ranks] + ([f"step_{step}/.metadata"] if metadata else [])


def test_torch_dcp_needs_metadata_and_a_shard_of_each_rank():
    entries = [*_dcp(700, range(4)), *_dcp(800, (0, 3)), *_dcp(900, range(4), metadata=False)]
    entries.append({"path": "latest", "size": 0, "symlink_to": "step_900"})
    got = _listing(entries, layout="torch-dcp", world_size=4)
    assert (got["resolve_step"], got["repair_pointer_to"]) == (700, 700)
    assert got["rejected"] == {"900": "no .metadata", "800": "shards for ranks 1 and 2 missing"}


def test_a_pointer_that_is_right_needs_no_repair():
    entries = [*_dcp(700, range(2)), {"path": "latest", "size": 0, "symlink_to": "step_700"}]
    assert "repair_pointer_to" not in _listing(entries, layout="torch-dcp", world_size=2)


def test_pointer_before_the_objects_on_s3():
    entries = [f"out/step-{step}/rank{rank:02d}.pt" for step in (40, 50) for rank in range(4)]
    entries += [
        "out/step-60/rank00.pt",
        "out/step-60/rank02.pt",
        {"path": "out/latest", "size": 9, "content": "out/step-60"},
    ]
    got = _listing(entries, layout="s3", world_size=4)
    assert got["resolve_step"] == 50
    assert got["rejected"] == {"60": "rank01.pt and rank03.pt absent (HEAD 404)"}
    assert (got["upload_order"], got["repair_pointer_to"]) == ("shards, then manifest (checksums), then pointer", 50)


def _ours(step, attempts, *, manifest):
    shards = [{"path": f"step-{step}/rank{rank}.pt", "attempt": attempt} for rank, attempt in enumerate(attempts)]
    return shards + ([f"step-{step}/manifest.json"] if manifest else [])


def test_generations_are_not_mixed_although_every_name_is_there():
    entries = (
        _ours(10, [1] * 4, manifest=True) + _ours(20, [3, 2, 1, 1], manifest=True) + _ours(30, [3] * 4, manifest=False)
    )
    got = _listing(entries, layout="ours", world_size=4)
    assert got["resolve_step"] == 10
    assert got["rejected"] == {"30": "no manifest", "20": "shards from attempts 1, 2 and 3 mixed"}


def test_leftovers_beyond_the_world_size_do_no_harm_under_a_manifest():
    got = _listing(_ours(20, [2, 2, 1, 1], manifest=True), layout="ours", world_size=2)
    assert got["resolve_step"] == 20


def test_temporary_commits_are_equal_for_resume():
    entries = [
        {"path": "step-100/metadata.json", "is_temporary": False},
        {"path": "step-150/metadata.json", "is_temporary": True},
        {"path": "step-120/metadata.json", "is_temporary": True},
    ]
    got = _listing(entries, layout="ours")
    assert (got["resolve_step"], got["retention_may_delete_later"]) == (150, [120, 150])


def _complete(*steps, name="step-{}"):
    return [{"path": f"{name.format(step)}/COMPLETE", "mtime": 1_700_000_000 - step} for step in steps]


@pytest.mark.parametrize("name", ["checkpoint-{}", "iter_{:07d}", "step-{}"])
def test_retention_counts_in_integers(name):
    got = _listing(_complete(98, 99, 100, 101, 1000, name=name), op="retention", keep_last=2)
    assert (got["latest_step"], got["keep_steps"], got["delete_steps"]) == (1000, [101, 1000], [98, 99, 100])


def test_the_commit_of_a_moment_ago_stays_whatever_its_step():
    got = _listing(_complete(20, 300, 400, 500), op="retention_after_save", just_saved=20, keep_last=2)
    assert (got["keep_steps"], got["delete_steps"], got["resolve_step"]) == ([20, 500], [300, 400], 20)


def test_incomplete_checkpoints_take_no_place_of_the_kept_and_are_not_deleted():
    got = _listing([*_complete(1, 2, 3), "step-4/a.pt"], op="retention", keep_last=2)
    assert (got["keep_steps"], got["delete_steps"], got["latest_step"]) == ([2, 3], [1], 3)
    assert set(got["rejected"]) == {"4"}


def test_other_runs_are_neither_resumed_nor_deleted():
    entries = [
        {"path": f"step-{step}/manifest.json", "run_id": run}
        for run, steps in {"x": (10, 90), "y": (95,), "z": (20, 30, 40)}.items()
        for step in steps
    ]
    got = _listing(entries, layout="ours", op="retention_after_save", run_id="z", just_saved=40, keep_last=2)
    assert (got["resolve_step"], got["delete_steps"]) == (40, [20])
    assert (got["foreign_runs"], got["warn"]) == ({"x": [10, 90], "y": [95]}, True)
    resolved = _listing(entries, layout="ours", run_id="z")
    assert (resolved["resolve_step"], resolved["warn"]) == (40, True)


def test_a_new_run_in_an_old_folder_begins_fresh():
    got = _listing([{"path": "step-90/manifest.json", "run_id": "old"}], layout="ours", run_id="new")
    assert (got["resolve_step"], got["decision"], got["foreign_runs"]) == (None, "fresh", {"old": [90]})


def test_protected_checkpoints_are_found_by_step_after_a_move():
    case = {
        "kind": "retention",
        "protected": ["/gone/run/checkpoint-300", 400, "best"],
        "existing": [300, 400, 500, 600],
    }
    got = answer({**case, "keep_last": 1})
    assert (got["keep_steps"], got["delete_steps"], got["missing_protected"]) == ([300, 400, 600], [500], ["best"])
    assert (got["warn"], got["crash"]) == ("protected checkpoint not found", False)
    assert answer({"kind": "retention", "existing": [1, 2], "keep_last": 5})["warn"] is None


def test_pages_are_counted_and_a_folder_without_a_manifest_is_passed_over():
    text = "iter_0000800: 250 shards + manifest; iter_0001200: 300 shards, no manifest; page size 100"
    got = answer({"kind": "checkpoint_listing", "layout": "s3", "generated": text, "entries": []})
    assert (got["resolve_step"], got["list_calls_at_least"], got["rejected"]) == (800, 6, {"1200": "no manifest"})
    assert (list_calls(1000), list_calls(1001), list_calls(0)) == (1, 2, 1)


def test_the_last_good_commit_is_never_deleted():
    assert prune_steps([7], keep_last=0).keep == (7,)
    assert prune_steps([5, 7], keep_last=1, temporary=[7]).keep == (5, 7)
    assert prune_steps([5, 6, 7], keep_last=1, temporary=[6]).delete == (5, 6)


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"layout": "floppy"}, "floppy"),
        ({"op": "burn"}, "burn"),
        ({"op": "retention"}, "keep_last"),
        ({"entries": [{"size": 3}]}, "path"),
        ({"entries": 5}, "cannot be used"),
    ],
)
def test_bad_input_is_a_usage_error_that_names_it(more, named):
    with pytest.raises(UsageError, match=named):
        answer({"kind": "checkpoint_listing", "layout": "generic", "entries": [], **more})


def test_an_unknown_kind_names_the_known_ones():
    with pytest.raises(UsageError, match="two_stores"):
        answer({"kind": "horoscope"})
