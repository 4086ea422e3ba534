"""The pure judgements of `rerail doctor`, at their edges."""

import pytest

from rerail.policies.doctor.cluster import argo_too_old, judge_argo, judge_clock, judge_requeue
from rerail.policies.doctor.healers import judge_healers, load_healers
from rerail.policies.doctor.runs import GangFound, judge_gangs, judge_grace, judge_policies
from rerail.policies.supervisor.state import AttemptRecord, GangSpec, RunState


def deployment(image="workflow-controller:v4.0.5", **env):
    container = {"image": image, "env": [{"name": key, "value": value} for key, value in env.items()]}
    return {"spec": {"template": {"spec": {"containers": [container]}}}}


@pytest.mark.parametrize(
    ("image", "verdict"),
    [
        ("registry.invalid:5000/argo/workflow-controller:v4.0.5", "ok"),
        ("workflow-controller:4.1.0-rc1", "ok"),
        ("workflow-controller:v3.7.2", "fail"),
        ("workflow-controller:v3.7.2@sha256:00", "fail"),
        ("workflow-controller:latest", "skipped"),
        ("registry.invalid:5000/workflow-controller", "skipped"),
    ],
)
def test_the_version_of_argo_by_its_image(image, verdict):
    assert judge_argo([deployment(image)], None).verdict == verdict


def test_the_version_of_argo_by_its_crd():
    assert judge_argo(None, frozenset({"schedules", "schedule"})).verdict == "fail"
    assert judge_argo(None, frozenset({"schedules"})).verdict == "ok"
    assert judge_argo(None, frozenset({"suspend"})).verdict == "skipped"
    assert judge_argo(None, None).verdict == "skipped"


@pytest.mark.parametrize("version", ["v4.0.5", "4.1.0", "v0.0.0", "latest", ""])
def test_an_argo_that_does_or_says_nothing_is_taken(version):
    assert argo_too_old(version) == ""


@pytest.mark.parametrize("version", ["v3.7.3", "3.5.4", "v2.12"])
def test_an_argo_that_is_too_old_is_named_with_the_way_out(version):
    assert argo_too_old(version).startswith(f"Argo Workflows {version} runs this step, and 4.0 or newer is needed")


@pytest.mark.parametrize(
    ("given", "verdict"),
    [("1s", "ok"), ("500ms", "ok"), ("2s", "ok"), ("10s", "warn"), ("1m0s", "warn"), ("soon", "warn"), ("", "warn")],
)
def test_how_often_argo_looks(given, verdict):
    assert judge_requeue([deployment(DEFAULT_REQUEUE_TIME=given)]).verdict == verdict
    assert (
        judge_requeue([deployment()]).found
        == "DEFAULT_REQUEUE_TIME of the workflow controller is not set, which means 10 s"
    )
    assert judge_requeue([]).verdict == "skipped"


@pytest.mark.parametrize(
    ("offset_s", "verdict"), [(0.4, "ok"), (-2.4, "ok"), (2.6, "warn"), (-60.4, "warn"), (60.6, "fail"), (-61, "fail")]
)
def test_a_clock_that_is_off(offset_s, verdict):
    found = judge_clock(offset_s, 0.5, margin_s=60.0)
    assert found.verdict == verdict
    assert ("ahead of" in found.found) == (offset_s < 0)
    assert judge_clock(None, 0.5, margin_s=60.0).verdict == "skipped"


def state(*save_s, phase="running", attempt=1, **more):
    records = tuple(
        AttemptRecord(n=at + 1, gang=f"run-a{at + 1}", nodes=(), how="fresh", opened_at_s=0.0, save_s=one)
        for at, one in enumerate(save_s)
    )
    gang = GangSpec(name=f"run-a{attempt}", world_size=2, pods=())
    return RunState(run="run", world_size=2, phase=phase, attempt=attempt, attempts=records, gang=gang, **more)


@pytest.mark.parametrize(("save_s", "verdict"), [(10.0, "ok"), (20.0, "ok"), (21.0, "warn"), (30.5, "fail")])
def test_the_grace_of_pods_against_the_longest_save(save_s, verdict):
    found = judge_grace(state(1.0, save_s, 2.0), {"run-a1-0": 30.0, "run-a1-1": 600.0})
    assert found.verdict == verdict
    assert "run-a1-0 has 30 s" in found.found


def test_grace_without_pods_or_saves_says_nothing():
    assert judge_grace(None, {"p": 30.0}).verdict == "skipped"
    assert judge_grace(state(None), {"p": 30.0}).verdict == "skipped"
    assert judge_grace(state(3.0), {}).verdict == "skipped"


def test_vcjobs_that_restart_by_themselves():
    job = {"metadata": {"name": "run-a1"}, "spec": {"policies": [{"event": "PodFailed", "action": "TerminateJob"}]}}
    assert judge_policies([job]).verdict == "ok"
    job["spec"]["policies"].append({"events": ["PodEvicted", "PodFailed"], "action": "RestartJob"})
    job["spec"]["tasks"] = [{"policies": [{"exitCode": 3, "action": "RestartTask"}]}]
    found = judge_policies([job])
    assert found.verdict == "fail"
    assert "spec.policies has RestartJob on PodEvicted, PodFailed" in found.found
    assert "spec.tasks[0].policies has RestartTask on exit code 3" in found.found
    assert judge_policies([]).verdict == "skipped"


def gang(number, **more):
    return GangFound(namespace="team", gang=f"run-a{number}", run="run", **more)


def test_gangs_that_nobody_goes_on_with():
    assert [one.verdict for one in judge_gangs([gang(1, state=state(1.0))])] == ["ok"]
    left = judge_gangs(
        [
            gang(1, state=state(1.0, 1.0, attempt=2)),
            gang(2, state=state(1.0, 1.0, attempt=2)),
            gang(3, state=state(1.0, attempt=3, phase="done")),
            gang(4),
            gang(5, unknown="it has no pod"),
            gang(6, state=state(1.0, attempt=6), workflow_over="Workflow team/w is gone"),
        ]
    )
    assert [one.verdict for one in left] == ["warn", "warn", "warn", "skipped", "warn"]
    assert "the gang of run 'run' is run-a2 now" in left[0].found
    assert "run 'run' is done" in left[1].found
    assert "has no ledger" in left[2].found
    assert "Workflow team/w is gone" in left[4].found


def test_each_healer_of_the_table_is_found_by_each_of_its_names():
    for healer in load_healers():
        for group in healer.groups:
            assert judge_healers({group}, [])[0].found.startswith(f"{healer.name} is there")
        for name in healer.workloads:
            assert f"kube-system/{name}" in judge_healers((), [("kube-system", name)])[0].found
    assert judge_healers({"apps"}, [("kube-system", "kuredish"), ("a", "trainer")])[0].verdict == "ok"
    assert [one.verdict for one in judge_healers((), None)] == ["skipped"]
