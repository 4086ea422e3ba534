"""Models: nothing is lost on the way through, nothing is added, and words of a newer Volcano are read."""

import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rerail.plugins.volcano import Command, JobPhase, Metadata, PodGroup, Queue, Task, VolcanoJob, go_duration_s, moment
from rerail.plugins.volcano.crds import KINDS, generate_crds
from rerail.policies.errors import UsageError

LEAVES = st.one_of(st.none(), st.booleans(), st.integers(-5, 5), st.text(max_size=5))
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=5,
)
UNKNOWN = st.dictionaries(st.text(min_size=1, max_size=8).map(lambda text: f"x-{text}"), ANYTHING, max_size=2)


def content(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Objects as the schema describes them, with any fields left out and unknown ones added."""
    if schema.get("x-kubernetes-int-or-string"):
        return st.integers(0, 9) | st.sampled_from(["1", "500m", "2Gi"])
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        return st.dictionaries(st.text(max_size=5), ANYTHING, max_size=2)
    if "properties" in schema:
        fields = {key: content(value) for key, value in schema["properties"].items()}
        must = {key: fields.pop(key) for key in schema.get("required", [])}
        known = st.fixed_dictionaries(must, optional=fields)
        return st.tuples(known, UNKNOWN).map(lambda pair: {**pair[1], **pair[0]})
    if "additionalProperties" in schema:
        return st.dictionaries(st.text(max_size=5), content(schema["additionalProperties"]), max_size=2)
    if schema["type"] == "array":
        return st.lists(content(schema["items"]), max_size=2)
    if "enum" in schema:
        # A newer Volcano may have more words.
        return st.sampled_from([*schema["enum"], "Brand-New"])
    if schema["type"] == "object":
        return st.fixed_dictionaries({}, optional={"name": st.text(max_size=5), "labels": st.just({"a": "b"})})
    return {"string": st.text(max_size=5), "integer": st.integers(-5, 10**6), "boolean": st.booleans()}[schema["type"]]


SCHEMAS = {
    kind: crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for kind, crd in zip(KINDS, generate_crds(), strict=True)
}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@settings(max_examples=300 if os.environ.get("CI") else 25, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_round_trip_loses_nothing_and_adds_nothing(kind, data):
    names = {"apiVersion": kind.RESOURCE.api_version, "kind": kind.RESOURCE.kind}
    one = data.draw(content(SCHEMAS[kind])) | names
    again = kind.from_dict(one)
    assert again.to_dict() == one
    assert kind.from_dict(again.to_dict()) == again
    assert kind.from_yaml(again.to_yaml()).to_dict() == one or "\x85" in str(one)


def test_what_was_not_set_is_not_written():
    assert VolcanoJob().to_dict() == {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job"}
    assert Queue().to_dict() == {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue"}


def test_changes_in_place_are_written():
    job = VolcanoJob()
    job.metadata.labels["a"] = "b"
    job.spec.tasks.append(Task(name="worker", replicas=2))
    job.spec.tasks[0].template["spec"] = {"x": 1}
    assert job.to_dict()["metadata"] == {"labels": {"a": "b"}}
    assert job.to_dict()["spec"] == {"tasks": [{"name": "worker", "replicas": 2, "template": {"spec": {"x": 1}}}]}


def test_models_of_two_objects_share_nothing():
    VolcanoJob().metadata.labels["a"] = "b"
    assert VolcanoJob().metadata.labels == {}


def test_known_words_are_enums_and_new_ones_are_text():
    job = VolcanoJob.from_dict({"status": {"state": {"phase": "Running"}}})
    assert job.phase is JobPhase.RUNNING
    assert VolcanoJob.from_dict({"status": {"state": {"phase": "Hibernating"}}}).phase == "Hibernating"
    assert VolcanoJob().phase is JobPhase.PENDING


def test_numbers_that_are_absent_are_0_and_lists_that_are_null_are_empty():
    job = VolcanoJob.from_dict({"spec": {"tasks": None, "plugins": None}, "status": {}})
    assert (job.status.running, job.spec.tasks, job.spec.plugins) == (0, [], {})


def test_another_kind_is_refused_by_name():
    with pytest.raises(UsageError, match=r"PodGroup 'x' cannot be read.*Job of batch.volcano.sh"):
        PodGroup.from_dict({"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": "x"}})
    with pytest.raises(UsageError, match=r"Job of batch/v1, not a Job of batch.volcano.sh"):
        VolcanoJob.from_dict({"apiVersion": "batch/v1", "kind": "Job"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: b: c", "no YAML"),
        ("a: !!bool abc", "no YAML"),
        ("[]", "holds no Job"),
        ("a: 1\n---\nb: 1", "no YAML of one document"),
    ],
)
def test_a_manifest_that_is_none_is_refused(text, words):
    with pytest.raises(UsageError, match=words):
        VolcanoJob.from_yaml(text)


def test_a_field_of_a_wrong_type_is_named():
    with pytest.raises(UsageError, match=r"Job 'x' cannot be read: spec.tasks.0.replicas"):
        VolcanoJob.from_dict({"metadata": {"name": "x"}, "spec": {"tasks": [{"replicas": "many"}]}})


def test_the_groups_newest_true_condition_tells_why_it_waits():
    conditions = [
        {"type": "Unschedulable", "status": "True", "lastTransitionTime": "2026-11-29T10:00:00Z", "reason": "old"},
        {"type": "Scheduled", "status": "True", "lastTransitionTime": "2026-11-29T10:00:05Z"},
    ]
    group = PodGroup.from_dict({"status": {"conditions": conditions}})
    assert group.unschedulable is None
    group.status.conditions[0].last_transition_time = "2026-11-29T10:00:09Z"
    assert group.unschedulable
    assert group.unschedulable.reason == "old"


def test_moments_are_read_with_their_zone():
    at = moment("2026-11-29T10:00:00Z")
    assert at
    assert at.utcoffset() is not None
    assert moment(None) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1h2m3.5s", 3723.5), ("10m0s", 600.0), ("300ms", 0.3), ("0", 0.0), ("0s", 0.0), ("-1.5h", -5400.0), (".5s", 0.5)],
)
def test_go_durations_are_read(text, seconds):
    assert go_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "5", "2d", "1h 2m", "s", "1m2", "+-1s"])
def test_what_is_no_go_duration_is_refused(text):
    with pytest.raises(UsageError, match="no Go duration"):
        go_duration_s(text)


def test_python_and_json_names_both_construct():
    assert Metadata(deletion_grace_period_seconds=3) == Metadata(deletionGracePeriodSeconds=3)
    assert Command(action="AbortJob").to_dict()["action"] == "AbortJob"
