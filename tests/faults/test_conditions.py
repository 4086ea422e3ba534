"""Conditions of nodes: polarity per type, codes, identity; against the table and cases from the field."""

import json
import re
from pathlib import Path

import pytest

from rerail.policies.catalog import load_catalogue, load_conditions
from rerail.policies.errors import UsageError
from rerail.policies.faults.conditions import conditions_from_text, read_conditions
from rerail.policies.faults.diagnosis import diagnose_nodes

BOOT = "11111111-2222-4333-8444-555555555555"
AT = "2026-11-30T10:00:00Z"
CASES = Path(__file__).parents[3] / "shared" / "data" / "cases" / "clouds.jsonl"


def read(type_, status="True", reason="", message="", at=AT):
    condition = {"type": type_, "status": status, "reason": reason, "message": message}
    if at:
        condition["lastTransitionTime"] = at
    node = {"metadata": {"name": "n1"}, "status": {"conditions": [condition], "nodeInfo": {"bootID": BOOT}}}
    return read_conditions(node, load_conditions(), read_at_s=7.0)


def told(*given, **more):
    """(class, scope, action, quarantine), or how the condition stands, or None for an unknown type."""
    found = read(*given, **more)
    if not found:
        return None
    (reading,) = found
    if reading.standing != "fault":
        return reading.standing
    worst = diagnose_nodes(reading.signals, now_s=float("inf"))[0]
    return worst.class_, worst.scope, worst.action, worst.quarantine


LOST = ("gpu_lost", "node", "power_cycle_node", "node")
MISSING = ("gpu_lost", "node", "reboot_node", "node")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("NvidiaXID79Error",), LOST),
        (("NvidiaXID79Error", "False"), "well"),
        (("NvidiaXID79Error", "Unknown"), "unknown"),
        (("NvidiaXid79",), LOST),
        (("GpuXid79",), LOST),
        (("NvidiaXID31Error",), ("app", "process", "restart_app", "none")),
        (("NvidiaXID63Error",), ("gpu_memory_ecc", "device", "none", "none")),
        (("NvidiaXID999Error",), ("unknown", "device", "investigate", "node")),
        (("NvidiaDeviceLost",), MISSING),
        (("AcceleratedHardwareReady", "False", "NvidiaXID79Error"), LOST),
        (("AcceleratedHardwareReady", "True", "NvidiaXID79Error"), "well"),
        (("AcceleratedHardwareReady", "Unknown"), "unknown"),
        (("AcceleratedHardwareReady", "False", "NvidiaDeviceCountMismatch"), MISSING),
        (("AcceleratedHardwareReady", "False", "NvidiaFabricError"), ("nvswitch", "node", "replace_node", "node")),
        (("AcceleratedHardwareReady", "False", "SomethingNew"), ("unknown", "node", "investigate", "node")),
        (("GPUDeviceLost",), MISSING),
        (("GPUTempError", "False"), "well"),
        (("GPUDoubleBitEccError",), ("gpu_memory_ecc", "device", "reset_gpu", "node")),
        (("GPUXIDFatalError",), ("unknown", "node", "contact_support", "node")),
        (("XIDErrors",), ("unknown", "node", "investigate", "none")),
        (("XIDErrors", "True", "", "Xid 79 in the log"), LOST),
        (("GPUClockThrottling",), ("power_thermal", "device", "investigate", "none")),
        (("GPUHealthy", "False"), ("unknown", "node", "investigate", "node")),
        (("GPUHealthy", "True"), "well"),
        (("XidCriticalError", "True", '{"79":true,"31":true}', BOOT), LOST),
        (("XidCriticalError", "True", '{"79":true}', "of another boot"), "unknown"),
        (("XidCriticalError", "True", "garbage", BOOT), ("unknown", "node", "power_cycle_node", "node")),
        (
            ("SysLogsXIDError", "True", "", "ErrorCode:48 GPU:0 Recommended Action=REPLACE_VM;"),
            ("gpu_memory_ecc", "node", "replace_node", "node"),
        ),
        (
            ("GpuMemWatch", "True", "", "ErrorCode:DCGM_FR_X GPU:0 Recommended Action=UNKNOWN;"),
            ("gpu_memory_ecc", "device", "reset_gpu", "node"),
        ),
        (("Ready", "False"), None),
        (("Ready", "Unknown"), None),
        (("MemoryPressure", "True"), None),
        (("SomeVendorGPUProblem", "True"), None),
        (("CSPMaintenance", "True"), None),
        (("XNvidiaXID79Error", "True"), None),
        (("KernelDeadlock", "True"), ("node_os", "node", "investigate", "none")),
    ],
)
def test_what_a_condition_means(given, expected):
    assert told(*given) == expected


def test_the_cases_of_the_clouds_have_the_polarity_that_they_should():
    if not CASES.is_file():
        pytest.skip(f"{CASES} is not here")
    cases = {one["id"]: one for one in map(json.loads, CASES.read_text(encoding="utf-8").splitlines())}
    for name in ("C7-01", "C7-07", "C7-12"):
        for type_, status in cases[name]["input"]["conditions"]:
            right = str(cases[name]["expected"]["results"].get(type_, "ok"))
            found = told(type_, status)
            if found is None:
                assert re.search("unknown|ok|unreachable|planned", right), (name, type_)
            elif found == "well":
                assert re.search("healthy|ok", right), (name, type_)
            else:
                assert not re.search("healthy|ok", right), (name, type_)
                isolated = re.search(r"drain|gpu_lost|nvlink|fault \(positive", right)
                assert (found[3] == "node") == bool(isolated), (name, type_, right)


def test_a_signal_is_the_same_for_every_reader_and_another_when_the_condition_comes_back():
    (first,), (again,) = (read("GpuXid79")[0].signals for _ in range(2))
    assert first == again
    assert first.first_seen_s == 1796032800.0
    assert first.raw_ref == f"node/n1/condition/GpuXid79@{AT}#xid:79"
    (later,) = read("GpuXid79", at="2026-11-30T11:00:00Z")[0].signals
    assert later.raw_ref != first.raw_ref


def test_another_reason_at_the_same_transition_is_another_signal():
    (first,) = read("AcceleratedHardwareReady", "False", "NvidiaXID79Error")[0].signals
    (second,) = read("AcceleratedHardwareReady", "False", "NvidiaXID48Error")[0].signals
    assert first.raw_ref != second.raw_ref


def test_records_are_signals_of_their_own_with_devices_and_advice():
    uuid = "GPU-12345678-1234-1234-1234-123456789012"
    message = (
        "ErrorCode:44 GPU:0 GPU_UUID:" + uuid + " Recommended Action=CONTACT_SUPPORT;"
        "ErrorCode:79 PCI:0000:3B:00.0 GPU_UUID:" + uuid + " text Recommended Action=RESTART_BM;"
        "ErrorCode:79 PCI:0000:3B:00.0 again Recommended Action=RESTART_BM;"
    )
    (reading,) = read("SysLogsXIDError", message=message)
    assert [(one.codes, one.devices, one.action_hint) for one in reading.signals] == [
        (("xid:44",), (uuid,), "contact_support"),
        (("xid:79",), ("0000:3b:00",), "reboot_node"),
    ]


def test_health_takes_back_what_the_condition_told_before():
    (fault,) = read("GPUDeviceLost", "True")[0].signals
    (well,) = read("GPUDeviceLost", "False", at="2026-11-30T10:05:00Z")[0].signals
    assert well.cleared
    assert diagnose_nodes([fault], now_s=float("inf"))
    assert not diagnose_nodes([fault, well], now_s=float("inf"))


@pytest.mark.parametrize("at", ["", "yesterday", "2026-11-30T10:00:00"])
def test_a_condition_without_a_time_is_stamped_at_its_reading(at):
    (signal,) = read("GpuXid79", at=at)[0].signals
    assert signal.first_seen_s == 7.0
    assert signal.details["stamped_at_reading"] is True


@pytest.mark.parametrize(
    "node", [{}, {"status": {}}, {"status": {"conditions": None}}, {"status": {"conditions": [{}]}}]
)
def test_a_node_without_conditions_tells_nothing(node):
    assert read_conditions(node, load_conditions(), read_at_s=0.0) == ()


def test_every_code_of_the_table_stands_in_the_catalogue():
    codes = {code for row in load_conditions().rows for code in (row.code, *row.reasons.values()) if code}
    assert not [code for code in codes if load_catalogue().get(code) is None]


ROW = "{source: x, fault_when: 'True', types: [A], code: 'name:gpu_lost'}"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (ROW + ", " + ROW, "A: more than one row"),
        ("{source: x, fault_when: 'True', types: [A]}", "code is missing"),
        ("{source: x, fault_when: 'True'}", "either types or a pattern"),
        ("{source: x, fault_when: yes, types: [A], code: 'name:a'}", "fault_when"),
        ("{source: x, fault_when: 'True', pattern: '('}", "no regular expression"),
        ("{source: x, fault_when: 'True', pattern: 'a'}", "0 groups"),
        ("{source: x, fault_when: 'True', types: [A], code: xid79}", "code"),
    ],
)
def test_a_wrong_row_is_named(rows, said):
    with pytest.raises(UsageError, match=r"here: .*" + said):
        conditions_from_text(f"format: 1\nprovenance: x\nconditions: [{rows}]", "here")
