"""The guards across runs, and what a fault means for each kind of load."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail.plugins.nodes.guard import LocalGuard
from rerail.policies.errors import DamagedError
from rerail.policies.faults import Diagnosis
from rerail.policies.guards import GuardPolicy, GuardState, ask_quarantine, ask_submission, close_breaker
from rerail.policies.loads import plan_for

POLICY = GuardPolicy(submissions=3, window_s=100.0, quarantined_share=0.34, quarantines=2)


def submit(state: GuardState, attempt: int, now_s: float, run: str = "r"):
    return ask_submission(state, POLICY, run=run, attempt=attempt, now_s=now_s)


def test_a_first_attempt_is_no_restart():
    assert submit(GuardState(), 1, 0.0).state == GuardState()


def test_asking_again_for_one_attempt_is_one_token():
    first = submit(GuardState(), 2, 0.0)
    assert submit(first.state, 2, 1.0).state == first.state


def test_a_storm_is_held_and_says_until_when():
    state = GuardState()
    for run in "abc":
        answer = submit(state, 2, 10.0, run=run)
        assert not answer.hold
        state = answer.state
    held = submit(state, 2, 20.0, run="d")
    assert "3 gangs were restarted" in held.hold
    assert "in 90 s" in held.hold
    assert not submit(state, 2, 111.0, run="d").hold


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(2, 9), st.floats(0, 1000)), max_size=60))
def test_no_window_ever_holds_more_than_its_tokens(asks):
    state = GuardState()
    for run, attempt, now_s in sorted(asks, key=lambda ask: ask[2]):
        state = submit(state, attempt, now_s, run=run).state
        recent = [token for token in state.tokens if token.at_s > now_s - POLICY.window_s]
        assert len(recent) <= POLICY.submissions


def fence(state: GuardState, node: str, *, nodes: int = 10, fenced: int = 0, now_s: float = 0.0):
    return ask_quarantine(state, POLICY, node=node, incident="i", nodes=nodes, fenced=fenced, now_s=now_s)


def test_only_a_share_of_the_nodes_is_ever_fenced():
    assert not fence(GuardState(), "n", fenced=2).hold
    assert "34%" in fence(GuardState(), "n", fenced=3).hold


def test_one_node_of_a_tiny_cluster_may_always_be_fenced():
    assert not fence(GuardState(), "n", nodes=2).hold


def test_the_breaker_opens_and_only_a_person_closes_it():
    state = GuardState()
    for node in "ab":
        state = fence(state, node).state
    opened = fence(state, "c")
    assert opened.hold
    assert fence(opened.state, "c", now_s=1e9).hold
    assert not fence(close_breaker(opened.state), "c", now_s=1e9).hold


ASK = """
import sys
from pathlib import Path
from rerail.plugins.nodes.guard import LocalGuard
from rerail.policies.guards import GuardPolicy
print(bool(LocalGuard(Path(sys.argv[1]), policy=GuardPolicy(submissions=4)).ask_submission(sys.argv[2], 2)))
"""


def test_supervisors_in_many_processes_share_the_tokens(tmp_path):
    asked = [
        subprocess.Popen(
            [sys.executable, "-c", ASK, str(tmp_path / "guard.json"), f"r{number}"], stdout=subprocess.PIPE, text=True
        )
        for number in range(8)
    ]
    answers = [process.communicate(timeout=60)[0].strip() for process in asked]
    assert answers.count("False") == 4
    assert answers.count("True") == 4


def test_a_damaged_guard_is_named(tmp_path):
    path = tmp_path / "guard.json"
    path.write_text("{")
    with pytest.raises(DamagedError, match=r"guard\.json"):
        LocalGuard(path).ask_submission("r", 2)


def found(scope: str, action: str, *, quarantine: str = "node", suspects: bool = False) -> Diagnosis:
    return Diagnosis.model_validate(
        {
            "class": "x",
            "scope": scope,
            "action": action,
            "evidence": (),
            "confidence": 1,
            "quarantine": quarantine,
            "suspects": suspects,
        }
    )


def test_inference_leaves_at_once_and_training_saves_first():
    sick = found("device", "reset_gpu")
    inference, training = plan_for("inference", sick), plan_for("training", sick)
    assert (inference.save_first, inference.move) == (False, "evict-one")
    assert (training.save_first, training.move) == (True, "evict-gang")


def test_an_untrusted_device_is_asked_for_no_save():
    assert not plan_for("training", found("node", "reboot_node", suspects=True)).save_first


def test_a_short_job_runs_again_from_its_beginning():
    assert plan_for("short-job", found("node", "reboot_node")).go_on_from == "beginning"


@pytest.mark.parametrize("load", ["training", "inference", "short-job"])
def test_a_process_fault_moves_nobody_off_the_node(load):
    plan = plan_for(load, found("process", "restart_app", quarantine="none"))
    assert (plan.mark, plan.move) == (False, "restart")
