"""The manifest in the README's section on clusters is one; tests/cluster/test_readme.py runs it."""

import re
from pathlib import Path

from rerail.policies.recovery import RecoveryPolicy
from rerail.policies.workloads.reading import parse_manifest, read_workload

README = Path(__file__).parents[2] / "README.md"


def test_the_manifest_of_the_readme_is_what_it_says():
    section = README.read_text().split("\n## Gangs in a cluster\n")[1].split("\n## ")[0]
    (text,) = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    workload = read_workload(parse_manifest(text, "README.md"), "README.md")
    assert (workload.run, workload.size, workload.world_size, workload.queue) == ("llama-8b", 4, 32, "default")
    assert workload.store == "s3://checkpoints/runs"
    policy = RecoveryPolicy.from_mapping(dict(workload.policy), "README.md")
    assert policy.save_within_s == 90.0
    assert f"`capacity_wait_s` ({policy.capacity_wait_s / 3600:g} h)" in section
