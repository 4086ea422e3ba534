"""Which gangs outlived their Workflow: every state of a Workflow, every phase of a run."""

from itertools import product
from typing import get_args

import pytest

from rerail.policies.owners import WorkflowRef
from rerail.policies.reaping import WorkflowView, ends, reaping, why_reap
from rerail.policies.supervisor.state import Phase

WORKFLOW = WorkflowRef(namespace="team", name="llama", uid="u")
EVERY = [
    WorkflowView(found=True, phase=phase, shutdown=shutdown, deleting=deleting)
    for phase, shutdown, deleting in product(
        ("", "Pending", "Running", "Succeeded", "Failed", "Error"), ("", "Stop", "Terminate"), (True, False)
    )
]


@pytest.mark.parametrize("view", EVERY, ids=str)
def test_a_gang_is_reaped_only_when_nobody_will_supervise_it(view):
    over = view.phase in ("Succeeded", "Failed", "Error")
    assert bool(why_reap(WORKFLOW, view)) == (over or view.deleting)
    assert ends(view) == (over or view.deleting or bool(view.shutdown))


def test_the_reason_says_what_became_of_the_workflow():
    gone = WorkflowView(found=False)
    assert why_reap(WORKFLOW, gone) == "Workflow team/llama is gone"
    assert ends(gone)
    stopped = WorkflowView(found=True, phase="Failed", shutdown="Terminate")
    assert why_reap(WORKFLOW, stopped) == "Workflow team/llama is over (Failed, terminated by a person)"


@pytest.mark.parametrize("phase", [None, *get_args(Phase)])
@pytest.mark.parametrize("left", [True, False])
def test_nothing_is_touched_without_a_reason_and_nothing_is_begun(phase, left):
    assert reaping("", phase=phase, left=left) == "leave"
    wanted = phase is not None and (left or phase not in ("done", "stopped"))
    assert (reaping("gone", phase=phase, left=left) == "end") == wanted
