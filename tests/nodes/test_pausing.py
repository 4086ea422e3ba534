"""The switch for all runs: a file here, a key of the guard's ConfigMap in a cluster."""

import pytest

from rerail.plugins.nodes.kube_guard import KEY as GUARD_KEY
from rerail.plugins.nodes.kube_guard import NAME, KubeGuard
from rerail.plugins.nodes.kube_pausing import KubePause
from rerail.plugins.nodes.pausing import LocalPause
from rerail.policies.errors import ClusterUnreachableError, TransientError


def test_the_file_of_this_machine(tmp_path):
    switch = LocalPause(tmp_path / "state")
    assert switch.why() == ""
    assert switch.resume() is False
    switch.pause("maintenance")
    switch.pause("more maintenance")
    assert LocalPause(tmp_path / "state").why() == "more maintenance"
    assert switch.resume() is True
    assert switch.why() == ""
    (tmp_path / "state" / "paused").write_text("")
    assert switch.why() != "", "an empty file holds as well"


@pytest.fixture
def switch(kube):
    return KubePause(kube, again_s=0.0)


def data(fake_api):
    return fake_api.find("configmaps")[0]["data"]


def test_guard_and_switch_share_a_config_map_and_keep_each_others_words(fake_api, kube, switch):
    assert switch.why() == ""
    assert switch.resume() is False
    assert fake_api.find("configmaps") == [], "looking makes nothing"
    switch.pause("maintenance")
    assert KubeGuard(kube).ask_submission("a", 2) == ""
    assert switch.why() == "maintenance"
    assert set(data(fake_api)) == {"paused", GUARD_KEY}
    assert switch.resume() is True
    assert set(data(fake_api)) == {GUARD_KEY}
    assert switch.why() == ""


def test_a_change_in_between_is_read_again(fake_api, kube, switch):
    KubeGuard(kube).ask_submission("a", 2)
    fake_api.fail("PUT", NAME, 409, body={"kind": "Status", "reason": "Conflict", "message": "modified"})
    switch.pause("maintenance")
    assert switch.why() == "maintenance"
    fake_api.fail("PUT", NAME, 409, times=99, body={"kind": "Status", "reason": "Conflict", "message": "modified"})
    with pytest.raises(TransientError, match="changed at each of 5 tries"):
        switch.resume()


def test_an_answer_is_repeated_for_a_while_and_no_answer_is_told(fake_api, kube):
    now_s = [0.0]
    kube.clock = lambda: now_s[0]
    switch = KubePause(kube, again_s=2.0)
    other = KubePause(kube)
    assert switch.why() == ""
    other.pause("maintenance")
    before = len(fake_api.requests)
    now_s[0] = 1.9
    assert switch.why() == ""
    assert len(fake_api.requests) == before
    now_s[0] = 2.1
    assert switch.why() == "maintenance"
    fake_api.fail("GET", NAME, 503, times=9)
    now_s[0] = 5.0
    with pytest.raises(ClusterUnreachableError):
        switch.why()
    assert switch.why() == "maintenance", "not asked again at once, and what was said last counts"
