from pathlib import Path

import pytest
import yaml

from rerail.plugins.evict.extender_manifests import scheduler_conf
from rerail.policies.errors import UsageError
from rerail.policies.scheduler_conf import check_scheduler_conf


def conf(**change):
    return {**scheduler_conf("http://extender:8765"), **change}


def codes(document) -> list[tuple[str, str]]:
    return [(one.severity, one.code) for one in check_scheduler_conf(yaml.safe_dump(document))]


def plugins(document):
    return document["tiers"][0]["plugins"]


def test_the_configuration_that_we_print_has_no_problem():
    assert codes(conf()) == []


def test_volcanos_usual_two_tiers_leak():
    document = conf()
    everything = plugins(document)
    first = [one for one in everything if one["name"] in ("priority", "gang", "conformance", "extender")]
    document["tiers"] = [{"plugins": first}, {"plugins": [one for one in everything if one not in first]}]
    assert codes(document) == [("error", "tier-after")], "proportion names victims for reclaim"


def test_what_stands_in_an_earlier_tier_evicts_without_asking():
    document = conf()
    everything = plugins(document)
    document["tiers"] = [{"plugins": everything[:3]}, {"plugins": everything[3:]}]
    assert ("error", "tier-before") in codes(document)


def test_an_earlier_tier_without_victims_is_no_leak():
    document = conf()
    quiet = {"name": "conformance", "enablePreemptable": False, "enableReclaimable": False}
    document["tiers"].insert(0, {"plugins": [quiet, {"name": "nodeorder"}]})
    assert codes(document) == []


@pytest.mark.parametrize("action", ["gangpreempt", "gangreclaim", "shuffle"])
def test_actions_that_do_not_ask(action):
    assert ("error", "silent-action") in codes(conf(actions=f"allocate, preempt, {action}"))


def test_enqueue_keeps_newcomers_out():
    assert codes(conf(actions="enqueue, allocate, preempt, backfill")) == [("error", "enqueue")]
    assert codes(conf(actions="enqueue, allocate, backfill")) == [("warning", "no-eviction")]


def test_without_an_extender_nobody_is_asked():
    document = conf()
    plugins(document).pop()
    assert codes(document) == [("error", "no-extender")]


def test_a_verb_that_is_missing_or_switched_off():
    document = conf()
    del plugins(document)[-1]["arguments"]["extender.reclaimableVerb"]
    assert codes(document) == [("error", "no-verb")]
    document = conf()
    plugins(document)[-1]["enablePreemptable"] = False
    assert codes(document) == [("error", "switched-off")]


def test_what_stands_behind_it_and_what_it_is_asked_for():
    document = conf()
    plugins(document).append({"name": "pdb"})
    assert codes(document) == [("warning", "not-last")] * 2
    document = conf()
    del plugins(document)[-1]["arguments"]["extender.managedResources"]
    assert codes(document) == [("warning", "asked-for-all")]
    document = conf()
    plugins(document)[-1]["arguments"] = 3
    assert ("error", "no-address") in codes(document)


def test_the_configuration_of_our_cluster_asks_nobody():
    text = (Path(__file__).parents[1] / "cluster" / "volcano-scheduler.conf").read_text()
    assert [one.code for one in check_scheduler_conf(text)] == ["no-extender"]


@pytest.mark.parametrize(
    "text", ["", "[", "3", "actions: 3", "actions: allocate\ntiers: 3", "actions: a\ntiers: [{plugins: [3]}]"]
)
def test_what_is_no_configuration(text):
    with pytest.raises(UsageError):
        check_scheduler_conf(text)
