"""Who drives a run, read back from the text that run.json and the ledger hold."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rerail.policies.owners import WorkflowRef, called, cluster_owner, namespace_of, not_yours

names = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?", fullmatch=True)


@given(names, names, names)
def test_a_workflow_is_read_back_as_it_was_written(namespace, name, uid):
    one = WorkflowRef(namespace=namespace, name=name, uid=uid)
    assert WorkflowRef.of(one.owner) == one
    assert namespace_of(one.owner) == namespace
    assert WorkflowRef.of(cluster_owner(namespace)) is None
    assert namespace_of(cluster_owner(namespace)) == namespace


@pytest.mark.parametrize("owner", ["", "workflow", "workflow/a/b", "workflow/a//c", "workflow/a/b/c/d", "local/x/y/z"])
def test_what_is_no_workflow_is_none(owner):
    assert WorkflowRef.of(owner) is None
    assert namespace_of(owner) == ""
    assert called(owner) == repr(owner)


def test_a_refusal_names_both_and_tells_two_of_one_name_apart():
    first, again = (WorkflowRef(namespace="team", name="llama", uid=uid).owner for uid in ("u1", "u2"))
    words = not_yours("r", owner="local/host", asked=first)
    assert "belongs to 'local/host', not to Workflow team/llama;" in words
    assert "the parameter take-over=true" in words
    assert "(uid u1), not to Workflow team/llama (uid u2)" in not_yours("r", owner=first, asked=again)
    assert "--take-over" in not_yours("r", owner=first, asked="cluster/team")
