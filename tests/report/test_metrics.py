"""Metrics against numbers computed by hand, and properties that hold for every run."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerail.policies.metric_table import METRICS
from rerail.policies.metrics import BADPUT, measure
from rerail.policies.supervisor.state import AttemptRecord, Incident, RunState
from rerail.policies.worktime import CommitFact

EXAMPLES = 1000 if os.environ.get("CI") == "true" else 60


def near(value):
    return pytest.approx(value, abs=1e-5)  # epoch seconds carry about 2e-7


def test_one_gpu_lost_by_hand(gpu_state, gpu_commits, t0):
    found = measure(gpu_state, gpu_commits, created_at_s=t0 - 1.0, fault_at_s={"demo-a1": t0 + 7.5})
    assert found.mttd_s == near(0.3)
    # New ground is step 66: first step (41) at 9.5 s, 25 more at 0.1 s each.
    assert found.mttr_s == near(12.0 - 7.5)
    phases = found.mttr_phases_s
    assert phases is not None
    assert dict(phases.items()) == {
        "detect": near(0.3),
        "decide": near(0.1),
        "save": 0.0,
        "end": near(0.6),
        "start": near(0.3),
        "load": near(0.3),
        "first_step": near(2.9),
    }
    assert phases.slowest == "first_step"
    assert found.incidents[0].run_again_s == near(2.5)
    assert (found.lost_steps, found.rpo_steps) == (25, 25)
    assert found.rpo_s == near(2.5)  # step 40 at 5.0 s, the fault at 7.5 s
    assert (found.restarts, found.resumed_from_step, found.unrecovered) == (1, 40, 0)
    # Held: 8.5 s and 7.4 s by 4 GPUs. Rollback 2.5; recovery 7.5..8.5 and 8.6..9.5; saves 0.5 + 0.4.
    assert found.gpu_held_s == near(4 * 15.9)
    assert found.gpu_waste_s == {"rollback": near(10.0), "recovery": near(4 * 1.9), "saving": near(3.6)}
    assert found.gpu_waste_ratio == near((2.5 + 1.9 + 0.9) / 15.9)
    # Productive: 1.0..7.5 and 9.5..15.9 without the lost 2.5 s and 0.9 s of saves.
    assert found.productive_s == near(6.5 + 6.4 - 2.5 - 0.9)
    assert found.elapsed_job_s == near(17.0)
    assert found.elapsed_run_s == near(17.0 - 1.0 - 0.1)
    assert found.ettr_job == near(9.5 / 17.0)
    assert found.ettr_run == near(9.5 / 15.9)
    assert found.saving_overhead_percent == near(90 / 15.9)


def test_badput_is_split_under_googles_names_and_nvidias_fields_follow(gpu_state, gpu_commits, t0):
    found = measure(gpu_state, gpu_commits, created_at_s=t0 - 1.0, fault_at_s={"demo-a1": t0 + 7.5})
    assert tuple(found.badput_s) == BADPUT
    assert {name: seconds for name, seconds in found.badput_s.items() if seconds} == {
        "OTHER": near(1.0 + 0.1),  # queue, and the last save to the end
        "PROGRAM_STARTUP": near(0.2 + 0.5 + 0.4),
        "TRAINING_PREP": near(0.3),
        "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME": near(0.9),
        "UNPRODUCTIVE_CHECKPOINT_RESTORE_TIME": near(0.3),
        "WASTED_PROGRESS_FROM_DISRUPTION": near(2.5),
        "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION": near(8.8 - 7.5),
    }
    assert sum(found.badput_s.values()) + found.productive_s == near(17.0)
    nvidia = found.nvidia
    assert (nvidia["lostWorkTimeSec"], nvidia["rescheduleTimeSec"]) == (near(2.5), near(1.3))
    assert nvidia["resumeTimeSec"] == near(0.7)
    assert nvidia["result"] == near((17.0 - 2.5 - 0.7 - 1.3 - 0.9) / (17.0 - 1.3))
    assert (nvidia["interruptionCount"], nvidia["highestStep"]) == (1.0, 100.0)


def test_without_an_injected_time_the_first_sign_counts_and_never_after_its_detection(gpu_state, gpu_commits, t0):
    assert measure(gpu_state, gpu_commits).mttd_s == near(0.2)
    late = gpu_state.incidents[0].model_copy(update={"first_sign_s": t0 + 9.0})  # that node's clock runs ahead
    found = measure(gpu_state.model_copy(update={"incidents": (late,)}), gpu_commits)
    assert found.mttd_s == 0.0


def test_a_run_without_incident_has_no_recovery_numbers(attempt, commit, t0):
    one = attempt(1, 0.0, started_at_s=0.1, started_from_step=0, loaded_at_s=0.1, first_step_at_s=0.5, last_step=10)
    state = RunState(run="demo", world_size=1, phase="done", attempt=1, attempts=(one,), finished_at_s=t0 + 2.0)
    found = measure(state, (commit(1, 10, 1.5, reason="final", save_s=None),))
    assert (found.mttd_s, found.mttr_s, found.mttr_phases_s, found.rpo_steps, found.rpo_s) == (None,) * 5
    assert (found.lost_steps, found.restarts, found.resumed_from_step, found.gpu_waste_ratio) == (0, 0, None, 0.0)
    assert found.ettr_run == near(0.5)
    assert found.mttr_spread_s.count == 0


def test_a_save_before_leaving_loses_nothing(attempt, incident, commit):
    first = attempt(
        1,
        0.0,
        started_at_s=0,
        started_from_step=0,
        loaded_at_s=0,
        first_step_at_s=1,
        last_step=50,
        ended_at_s=7,
        step_time_s=0.1,
    )
    second = attempt(2, 7.5, started_at_s=8, started_from_step=50, loaded_at_s=8.5, first_step_at_s=9, last_step=60)
    asked = incident(
        1,
        detected=5,
        decided=5,
        cause="preemption",
        save_asked_at_s=5,
        saved_at_s=6.2,
        ended_at_s=7,
        started_at_s=8,
        loaded_at_s=8.5,
        recovered_at_s=9,
        lost_from_step=48,
    )
    state = RunState(run="demo", world_size=4, phase="running", attempt=2, attempts=(first, second), incidents=(asked,))
    found = measure(state, (commit(1, 40, 5.0), commit(1, 50, 6.0, reason="signal")))
    assert (found.lost_steps, found.rpo_steps, found.rpo_s) == (0, 0, 0.0)
    assert found.mttr_s == near(4.0)
    assert found.mttr_phases_s is not None
    assert found.mttr_phases_s.save == near(1.2)
    assert found.incidents[0].run_again_s == 0.0


def test_two_faults_in_a_row_count_the_steps_run_again_once_each(attempt, incident):
    """0..50, resumed from 40 to 45, resumed from 20 to 100: executed 135 steps, 100 of them new."""
    ends = {"started_at_s": 0.0}
    first = attempt(1, 0, **ends, started_from_step=0, first_step_at_s=1, last_step=50, ended_at_s=6, step_time_s=0.1)
    second = attempt(
        2, 7, started_at_s=7, started_from_step=40, first_step_at_s=8, last_step=45, ended_at_s=9, step_time_s=0.1
    )
    third = attempt(
        3, 10, started_at_s=10, started_from_step=20, first_step_at_s=11, last_step=100, ended_at_s=19, step_time_s=0.1
    )
    state = RunState(
        run="demo",
        world_size=2,
        phase="done",
        attempt=3,
        attempts=(first, second, third),
        incidents=(incident(1, detected=6, decided=6), incident(2, detected=8.5, decided=8.5)),
    )
    found = measure(state)
    assert found.lost_steps == 35
    assert [item.rpo_steps for item in found.incidents] == [10, 25]
    # The first new step is 51, in attempt 3: step 21 at 11.0 s and 30 more. So the first incident took that long too.
    assert [item.recover_s for item in found.incidents] == [near(14.0 - 6.0), near(14.0 - 8.5)]
    assert found.rpo_s == near(0.5 + 5.0 * 20 / 50)  # all of attempt 2, and steps 21..40 of attempt 1


def test_incidents_without_recovery_are_counted_and_rank_last(attempt, incident):
    records, incidents = [], []
    for n in range(1, 4):
        last = 10 * n
        records.append(
            attempt(
                n,
                10 * n,
                started_at_s=10 * n,
                started_from_step=last - 10,
                first_step_at_s=10 * n + 1,
                last_step=last,
                ended_at_s=10 * n + 6,
                last_commit_step=last,
            )
        )
        incidents.append(incident(n, detected=10 * n + 5, decided=10 * n + 5, first_sign_s=10 * n + 4))
    state = RunState(
        run="demo", world_size=1, phase="stopped", attempt=3, attempts=tuple(records), incidents=tuple(incidents)
    )
    found = measure(state)
    assert found.unrecovered == 1
    assert found.mttr_spread_s.model_dump() == {
        "count": 3,
        "unrecovered": 1,
        "p50": near(7.0),
        "p90": None,
        "max": None,
    }
    assert found.mttr_s == near(7.0)
    assert found.mttd_spread_s.p90 == near(1.0)


def test_in_place_the_gpus_are_held_through_the_recovery(attempt, incident, t0):
    first = attempt(1, 0, started_at_s=0, started_from_step=0, first_step_at_s=0, last_step=10, ended_at_s=5)
    second = attempt(
        2, 7, how="in-place", started_at_s=7, started_from_step=10, first_step_at_s=8, last_step=20, ended_at_s=10
    )
    state = RunState(
        run="demo",
        world_size=1,
        phase="done",
        attempt=2,
        attempts=(first, second),
        incidents=(incident(1, detected=4, decided=4),),
        finished_at_s=t0 + 10,
    )
    found = measure(state)
    assert found.gpu_held_s == near(10.0)
    assert found.gpu_waste_s["recovery"] == near(8.0 - 4.0)
    assert found.elapsed_run_s == found.elapsed_job_s == near(10.0)


def test_a_new_gang_that_starts_while_the_old_one_ends_is_not_slowed_by_it(attempt, incident):
    first = attempt(1, 0, started_at_s=0, started_from_step=0, first_step_at_s=0, last_step=10, ended_at_s=9)
    second = attempt(
        2, 5, started_at_s=6, started_from_step=10, loaded_at_s=7, first_step_at_s=8, last_step=20, ended_at_s=10
    )
    one = incident(1, detected=4, decided=4, ended_at_s=9, started_at_s=6, loaded_at_s=7, recovered_at_s=8)
    state = RunState(run="demo", world_size=1, phase="done", attempt=2, attempts=(first, second), incidents=(one,))
    phases = measure(state).mttr_phases_s
    assert phases is not None
    assert (phases.end, phases.start, phases.load, phases.first_step) == (near(2.0), 0.0, near(1.0), near(1.0))


def test_every_scalar_of_the_interface_has_a_definition():
    for name in (
        "mttd_s",
        "mttr_s",
        "mttr_phases_s",
        "rpo_steps",
        "rpo_s",
        "lost_steps",
        "gpu_waste_ratio",
        "ettr_run",
        "ettr_job",
        "restarts",
        "resumed_from_step",
    ):
        assert METRICS[name].definition
        assert METRICS[name].name == name


@st.composite
def runs(draw: st.DrawFn) -> tuple[RunState, tuple[CommitFact, ...], float]:
    """Runs whose clocks may disagree: each time is near its place, none is guaranteed to be in order."""
    seconds = st.floats(0, 20, allow_nan=False)
    at, top = 1000.0, 0
    attempts, incidents, commits = [], [], []
    for n in range(1, draw(st.integers(1, 6)) + 1):
        opened, from_step = at, draw(st.integers(0, top))
        started = draw(st.none() | seconds)
        first = None if started is None else draw(st.none() | seconds)
        last = from_step + (draw(st.integers(0, 50)) if first is not None else 0)
        length = draw(seconds)
        at += length + draw(st.floats(-3, 5))
        attempts.append(
            AttemptRecord(
                n=n,
                gang=f"g{n}",
                nodes=("a",),
                how=draw(st.sampled_from(["fresh", "new-gang", "in-place"])),
                opened_at_s=opened,
                started_at_s=None if started is None else opened + started,
                started_from_step=None if started is None else from_step,
                loaded_at_s=None if first is None else draw(st.none() | st.just(opened + first)),
                first_step_at_s=None if first is None else opened + first,
                last_step=draw(st.sampled_from([None, last])),
                saving_s=draw(seconds),
                step_time_s=draw(st.none() | st.floats(0, 2)),
                ended_at_s=draw(st.none() | st.just(opened + length)),
            )
        )
        top = max(top, last)
        if last > from_step and draw(st.booleans()):
            commits.append(
                CommitFact(
                    attempt=n,
                    step=draw(st.integers(from_step + 1, last)),
                    at_s=opened + draw(seconds),
                    reason="periodic",
                )
            )
        if draw(st.booleans()):
            signs = [None if draw(st.booleans()) else opened + draw(st.floats(-5, 40)) for _ in range(6)]
            incidents.append(
                Incident(
                    id=f"i{n}",
                    attempt=n,
                    class_name="x",
                    scope="node",
                    action="none",
                    cause="unknown",
                    first_sign_s=signs[0],
                    detected_at_s=opened + draw(seconds),
                    decided_at_s=opened + draw(seconds),
                    saved_at_s=signs[1],
                    ended_at_s=signs[2],
                    started_at_s=signs[3],
                    loaded_at_s=signs[4],
                    recovered_at_s=signs[5],
                )
            )
    state = RunState(
        run="demo",
        world_size=draw(st.integers(1, 8)),
        phase="running",
        attempt=len(attempts),
        attempts=tuple(attempts),
        incidents=tuple(incidents),
    )
    return state, tuple(commits), at + draw(st.floats(-10, 10))


@settings(max_examples=EXAMPLES, deadline=None)
@given(runs())
def test_whatever_the_clocks_say_ratios_are_ratios_and_sums_add_up(run):
    state, commits, until = run
    found = measure(state, commits, until_s=until)
    for ratio in (found.gpu_waste_ratio, found.ettr_run, found.ettr_job, found.goodput, found.nvidia.get("result")):
        assert ratio is None or 0.0 <= ratio <= 1.0
    assert found.gpu_waste_ratio is None or sum(found.gpu_waste_s.values()) <= found.gpu_held_s + 1e-6
    assert found.saving_overhead_percent is None or 0.0 <= found.saving_overhead_percent <= 100.0
    assert found.elapsed_run_s <= found.elapsed_job_s + 1e-9
    assert found.productive_s >= -1e-9
    assert sum(found.badput_s.values()) + found.productive_s == pytest.approx(found.elapsed_job_s, abs=1e-6)
    assert all(seconds >= -1e-9 for seconds in found.badput_s.values())
    for item in found.incidents:
        assert item.detect_s >= 0
        assert item.rpo_s >= 0
        assert item.rpo_steps >= 0
        assert (item.phases is None) == (item.recover_s is None)
        if item.phases is not None:
            assert sum(seconds for _, seconds in item.phases.items()) == pytest.approx(item.recover_s, abs=1e-6)
            assert item.run_again_s <= item.phases.first_step + 1e-6
    assert found.unrecovered == sum(item.recover_s is None for item in found.incidents)
