"""What every guard keeps: a locked file of one machine, and a ConfigMap of a cluster."""

import secrets
import threading
from pathlib import Path
from typing import Any

import pytest

from rerail.plugins.gang.ports import Guard
from rerail.plugins.kube.resources import CONFIG_MAPS, NAMESPACES
from rerail.plugins.nodes.guard import LocalGuard
from rerail.plugins.nodes.kube_guard import KEY, NAME, KubeGuard
from rerail.policies.errors import AlreadyExistsError, DamagedError
from rerail.policies.guards import IN_LINE, GuardPolicy

POLICY = GuardPolicy(submissions=3, window_s=100.0, quarantined_share=0.34, quarantines=2)


class LocalWorld:
    def __init__(self, folder: Path) -> None:
        self.path = folder / "guard.json"
        self.now_s = 1000.0

    def guard(self, policy: GuardPolicy = POLICY) -> LocalGuard:
        return LocalGuard(self.path, policy=policy, wall_s=lambda: self.now_s)

    def damage(self, text: str) -> None:
        self.path.write_text(text)

    def lose(self) -> None:
        self.path.unlink()


class ClusterWorld:
    def __init__(self, api: Any, namespace: str) -> None:
        self.api, self.namespace = api, namespace
        self.now_s = 1000.0

    def guard(self, policy: GuardPolicy = POLICY) -> KubeGuard:
        options: dict[str, Any] = {"namespace": self.namespace, "again_s": 0.0}
        return KubeGuard(self.api, policy=policy, wall_s=lambda: self.now_s, **options)

    def damage(self, text: str) -> None:
        self.api.patch(CONFIG_MAPS, NAME, {"data": {KEY: text}}, namespace=self.namespace)

    def lose(self) -> None:
        self.api.delete(CONFIG_MAPS, NAME, namespace=self.namespace)


@pytest.fixture(params=["local", "fake", pytest.param("real", marks=pytest.mark.cluster)])
def shared(request, tmp_path):
    if request.param == "local":
        yield LocalWorld(tmp_path)
    elif request.param == "fake":
        yield ClusterWorld(request.getfixturevalue("kube"), "team")
    else:
        api = request.getfixturevalue("real_api")
        name = f"rerail-guard-test-{secrets.token_hex(4)}"
        try:
            api.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
        except AlreadyExistsError:
            pytest.fail(f"namespace {name} is left over")
        yield ClusterWorld(api, name)
        api.delete(NAMESPACES, name)


def test_a_storm_is_held_and_its_tokens_come_back(shared):
    guard = shared.guard()
    assert isinstance(guard, Guard)
    assert guard.ask_submission("a", 1) == ""
    for run in "abc":
        assert guard.ask_submission(run, 2) == ""
        assert shared.guard().ask_submission(run, 2) == "", "one attempt is one token, whoever asks"
    assert "storm guard: 3 gangs were restarted" in guard.ask_submission("d", 2)
    shared.now_s += 101.0
    assert guard.ask_submission("d", 2) == ""


def test_the_share_of_fenced_nodes_and_their_number_are_bounded(shared):
    guard = shared.guard()
    assert "more than 34%" in guard.ask_quarantine("n3", "r-a1", nodes=5, fenced=1)
    for node in ("n1", "n2"):
        assert guard.ask_quarantine(node, "r-a1", nodes=30, fenced=0) == ""
    assert "breaker is open" in guard.ask_quarantine("n3", "r-a1", nodes=30, fenced=2)
    shared.now_s += 1e6
    assert "breaker is open" in shared.guard().ask_quarantine("n3", "r-a1", nodes=30, fenced=2)
    guard.close_breaker()
    assert guard.ask_quarantine("n3", "r-a1", nodes=30, fenced=2) == ""


def test_a_guard_that_somebody_deleted_is_made_again(shared):
    guard = shared.guard()
    for run in "abc":
        guard.ask_submission(run, 2)
    shared.lose()
    assert guard.ask_submission("d", 2) == ""
    assert shared.guard().ask_submission("e", 2) == ""


@pytest.mark.parametrize("text", ["{", "[]", '{"tokens": 1}'])
def test_a_damaged_guard_is_named_with_the_way_out(shared, text):
    guard = shared.guard()
    guard.ask_submission("a", 2)
    shared.damage(text)
    with pytest.raises(DamagedError, match="look at it"):
        guard.ask_submission("b", 2)
    shared.lose()
    assert guard.ask_submission("b", 2) == ""


def test_many_who_ask_at_once_get_the_tokens_that_there_are(shared):
    gate = threading.Barrier(8)
    answers: list[str] = []

    def ask(number):
        guard = shared.guard(POLICY.model_copy(update={"submissions": 4}))
        gate.wait()
        answers.append(guard.ask_submission(f"r{number}", 2))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers.count("") == 4
    assert len(answers) == 8


def test_gangs_that_were_taken_away_come_back_by_the_age_of_their_runs(shared):
    def ask(run, since_s):
        return shared.guard().ask_submission(run, 2, since_s=since_s)

    assert ask("c", 3.0) == ""
    assert ask("b", 2.0) == ask("a", 1.0) == IN_LINE
    shared.now_s += 1.5
    assert ask("b", 2.0) == IN_LINE, "it is a's turn"
    assert ask("a", 1.0) == ""
    shared.now_s += 1.5
    assert ask("b", 2.0) == ""
