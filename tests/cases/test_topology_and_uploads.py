"""Siblings of the cases about another number of ranks, explicit steps, two stores and unsure writes."""

import pytest

from rerail.policies.judging import answer


def _resume(manifest, new_world_size, **more):
    return answer({"kind": "resume_request", "manifest": manifest, "new_world_size": new_world_size, **more})


def test_tensor_and_pipeline_parallel_count():
    manifest = {"step": 70, "world_size": 64, "tp": 4, "pp": 2, "format": "megatron", "reshardable": False}
    got = _resume(manifest, 48, older=[{"step": 60, "world_size": 64}, {"step": 50, "world_size": 64}])
    assert got["decision"] == "blocked"
    assert got["reason"] == "topology mismatch: checkpoint dp=8, gang dp=6, format not reshardable"
    assert got["options"][0] == "wait for 64 GPUs"
    assert got["must_not"] == ["fall back to step 60", "fall back to step 50", "silently drop optimizer state"]
    both = _resume(manifest, 64, new_tp=8)
    assert both["reason"] == "topology mismatch: checkpoint dp=8 tp=4, gang dp=4 tp=8, format not reshardable"


def test_an_older_checkpoint_that_fits_is_offered_but_not_taken():
    got = _resume(
        {"step": 70, "world_size": 8, "format": "zero2"}, 4, older=[{"step": 60, "world_size": 4, "valid": True}]
    )
    assert got["decision"] == "blocked"
    assert "fall back to step 60" in got["must_not"]
    assert any("explicit resume from step 60" in option for option in got["options"])


def test_a_reshardable_format_goes_on_and_says_that_it_is_not_exact():
    got = _resume({"step": 70, "world_size": 8, "format": "torch-dcp"}, 12)
    assert (got["decision"], got["step"], got["reshard"], got["resume_report"]["exact"]) == ("resume", 70, True, False)
    assert "world size 8 -> 12" in got["resume_report"]["reasons"]


def test_the_same_layout_is_exact_whatever_the_format():
    got = _resume({"step": 70, "world_size": 8, "format": "zero3", "reshardable": False}, 8)
    assert (got["decision"], got["resume_report"]) == ("resume", {"exact": True, "reasons": []})


def test_a_gang_that_the_layout_does_not_divide_is_blocked():
    got = _resume({"step": 70, "world_size": 8, "tp": 4, "format": "torch-dcp"}, 6)
    assert got["decision"] == "blocked"
    assert "tp=4" in got["reason"]


@pytest.mark.parametrize(
    ("wish", "result"),
    [
        ({"explicit_step": 7, "available": [5, 7, 9]}, "resume from step 7"),
        ({"explicit_step": 8, "available": [9, 5]}, "error: step 8 not found (have 5, 9)"),
        ({"explicit_step": 8, "available": []}, "error: step 8 not found (have none)"),
        ({"explicit_step": 8, "available": [], "initial_weights": "w"}, "error: step 8 not found (have none)"),
        ({"explicit_step": None, "available": [5, 9], "initial_weights": "w"}, "resume from step 9"),
        ({"explicit_step": None, "available": [{"step": 5}, {"step": 9, "valid": False}]}, "resume from step 5"),
        (
            {"explicit_step": None, "available": [], "folder_exists": False, "initial_weights": "w"},
            "load initial weights, step 0",
        ),
        ({"explicit_step": None, "available": [], "folder_exists": True}, "fresh start, step 0"),
    ],
)
def test_explicit_wishes_fail_loudly(wish, result):
    assert answer({"kind": "resume_request", "cases": [wish]}) == {"results": [result]}


def _copy(step, ranks, world=4):
    return {"step": step, "ranks_present": list(ranks), "world_size": world}


@pytest.mark.parametrize(
    ("local", "shared", "step", "source"),
    [
        (_copy(120, [0, 1]), _copy(100, range(4)), 100, "shared"),
        (_copy(120, range(4)), _copy(100, range(4)), 120, "local"),
        (_copy(100, range(4)), _copy(100, range(4)), 100, "shared"),
        (_copy(90, range(4)), _copy(100, range(3)), 90, "local"),
        (_copy(90, [0]), _copy(100, range(3)), None, None),
        (None, _copy(100, range(4)), 100, "shared"),
        (_copy(90, [2]), {**_copy(100, range(4)), "reachable": False}, None, None),
    ],
)
def test_only_a_copy_with_every_part_counts(local, shared, step, source):
    got = answer({"kind": "two_stores", "local": local, "shared": shared})
    assert (got["resolve_step"], got["source"]) == (step, source)
    assert got["decision"] == ("resume" if source else "blocked")


_MINE = {"size": 10, "metadata_token": "me"}


@pytest.mark.parametrize(
    ("reply", "result"),
    [
        ({"complete": "connection reset", "head": _MINE}, "committed"),
        ({"complete": "NoSuchUpload", "head": _MINE}, "committed"),
        ({"complete": "HTTP 200 with <Error> body", "head": _MINE}, "committed"),
        ({"complete": "HTTP 200"}, "committed"),
        ({"complete": "timeout", "head": "404"}, "not committed, retry"),
        ({"complete": "503 SlowDown", "head": "404"}, "not committed, retry"),
        ({"complete": "timeout", "head": {"size": 9, "metadata_token": "me"}}, "not committed, retry the upload"),
        ({"complete": "timeout", "head": {"size": 10, "metadata_token": "you"}}, "not committed, retry the upload"),
        ({"complete": "NoSuchUpload", "head": "404 Not Found"}, "not committed, retry the upload"),
        ({"complete": "timeout"}, "unsure, HEAD the key first"),
    ],
)
def test_head_settles_an_unsure_completion(reply, result):
    got = answer({"kind": "s3_fault", "cases": [{"expected_size": 10, "token": "me", **reply}]})
    assert got["results"] == [result]


@pytest.mark.parametrize(
    ("injected", "result", "retry"),
    [
        ("FileExistsError on 1 rank, directory exists afterwards", "save succeeds", True),
        ("ESTALE on 9 ranks, directory exists afterwards", "save succeeds", True),
        ("FileExistsError on 2 ranks, a regular file is there", "save fails", False),
        ("ENOSPC on 1 rank", "save fails", False),
        ("PermissionError on all ranks", "save fails", False),
    ],
)
def test_an_error_of_creating_a_folder_is_not_the_truth(injected, result, retry):
    got = answer({"kind": "fault_injection", "op": "makedirs step-70 from 8 ranks", "inject": injected})
    assert got == {"result": result, "retry": retry, "check": "isdir after the error"}
