import pytest

from rerail.policies.documents import RankExit
from rerail.policies.eviction import EvictionBounds, EvictionLook, next_move, outcome_of, request_id

BOUNDS = EvictionBounds(deadline_s=120.0, leave_s=10.0, grace_s=30.0, refused_for_s=60.0)


@pytest.mark.parametrize(
    ("after_s", "alive", "committed_s", "evicted_s", "move"),
    [
        (0.0, 4, None, None, "wait"),
        (119.9, 4, None, None, "wait"),
        (120.0, 4, None, None, "evict"),
        (150.0, 4, None, 120.0, "wait"),
        (160.1, 4, None, 120.0, "give-up"),
        (50.0, 0, None, None, "over"),
        (50.0, 4, 45.0, None, "wait"),
        (55.0, 4, 45.0, None, "evict"),
        (125.0, 4, 119.0, None, "wait"),
        (129.0, 1, 119.0, None, "evict"),
        (179.0, 4, None, None, "evict"),
        (180.1, 4, None, None, "give-up"),
        (1e9, 0, None, 120.0, "over"),
    ],
)
def test_every_wait_of_an_eviction_is_bounded(after_s, alive, committed_s, evicted_s, move):
    look = EvictionLook(after_s=after_s, alive=alive, committed_s=committed_s, evicted_s=evicted_s, tried=True)
    assert next_move(look, BOUNDS) == move


def test_an_evictor_that_stood_still_beyond_its_time_tries_once_before_it_gives_up():
    assert next_move(EvictionLook(after_s=900.0, alive=4), BOUNDS) == "evict"
    assert next_move(EvictionLook(after_s=900.0, alive=4, committed_s=45.0), BOUNDS) == "evict"


def ends(*codes, step=9):
    return tuple(RankExit(rank=rank, exit_code=code, step=step) for rank, code in enumerate(codes))


@pytest.mark.parametrize(
    ("answered", "forced", "exits", "final", "outcome"),
    [
        (True, False, ends(85, 85), False, "committed"),
        (True, True, ends(85, 85), False, "committed"),
        (False, True, ends(85, 85), False, "deadline"),
        (False, True, (), True, "committed"),
        (False, False, ends(85, 85), False, "committed"),
        (False, False, ends(85, 86), False, "committed"),
        (False, False, ends(86, 86), False, "unsaved"),
        (False, False, ends(86, 86, step=5), False, "committed"),
        (False, False, ends(86, 86, step=None), False, "committed"),
        (False, False, ends(85, 1), False, "unsaved"),
        (False, False, (), False, "unsaved"),
    ],
)
def test_an_outcome_is_committed_only_where_a_commit_holds_all_that_was_done(answered, forced, exits, final, outcome):
    assert outcome_of(answered=answered, forced=forced, exits=exits, loaded_step=5, final=final) == outcome


def test_one_attempt_is_asked_under_one_name():
    assert request_id("run-a3", 4) == request_id("run-a3", 4) != request_id("run-a3", 3)


def test_what_nobody_wants_any_more_is_not_evicted_unless_it_has_begun():
    def move(**seen):
        return next_move(EvictionLook(**{"after_s": 500.0, "alive": 4, "wanted": False, **seen}), BOUNDS)

    assert move() == "give-up"
    assert move(after_s=1.0) == "give-up"
    assert move(alive=0) == "over"
    assert move(after_s=130.0, committed_s=119.0) == "evict", "all saved: the gang does not stay half"
    assert move(after_s=130.0, evicted_s=120.0) == "wait"
    ended = {"answered": False, "exits": (), "loaded_step": 0, "withdrawn": True}
    assert outcome_of(forced=False, final=False, **ended) == "withdrawn"
    assert outcome_of(forced=True, final=False, **ended) == "deadline"
