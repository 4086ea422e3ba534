"""A run in the cluster is found by the labels of its pods: where it stands, what its ranks say, its report."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rig.training import RANKS, Gang, is_whole, traced


def rerail(gang: Gang, *words: str) -> str:
    """A command without a word about the store."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RERAIL_")}
    return subprocess.run(
        [str(Path(sys.executable).with_name("rerail")), *words],
        env={**environment, **gang.cluster.s3_env, "KUBECONFIG": str(gang.cluster.kubeconfig)},
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout


@pytest.mark.usefixtures("baseline")  # it makes the queue
def test_a_run_is_found_by_its_pods(gang: Gang, tmp_path):
    if gang.cluster.volcano == "none":
        pytest.skip("this cluster has no Volcano")
    gang.start(traced(gang, steps=60, delay_s=0.5))
    gang.wait_step(5)
    standing = json.loads(rerail(gang, "status", gang.name, "--output=json"))
    assert (standing["run"], standing["phase"], standing["attempt"]) == (gang.name, "running", 1)
    assert (standing["store"], standing["namespace"]) == (gang.store, gang.namespace)
    assert len(standing["nodes"]) >= 1

    followed = rerail(gang, "logs", gang.name, "--follow")
    assert {line.split(":")[0] for line in followed.splitlines()} == {
        f"{gang.name}-a1-worker-{n}" for n in range(RANKS)
    }
    assert "step 60/60" in followed, "until the pods ended"
    gang.end()
    assert is_whole(gang)
    made = json.loads(rerail(gang, "report", f"{gang.name}-a1", f"--dir={tmp_path / 'report'}", "--output=json"))
    assert (made["outcome"], made["restarts"]) == ("done", 0)
    assert (tmp_path / "report/report.html").exists()
