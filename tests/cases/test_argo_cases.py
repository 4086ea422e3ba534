"""The public cases about Argo whose answers are not those of `rerail lint` (tests/workflows/test_lint.py)."""

import json
from pathlib import Path

import pytest

from rerail.plugins.steps.retry import FailedPod, verdict
from rerail.policies.handover import LastRun, assess, gang_of_step
from rerail.policies.judging import answer
from rerail.policies.liveness import stuck_deletion
from rerail.policies.supervisor.state import AttemptRecord, GangSpec, RunState
from rerail.workflows.library import all_templates
from rerail.workflows.render import documents
from rerail.workflows.steps import INFRASTRUCTURE

HERE = Path(__file__).parent
SHARED = HERE.parents[2] / "shared/data/cases"
OWNER = "workflow/team/w/u"


def read(path):
    return {case["id"]: case for case in map(json.loads, path.read_text(encoding="utf-8").splitlines())}


CASES = read(HERE / "argo-cases.jsonl")


def case(name):
    return CASES[name]["input"], CASES[name]["expected"]


def templates():
    for document in documents(all_templates()).values():
        spec = document["spec"]
        yield from (spec.get("workflowSpec") or spec)["templates"]


def test_every_case_about_argo_is_held_by_a_test():
    if not SHARED.exists():
        pytest.skip("the public cases are not beside this checkout")
    elsewhere = HERE.parent / "workflows/cases.jsonl"
    mine = CASES | read(elsewhere)
    text = "\n".join(path.read_text() for path in (Path(__file__), elsewhere.with_name("test_lint.py")))
    given = read(SHARED / "argo.jsonl")
    signals = read(SHARED / "signals.jsonl")
    for name, one in {**given, "C3-01": signals["C3-01"], "C3-02": signals["C3-02"]}.items():
        assert mine[name] == one
        assert f"def test_{name.lower().replace('-', '_')}_" in text, name


def test_c5_01_a_lost_executor_is_followed_to_the_gang_that_runs_on():
    given, expected = case("C5-01")
    gang = GangSpec(name="r-a1", world_size=1, pods=())
    record = AttemptRecord(n=1, how="fresh", gang="r-a1", nodes=("g1",), opened_at_s=1.0)
    state = RunState(run="r", world_size=1, phase="running", owner=OWNER, attempt=1, gang=gang, attempts=(record,))
    last = LastRun(exit_code="", message=given["message"])
    found = assess("r", state, owner=OWNER, asked=OWNER, last=last)
    assert (found.decision, found.attempt) == ("again", 1), expected["action"]
    assert gang_of_step(state) == "r-a1", expected["must_not"]
    # Before that the step itself is tried again: its name is that of the attempt, and Error counts whatever the code.
    runner = next(one for one in templates() if one["name"] == "run")
    assert runner["retryStrategy"]["retryPolicy"] == "Always"
    assert f"lastRetry.status == '{given['phase']}'" in runner["retryStrategy"]["expression"] == INFRASTRUCTURE


def test_c5_10_no_step_rests_on_an_executor_plugin():
    given, expected = case("C5-10")
    kinds = {kind for one in templates() for kind in one if kind in {"plugin", "container", "dag", "suspend", "http"}}
    assert given["type"].lower() not in kinds, expected["design"]
    assert {"container", "dag"} <= kinds


def test_c5_17_a_pod_on_a_dead_node_is_forced_off_after_fencing_only():
    given, expected = case("C5-17")
    age_s = given["pod"]["deletionTimestamp_age_s"]
    assert given["pod"]["node_ready"] == "Unknown"
    assert expected["action"].startswith("after fencing force delete the pod")
    asked = {"kind": "evict", "pod_deletion_age_seconds": age_s, "grace": 30, "kubelet_ready": False}
    found = answer(asked)
    assert found["action"] == "cordon, fence the node (power off), then force delete the pod object"
    assert found["must_not"] == "force delete while the node may still run the process"
    assert stuck_deletion(age_s, 30.0, kubelet_ready=False, uninterruptible=False) == "fence"
    assert stuck_deletion(10.0, 30.0, kubelet_ready=False, uninterruptible=False) == "wait"


def test_c5_18_a_gpu_that_the_kubelet_refuses_is_a_fault_of_the_node_that_says_its_name():
    given, expected = case("C5-18")
    node = {"metadata": {"name": "g1"}, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    pod = FailedPod(name="step", node="g1", phase=given["phase"], message=f"{given['reason']}: {given['message']}")
    found = verdict((pod,), lambda _name: node, now_s=1000.0)
    assert (found.reason, found.at_fault) == (expected["class"], "g1"), expected["action"]
    assert found.outcome == "again", "elsewhere"
    assert found.incident
