"""`rerail pause` and `rerail resume` over a gang of real processes."""

import json
import signal

import pytest
from typer.testing import CliRunner

from rerail.plugins.checkpoint.notes import pause_run, resume_run, why_paused
from rerail.plugins.cli.main import build, main
from rerail.plugins.gang.executor import Supervisor
from rerail.plugins.gang.ledger import all_decisions, append, newest_entry
from rerail.plugins.nodes.local import LocalNodes
from rerail.plugins.nodes.pausing import LocalPause
from rerail.plugins.trainer import processes
from rerail.policies import keys
from rerail.policies.documents import Pause
from rerail.policies.recovery import DRILL_POLICY
from rerail.policies.supervisor.advance import Decision
from rerail.policies.supervisor.effects import MarkNode
from rerail.policies.supervisor.state import RunState

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


def rerail(*words):
    done = CliRunner().invoke(build(words[:1]), [*words, "-o", "json"])
    assert done.exit_code == 0, (done.output, done.exception)
    return json.loads(done.stdout)


def test_a_lost_node_is_only_noted_until_the_run_goes_on(world, wait_for):
    world.create()
    world.plan({"1.1": [10, 0]})
    supervisor = world.supervise()
    wait_for((world.root / "store/run" / keys.manifest(1, 5)).exists)
    told = rerail("pause", "run", "--store", world.store, "--reason", "the switch is being changed")
    assert told["paused"] == "run"
    again = rerail("pause", "run-a1", "--store", world.store, "--reason", "another")
    assert "the switch is being changed" in again["reason"], "the first pause stands"
    wait_for(lambda: newest_entry(world.run).state.paused)
    for found in world.backend().processes_on("n2"):
        processes.send_exactly(found.pid, found.started, signal.SIGKILL)
    wait_for(lambda: "held back" in newest_entry(world.run).state.paused)
    status = rerail("status", "run", "--store", world.store)
    assert "the switch is being changed" in status["paused"]
    assert (status["phase"], status["attempt"], status["incidents"]) == ("running", 1, [])
    assert world.ups() == ["1.0", "1.1"]
    assert json.loads((world.root / "nodes/n2/node.json").read_text())["taints"] == {}
    assert rerail("resume", "run", "--store", world.store) == {"resumed": "run", "was_paused": True}
    assert supervisor.wait(timeout=120) == 0, world.said()
    state = all_decisions(world.run)[-1].state
    assert [record.nodes for record in state.attempts] == [("n1", "n2"), ("n1", "n3")]
    assert "rerail.dev/quarantined" in json.loads((world.root / "nodes/n2/node.json").read_text())["taints"]
    assert rerail("resume", "run", "--store", world.store)["was_paused"] is False


def test_a_mark_that_was_ordered_before_waits_as_well(world):
    world.create()
    nodes = LocalNodes(world.root / "nodes")
    nodes.add("n1", 2)
    nodes.add("n2", 2)
    state = RunState(run="run", world_size=2, phase="waiting", attempt=1, reason="no capacity")
    mark = MarkNode(node="n2", incident="run-a1", reason="gpu_lost")
    append(world.run, 0, Decision(state=state, effects=(mark,), note="made"), at_s=1.0)
    pause_run(world.run, Pause(writer="w" * 8, run="run", reason="mine", at_s=1.0))
    supervisor = Supervisor(world.run, 2, world.backend(), nodes, DRILL_POLICY)
    for _ in range(3):
        assert supervisor.step().phase == "waiting"
    assert nodes.read("n2").taints == {}
    assert not supervisor.settled, "nobody may take it for done"
    resume_run(world.run)
    supervisor.step()
    assert nodes.read("n2").taints != {}


def test_a_pause_that_cannot_be_read_is_one(world):
    world.create()
    world.run.control.create(keys.PAUSE, b"by hand")
    assert "cannot be" in why_paused(world.run) or "no JSON" in why_paused(world.run)
    asked = Pause(writer="w" * 8, run="run", reason="mine", at_s=1.0)
    rerail("resume", "run", "--store", world.store)
    assert why_paused(world.run) == ""
    assert pause_run(world.run, asked) == asked


def test_all_runs_of_this_machine(tmp_path):
    told = rerail("pause", "--all", "--local", "--state", str(tmp_path), "--reason", "maintenance")
    assert str(tmp_path) in told["paused"]
    assert LocalPause(tmp_path).why().startswith("maintenance (")
    assert rerail("resume", "--all", "--local", "--state", str(tmp_path))["was_paused"] is True


def test_all_runs_of_a_cluster(cluster_api, make_rig, tmp_path, monkeypatch):
    make_rig("vcjob")  # writes the kubeconfig
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
    rerail("pause", "--all", "--guard-namespace", "guards", "--reason", "maintenance")
    (found,) = cluster_api.find("configmaps")
    assert (found["metadata"]["namespace"], found["metadata"]["name"]) == ("guards", "rerail-guard")
    assert found["data"]["paused"].startswith("maintenance (")
    assert rerail("resume", "--all", "--guard-namespace", "guards")["was_paused"] is True


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("pause",), "name a run, or pass --all"),
        (("pause", "run", "--all"), "leave 'run' out"),
        (("pause", "--all", "--state", "x"), "--state belongs to --local"),
    ],
)
def test_what_is_meant_must_be_said(words, told, capsys):
    with pytest.raises(SystemExit) as left:
        main(list(words))
    assert left.value.code == 2
    assert told in capsys.readouterr().err
