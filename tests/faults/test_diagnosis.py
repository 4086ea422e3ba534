"""What signals mean together: the order of trust, followers, repeats, pods' logs, exits."""

import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rerail.policies.catalog import builtin_overlay, load_catalogue
from rerail.policies.documents import RankExit
from rerail.policies.faults import ACTIONS, FaultSignal
from rerail.policies.faults.correlation import correlate
from rerail.policies.faults.diagnosis import diagnose, diagnose_exits, diagnose_nodes
from rerail.policies.faults.findings import NEVER_ALONE

calm = settings(deadline=None, max_examples=1000 if os.environ.get("CI") == "true" else 60)

GPU, OTHER = "0000:3b:00", "0000:5e:00"
NOW = 5000.0
KNOWN = load_catalogue()


def _recovery(signal, text, at_s, **fields):
    return signal("xid:154", at_s, details={"recovery_text": text, "recovery_value": None, "recovery": text}, **fields)


def _of(*signals, **fields):
    return diagnose(signals, (), now_s=NOW, **fields)


def test_cases_of_several_lines_from_the_field(cases, catalogue):
    known = cases("gpu-faults")
    (storm,) = correlate(known["C6-02"]["input"]["lines"], catalogue)
    expected = known["C6-02"]["expected"]
    assert {key: storm[key] for key in ("primary", "followers", "nodes_quarantined")} == {
        key: expected[key] for key in ("primary", "followers", "nodes_quarantined")
    }
    (alone,) = correlate(known["C6-02"]["input"]["lines"][1:], catalogue)
    assert (alone["action"], alone["quarantine"], alone["count"]) == ("restart_app", "none", 2)

    (boot,) = correlate(known["C6-12"]["input"]["lines"], catalogue)
    assert (boot["class"], boot["scope"], boot["device_minor"]) == ("gpu_init_failed", "node", 0)
    assert (boot["action"], boot["then"]) == ("reboot_node", "contact_support if it repeats")

    (hang,) = correlate([known["C6-16"]["input"]["line"]], catalogue)
    assert (hang["class"], hang["scope"], hang["quarantine"]) == ("collective_timeout", None, "none")

    rpc = correlate(known["C6-20"]["input"]["lines"], catalogue)
    assert len(rpc) == known["C6-20"]["expected"]["faults"]
    assert {key: rpc[0][key] for key in ("count", "xid", "action", "scope")} == {
        key: known["C6-20"]["expected"][key] for key in ("count", "xid", "action", "scope")
    }


def test_the_same_sm_under_several_workloads_is_the_hardwares(cases, signal):
    events = cases("gpu-faults")["C6-04"]["input"]["events"]
    seen = [
        signal("xid:13", 1000.0 + n, devices=(e["pci"],), details={"gpc": e["gpc"], "tpc": e["tpc"], "job": e["job"]})
        for n, e in enumerate(events)
    ]
    found = diagnose([seen[2]], now_s=NOW, history=seen[:2])
    assert (found.class_, found.scope, found.quarantine) == ("suspect_hardware", "device", "node")
    alone = diagnose([seen[2]], now_s=NOW, history=[])
    assert (alone.action, alone.quarantine) == ("restart_app", "none")
    burst = [signal("xid:13", 1000.0 + n, details={"gpc": 9, "tpc": 5, "job": "a"}) for n in range(50)]
    assert diagnose(burst[-1:], now_s=NOW, history=burst[:-1]).quarantine == "none"


def test_43_in_three_pods_of_one_node_holds_the_node_unless_the_pods_meet_it_elsewhere(signal):
    pods = ["a", "a", "b", "c", "d"]
    here = [signal("xid:43", 1000.0 + 60 * n, details={"pod": pod}) for n, pod in enumerate(pods)]
    found = diagnose(here[-1:], now_s=NOW, history=here[:-1])
    assert (found.scope, found.quarantine, found.node) == ("node", "node", "n1")
    slow = [signal("xid:43", 1000.0 + 700 * n, details={"pod": pod}) for n, pod in enumerate(pods)]
    assert diagnose(slow[-1:], now_s=NOW, history=slow[:-1]).quarantine == "none"
    elsewhere = [signal("xid:43", 1100.0, node="n2", details={"pod": pod}) for pod in "abcd"]
    assert diagnose(here[-1:], now_s=NOW, history=[*here[:-1], *elsewhere]).quarantine == "none"


def test_the_drivers_own_word_wins_over_table_and_source_within_its_window(signal):
    fault = signal("xid:48", 1000.0, action_hint="replace_node")
    reboot = _recovery(signal, "Node Reboot Required", 1020.0)
    found = _of(fault, reboot)
    assert (found.class_, found.action, found.trust) == ("gpu_memory_ecc", "reboot_node", "recovery_action")
    assert found.suspects
    late = _recovery(signal, "Node Reboot Required", 1031.0)
    assert {one.trust for one in diagnose_nodes([fault], now_s=NOW)} == {"source_hint"}
    assert "xid:48" in _of(fault, late).codes
    other = _recovery(signal, "Node Reboot Required", 1001.0, devices=(OTHER,), node="n2")
    assert diagnose_nodes([fault, other], now_s=NOW)[0].action == "replace_node"


def test_the_last_recovery_action_counts_and_a_cleared_one_does_not(signal):
    fault = signal("xid:109", 1000.0)
    chain = [_recovery(signal, "Drain and Reset", 1001.0), _recovery(signal, "Node Reboot Required", 1002.0)]
    assert _of(fault, *chain).action == "reboot_node"
    cleared = _recovery(signal, "None", 1003.0, cleared=True, clears_key=f"recovery:{GPU}")
    keyed = [one.model_copy(update={"clears_key": f"recovery:{GPU}"}) for one in chain]
    assert _of(fault, *keyed, cleared).action == "reset_gpu"
    assert _of(*keyed, cleared) is None


def test_an_app_fault_with_the_drivers_reset_is_the_devices(signal):
    found = _of(signal("xid:31", 1000.0), _recovery(signal, "GPU Reset Required", 1001.0))
    assert (found.scope, found.action, found.quarantine) == ("device", "reset_gpu", "node")


def test_a_report_that_waits_for_154_is_the_applications_without_one(signal):
    details = {"unit": "RLW_SRC_TRACK", "registers": [0x040868E2, 8], "severity_word": "Nonfatal"}
    found = _of(signal("xid:145", details=details))
    assert (found.class_, found.scope, found.action, found.quarantine) == ("nvlink", "process", "restart_app", "none")


@pytest.mark.parametrize("code", sorted(NEVER_ALONE))
def test_some_codes_quarantine_nothing_whatever_the_source_advises(code, signal):
    for hint in (None, *ACTIONS):
        assert _of(signal(code, action_hint=hint, severity="fatal")).quarantine == "none"


def test_45_follows_its_root_and_blames_one_node(signal):
    root = signal("xid:149", 1000.0, details={"unit": "NETIR_LINK_EVT", "registers": [0x004525C6, 0]})
    followers = [
        signal("xid:45", 1000.0 + n / 10, node=f"n{n}", devices=(OTHER,), details={"caused_by": 149})
        for n in range(2, 79)
    ]
    found = diagnose_nodes([*followers, root], now_s=NOW)
    assert [one.node for one in found] == ["n1"]
    assert found[0].codes == ("xid:149", "xid:45")
    alone = diagnose_nodes(followers, now_s=NOW)
    assert [(one.action, one.quarantine) for one in alone] == [("restart_app", "none")]


def test_171_follows_48_and_alone_is_looked_into(signal):
    both = _of(signal("xid:171", 1000.0), signal("xid:48", 1001.0), signal("xid:63", 1002.0))
    assert (both.codes[0], both.action, both.suspects) == ("xid:48", "reset_gpu", True)
    assert both.first_seen_s == 1000.0
    alone = _of(signal("xid:171"))
    assert (alone.action, alone.quarantine, alone.suspects) == ("investigate", "node", True)


def test_63_alone_never_quarantines(signal):
    found = _of(*(signal("xid:63", 1000.0 + n) for n in range(20)))
    assert (found.action, found.quarantine) == ("none", "none")


def test_all_cards_of_a_node_are_the_node(signal):
    cards = [signal("xid:119", 1000.0 + n, devices=(f"0000:{n:02x}:00",)) for n in range(8)]
    found = _of(*cards)
    assert (found.scope, len(found.devices), found.quarantine) == ("node", 8, "node")


def test_two_sick_nodes_are_two_diagnoses(signal):
    found = diagnose_nodes([signal("xid:48", node="n1"), signal("xid:79", node="n2")], now_s=NOW)
    assert [(one.node, one.codes) for one in found] == [("n2", ("xid:79",)), ("n1", ("xid:48",))]


def test_a_pods_log_never_quarantines_and_gives_no_recovery_action(signal):
    told = _recovery(signal, "Node Reboot Required", 1000.0, source="podlog")
    found = _of(signal("xid:79", source="podlog", action_hint="replace_node"), told)
    assert (found.scope, found.action, found.quarantine) == ("process", "restart_app", "none")
    assert _of(signal("xid:31"), told).quarantine == "none"
    assert _of(signal(None, source="podlog", scope="node")).quarantine == "none"


def test_a_signal_without_code_goes_by_hint_then_scope_and_isolates_nothing_on_a_mere_suspicion(signal):
    assert _of(signal(None, action_hint="reboot_node")).trust == "source_hint"
    assert _of(signal(None, scope="node")).quarantine == "node"
    assert _of(signal(None)).quarantine == "none"


def test_an_overlay_decides_for_its_cluster(signal):
    found = _of(signal("xid:79"), catalogue=load_catalogue([builtin_overlay("eks")]))
    assert found.action == "replace_node"


def test_the_inner_code_counts_not_the_wrappers_severity(cases, signal):
    assert "C6-03" in cases("gpu-faults")
    found = _of(signal("xid:31", source="dcgm-health", severity="fatal", action_hint="none", scope="device"))
    assert (found.class_, found.scope, found.action, found.quarantine) == ("app", "process", "restart_app", "none")


@pytest.mark.parametrize(
    ("codes", "class_", "action"),
    [
        ([0, 0], None, None),
        ([0, 85], "left_saved", "none"),
        ([86, 85], "left_unsaved", "none"),
        ([1, 87], "do_not_retry", "none"),
        ([93], "do_not_retry", "none"),
        ([1, 88], "damage_met", "restart_app"),
        ([137], "killed", "restart_app"),
        ([143], "terminated", "restart_app"),
        ([1], "app", "restart_app"),
    ],
)
def test_exit_codes_alone(codes, class_, action):
    found = diagnose_exits([RankExit(rank=n, exit_code=code) for n, code in enumerate(codes)])
    if class_ is None:
        assert found is None
    else:
        assert (found.class_, found.action, found.scope, found.quarantine) == (class_, action, "process", "none")


def test_the_rank_with_an_error_of_its_own_is_the_root():
    ends = [RankExit(rank=0, exit_code=143), RankExit(rank=1, exit_code=1, error="ValueError: x", step=7)]
    assert "rank 1" in diagnose_exits(ends).evidence[0]
    assert "ValueError: x" in diagnose_exits(ends).evidence[0]


def test_exits_are_evidence_beside_a_signal(signal):
    ends = [RankExit(rank=3, exit_code=137)]
    oom = diagnose([signal("name:oom_kill")], ends, now_s=NOW)
    assert (oom.class_, oom.action) == ("oom", "restart_app")
    assert any("rank 3" in line for line in oom.evidence)
    assert diagnose([], ends, now_s=NOW).class_ == "killed"
    assert diagnose([], [], now_s=NOW) is None


CODES = st.one_of(
    st.integers(0, 200).map(lambda n: f"xid:{n}"),
    st.integers(10000, 27000).map(lambda n: f"sxid:{n}"),
    st.sampled_from(["name:oom_kill", "name:gpu_init_failed", "name:no_such_thing"]),
)
SIGNALS = st.builds(
    FaultSignal,
    source=st.sampled_from(["kernlog", "eks", "podlog", "nvml"]),
    node=st.sampled_from(["n1", "n2", ""]),
    devices=st.sampled_from([(), (GPU,), (OTHER,), (GPU, OTHER)]),
    scope=st.sampled_from([None, "process", "device", "node", "fabric"]),
    codes=st.lists(CODES, max_size=2).map(tuple),
    severity=st.sampled_from(["info", "warning", "fatal", "unknown"]),
    action_hint=st.sampled_from([None, *ACTIONS]),
    first_seen_s=st.floats(0, 10_000),
    clears_key=st.sampled_from([None, "k"]),
    cleared=st.booleans(),
    details=st.fixed_dictionaries(
        {},
        optional={
            "caused_by": st.integers(0, 200),
            "recovery_text": st.sampled_from(["None", "GPU Reset Required", "Dance", ""]),
            "recovery_value": st.one_of(st.none(), st.integers(0, 9)),
            "registers": st.lists(st.integers(0, 0xFFFFFFFF), max_size=3),
            "unit": st.sampled_from(["NETIR_LINK_EVT", "TREX", "?"]),
            "severity_word": st.sampled_from(["Fatal", "Non-fatal"]),
            "pod": st.sampled_from(["a", "b", "c", "d"]),
            "continuation": st.booleans(),
        },
    ),
)


@calm
@given(st.lists(SIGNALS, max_size=8), st.lists(SIGNALS, max_size=4))
def test_any_signals_give_a_diagnosis_that_holds_its_promises(signals, history):
    found = diagnose_nodes(signals, now_s=NOW, history=history)
    assert found == diagnose_nodes(signals, now_s=NOW, history=history)
    for one in found:
        assert one.evidence
        assert 0 < one.confidence <= 1
        if one.quarantine != "none":
            assert one.scope not in (None, "process")
            assert one.action not in ("none", "follow_primary", "follow_xid_154")
        assert one.first_seen_s <= NOW
    assert len({one.node for one in found if one.trust != "repeat_rule"}) == len(
        [one for one in found if one.trust != "repeat_rule"]
    )
    podded = [signal for signal in signals if signal.source == "podlog"]
    assert all(one.quarantine == "none" for one in diagnose_nodes(podded, now_s=NOW))


@calm
@given(st.lists(SIGNALS, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_the_order_of_reports_changes_neither_nodes_nor_actions(signals, random):
    def told(given):
        return sorted((one.node, one.action, one.quarantine, one.scope or "") for one in given)

    # Equal stamps are a tie that only the order of reading can break, so each signal gets its own.
    stamps = [signal.first_seen_s / 3 + n for n, signal in enumerate(signals)]
    spread = [signal.model_copy(update={"first_seen_s": at_s}) for signal, at_s in zip(signals, stamps, strict=True)]
    mixed = list(spread)
    random.shuffle(mixed)
    assert told(diagnose_nodes(spread, now_s=NOW)) == told(diagnose_nodes(mixed, now_s=NOW))


@calm
@given(CODES.filter(lambda code: KNOWN.get(code) is None))
def test_an_unknown_code_is_isolated_and_asked_about(code):
    found = diagnose([FaultSignal(source="kernlog", node="n1", codes=(code,), first_seen_s=1.0)], now_s=NOW)
    assert (found.class_, found.action, found.confidence) == ("unknown", "investigate", 0.2)
    assert found.quarantine == "node"


def test_a_storm_costs_no_square(signal):
    storm = [signal("xid:45", 1000.0 + n / 1000, node=f"n{n % 77}", details={"caused_by": 149}) for n in range(20_000)]
    assert diagnose([*storm, signal("xid:79", 1010.0)], now_s=NOW).codes[0] == "xid:79"
