"""What is read of single pods, and what is remembered of them when they are no more."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from rerail.plugins.gang.pods import PodMemory, facts_of, farewell_of, held_back

NOW = datetime(2026, 11, 30, tzinfo=UTC)


def with_messages(*messages: str | None) -> dict[str, Any]:
    statuses = [
        {"name": f"c{number}", "state": {"terminated": {"exitCode": 1, "message": message}}}
        for number, message in enumerate(messages)
    ]
    return {"metadata": {"name": "p", "uid": "u1"}, "status": {"phase": "Failed", "containerStatuses": statuses}}


@pytest.mark.parametrize(
    "message",
    [
        "",
        None,
        "Killed",
        '{"exit_code": 85',
        '{"exit_code": "85"}',
        '{"exit_code": true}',
        '{"exit_code": -9}',
        '{"exit_code": 85.0}',
        '{"exit_code": 256}',
        '{"exit_code": null}',
        '{"code": 85}',
        "[85]",
        "85",
        "null",
        "NaN",
        "[" * 4096,
        '{"exit_code": ' + "9" * 4000 + "}",
        '{"exit_code": ' + "9" * 5000 + "}",
        '{"exit_code": 85, "error": "' + "x" * 4000,
    ],
)
def test_what_is_no_farewell_is_none(message):
    pod = with_messages(message)
    assert farewell_of(pod) is None
    (facts,) = facts_of([pod], PodMemory(), now=NOW)
    seen = PodMemory().view(pod, facts)
    assert (seen.phase, seen.exit_code, seen.farewell) == ("failed", 1, False)


def test_a_long_farewell_is_read():
    said = farewell_of(with_messages(json.dumps({"exit_code": 85, "error": "x" * 3900})))
    assert said is not None
    assert said["exit_code"] == 85


def test_the_farewell_may_stand_in_any_container():
    said = farewell_of(with_messages(None, "a sidecar's words", '{"exit_code": 86, "step": 3}'))
    assert said == {"exit_code": 86, "step": 3}


@pytest.mark.parametrize("pod", [{}, {"status": None}, {"status": {"containerStatuses": None}}])
def test_a_pod_without_status_says_nothing(pod):
    assert farewell_of(pod) is None
    assert held_back(pod) is None


def test_containers_that_run_or_wait_say_nothing():
    running = {"status": {"containerStatuses": [{"name": "c", "state": {"running": {}}}, {"name": "d"}]}}
    assert farewell_of(running) is None
    creating = {"status": {"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}}
    assert held_back(creating) is None


def pod(uid: str = "u1", phase: str = "Running", node: str = "n1", **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "uid": uid, **metadata},
        "spec": {"nodeName": node},
        "status": {"phase": phase},
    }


def look(memory: PodMemory, one: dict[str, Any]) -> Any:
    (facts,) = facts_of([one], memory, now=NOW)
    return memory.view(one, facts)


def test_a_pod_that_was_never_seen_is_gone_without_a_word():
    memory = PodMemory()
    assert not memory.knows("p")
    seen = memory.lost("p")
    assert (seen.phase, seen.node, seen.farewell) == ("gone", "", False)


def test_a_pod_that_ran_is_gone_from_its_node_as_that_is_now():
    ready = {"n1": True}
    memory = PodMemory(node_ready=ready.get)
    assert look(memory, pod()).node_ready
    assert memory.knows("p")
    ready["n1"] = False
    seen = memory.lost("p")
    assert (seen.phase, seen.node, seen.farewell, seen.node_ready) == ("gone", "n1", False, False)


def test_a_pod_that_ended_keeps_its_word_when_it_is_cleaned_up():
    memory = PodMemory()
    look(memory, with_messages('{"exit_code": 85}'))
    assert (memory.lost("p").phase, memory.lost("p").exit_code) == ("failed", 85)


def test_another_pod_of_the_name_is_never_taken_for_the_first():
    memory = PodMemory()
    look(memory, pod(deletionTimestamp="2026-11-30T00:00:30Z"))
    again = look(memory, pod("u2", node="n2"))
    assert (again.phase, again.node, again.disrupted) == ("gone", "n1", "deleted")
    assert look(memory, pod("u2", node="n2")).phase == "gone"


@pytest.mark.parametrize(("ready", "phase"), [(True, "running"), (None, "running"), (False, "gone")])
def test_a_pod_that_is_to_go_is_a_ghost_only_on_a_silent_node(ready, phase):
    memory = PodMemory(node_ready=lambda _node: ready)
    assert look(memory, pod(deletionTimestamp="2026-11-29T23:59:00Z")).phase == phase
    assert look(memory, pod()).phase == "running"


def test_why_a_pod_is_taken_away_outlives_the_condition_that_said_it():
    memory = PodMemory()
    told = pod()
    told["status"]["conditions"] = [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]
    assert look(memory, told).disrupted == "EvictionByEvictionAPI"
    assert look(memory, pod(deletionTimestamp="2026-11-30T00:00:30Z")).disrupted == "EvictionByEvictionAPI"
    assert memory.lost("p").disrupted == "EvictionByEvictionAPI"
