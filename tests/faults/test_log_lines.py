"""One line, judged alone: the cases from the field, and siblings of our own."""

import json
import time
from pathlib import Path

import pytest
import yaml

from rerail.policies.faults.explain import NO_MATCH, explain_line

OWN = yaml.safe_load((Path(__file__).parent / "lines.yaml").read_text(encoding="utf-8"))
# Sentences for people: that something is said there is what counts.
PROSE = {"conflict", "note"}


def _differing(document, expected):
    found = {}
    for key, value in expected.items():
        if key == "events":
            pairs = zip(value, document["events"], strict=True)
            got = [{name: event.get(name) for name in wanted} for wanted, event in pairs]
        elif key in PROSE:
            continue
        else:
            got = document.get(key, "absent")
        if got != value:
            found[key] = (value, got)
    return found


def test_every_case_from_the_field_is_right(cases, catalogue):
    wrong = {}
    for name, case in cases("gpu-log-lines").items():
        document = explain_line(case["input"]["line"], catalogue)
        if differing := _differing(document, case["expected"]):
            wrong[name] = differing
        json.dumps(document)
    assert wrong == {}


@pytest.mark.parametrize("case", OWN, ids=[f"{n}-{case['line'][:40]}" for n, case in enumerate(OWN)])
def test_siblings_of_our_own_are_right(case, catalogue):
    document = explain_line(case["line"], catalogue)
    assert _differing(document, case["is"]) == {}
    if case["is"].get("class") == "no_match":
        assert document == NO_MATCH


def test_a_line_of_ten_megabytes_costs_no_more_than_its_beginning(catalogue):
    record = "NVRM: Xid (PCI:0000:3b:00): 79, "
    begun = time.process_time()
    assert explain_line(record + "x, " * 3_400_000, catalogue)["xid"] == 79
    assert explain_line("NVRM: " * 1_700_000, catalogue) == NO_MATCH
    for filler in ("[", " ", "a", "a ", "0x0 ", "GPU ", "(", "1:", "link 1("):
        for head in ("nvidia ", "NVRM: Xid (PCI:0000:3b:00): 74, ", "NVRM: ", "Xid 1 nvrm", "NVRM: GPU "):
            explain_line(head + filler * 100_000, catalogue)
    assert explain_line('{"MESSAGE":[' + "[" * 1_000_000, catalogue) == NO_MATCH
    assert time.process_time() - begun < 5
