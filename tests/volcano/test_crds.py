"""Every field and value of Volcano's own, against Volcano's CRDs."""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from rerail.plugins.volcano.base import ClusterObject, VolcanoObject
from rerail.plugins.volcano.command import Command
from rerail.plugins.volcano.crds import KINDS, generate_crds
from rerail.plugins.volcano.enums import (
    DequeueStrategy,
    JobEvent,
    JobPhase,
    PodGroupPhase,
    QueueState,
    TopologyMode,
    TopologyPolicy,
)
from rerail.plugins.volcano.job import VolcanoJob
from rerail.plugins.volcano.podgroup import PodGroup
from rerail.plugins.volcano.queue import Queue

FOLDERS = [folder / "shared" / "data" / "volcano-crds" for folder in Path(__file__).parents]
CRDS = next((folder for folder in FOLDERS if folder.is_dir()), None)
FILES = {
    VolcanoJob: "batch.volcano.sh_jobs.yaml",
    PodGroup: "scheduling.volcano.sh_podgroups.yaml",
    Queue: "scheduling.volcano.sh_queues.yaml",
    Command: "bus.volcano.sh_commands.yaml",
}
KUBERNETES_OWN = {"template", "volumeClaim", "labelSelector"}
# How lists and maps merge in server-side apply; no model needs it.
MERGING = {"x-kubernetes-list-type", "x-kubernetes-map-type"}

needs_crds = pytest.mark.skipif(CRDS is None, reason="Volcano's CRDs (../shared/data/volcano-crds) are not here")


def theirs(kind: type[VolcanoObject]) -> dict[str, Any]:
    assert CRDS is not None
    return yaml.load((CRDS / FILES[kind]).read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))


def ours(kind: type[VolcanoObject]) -> dict[str, Any]:
    return generate_crds()[KINDS.index(kind)]


def comparable(schema: Any, name: str = "") -> Any:
    """A schema without prose and without the inside of what belongs to Kubernetes."""
    if isinstance(schema, list):
        return [comparable(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if name in KUBERNETES_OWN:
        return {"type": schema["type"]}
    plain = {key: value for key, value in schema.items() if key not in MERGING and key != "description"}
    result = {key: value if key == "properties" else comparable(value) for key, value in plain.items()}
    if "properties" in plain:
        result["properties"] = {key: comparable(value, key) for key, value in plain["properties"].items()}
    if "required" in plain:
        result["required"] = sorted(plain["required"])
    if "enum" in plain:
        result["enum"] = sorted(plain["enum"])
    return result


@needs_crds
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_the_models_say_what_volcanos_crd_says_field_by_field(kind):
    (version,) = theirs(kind)["spec"]["versions"]
    (mine,) = ours(kind)["spec"]["versions"]
    assert comparable(mine["schema"]["openAPIV3Schema"]) == comparable(version["schema"]["openAPIV3Schema"])


@needs_crds
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_group_names_scope_and_subresources_are_volcanos(kind):
    spec, mine = theirs(kind)["spec"], ours(kind)["spec"]
    assert (mine["group"], mine["names"], mine["scope"]) == (spec["group"], spec["names"], spec["scope"])
    (version,), (my_version,) = spec["versions"], mine["versions"]
    assert my_version["name"] == version["name"]
    assert my_version.get("subresources", {}) == version.get("subresources", {})
    assert issubclass(kind, ClusterObject) == (spec["scope"] == "Cluster")


@needs_crds
def test_every_enumeration_of_the_crds_has_its_enum():
    found: set[frozenset[str]] = set()

    def walk(schema: Any, name: str = "") -> None:
        if isinstance(schema, dict) and name not in KUBERNETES_OWN:
            if isinstance(schema.get("enum"), list):
                found.add(frozenset(schema["enum"]))
            for key, value in schema.items():
                walk(value, key)
        elif isinstance(schema, list):
            for one in schema:
                walk(one)

    for kind in KINDS:
        walk(theirs(kind))
    enums = (JobPhase, JobEvent, TopologyPolicy, TopologyMode, PodGroupPhase, QueueState, DequeueStrategy)
    assert found == {frozenset(one.value for one in enum) for enum in enums}


@needs_crds
@pytest.mark.parametrize(
    ("path", "spoil"),
    [
        ("spec.tasks.items.partitionPolicy.minPartitions", lambda one: one.pop("default")),
        ("spec.policies.items.event", lambda one: one["enum"].remove("TaskFailed")),
        ("status.taskStatusCount", lambda one: one.update(additionalProperties={"type": "string"})),
        ("spec.maxRetry", lambda one: one.update(minimum=1)),
    ],
)
def test_a_difference_anywhere_is_found(path, spoil):
    mine = ours(VolcanoJob)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    before = comparable(copy.deepcopy(mine))
    at = mine
    for step in path.split("."):
        at = at["items"] if step == "items" else at["properties"][step]
    spoil(at)
    assert comparable(mine) != before


def test_generated_crds_are_structural_and_name_their_objects():
    def walk(schema: dict[str, Any]) -> None:
        assert "type" in schema or schema.get("x-kubernetes-int-or-string"), schema
        for one in schema.get("properties", {}).values():
            walk(one)
        for key in ("items", "additionalProperties"):
            if key in schema:
                walk(schema[key])

    for crd in generate_crds():
        assert crd["metadata"]["name"] == f"{crd['spec']['names']['plural']}.{crd['spec']['group']}"
        walk(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    assert yaml.safe_load(yaml.safe_dump_all(generate_crds(), sort_keys=False).split("---")[0])
