"""Every one of the ten parts of the state matters: left out, or one step old, it gives another run.

So a run that is bitwise identical after a resume proves that all ten came back, and came back from the same step.
"""

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from rerail.examples.local_gang import train
from rerail.examples.local_gang.allreduce import Group
from rerail.examples.local_gang.trace import Trace
from rerail.policies.manifest import PARTS

STEPS, CUT, EPOCH_END = 70, 28, 26
OPTIONS = ["--steps", str(STEPS), "--batch", "8", "--samples", "100", "--seed", "1"]


def _get(holder: Any) -> Any:
    return holder[0]() if isinstance(holder, tuple) else holder.state_dict()


def _set(holder: Any, state: Any) -> None:
    take = holder[1] if isinstance(holder, tuple) else holder.load_state_dict
    take(state)


class Keeper:
    """Keeps states in memory where the Checkpointer has a store, and gives back what the test wants given back."""

    def __init__(self, *, step: int = 0, states: dict[str, Any] | None = None) -> None:
        self.step, self.states = step, states or {}
        self.saved: dict[int, dict[str, Any]] = {}

    def from_env(self, *, shared: dict[str, Any], per_rank: dict[str, Any], **_: Any) -> "Keeper":
        self.parts = {**shared, **per_rank}
        return self

    def restore(self) -> int:
        for part, state in self.states.items():
            _set(self.parts[part], copy.deepcopy(state))
        return self.step

    def wish(self) -> int:
        return 0

    def step_done(self, step: int, **_: Any) -> None:
        states = {part: copy.deepcopy(_get(holder)) for part, holder in self.parts.items()}
        self.saved[step] = {**states, "step": step}

    def finish(self, step: int) -> None:
        assert step == STEPS


def run(keeper: Keeper, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    monkeypatch.setattr(train, "Checkpointer", keeper)
    monkeypatch.setenv("RERAIL_TRACE", str(folder))
    with Group() as group, Trace(group.rank) as trace:
        train.train(train.parse(OPTIONS), group, trace)
    return [json.loads(line) for line in (folder / "trace-a0-r0.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], dict[int, dict[str, Any]]]:
    keeper = Keeper()
    with pytest.MonkeyPatch.context() as monkeypatch:
        return run(keeper, tmp_path_factory.mktemp("whole"), monkeypatch), keeper.saved


def proof(lines: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """What has to be bitwise identical: step, loss, samples and parameters."""
    return [(line["step"], line["loss"], line["samples"], line["params"]) for line in lines]


def resumed(saved: dict[int, dict[str, Any]], cut: int, *, left_out: str = "", one_step_back: str = "") -> Keeper:
    states = {part: state for part, state in saved[cut].items() if part != left_out}
    if one_step_back:
        states[one_step_back] = saved[cut - 1][one_step_back]
    return Keeper(step=states.pop("step", 0), states=states)


def test_the_cut_is_a_place_where_every_part_has_moved(whole: Any) -> None:
    lines, saved = whole
    assert set(saved[CUT]) == set(PARTS)
    assert not lines[CUT - 1]["skipped"]
    assert any(line["skipped"] for line in lines[:CUT])
    assert any(line["skipped"] for line in lines[CUT:])
    assert 0 < saved[CUT]["epoch"] < lines[-1]["epoch"]
    assert saved[EPOCH_END - 1]["epoch"] < saved[EPOCH_END]["epoch"]


@pytest.mark.parametrize("cut", [CUT, EPOCH_END])
def test_with_all_parts_the_run_is_identical(
    cut: int, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, saved = whole
    assert run(resumed(saved, cut), tmp_path, monkeypatch) == lines[cut:]


@pytest.mark.parametrize("how", ["left_out", "one_step_back"])
@pytest.mark.parametrize("part", PARTS)
def test_without_one_part_the_run_is_another(
    part: str, how: str, whole: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, saved = whole
    cut = EPOCH_END if part == "epoch" else CUT  # within an epoch its number one step earlier is the same number
    assert proof(run(resumed(saved, cut, **{how: part}), tmp_path, monkeypatch)) != proof(lines[cut:])
