"""Events of a run's incidents in a cluster: written once, by nobody waited for, and never a reason to fail."""

import threading
import time

import pytest

from rerail.plugins.gang import telling
from rerail.plugins.gang.telling import Teller
from rerail.policies.supervisor.state import AttemptRecord, GangSpec, Incident, LedgerEntry, RunState

GANG = GangSpec(name="run-a1", world_size=1, pods=())
FAULT = Incident(
    id="run-a1",
    attempt=1,
    class_name="gpu_lost",
    scope="device",
    action="reset",
    cause="hardware",
    node="n1",
    detected_at_s=1.0,
    decided_at_s=1.0,
)


def entry(number, phase="running", incidents=(), reason=""):
    record = AttemptRecord(n=1, gang="run-a1", nodes=("n1",), how="fresh", opened_at_s=0.0)
    state = RunState(
        run="run",
        world_size=1,
        phase=phase,
        attempt=1,
        gang=GANG,
        attempts=(record,),
        incidents=incidents,
        reason=reason,
    )
    return LedgerEntry(writer="w" * 8, number=number, at_s=1000.0, note="", state=state)


@pytest.fixture
def api(make_rig):
    return make_rig("vcjob").backend.watch.api


def events(cluster_api):
    found = [
        (one["reason"], one["involvedObject"]["kind"], one["involvedObject"]["name"], one["metadata"]["namespace"])
        for one in cluster_api.find("events")
    ]
    return sorted(found)


@pytest.mark.parametrize(("kind", "object_of_gang"), [("vcjob", "Job"), ("podgroup", "PodGroup")])
def test_a_fault_is_told_at_the_gang_the_node_and_the_workflow_once(
    cluster_api, api, kind, object_of_gang, monkeypatch
):
    monkeypatch.setattr(telling, "_FAREWELL_S", 60.0)
    node = cluster_api.put("nodes", {"metadata": {"name": "n1"}})
    job = cluster_api.put(
        "jobs" if kind == "vcjob" else "podgroups", {"metadata": {"name": "run-a1", "namespace": "team"}}
    )
    for _ in range(2):  # two supervisors tell the same
        with Teller(api, kind, "workflow/team/flow/11-22") as teller:
            teller.entry(entry(0))
            teller.entry(entry(1, "ending", (FAULT,)))
            teller.entry(entry(2, "stopped", (FAULT,), "given up"))
    assert events(cluster_api) == sorted(
        [
            ("GangFaulted", object_of_gang, "run-a1", "team"),
            ("GangFaulted", "Node", "n1", "default"),
            ("GangFaulted", "Workflow", "flow", "team"),
            ("GangGaveUp", object_of_gang, "run-a1", "team"),
        ]
    )
    uids = {one["involvedObject"]["kind"]: one["involvedObject"]["uid"] for one in cluster_api.find("events")}
    assert uids == {object_of_gang: job["metadata"]["uid"], "Node": node["metadata"]["uid"], "Workflow": "11-22"}
    assert all("incident run-a1: " in one["message"] for one in cluster_api.find("events"))


def test_a_gang_that_is_gone_has_its_event_without_a_uid(cluster_api, api):
    with Teller(api, "vcjob") as teller:
        teller.entry(entry(0))
        teller.entry(entry(1, "stopped", reason="given up"))
    (found,) = cluster_api.find("events")
    assert "uid" not in found["involvedObject"]


def test_a_missing_right_is_said_once_and_takes_the_others_not_away(cluster_api, api, monkeypatch):
    monkeypatch.setattr(telling, "_FAREWELL_S", 60.0)
    said = []
    cluster_api.fail("POST", "/namespaces/default/events", 403, times=99)
    other = FAULT.model_copy(update={"id": "run-a2"})
    with Teller(api, "vcjob", log=said.append) as teller:
        teller.entry(entry(0))
        teller.entry(entry(1, "ending", (FAULT,)))
        teller.entry(entry(2, "ending", (FAULT, other)))
    assert [reason for reason, *_ in events(cluster_api)] == ["GangFaulted", "GangFaulted"]
    assert len(said) == 1
    assert "Events of nodes are not written" in said[0]


def test_an_api_server_that_hangs_holds_nobody_up(cluster_api, api):
    cluster_api.hang("GET", "/jobs/run-a1", times=99)
    teller = Teller(api, "vcjob")
    with teller:
        teller.entry(entry(0))
        began_s = time.monotonic()
        teller.entry(entry(1, "ending", (FAULT,)))
        took_s = time.monotonic() - began_s
    assert took_s < 15.0, "less than the request that hangs"
    assert time.monotonic() - began_s < 20.0, "nor its end for long"
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "rerail-events")


def test_what_could_not_be_written_is_tried_again(cluster_api, api, monkeypatch):
    monkeypatch.setattr("rerail.plugins.gang.telling._AGAIN_S", 0.01)
    cluster_api.fail("POST", "/events", 503, times=2)
    teller = Teller(api, "vcjob")
    with teller:
        teller.entry(entry(0))
        teller.entry(entry(1, "stopped", reason="given up"))
        deadline_s = time.monotonic() + 10
        while not cluster_api.find("events"):
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
