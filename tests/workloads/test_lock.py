"""A gang with the preemption lock begins locked, on everything that Volcano reads."""

import pytest

from rerail.policies.errors import UsageError
from rerail.policies.workloads.difference import difference
from rerail.policies.workloads.podgroup import render_podgroup
from rerail.policies.workloads.reading import read_workload
from rerail.policies.workloads.vcjob import render_vcjob

ASKED = ("metadata", "annotations")
LOCK = "rerail.dev/preemption-lock"
KEY = "volcano.sh/preemptable"
RUN = {
    "apiVersion": "rerail.dev/v1alpha1",
    "kind": "Run",
    "metadata": {"name": "train"},
    "spec": {"image": "x", "command": ["python", "train.py"], "replicas": 2, "preemptionLock": True},
}


@pytest.fixture(params=["vcjob", "run"])
def locked(request, job):
    return read_workload(job({ASKED: {LOCK: "true"}}) if request.param == "vcjob" else RUN, "job.yaml")


def test_every_attempt_begins_locked(locked, gang):
    for attempt in (1, 2):
        job = render_vcjob(locked, gang(attempt))
        assert (job["metadata"]["annotations"][KEY], job["metadata"]["annotations"][LOCK]) == ("false", "true")
        objects = render_podgroup(locked, gang(attempt))
        assert {one["metadata"]["annotations"][KEY] for one in (objects.group, *objects.pods)} == {"false"}
        assert objects.group["metadata"]["annotations"][LOCK] == "true", "whoever opens locks knows it by this"


def test_a_dry_run_says_why(locked, gang):
    changes = difference(locked.document, render_vcjob(locked, gang()))
    assert next(one.why for one in changes if KEY in one.path or "annotations" in one.path).startswith("locked: ")


@pytest.mark.parametrize("asked", [{}, {LOCK: "false"}])
def test_without_it_nothing_is_set(job, gang, asked):
    workload = read_workload(job({ASKED: asked}), "job.yaml")
    assert KEY not in render_vcjob(workload, gang())["metadata"]["annotations"]
    objects = render_podgroup(workload, gang())
    assert not any(KEY in one["metadata"]["annotations"] for one in (objects.group, *objects.pods))


def test_a_lock_of_the_users_own_stays_as_it_is(job, gang):
    workload = read_workload(job({ASKED: {KEY: "false"}}), "job.yaml")
    objects = render_podgroup(workload, gang())
    assert {one["metadata"]["annotations"][KEY] for one in (objects.group, *objects.pods)} == {"false"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({ASKED: {LOCK: "yes"}}, "preemption-lock = 'yes': write 'true' or 'false'"),
        ({ASKED: {LOCK: True}}, "preemption-lock = True: is not text"),
        ({ASKED: {LOCK: "true", KEY: "true"}}, "annotations.volcano.sh/preemptable = 'true': rerail.dev/preemption-lo"),
        ({ASKED: {LOCK: "true"}, ("metadata", "labels"): {KEY: "false"}}, "metadata.labels.volcano.sh/preemptable"),
        (
            {ASKED: {LOCK: "true"}, ("spec", "tasks", 0, "template", "metadata", "labels"): {KEY: "true"}},
            "spec.tasks[0].template.metadata.labels.volcano.sh/preemptable = 'true'",
        ),
    ],
)
def test_a_second_word_about_it_is_refused(job, fields, said):
    with pytest.raises(UsageError) as caught:
        read_workload(job(fields), "job.yaml")
    assert said in str(caught.value)
