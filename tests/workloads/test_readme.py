"""The example of the README is a workload."""

import re
from pathlib import Path

from pydantic.alias_generators import to_camel

import rerail.policies.workloads as package
from rerail.policies.workloads.reading import parse_manifest, read_workload
from rerail.policies.workloads.run_manifest import RunSpec

README = Path(package.__file__).with_name("README.md").read_text()


def test_the_example_is_read():
    found = re.search(r"```yaml\n(.*?)```", README, re.DOTALL)
    assert found
    workload = read_workload(parse_manifest(found[1], "README.md"), "README.md")
    assert (workload.run, workload.world_size, workload.size) == ("llama-8b", 32, 4)
    assert workload.policy == {"save_within_s": 90}


def test_every_field_of_a_run_is_told():
    for name in RunSpec.model_fields:
        assert to_camel(name) in README, name
