"""A run is created once and found again, by its owner alone, until somebody takes it over."""

import secrets

import pytest

from rerail.plugins.checkpoint.open import open_run
from rerail.plugins.gang.executor import Supervisor
from rerail.plugins.gang.ledger import all_decisions, newest_entry
from rerail.plugins.gang.submission import owner_of, submit
from rerail.plugins.nodes.local import LocalNodes
from rerail.policies.documents import RunDoc
from rerail.policies.errors import RefusedError, UsageError
from rerail.policies.owners import WorkflowRef, cluster_owner
from rerail.policies.recovery import DRILL_POLICY

ONE, TWO, THREE = (WorkflowRef(namespace="team", name=f"w{n}", uid=f"u{n}").owner for n in (1, 2, 3))


@pytest.fixture
def run(tmp_path):
    return open_run("run", store=(tmp_path / "runs").as_uri(), create=True)


def doc(owner, ranks=2):
    return RunDoc(writer=secrets.token_hex(8), run="run", owner=owner, created_at_s=0.0, world_size=ranks)


def check(standing):
    if standing.world_size != 2:
        raise UsageError("another run")


def supervisor(world, run, owner):
    backend = world.backend()
    return Supervisor(run, 2, backend, LocalNodes(world.root / "nodes", used=backend.used), DRILL_POLICY, owner=owner)


def test_the_first_is_looked_at_before_anything_is_written(run):
    def refuse():
        raise RefusedError("no such queue")

    with pytest.raises(RefusedError, match="no such queue"):
        submit(run, doc(ONE), check, first=refuse)
    assert not run.control.page("").entries
    assert submit(run, doc(ONE), check).owner == ONE
    assert submit(run, doc(ONE), check, first=refuse).owner == ONE, "the second time it stands"


def test_another_run_of_this_name_is_refused_also_where_it_came_in_between(run):
    def meanwhile():
        submit(run, doc(ONE, ranks=3), lambda _doc: None)

    with pytest.raises(UsageError, match="another run"):
        submit(run, doc(ONE), check, first=meanwhile)
    with pytest.raises(UsageError, match="another run"):
        submit(run, doc(ONE), check)


def test_a_second_workflow_is_refused_and_may_take_over_and_then_the_first_is_refused(run, world):
    submit(run, doc(ONE), check)
    with pytest.raises(RefusedError, match=r"belongs to Workflow team/w1, not to Workflow team/w2;.*take-over=true"):
        submit(run, doc(TWO), check)
    supervisor(world, run, ONE).take_over()
    before = newest_entry(run)
    assert before.state.owner == ONE
    standing = submit(run, doc(TWO), check, take_over=True)
    supervisor(world, run, TWO).take_over()
    after = newest_entry(run)
    assert owner_of(run, standing) == TWO
    assert after.note == "Workflow team/w2 goes on with the run"
    assert after.effects == before.effects, "what was ordered stays ordered"
    assert after.state == before.state.model_copy(update={"owner": TWO})
    with pytest.raises(RefusedError, match="belongs to Workflow team/w2, not to Workflow team/w1"):
        submit(run, doc(ONE), check)
    with pytest.raises(RefusedError, match="belongs to Workflow team/w2, not to 'cluster/team'"):
        submit(run, doc(cluster_owner("team")), check)
    supervisor(world, run, TWO).take_over()
    assert len(all_decisions(run)) == 2, "who has it takes nothing over"


def test_a_workflow_from_which_a_run_was_taken_over_does_not_take_it_back(run, world):
    submit(run, doc(ONE), check)
    for owner in (ONE, TWO, THREE):
        supervisor(world, run, owner).take_over()
    for owner in (TWO, ONE):
        with pytest.raises(RefusedError, match=r"was taken over from Workflow .* and belongs to Workflow team/w3"):
            supervisor(world, run, owner).take_over()
    assert newest_entry(run).state.owner == THREE
    person = cluster_owner("team")
    for owner in (person, WorkflowRef(namespace="team", name="w4", uid="u4").owner, person):
        supervisor(world, run, owner).take_over()
    assert newest_entry(run).state.owner == person, "a person says so each time"
