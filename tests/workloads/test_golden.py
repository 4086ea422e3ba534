"""Manifests as users write them, and all that is made of them, compared to the letter.

After a change that is meant: RERAIL_WRITE_GOLDEN=1 pytest tests/workloads/test_golden.py, and read the diff.
"""

import os
from pathlib import Path

import pytest
import yaml

from rerail.plugins.volcano.check import check_job
from rerail.plugins.volcano.job import VolcanoJob
from rerail.plugins.volcano.podgroup import PodGroup
from rerail.policies.errors import UsageError
from rerail.policies.workloads.attempt import AttemptGang
from rerail.policies.workloads.difference import difference, reasons_text, unified
from rerail.policies.workloads.podgroup import render_podgroup
from rerail.policies.workloads.reading import parse_manifest, read_workload
from rerail.policies.workloads.vcjob import render_vcjob

GOLDEN = Path(__file__).with_name("golden")
CASES = sorted(path.name for path in GOLDEN.iterdir())


def load(case):
    source = f"{case}.yaml"
    workload = read_workload(parse_manifest((GOLDEN / case / "input.yaml").read_text(), source), source)
    return workload, AttemptGang(**yaml.safe_load((GOLDEN / case / "attempt.yaml").read_text()))


def compare(case, name, text):
    path = GOLDEN / case / name
    if os.environ.get("RERAIL_WRITE_GOLDEN"):
        path.write_text(text)
    assert text == path.read_text()


def dump(documents):
    return yaml.safe_dump_all(documents, sort_keys=False, width=1000)


@pytest.mark.parametrize("case", CASES)
def test_the_vcjob(case):
    workload, gang = load(case)
    job = render_vcjob(workload, gang)
    compare(case, "vcjob.yaml", dump([job]))
    assert check_job(VolcanoJob.from_dict(job)) == ()


@pytest.mark.parametrize("case", CASES)
def test_what_a_dry_run_shows(case):
    workload, gang = load(case)
    job = render_vcjob(workload, gang)
    changes = difference(workload.document, job)
    assert all(change.why != "differs from the manifest" for change in changes), changes
    text = unified(workload.document, job, f"{case}.yaml") + "\n" + reasons_text(changes)
    compare(case, "dry-run.txt", text)


@pytest.mark.parametrize("case", ["plain", "run"])
def test_the_podgroup(case):
    workload, gang = load(case)
    objects = render_podgroup(workload, gang)
    compare(case, "podgroup.yaml", dump([objects.group, objects.service, *objects.pods]))
    assert PodGroup.from_dict(objects.group).spec.min_member == len(objects.pods)


def test_what_needs_the_job_controller_is_no_podgroup():
    with pytest.raises(UsageError, match=r"spec\.plugins\.ssh is made by Volcano's job controller"):
        render_podgroup(*load("everything"))


def test_what_stands_beside_the_workload_is_told():
    workload, _ = load("everything")
    assert workload.beside == ("ConfigMap/moe-config",)
    assert (workload.store, workload.queue, workload.world_size, workload.size) == (
        "file:///ckpt/runs",
        "training",
        12,
        6,
    )


def test_a_run_brings_its_policy():
    workload, _ = load("run")
    assert workload.policy == {"hold_s": 30, "budgets": {"application": 1}}
    assert workload.store == "s3://checkpoints/runs"
