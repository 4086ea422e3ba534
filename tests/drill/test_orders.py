"""Orders of drills to the training script, beyond one fault at one step."""

from pathlib import Path

import numpy as np
import pytest

from rerail.examples.local_gang import inject


@pytest.fixture(autouse=True)
def _in_attempt_two(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RERAIL_ATTEMPT", "2")


def test_an_order_can_name_its_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RERAIL_DRILL_RAISE", "step=5,rank=0,attempt=1;step=6,rank=0,attempt=2")
    inject.before_step(5, 0)
    with pytest.raises(ValueError, match="step 6"):
        inject.before_step(6, 0)


def test_a_sign_tells_the_drill_in_which_attempt_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RERAIL_DRILL_RAISE", f"step=5,rank=0,note={tmp_path / 'sign'}")
    with pytest.raises(ValueError, match="step 5"):
        inject.before_step(5, 0)
    assert [path.name for path in tmp_path.iterdir()] == ["sign.a2"]


@pytest.mark.parametrize(("order", "skewed"), [("", False), ("rank=1,attempt=1", False), ("rank=1,attempt=2", True)])
def test_a_skew_draws_one_number_too_many(monkeypatch: pytest.MonkeyPatch, order: str, *, skewed: bool) -> None:
    monkeypatch.setenv("RERAIL_DRILL_SKEW", order)
    ours, theirs = np.random.default_rng(1), np.random.default_rng(1)
    inject.after_restore(1, ours)
    inject.after_restore(0, theirs)
    assert (ours.random() != theirs.random()) is skewed
