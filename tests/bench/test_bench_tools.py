"""The statistics and the table writer of the benchmark; no time is measured here."""

import importlib.util
import json
from pathlib import Path

import pytest


def load(name):
    spec = importlib.util.spec_from_file_location(f"rerail_bench_{name}", Path(__file__).parent / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


pairs, table, goals, audit = load("pairs"), load("table"), load("goals"), load("audit")


@pytest.mark.parametrize(("q", "expected"), [(0, 1.0), (0.5, 2.5), (1, 4.0), (0.05, 1.15), (0.95, 3.85)])
def test_quantiles_lie_on_lines_between_neighbours(q, expected):
    assert pairs.quantile([4.0, 1.0, 3.0, 2.0], q) == pytest.approx(expected)


def test_ratios_are_taken_inside_each_round_not_between_medians():
    found = pairs.ratios([2.0, 20.0, 3.0], [1.0, 10.0, 1.0])
    assert found.median == 2.0
    assert found.p95 == pytest.approx(2.9)


def test_arms_run_in_turns_and_the_first_round_does_not_count():
    order, now = [], iter(range(1000))

    def arm(name):
        return pairs.Arm(
            name,
            lambda: order.append(name),
            before=lambda: order.append(f"{name}<"),
            after=lambda: order.append(f">{name}"),
        )

    seconds = pairs.interleave([arm("a"), arm("b")], 2, clock=lambda: float(next(now)))
    assert order == ["a<", "a", ">a", "b<", "b", ">b"] * 3
    assert seconds == {"a": [1.0, 1.0], "b": [1.0, 1.0]}


def test_an_arm_may_tell_its_own_seconds():
    seconds = pairs.interleave([pairs.Arm("a", lambda: 7.0)], 1)
    assert seconds == {"a": [7.0]}


def result(name="commit_pv_256m", median=1.05, yardstick=0.4):
    seconds = {"raw": [yardstick] * 3, "ours": [yardstick * median] * 3, "other": [2 * yardstick] * 3}
    return pairs.compare(name, seconds, ours="ours", yardstick="raw", note="a note")


def merged(old, *results, date="2026-11-29"):
    return table.merge(old, [(one, goals.GOALS[one.name]) for one in results], date=date, machine="a CPU")


def test_results_have_the_agreed_shape():
    row = merged({}, result())["measures"]["commit_pv_256m"]
    wanted = {"ratio", "spread", "goal", "met", "pairs", "unit", "date", "machine"}
    assert wanted <= set(row)
    assert (row["ratio"], row["spread"], row["goal"], row["met"], row["pairs"]) == (1.05, [1.05, 1.05], 1.1, True, 3)


def test_a_measure_that_was_not_taken_keeps_its_old_row_and_date():
    old = merged({}, result("verified_load"), date="2026-01-01")
    rows = merged(old, result())["measures"]
    assert rows["verified_load"]["date"] == "2026-01-01"
    assert rows["commit_pv_256m"]["date"] == "2026-11-29"


@pytest.mark.parametrize(("name", "median", "met"), [("commit_pv_256m", 1.11, False), ("s3_upload_256m", 0.99, False)])
def test_a_missed_goal_is_said_in_either_direction(name, median, met):
    rows = merged({}, result(name, median))
    assert rows["measures"][name]["met"] is met
    assert "**missed**" in table.table(rows, goals.GOALS)


def test_the_table_names_every_measure_whether_taken_or_not():
    text = table.table(merged({}, result()), goals.GOALS, optional=goals.OPTIONAL)
    for name, goal in goals.GOALS.items():
        assert (goal.what in text) is (name not in goals.OPTIONAL)
    assert "1.05 (1.05-1.05)" in text
    assert "a note" in text
    assert "other 800 ms (2x)" in text


def test_only_what_is_between_the_marks_is_written(tmp_path):
    page = tmp_path / "README.md"
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    table.write_between_marks(page, "new")
    table.write_between_marks(page, "newer")
    assert page.read_text() == f"before\n{table.BEGIN}\n\nnewer\n\n{table.END}\nafter\n"


@pytest.mark.parametrize("content", ["nothing", f"{table.END} {table.BEGIN}", f"{table.BEGIN}" * 2 + table.END])
def test_a_page_without_the_marks_is_left_alone(tmp_path, content):
    page = tmp_path / "README.md"
    page.write_text(content)
    with pytest.raises(ValueError, match="needs the marks"):
        table.write_between_marks(page, "new")
    assert page.read_text() == content


def test_results_survive_being_written_and_read(tmp_path):
    rows = merged({}, result())
    table.write_results(tmp_path / "results.json", rows)
    assert table.read_results(tmp_path / "results.json") == rows == json.loads((tmp_path / "results.json").read_text())
    assert table.read_results(tmp_path / "none.json") == {"measures": {}}


def call(at, resource, name, *, user="system:serviceaccount:argo:argo", code=201, **more):
    what = {"resource": resource, "namespace": "ns", "name": name, **more}
    return json.dumps(
        {
            "verb": "create",
            "objectRef": what,
            "responseStatus": {"code": code},
            "user": {"username": user},
            "requestReceivedTimestamp": f"2026-11-30T12:00:{at:02d}.000000Z",
        }
    )


def counted(*lines, since=10):
    stamp = f"2026-11-30T12:00:{since:02d}.000000Z"
    return audit.pods_of_argo(lines, namespace="ns", since=stamp, gang="r-a2")


def test_pods_of_argo_are_counted_between_the_fault_and_the_new_gang_only():
    gang = call(20, "jobs", "r-a2", user="runner")
    before, between, after = (call(at, "pods", f"step-{at}") for at in (9, 15, 25))
    assert counted(before, between, gang, after) == 1
    assert counted(before, gang, after) == 0
    assert counted(between, call(16, "jobs", "r-a1", user="runner"), between, gang) == 2
    assert counted(between, after) is None


def test_pods_of_others_bindings_and_refusals_are_not_pods_of_argo():
    gang = call(20, "jobs", "r-a2", user="runner")
    others = [
        call(15, "pods", "r-a2-worker-0", user="system:serviceaccount:volcano-system:volcano-controllers"),
        call(15, "pods", "step", subresource="binding"),
        call(15, "pods", "step", code=403),
        call(15, "configmaps", "step"),
        call(15, "pods", "step").replace('"ns"', '"elsewhere"'),
    ]
    assert counted(*others, gang) == 0
    assert counted(*others, call(16, "jobs", "r-a2", user="runner", code=409)) is None
