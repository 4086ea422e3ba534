"""The manifest of the README's section on clusters, run; only what names things of a user's own is replaced."""

import base64
import re
import secrets
from pathlib import Path

import pytest
from rig.training import Gang, is_whole

from rerail.policies.workloads.reading import parse_manifest

README = Path(__file__).parents[2] / "README.md"
TRAIN = ["python3", "-u", "-m", "rerail.examples.local_gang.train", "--steps=20", "--save-every=10", "--batch=70"]


def test_the_manifest_of_the_readme_runs(gang: Gang):
    if gang.cluster.volcano == "none":
        pytest.skip("this cluster has no Volcano")
    section = README.read_text().split("\n## Gangs in a cluster\n")[1].split("\n## ")[0]
    (text,) = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    (run,) = parse_manifest(text, "README.md")
    assert isinstance(run, dict)
    queue = f"rerail-readme-{secrets.token_hex(3)}"
    # Its image, what that runs, two small pods instead of 32 GPUs, and a queue and a store that are there.
    run["spec"] |= {"image": gang.cluster.image, "command": TRAIN, "imagePullPolicy": "IfNotPresent"}
    run["spec"] |= {"replicas": 2, "gpusPerReplica": 0, "queue": queue, "store": gang.store}
    run["metadata"]["name"] = gang.name
    (secret,) = (one["secretRef"]["name"] for one in run["spec"]["envFrom"])
    data = {key: base64.b64encode(value.encode()).decode() for key, value in gang.cluster.s3_env.items()}
    gang.cluster.kubectl(
        "create", "-n", gang.namespace, "-f", "-",
        document={"apiVersion": "v1", "kind": "Secret", "metadata": {"name": secret}, "data": data},
    )  # fmt: skip
    body = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "Queue", "metadata": {"name": queue}, "spec": {}}
    gang.cluster.kubectl("create", "-f", "-", document=body)
    try:
        gang.cluster.wait(
            "the queue is open",
            lambda: gang.cluster.read("queue", queue).get("status", {}).get("state") == "Open",
        )
        gang.start(run)
        ended = gang.end()
        assert ended["phase"] == "done"
        assert len(ended["attempts"]) == 1
        assert is_whole(gang)
    finally:
        gang.cluster.kubectl("delete", "queue", queue, "--wait=false")
