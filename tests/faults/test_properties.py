"""What holds for any text: no exception, no quiet verdict for what nobody knows, the same verdict with any stamp."""

import json
import os

from hypothesis import example, given, settings
from hypothesis import strategies as st

from rerail.policies.catalog import load_catalogue
from rerail.policies.faults.correlation import correlate
from rerail.policies.faults.explain import explain_line
from rerail.policies.faults.kernel_lines import events_of
from rerail.policies.faults.kernel_signals import signals_of_line

calm = settings(deadline=None, max_examples=1000 if os.environ.get("CI") == "true" else 60)

KNOWN = load_catalogue()
WORDS = st.sampled_from(
    [
        "NVRM: ",
        "Xid ",
        "(PCI:0000:3b:00)",
        ": 79, ",
        "SXid ",
        "nvidia-nvswitch0: ",
        "pid=",
        "name=",
        "154, GPU recovery ",
        "action changed from ",
        "0x0 (None) to ",
        "0x2 (Node",
        "Fatal XC0 i0 Link -1 (0x",
        "[1.0] ",
        "kernel: ",
        "\n",
        "detected NVSwitch fatal error 20034",
        "Out of memory: Killed process 1 (",
        "2026-01-01T00:00:00Z ",
        "{",
        "\\n",
        '"MESSAGE":[',
        "GPU-I:01 ",
        "Feb 29 10:00:00 h kernel: ",
        "4,1,2,-;",
        "<4>",
        "99月 99 99:99:99 ",
        "149, NETIR ",
    ]
)
TEXT = st.lists(st.one_of(WORDS, st.text(max_size=12)), max_size=12).map("".join)
PREFIXES = [
    "",
    "[155044.078590] ",
    "[Mon Apr  6 07:25:24 2026] ",
    "Okt 06 17:59:27 gpu-node-a kernel: ",
    "2026-10-05T08:08:16-05:00 gpu-node-a kernel: ",
    "kern  :warn  : 2025-01-21T04:41:44,283302+00:00 ",
    "kernel: ",
    "[  130.456250] [ T1946] ",
    "4,12345,155044078590,-;",
    "2026-03-01T10:00:00.123456789Z stdout F [155044.078590] ",
]


@calm
@given(TEXT)
@example("[99999999999999999.9] NVRM: Xid (PCI:0000:3b:00): 79, x")
@example("0000-00-00 00:00:00 h kernel: NVRM: Xid (PCI:0000:3b:00): 79, x")
@example('{"__REALTIME_TIMESTAMP":"9999999999999999999","MESSAGE":"NVRM: Xid (PCI:0000:3b:00): 79, x"}')
@example("NVRM: Xid (PCI:0000:3b:00): 154, recovery action changed from a to 0xffff (")
def test_any_text_gives_a_document_and_never_an_exception(text):
    document = explain_line(text, KNOWN)
    assert {"class", "scope", "action", "quarantine"} <= document.keys()
    json.dumps(document)
    signals_of_line(text, node="n1", catalogue=KNOWN, read_at_s=1.8e9, boot_at_s=1.7e9)
    correlate(text.split("\n"), KNOWN)


@calm
@given(st.binary(max_size=200))
def test_any_bytes_are_read(data):
    explain_line("NVRM: Xid (PCI:0000:3b:00): 79, " + data.decode(errors="replace"), KNOWN)


@calm
@given(st.integers(0, 999_999_999), st.sampled_from(PREFIXES), st.sampled_from(["", ", pid=7, name=python"]))
def test_the_stamp_changes_no_verdict_and_an_unknown_code_is_never_quiet(code, prefix, who):
    record = f"NVRM: Xid (PCI:0000:3b:00): {code}{who}, whatever it says"
    bare, stamped = explain_line(record, KNOWN), explain_line(prefix + record, KNOWN)
    for key in ("xid", "pci", "class", "scope", "action", "quarantine", "suspects"):
        assert stamped[key] == bare[key]
    if KNOWN.get(f"xid:{code}") is None:
        assert (bare["class"], bare["action"], bare["quarantine"]) == ("unknown", "investigate", "node")


@calm
@given(st.integers(0, 999_999_999), st.sampled_from(["", "Fatal, ", "Non-fatal, "]))
def test_an_unknown_switch_code_is_never_quiet(code, word):
    document = explain_line(f"nvidia-nvswitch0: SXid (PCI:0000:86:00.0): {code}, {word}Link 3 x", KNOWN)
    if KNOWN.get(f"sxid:{code}") is None:
        assert document["action"] != "none"


@calm
@given(st.text(alphabet="Xid 79():,PCI:NVRM0x", max_size=15).filter(lambda name: ", " not in name))
def test_a_process_name_fools_nobody(name):
    document = explain_line(f"NVRM: Xid (PCI:0000:3b:00): 43, pid=77, name={name}, Ch 00000008", KNOWN)
    assert (document["xid"], document["pid"], document["quarantine"]) == (43, 77, "none")


@calm
@given(st.sampled_from(["python3[7]", "trainer", "[rank3]", "sshd[1]", "2026-03-01 10:00:01 WARNING x"]))
def test_what_a_process_logs_quarantines_nothing(who):
    line = f"Mar 04 10:11:12 node {who}: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    assert explain_line(line, KNOWN)["class"] == "no_match"


@calm
@given(st.lists(st.integers(0, 0xFFFFFFFF), max_size=6), st.sampled_from(["Fatal", "Nonfatal"]), st.integers(144, 150))
def test_a_link_report_without_a_row_is_unknown_and_isolated_when_fatal(words, severity, code):
    text = " ".join(f"0x{word:08x}" for word in words)
    document = explain_line(
        f"NVRM: Xid (PCI:0000:04:00): {code}, NO_SUCH_UNIT {severity} XC0 i0 Link 00 ({text})", KNOWN
    )
    assert (document["class"], document["action"]) == ("unknown", "investigate")
    assert document["quarantine"] == ("node" if severity == "Fatal" else "none")


@calm
@given(st.text(max_size=300))
def test_one_line_gives_the_same_events_twice(text):
    assert events_of(text) == events_of(text)
