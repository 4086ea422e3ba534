from pathlib import Path

import pytest
import yaml

from rerail.plugins.evict.extender_manifests import scheduler_conf
from rerail.policies.errors import UsageError
from rerail.policies.scheduler_conf import check_gangs, check_scheduler_conf


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


def gang_codes(document) -> list[tuple[str, str]]:
    return [(one.severity, one.code) for one in check_gangs(yaml.safe_dump(document))]


def without_extender(**change):
    document = conf(**change)
    plugins(document).pop()
    return document


def test_gangs_are_safe_with_the_configuration_that_we_print():
    assert gang_codes(conf()) == []


def test_what_preempt_does_to_gangs():
    document = conf()
    del plugins(document)[1]["enablePreemptable"]
    assert gang_codes(document) == [("warning", "gang-never-leaves")]
    assert gang_codes(without_extender()) == [("warning", "gang-breaks")]
    assert gang_codes(without_extender(actions="allocate, backfill")) == []


def test_volcanos_own_default_orders_by_drf_and_is_else_sound():
    usual = {
        "actions": "enqueue, allocate, backfill",
        "tiers": [
            {"plugins": [{"name": "priority"}, {"name": "gang", "enablePreemptable": False}, {"name": "conformance"}]},
            {"plugins": [{"name": "overcommit"}, {"name": "drf"}, {"name": "predicates"}, {"name": "proportion"}]},
        ],
    }
    assert gang_codes(usual) == [("warning", "drf-order")]
    assert gang_codes({**usual, "actions": "enqueue, allocate, preempt, reclaim, backfill"}) == [
        ("error", "enqueue"),
        ("warning", "gang-breaks"),
        ("warning", "gang-porous"),
        ("warning", "drf-order"),
    ]


def test_other_things_that_break_gangs():
    assert ("error", "silent-action") in gang_codes(without_extender(actions="allocate, shuffle"))
    assert ("error", "silent-action") in gang_codes(conf(actions="allocate, preempt, shuffle"))
    document = conf()
    del plugins(document)[1]
    assert gang_codes(document)[0] == ("error", "no-gang")
    assert ("warning", "both-actions") in gang_codes(conf(actions="allocate, preempt, gangpreempt"))
    document = conf()
    document["tiers"].append({"plugins": [{"name": "pdb"}]})
    assert ("error", "tier-after") in gang_codes(document), "where an extender stands, its tiers count"
    enqueue = gang_codes(conf(actions="enqueue, allocate, preempt, backfill"))
    assert [code for _, code in enqueue].count("enqueue") == 1
