"""The ConfigMap of ``KubeGuard`` against an API server that misbehaves as told."""

import json

import pytest

from rerail.plugins.kube.api import Patience
from rerail.plugins.nodes.kube_guard import KEY, MOST_BYTES, NAME, KubeGuard
from rerail.policies.errors import ClusterUnreachableError, ForbiddenError, NotFoundError, TransientError
from rerail.policies.guards import IN_LINE, GuardPolicy, GuardState


@pytest.fixture
def guard(kube):
    return KubeGuard(kube, policy=GuardPolicy(submissions=2), wall_s=lambda: 1000.0, again_s=0.0)


def stored(fake_api):
    (found,) = fake_api.find("configmaps")
    return found


def tokens(fake_api):
    return [token.id for token in GuardState.model_validate_json(stored(fake_api)["data"][KEY]).tokens]


def test_it_is_made_in_the_namespace_of_the_connection_and_keeps_what_others_wrote(fake_api, guard):
    assert guard.ask_submission("a", 2) == ""
    found = stored(fake_api)
    assert (found["metadata"]["namespace"], found["metadata"]["name"]) == ("team", NAME)

    def write(one):
        one["data"]["note"] = "ours"
        one["metadata"]["annotations"] = {"example.com/own": "kept"}

    fake_api.change("configmaps", "team", NAME, write)
    assert guard.ask_submission("b", 2) == ""
    found = stored(fake_api)
    assert (found["data"]["note"], found["metadata"]["annotations"]) == ("ours", {"example.com/own": "kept"})
    assert tokens(fake_api) == ["a/2", "b/2"]


def test_a_token_that_was_given_is_not_asked_for_again(fake_api, guard):
    guard.ask_submission("a", 2)
    before = len(fake_api.requests)
    assert guard.ask_submission("a", 2) == ""
    assert len(fake_api.requests) == before


def test_a_reason_to_hold_is_repeated_for_a_while(fake_api, kube):
    now_s = [0.0]
    kube.clock = lambda: now_s[0]
    guard = KubeGuard(kube, policy=GuardPolicy(submissions=1), wall_s=lambda: 1000.0, again_s=2.0)
    guard.ask_submission("a", 2)
    held = guard.ask_submission("b", 2)
    before = len(fake_api.requests)
    for now_s[0] in (0.5, 1.9):
        assert guard.ask_submission("b", 2) == held != ""
    assert len(fake_api.requests) == before
    now_s[0] = 2.1
    assert guard.ask_submission("b", 2) == held
    assert len(fake_api.requests) == before + 1


def test_a_conflict_is_decided_anew(fake_api, guard):
    guard.ask_submission("a", 2)
    fake_api.fail("PUT", "/configmaps", 409)
    assert guard.ask_submission("b", 2) == ""
    assert tokens(fake_api) == ["a/2", "b/2"]


def test_a_conflict_for_ever_is_no_answer(fake_api, guard):
    guard.ask_submission("a", 2)
    pauses_s: list[float] = []
    guard._api.sleep = pauses_s.append
    fake_api.fail("PUT", "/configmaps", 409, times=99)
    with pytest.raises(TransientError, match="changed between reading and writing 10 times"):
        guard.ask_submission("b", 2)
    assert fake_api.asked("PUT", "/configmaps") == 10
    assert sum(pauses_s) < 5.0


def test_somebody_who_made_it_first_is_no_error(fake_api, guard):
    body = {"metadata": {"name": NAME, "namespace": "team"}, "data": {KEY: GuardState().model_dump_json()}}

    def rival(method, _path):
        if method == "GET" and not fake_api.find("configmaps"):
            fake_api.put("configmaps", body)

    fake_api.fail("POST", "/configmaps", 409, body={"kind": "Status", "reason": "AlreadyExists", "code": 409})
    fake_api.hooks.append(rival)
    assert guard.ask_submission("a", 2) == ""
    assert tokens(fake_api) == ["a/2"]


def test_one_that_is_deleted_between_reading_and_writing_is_made_again(fake_api, guard):
    guard.ask_submission("a", 2)
    gone = {"kind": "Status", "reason": "NotFound", "code": 404, "details": {"name": NAME, "kind": "configmaps"}}
    fake_api.fail("PUT", "/configmaps", 404, body=gone)
    assert guard.ask_submission("b", 2) == ""


def test_no_answer_is_transient_and_soon(fake_api, kube):
    guard = KubeGuard(kube, answer_s=0.2)
    assert guard._api.patience == Patience(request_s=0.2, total_s=0.2)
    fake_api.fail("GET", "/configmaps", 503, times=10**6)
    with pytest.raises(ClusterUnreachableError):
        guard.ask_submission("a", 2)


def test_a_lost_answer_is_hold_and_then_the_token_is_there(fake_api, guard):
    guard.ask_submission("a", 2)
    fake_api.lose_reply("PUT", "/configmaps")
    with pytest.raises(ClusterUnreachableError):
        guard.ask_submission("b", 2)
    assert guard.ask_submission("b", 2) == ""
    assert tokens(fake_api) == ["a/2", "b/2"]


@pytest.mark.parametrize(("verb", "asks"), [("get", "a"), ("create", "a"), ("update", "b")])
def test_a_missing_right_names_its_rule(fake_api, guard, verb, asks):
    if asks == "b":
        guard.ask_submission("a", 2)
    fake_api.deny(verb, "configmaps")
    with pytest.raises(ForbiddenError) as caught:
        guard.ask_submission(asks, 2)
    assert caught.value.rule == f'- apiGroups: [""]\n  resources: ["configmaps"]\n  verbs: ["{verb}"]'


def test_a_namespace_that_is_not_there_is_named(fake_api, guard):
    absent = {"kind": "Status", "reason": "NotFound", "code": 404, "details": {"name": "team", "kind": "namespaces"}}
    fake_api.fail("POST", "/configmaps", 404, times=9, body=absent)
    with pytest.raises(NotFoundError, match="namespace 'team' does not exist"):
        guard.ask_submission("a", 2)


def test_it_does_not_outgrow_a_config_map(fake_api, kube):
    guard = KubeGuard(kube, policy=GuardPolicy(submissions=10**6), wall_s=lambda: 1000.0)
    guard.ask_submission("a", 2)
    many = [{"kind": "submission", "id": f"{'r' * 200}{number}/2", "node": "", "at_s": 999.0} for number in range(2500)]
    full = json.dumps({"tokens": many, "breaker": ""})
    fake_api.change("configmaps", "team", NAME, lambda one: one["data"].update({KEY: full}))
    held = guard.ask_submission("b", 2)
    assert f"larger than {MOST_BYTES >> 10} KiB" in held
    assert "lower submissions or window_s" in held
    assert stored(fake_api)["data"][KEY] == full


def test_who_waits_in_line_asks_again_when_it_has_a_sense(kube, fake_api):
    guard = KubeGuard(kube, wall_s=lambda: 1000.0, again_s=0.0)
    assert guard.ask_submission("b", 2, since_s=2.0) == ""
    assert guard.ask_submission("a", 2, since_s=1.0) == IN_LINE
    asked = len(fake_api.requests)
    assert guard.ask_submission("a", 2, since_s=1.0) == IN_LINE
    assert len(fake_api.requests) == asked, "not within the pace of a second"
