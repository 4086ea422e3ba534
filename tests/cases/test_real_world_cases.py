"""The public cases with their right answers, as they were given; the other files here hold siblings of our own."""

import json
from pathlib import Path

import pytest

from rerail.policies.judging import KINDS, answer

_CASES = [
    json.loads(line)
    for line in (Path(__file__).parent / "recovery-cases.jsonl").read_text(encoding="utf-8").splitlines()
]


@pytest.mark.parametrize("case", _CASES, ids=[case["id"] for case in _CASES])
def test_the_answer_has_every_expected_key_and_value(case):
    got = answer(case["input"])
    assert {key: got.get(key, "absent") for key in case["expected"]} == case["expected"]


def test_every_kind_has_a_case():
    assert {case["input"]["kind"] for case in _CASES} == set(KINDS)


@pytest.mark.parametrize("case", _CASES, ids=[case["id"] for case in _CASES])
def test_answers_are_json_and_do_not_depend_on_the_order_of_keys_or_entries(case):
    got = answer(case["input"])
    turned = dict(reversed(case["input"].items()))
    if case["input"].get("entries"):
        turned["entries"] = list(reversed(turned["entries"]))
    assert json.loads(json.dumps(answer(turned))) == json.loads(json.dumps(got))
