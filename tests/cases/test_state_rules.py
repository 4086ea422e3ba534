"""Siblings of the cases about counters, windows, the stream of samples and random state."""

import pytest

from rerail.examples.local_gang.data import Sampler
from rerail.policies.judging import answer
from rerail.policies.judging.state_rules import batches_from, streams_differ


def _trace(**more):
    return answer({"kind": "train_trace", **more})


@pytest.mark.parametrize(
    ("accumulation", "steps", "per_epoch", "micro", "index"),
    [(1, 500, 2000, 500, 500), (4, 500, 2000, 2000, 0), (4, 501, 2003, 2004, 1), (3, 7, None, 21, 21)],
)
def test_both_counters_with_explicit_names(accumulation, steps, per_epoch, micro, index):
    got = _trace(gradient_accumulation=accumulation, optimizer_steps=steps, batches_per_epoch=per_epoch)
    assert got["optimizer_step"] == steps
    assert (got["micro_batches_consumed"], got["next_micro_batch_index"]) == (micro, index)


def test_inside_a_window_only_its_two_ends_are_exact():
    got = _trace(gradient_accumulation=16, sigterm_at_micro_batch=100)
    assert (got["saved_optimizer_step"], got["saved_micro_batches"]) == (6, 96)
    assert got["or"] == "finish window: optimizer step 7, micro 112 if the deadline allows"
    assert got["must_not"] == "record micro 100 with gradients lost"


def test_at_a_boundary_there_is_nothing_to_choose():
    got = _trace(gradient_accumulation=4, sigterm_at_micro_batch=12)
    assert got == {"saved_optimizer_step": 3, "saved_micro_batches": 12}


def test_the_next_step_and_batch_follow_by_one_and_wrap_at_the_epoch():
    got = _trace(save_after_global_step=40, batch_idx_done=39)
    assert (got["first_step_after_resume"], got["first_batch_idx_after_resume"]) == (41, 40)
    wrapped = _trace(save_after_global_step=40, batch_idx_done=9, batches_per_epoch=10)
    assert wrapped["first_batch_idx_after_resume"] == 0


def test_the_stream_of_samples_goes_on_at_every_point():
    size, batch = 23, 5
    points = ["mid epoch 0", "mid epoch 2", "exact epoch end", "step 1"]
    got = _trace(dataset=size, batch=batch, shuffle=True, save_points=points, workers=[0, 3])
    assert got["concatenated_sample_stream"] == "equal to the uninterrupted stream for every save point"
    assert streams_differ(range(3 * 5 + 1), size=size, batch=batch, shuffle=True, workers=2) == []


def test_an_epoch_has_every_sample_once_and_no_two_have_the_same_order():
    stream = batches_from(1, 0, size=23, batch=5, shuffle=True)
    epochs = [sum((next(stream) for _ in range(5)), ()) for _ in range(3)]
    assert all(sorted(epoch) == list(range(23)) for epoch in epochs)
    assert len(set(epochs)) == 3


@pytest.mark.parametrize("save", [1, 5, 11, 16, 22])
def test_the_sampler_of_the_example_keeps_the_same_promise(save):
    size, batch, steps = 41, 4, 25

    def take(sampler, count):
        return [tuple(sampler.take()[0].tolist()) for _ in range(count)]

    whole = take(Sampler(size, batch, seed=3), steps)
    first = Sampler(size, batch, seed=3)
    before = take(first, save)
    first.upcoming(2)
    resumed = Sampler(size, batch, seed=3)
    resumed.load_state_dict(first.state_dict())
    resumed.epoch = first.epoch
    assert before + take(resumed, steps - save) == whole


@pytest.mark.parametrize(
    ("world", "words"), [(2, "both different"), (3, "all three different"), (16, "all 16 different")]
)
def test_each_rank_has_random_state_of_its_own(world, words):
    got = answer(
        {"kind": "distributed", "world_size": world, "rng_draws_before_save": {str(rank): 7 for rank in range(world)}}
    )
    assert got["next_draw_after_resume"] == f"equal to the uninterrupted run on each rank, {words}"


def test_a_rank_without_random_state_refuses_the_commit():
    got = answer({"kind": "distributed", "world_size": 3, "rng_draws_before_save": {"0": 1, "2": 1}})
    assert got["decision"] == "not committed"
    assert "rank 1" in got["reason"]


@pytest.mark.parametrize(
    ("saved", "new", "keys", "reasons"),
    [
        (
            4,
            6,
            {"ranks_0_3": "restored", "ranks_4_5": "seeded from (run seed, step, rank)"},
            ["world size 4 -> 6", "RNG of ranks 4-5 derived", "global batch changes unless accumulation 3x -> 2x"],
        ),
        (
            16,
            4,
            {"ranks_0_3": "restored"},
            ["world size 16 -> 4", "RNG of ranks 4-15 dropped", "global batch changes unless accumulation 1x -> 4x"],
        ),
        (8, 8, {"ranks_0_7": "restored"}, []),
    ],
)
def test_an_elastic_resume_says_what_is_not_exact(saved, new, keys, reasons):
    got = answer({"kind": "distributed", "saved_world_size": saved, "new_world_size": new, "format": "torch-dcp"})
    assert {key: value for key, value in got.items() if key.startswith("rank")} == keys
    assert got["resume_report"] == {"exact": not reasons, "reasons": reasons}


def test_a_fixed_format_does_not_stretch():
    got = answer({"kind": "distributed", "saved_world_size": 8, "new_world_size": 16, "format": "deepspeed-zero3"})
    assert (got["decision"], got["reason"]) == (
        "blocked",
        "topology mismatch: checkpoint dp=8, gang dp=16, format not reshardable",
    )


def test_an_async_commit_carries_the_step_of_its_snapshot():
    got = answer({"kind": "async_save", "scheduled_step": 70, "live_step_at_completion": 99})
    assert got == {"committed_step": 70, "metrics_rpo_step": 70}
    failed = answer({"kind": "async_save", "scheduled_step": 70, "completed": False, "last_committed_step": 60})
    assert failed == {"committed_step": None, "metrics_rpo_step": 60}
