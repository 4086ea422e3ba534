"""`rerail doctor --run` and ``--orphans``: runs in a store, their gangs in the fake API server."""

import pytest

from rerail.plugins.checkpoint.attempts import create_run
from rerail.plugins.checkpoint.notes import pause_run
from rerail.plugins.checkpoint.open import open_run
from rerail.plugins.gang.ledger import append
from rerail.policies.documents import Pause, RunDoc
from rerail.policies.supervisor.advance import Decision
from rerail.policies.supervisor.state import AttemptRecord, GangSpec, RunState

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture
def store(tmp_path):
    (tmp_path / "store").mkdir()
    return (tmp_path / "store").as_uri()


@pytest.fixture
def make_run(cluster, store):
    """A run whose ledger stands at an attempt, and its gangs with a pod each."""

    def make(name, *, attempt=1, phase="running", gangs=(1,), owner="cluster/team", save_s=None, grace_s=30):
        run = open_run(name, store=store)
        create_run(run, RunDoc(writer="0" * 16, run=name, owner=owner, created_at_s=0.0, world_size=1))
        record = AttemptRecord(n=1, gang=f"{name}-a1", nodes=(), how="fresh", opened_at_s=0.0, save_s=save_s)
        gang = GangSpec(name=f"{name}-a{attempt}", world_size=1, pods=())
        state = RunState(run=name, world_size=1, phase=phase, attempt=attempt, attempts=(record,), gang=gang)
        append(run, 0, Decision(state=state, note="made"), at_s=1.0)
        for number in gangs:
            labels = {"rerail.dev/run": name, "rerail.dev/gang": f"{name}-a{number}"}
            metadata = {"namespace": "team", "labels": labels}
            cluster.put("jobs", {"metadata": {**metadata, "name": f"{name}-a{number}"}, "spec": {"tasks": []}})
            container = {"name": "main", "env": [{"name": "RERAIL_STORE", "value": store}]}
            spec = {"terminationGracePeriodSeconds": grace_s, "containers": [container]}
            pod = {"metadata": {**metadata, "name": f"{name}-a{number}-worker-0"}, "spec": spec}
            cluster.put("pods", {**pod, "status": {"phase": "Running"}})

    return make


def told(rows):
    return [(one["verdict"], one["found"].split(":")[0]) for one in rows]


def test_a_run_whose_pods_are_killed_before_their_save_stands(doctor, make_run):
    make_run("mine", save_s=45.0)
    found = doctor("--run", "mine")
    assert (found["exit"], found["grace"][0]["verdict"]) == (1, "fail")
    assert "mine-a1-worker-0 has 30 s of grace, and the longest save took 45.0 s" in found["grace"][0]["found"]
    assert "90 or more" in found["grace"][0]["way_out"]
    assert found["own-restarts"][0]["verdict"] == "ok"


def test_a_vcjob_that_somebody_made_restart_by_itself(cluster, doctor, make_run):
    make_run("mine", save_s=3.0)
    policy = {"event": "PodFailed", "action": "RestartJob"}
    cluster.change("jobs", "team", "mine-a1", lambda one: one["spec"].update(policies=[policy]))
    found = doctor("--run", "mine", "-n", "team")
    assert (found["grace"][0]["verdict"], found["own-restarts"][0]["verdict"]) == ("ok", "fail")


def test_a_pause_is_told(cluster, doctor, make_run, store):
    make_run("mine")
    asked = Pause(writer="w" * 8, run="mine", reason="the switch is being changed", at_s=1.0)
    pause_run(open_run("mine", store=store), asked)
    cluster.put("configmaps", {"metadata": {"name": "rerail-guard", "namespace": "team"}, "data": {"paused": "all"}})
    every, mine = doctor("--run", "mine")["pause"]
    assert (every["verdict"], every["way_out"]) == ("warn", "rerail resume --all")
    assert "the switch is being changed" in mine["found"]


def test_gangs_that_are_left_over(cluster, doctor, make_run):
    make_run("fine")
    make_run("moved", attempt=2, gangs=(1, 2))
    make_run("over", phase="stopped")
    make_run("lost", owner="workflow/team/flow/11-22")
    make_run("driven", owner="workflow/team/other/33-44")
    cluster.put("workflows", {"metadata": {"name": "other", "namespace": "team", "uid": "33-44"}, "status": {}})
    gone = {"rerail.dev/run": "gone", "rerail.dev/gang": "gone-a1"}
    cluster.put("podgroups", {"metadata": {"name": "gone-a1", "namespace": "team", "labels": gone}})
    found = doctor("--orphans")
    assert told(found["orphans"]) == [
        ("skipped", "gang team/gone-a1"),
        ("warn", "gang team/lost-a1"),
        ("warn", "gang team/moved-a1 is left over"),
        ("warn", "gang team/over-a1 is left over"),
    ]
    assert "Workflow team/flow is gone" in found["orphans"][1]["found"]
    assert found["exit"] == 0


def test_a_gang_that_ended_is_not_left_over(cluster, doctor, make_run):
    make_run("over", phase="done")
    ended = {"state": {"phase": "Completed"}}
    job = cluster.change("jobs", "team", "over-a1", lambda one: one.update(status=ended))
    owner = {"kind": "Job", "name": "over-a1", "uid": job["metadata"]["uid"]}
    metadata = {**job["metadata"], "name": "over-a1-uid", "ownerReferences": [owner]}
    cluster.put("podgroups", {"metadata": metadata})
    assert [one["verdict"] for one in doctor("--orphans")["orphans"]] == ["ok"]


def test_a_run_that_is_not_known_fails_its_check_alone(doctor):
    found = doctor("--run", "none", "--orphans")
    assert found["run"][0]["verdict"] == "fail"
    assert found["orphans"][0]["verdict"] == "ok"
