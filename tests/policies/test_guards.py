"""The guards across runs, and what a fault means for each kind of load."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail.plugins.nodes.guard import LocalGuard
from rerail.policies.errors import DamagedError
from rerail.policies.faults import Diagnosis
from rerail.policies.guards import IN_LINE, GuardPolicy, GuardState, ask_quarantine, ask_submission, close_breaker
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
    assert "may start at 00:01:50 UTC" in held.hold
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
from rerail.plugins.nodes import guard
from rerail.policies.guards import IN_LINE, GuardPolicy, GuardState, ask_quarantine, ask_submission, close_breaker
guard._WAIT_S = 60  # a slow machine is no reason to refuse
print(bool(guard.LocalGuard(Path(sys.argv[1]), policy=GuardPolicy(submissions=4)).ask_submission(sys.argv[2], 2)))
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


def come_back(state: GuardState, run: str, since_s: float, now_s: float, policy: GuardPolicy | None = None):
    return ask_submission(state, policy or GuardPolicy(), run=run, attempt=2, now_s=now_s, since_s=since_s)


def test_gangs_that_were_taken_away_come_back_by_the_age_of_their_runs():
    first = come_back(GuardState(), "c", 3.0, 100.0)
    assert not first.hold, "the first does not wait for others"
    b = come_back(first.state, "b", 2.0, 100.2)
    a = come_back(b.state, "a", 1.0, 100.4)
    assert b.hold == a.hold == IN_LINE
    assert [one.id for one in a.state.line] == ["a/2", "b/2"]
    again = come_back(a.state, "b", 2.0, 101.5)
    assert again.hold == IN_LINE, "it is a's turn"
    assert again.state == a.state, "asking again writes nothing"
    done = come_back(again.state, "a", 1.0, 101.6)
    assert not done.hold
    assert come_back(done.state, "b", 2.0, 102.5).hold, "not within the pace"
    last = come_back(done.state, "b", 2.0, 102.6)
    assert not last.hold
    assert last.state.line == ()
    assert [token.at_s for token in last.state.tokens] == [100.0, 101.6, 102.6]


def test_a_run_that_does_not_take_its_turn_is_passed_over_and_is_first_when_it_comes_again():
    state = come_back(GuardState(), "d", 4.0, 100.0).state
    for run, since_s in (("a", 1.0), ("b", 2.0), ("c", 3.0)):
        state = come_back(state, run, since_s, 100.1).state
    assert come_back(state, "c", 3.0, 120.9).hold
    passed = come_back(state, "c", 3.0, 121.1)
    assert not passed.hold, "10 s for each of the two before it"
    assert passed.state.line == ()
    back = come_back(passed.state, "b", 2.0, 121.5)
    assert back.hold
    assert not come_back(come_back(back.state, "e", 5.0, 121.6).state, "b", 2.0, 122.2).hold


def test_a_gang_that_failed_waits_for_nobody_in_line():
    state = come_back(GuardState(), "d", 4.0, 100.0).state
    state = come_back(state, "a", 1.0, 100.1).state
    assert not ask_submission(state, GuardPolicy(), run="f", attempt=2, now_s=100.2).hold


def test_a_full_window_holds_also_who_is_first_in_line():
    state = GuardState()
    for number in range(3):
        state = submit(state, 2, 10.0, run=f"f{number}").state
    held = come_back(state, "a", 1.0, 20.0, POLICY)
    assert "3 gangs were restarted" in held.hold
    assert held.again_in_s == 90.0
    young = come_back(held.state, "b", 2.0, 111.0, POLICY)
    assert young.hold == IN_LINE, "the window opened a second ago, and a is first"
    assert not come_back(young.state, "a", 1.0, 111.5, POLICY).hold
    assert not come_back(GuardState(), "a", 1.0, 0.0).hold


def test_a_place_in_line_is_kept_for_as_long_as_its_run_asks():
    policy = POLICY.model_copy(update={"submissions": 1})
    state = ask_submission(GuardState(), policy, run="f", attempt=2, now_s=0.0).state
    state = come_back(state, "a", 1.0, 1.0, policy).state
    state = ask_submission(state, policy, run="f", attempt=3, now_s=105.0).state
    state = come_back(state, "a", 1.0, 150.0, policy).state
    assert come_back(state, "b", 2.0, 210.0, policy).hold == IN_LINE
    gone = come_back(state, "b", 2.0, 400.0, policy)
    assert not gone.hold
    assert gone.state.line == (), "who does not ask any more is forgotten"


def test_the_guard_of_a_machine_keeps_the_line(tmp_path):
    now = [100.0]
    guard = LocalGuard(tmp_path / "guard.json", wall_s=lambda: now[0])
    assert guard.ask_submission("c", 2, since_s=3.0) == ""
    assert guard.ask_submission("b", 2, since_s=2.0) == IN_LINE
    assert guard.ask_submission("a", 2, since_s=1.0) == IN_LINE
    now[0] = 101.0
    assert guard.ask_submission("b", 2, since_s=2.0) == IN_LINE
    assert guard.ask_submission("a", 2, since_s=1.0) == ""
