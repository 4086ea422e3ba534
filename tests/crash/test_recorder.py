"""The recorder misses nothing: strace of the same operation, with nothing of ours in between, sees the same effects."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from crash_disk import Disk, Event
from crash_story import OPERATIONS
from crash_strace import CALLS, effects

WORKER = Path(__file__).with_name("support") / "crash_worker.py"


def test_strace_sees_exactly_the_calls_that_the_recorder_lists(folder_lab, scratch, tmp_path):
    strace = shutil.which("strace")
    if not strace:
        assert os.environ.get("CI") != "true", "strace is not installed: apt-get install strace"
        pytest.skip("strace is not installed")
    labs = {name: folder_lab(name) for name in OPERATIONS}
    jobs = []
    for number, (name, lab) in enumerate(labs.items()):
        root = scratch / f"traced-{number}"
        jobs.append(
            {
                "job": "plain",
                "operation": name,
                "template": str(lab.template),
                "root": str(root),
                "env": {},
                "boundary": 0,
            }
        )
        jobs[-1]["world_size"] = lab.world_size
    log = tmp_path / "trace"
    done = subprocess.run(
        [strace, "-f", "-y", "-s", "1", "-o", str(log), "-e", f"trace={CALLS}", sys.executable, str(WORKER)],
        input="".join(json.dumps(job) + "\n" for job in jobs),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if "PTRACE" in done.stderr:
        assert os.environ.get("CI") != "true", done.stderr
        pytest.skip(f"strace may not trace here: {done.stderr[-200:]}")
    assert done.returncode == 0, done.stderr[-2000:]
    trace = log.read_text()
    for job, (name, lab) in zip(jobs, labs.items(), strict=True):
        root = job["root"]
        _, _, after_copying = trace.partition(f'"{root}.begin"')
        during, _, _ = after_copying.partition(f'"{root}.end"')
        body = during.partition("\n")[2].rpartition("\n")[0]
        seen = effects("\n".join(line for line in body.splitlines() if f"{root}.begin" not in line), root)
        assert seen == [event.effect for event in lab.events], name
        assert len(seen) >= 8, name


def test_the_model_of_a_disk_loses_what_no_sync_covered_and_nothing_else():
    disk = Disk()
    steps = [Event("mkdir", "a"), Event("creat", "a/t"), Event("write", "a/t", data=b"12345678"), Event("fsync", "a/t")]
    for event in [*steps, Event("link", "a/t", "a/f"), Event("unlink", "a/t")]:
        disk.apply(event)
    assert disk.tree() == {"a": None, "a/f": b"12345678"}
    assert disk.after_power_cut()["all un-synced lost"] == {}
    disk.apply(Event("fsync", ""))
    assert disk.after_power_cut()["all un-synced lost"] == {"a": None}
    disk.apply(Event("fsync", "a"))
    assert disk.after_power_cut() == {}


def test_the_model_of_a_disk_tears_unsynced_bytes_in_every_way():
    disk = Disk()
    for event in [Event("creat", "f"), Event("write", "f", data=b"12345678"), Event("fsync", "")]:
        disk.apply(event)
    assert {tree["f"] for tree in disk.after_power_cut().values()} == {b"", bytes(8), b"1234"}


def test_the_model_of_a_disk_brings_back_what_was_deleted_without_a_sync():
    disk = Disk()
    for event in [Event("creat", "f"), Event("write", "f", data=b"1"), Event("fsync", "f"), Event("fsync", "")]:
        disk.apply(event)
    disk.apply(Event("unlink", "f"))
    assert disk.after_power_cut() == {"all un-synced lost": {"f": b"1"}}
