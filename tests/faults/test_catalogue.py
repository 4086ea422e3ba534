"""The tables are whole, an overlay changes them without code, and a typo says what was meant."""

import re

import pytest

from rerail.policies.catalog import OVERLAYS, builtin_overlay, load_catalogue
from rerail.policies.errors import RerailError, UsageError
from rerail.policies.faults.catalogue import overlay_from_text
from rerail.policies.faults.explain import code_of, explain_code, explain_line

SUSPECTS = {48, 64, 79, 95, 140, 171, 172}


def test_all_codes_that_nvidia_lists_are_there(catalogue):
    assert [n for n in range(1, 173) if catalogue.get(f"xid:{n}") is None] == []
    for code in catalogue.codes():
        assert catalogue.get(code).provenance


def test_exactly_the_codes_that_lie_make_checkpoints_suspect(catalogue):
    assert {n for n in range(1, 173) if catalogue.get(f"xid:{n}").suspects} == SUSPECTS
    assert catalogue.get("sxid:20034").suspects
    assert not catalogue.get("sxid:12028").suspects


def test_codes_that_accuse_no_device_quarantine_nothing_and_resets_do(catalogue):
    for n in (13, 31, 43, 45, 63, 92, 94):
        assert catalogue.get(f"xid:{n}").quarantine == "none"
    for n in range(1, 173):
        entry = catalogue.get(f"xid:{n}")
        if entry.nvidia[0] in {"RESET_GPU", "RESTART_BM", "RESTART_VM", "CONTACT_SUPPORT", "CHECK_MECHANICALS"}:
            assert entry.quarantine == "node", n
        if entry.nvidia[0] == "RESTART_APP":
            assert (entry.action, entry.quarantine) == ("restart_app", "none"), n


@pytest.mark.parametrize(
    ("written", "code"),
    [
        ("79", "xid:79"),
        ("XID 79", "xid:79"),
        ("xid:79", "xid:79"),
        ("Xid79", "xid:79"),
        ("20034", "sxid:20034"),
        ("sxid:20034", "sxid:20034"),
        ("oom_kill", "name:oom_kill"),
        ("name:oom_kill", "name:oom_kill"),
    ],
)
def test_a_code_is_read_as_people_write_it(written, code):
    assert code_of(written) == code


@pytest.mark.parametrize("written", ["", "xid:", "xid:abc", "79x", "7 9", "-79", "xid:-1", "x" * 500, "９９é"])
def test_what_is_no_code_is_a_usage_error(written):
    with pytest.raises(UsageError):
        code_of(written)


@pytest.mark.parametrize("written", ["999", "xid:0", "sxid:99999", "banana"])
def test_an_unknown_code_is_a_document(written, catalogue):
    document = explain_code(written, catalogue)
    assert document["class"] == "unknown"
    assert document["action"] == "investigate"


def test_a_code_shows_nvidias_bucket_beside_our_action_and_who_disagrees(catalogue):
    document = explain_code("109", catalogue)
    assert document["nvidia"] == {"immediate": "RESET_GPU", "investigatory": "CONTACT_SUPPORT"}
    assert document["disagrees"] == ["plugin"]
    assert document["gate"] == "R570"


def test_shipped_overlays_change_what_their_cloud_does_otherwise():
    changed = {
        name: explain_code("xid:63", load_catalogue([builtin_overlay(name)]))["action"] for name in sorted(OVERLAYS)
    }
    assert changed == {"ack": "none", "cce": "none", "eks": "replace_node", "gpud": "reboot_node", "tke": "none"}
    assert load_catalogue([builtin_overlay("cce")]).get("xid:79").quarantine == "device"
    assert load_catalogue().get("xid:63").action == "none"  # the packaged one stays as it is


def test_an_overlay_changes_lines_too_also_of_a_code_that_a_table_would_decode():
    rule = "{codes: [xid:149, sxid:12028], action: contact_support, quarantine: node}"
    text = f"format: 1\noverlay: mine\nrules: [{rule}]"
    known = load_catalogue([overlay_from_text(text, "mine.yaml")])
    for line in (
        "NVRM: Xid (PCI:0000:04:00): 149, NETIR_LINK_EVT Fatal XC0 i0 Link 00 (0x026001c6 0x0)",
        "nvidia-nvswitch3: SXid (PCI:0000:05:00.0): 12028, Non-fatal, Link 32 x",
    ):
        document = explain_line(line, known)
        assert (document["action"], document["quarantine"], document["overlay"]) == ("contact_support", "node", "mine")


def test_an_overlay_can_add_a_code_of_a_newer_driver():
    text = (
        "format: 1\noverlay: mine\nrules:\n  - codes: [xid:185]\n    class: gpu_memory_ecc\n    scope: device\n"
        "    action: none\n    quarantine: none\n    means: spare rows used\n"
    )
    assert explain_code("185", load_catalogue([overlay_from_text(text, "m")]))["means"] == "spare rows used"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "mapping"),
        ("- a", "mapping"),
        ("a: [", "no YAML"),
        ("format: 2\noverlay: x\nrules: []", "format 2"),
        ("format: 1\nrules: []", "overlay"),
        ("format: 1\noverlay: x\nrules: [{codes: [xid:79], actoin: none}]", "did you mean 'action'"),
        ("format: 1\noverlay: x\nrules: [{codes: [xid:79], action: reset_gpus}]", "did you mean 'reset_gpu'"),
        ("format: 1\noverlay: x\nrules: [{codes: [79], action: none}]", "79 is no code; write xid:79"),
        ("format: 1\noverlay: x\nrules: [{codes: [xid79], action: none}]", "'xid79' is no code"),
        ("format: 1\noverlay: x\nrules: [{codes: [], action: none}]", "rules.0.codes"),
        ("format: 1\noverlay: x\nrules: [{codes: [xid:9999], action: none}]", "class, scope, quarantine"),
        ("format: 1\noverlay: x\nrules: [{codes: [xid:79], quarantine: rack}]", "'rack'"),
        ("format: 1\noverlay: x\nrules: [{codes: [xid:79], action: null}]", "action"),
    ],
)
def test_a_typo_in_an_overlay_names_the_place_and_the_way_out(text, said):
    with pytest.raises(RerailError, match=re.escape(said)) as caught:
        load_catalogue([overlay_from_text(text, "mine.yaml")])
    assert "mine.yaml" in str(caught.value) or "overlay 'x'" in str(caught.value)


def test_an_overlay_that_is_not_shipped_is_refused_by_name():
    with pytest.raises(UsageError, match="eks"):
        builtin_overlay("eksx")
