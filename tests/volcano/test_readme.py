"""The example of the README runs as it is printed, and types are what it says."""

import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import rerail.plugins.volcano as package

README = Path(package.__file__).with_name("README.md")
TYPING = Path(__file__).parents[2] / ".venv" / "typing"


def example() -> str:
    found = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found
    return found[1]


def test_the_example_runs(fake_api, kubeconfig):
    fake_api.put("queues", {"metadata": {"name": "default"}, "status": {"state": "Open"}})
    over = threading.Event()

    def controller() -> None:
        """Runs jobs at once, aborts them on command, and takes their pods with them."""
        while not over.wait(0.02):
            for job in fake_api.find("jobs"):
                name, uid = job["metadata"]["name"], job["metadata"]["uid"]
                if "status" not in job:
                    fake_api.change(
                        "jobs", "team", name, lambda one: one.update(status={"state": {"phase": "Running"}})
                    )
                    labels = {"volcano.sh/job-name": name, "volcano.sh/job-namespace": "team"}
                    owner = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": name, "uid": uid}
                    metadata = {"name": f"{name}-worker-0", "namespace": "team", "labels": labels}
                    pod = {"metadata": {**metadata, "ownerReferences": [owner]}, "spec": {}, "status": {}}
                    fake_api.put("pods", pod)
                if job["metadata"].get("deletionTimestamp"):
                    fake_api.remove("pods", "team", f"{name}-worker-0")
                    fake_api.remove("jobs", "team", name)
            for command in fake_api.find("commands"):
                fake_api.remove("commands", "team", command["metadata"]["name"])
                name = command["target"]["name"]
                fake_api.change("jobs", "team", name, lambda one: one.update(status={"state": {"phase": "Aborted"}}))

    thread = threading.Thread(target=controller, daemon=True)
    thread.start()
    try:
        done = subprocess.run(
            [sys.executable, "-c", example()],
            env={"KUBECONFIG": str(kubeconfig), "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    finally:
        over.set()
        thread.join(10)
    assert done.returncode == 0, done.stderr
    running, command, verdict, gone = done.stdout.strip().splitlines()
    assert running == "Running ['hello-a1-worker-0']"
    assert "phase_after='Aborted', sent=1" in command
    assert "aborted" in verdict
    assert "was_there=True" in gone


TYPES = """
from typing import assert_type
from rerail.plugins.volcano import Queue, VolcanoClient, VolcanoJob, JobPhase
from rerail.plugins.volcano.client import Event

def check(client: VolcanoClient, job: VolcanoJob) -> None:
    assert_type(client.get(VolcanoJob, "a", namespace="b"), VolcanoJob)
    assert_type(client.get(Queue, "a"), Queue)
    assert_type(client.list(Queue), tuple[Queue, ...])
    assert_type(client.create(job), VolcanoJob)
    assert_type(client.wait(Queue, "q", {"Open"}, timeout_s=1), Queue)
    assert_type(job.phase, JobPhase | str)
    for event in client.watch(VolcanoJob):
        assert_type(event, Event[VolcanoJob])
    client.get(Queue, "a", namespace="b")  # type: ignore[type-var]
"""


@pytest.mark.skipif(not os.environ.get("CI"), reason="mypy takes a minute: only where CI is set")
def test_types_follow_the_kind(tmp_path):
    (tmp_path / "types_of_client.py").write_text(TYPES)
    command = [sys.executable, "-m", "mypy", "--strict", str(tmp_path / "types_of_client.py")]
    env = {**os.environ, "MYPYPATH": str(TYPING)}
    options = ["--config-file", str(TYPING.parents[1] / "pyproject.toml"), "--warn-unused-ignores"]
    done = subprocess.run([*command, *options], env=env, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_is_exported_is_there_and_sorted():
    assert list(package.__all__) == sorted(package.__all__)
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        package.nope  # noqa: B018
