"""Crash at every boundary of every operation, on a folder and on S3: nothing acknowledged is lost, nothing torn taken.

Points are (operation, backend, boundary, mode). A boundary is a system call that changes something, or a request.
kill: SIGKILL before it (the last one: after the end). un-synced lost: the power goes instead, and takes any of what no
fsync covered. reply lost, request lost: the server or kernel did it, or not, and the process does not learn it.
overtaken: another process does a whole operation of its own there (and on a folder, the power goes then as well).
"""

import os
import time
from collections import Counter

import pytest
from crash_points import KILL, POWER, REPLY
from crash_story import BUCKET_OPERATIONS, OPERATIONS

FULL = os.environ.get("CI") == "true"


def table(counts: Counter[tuple[str, str, str]]) -> str:
    """Operations and backends downwards, modes across."""
    modes = sorted({mode for _, _, mode in counts})
    rows = [["operation", "backend", *modes, "all"]]
    for row in sorted({(operation, backend) for operation, backend, _ in counts}, key=lambda row: row[::-1]):
        cells = [counts[*row, mode] for mode in modes]
        rows.append([*row, *map(str, cells), str(sum(cells))])
    sums = [sum(count for (_, _, of), count in counts.items() if of == mode) for mode in modes]
    rows.append(["all", "", *map(str, sums), str(sum(sums))])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def test_the_recorder_lists_at_least_500_distinct_points(folder_lab, bucket_lab):
    points = [point for name in OPERATIONS for point in folder_lab(name).points()]
    points += [point for name in BUCKET_OPERATIONS for point in bucket_lab(name).points()]
    print("\n" + table(Counter((point.operation, point.backend, point.column) for point in points)))
    assert len(set(points)) == len(points)
    # Those of the three modes alone; what overtakes and what loses requests comes on top.
    assert sum(point.mode in {KILL, POWER, REPLY} for point in points) >= 500


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_crash_on_a_folder_loses_what_was_acknowledged(folder_lab, chosen, killer, name):
    judge_all(folder_lab(name, killer=killer), chosen)


@pytest.mark.parametrize("name", BUCKET_OPERATIONS)
def test_no_crash_on_s3_loses_what_was_acknowledged(bucket_lab, chosen, name):
    lab = bucket_lab(name)
    assert lab.recorded == lab.received  # the client sends what the server receives, and nothing beside it
    judge_all(lab, chosen)


def judge_all(lab, chosen):
    began, points = time.monotonic(), chosen(lab.points())
    results = {point: lab.carry_out(point) for point in points}
    states = sum(found.states for found in results.values())
    print(f"{len(points)} points, {states} states recovered from, {time.monotonic() - began:.1f} s")
    wrong = [f"{point}: {text}" for point, found in results.items() for text in found.wrong]
    assert not wrong, f"{len(wrong)} violations, the first ones:\n" + "\n".join(wrong[:10])


@pytest.mark.parametrize("name", BUCKET_OPERATIONS if FULL else ["open_attempt"])
def test_a_process_that_is_really_killed_leaves_on_s3_what_a_simulated_kill_leaves(bucket_lab, killer, s3_env, name):
    lab = bucket_lab(name)
    for boundary in sorted({0, lab.length // 2, lab.length}):
        simulated, real = lab.plant(lab.template), lab.plant(lab.template)
        acks = []
        lab.killed(lab.process(simulated, acks.append), boundary)
        job = {"job": "bucket", "operation": name, "bucket": s3_env.bucket, "prefix": real, "boundary": boundary}
        ended, told = killer({**job, "world_size": lab.world_size, "env": s3_env.env})
        assert ended == -9
        assert told == acks or lab.operation.random
        if lab.operation.random:
            assert lab.read(real).keys() == lab.read(simulated).keys()
        else:
            assert lab.read(real) == lab.read(simulated)
