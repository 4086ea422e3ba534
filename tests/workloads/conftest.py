"""A small vcjob to change, and the attempt that most tests render."""

import copy

import pytest

from rerail.policies.workloads.attempt import AttemptGang

JOB = {
    "apiVersion": "batch.volcano.sh/v1alpha1",
    "kind": "Job",
    "metadata": {"name": "train"},
    "spec": {
        "minAvailable": 2,
        "tasks": [
            {
                "name": "worker",
                "replicas": 2,
                "template": {
                    "spec": {"containers": [{"name": "main", "image": "x", "command": ["python", "train.py"]}]}
                },
            }
        ],
    },
}


def place(document, path, value):
    """Set what lies at ``path`` of the document: keys, and indices of lists."""
    *above, last = path
    for key in above:
        document = document[key] if isinstance(key, int) else document.setdefault(key, {})
    document[last] = value


@pytest.fixture
def job():
    """A factory: job({("spec", "queue"): "q"}) -> the small vcjob with fields placed."""

    def make(fields=None):
        document = copy.deepcopy(JOB)
        for path, value in (fields or {}).items():
            place(document, path, value)
        return document

    return make


@pytest.fixture
def gang():
    """A factory: gang(attempt=2, excluded_nodes=("n1",)) -> an attempt of run ``train``."""

    def make(attempt=1, **more):
        given = {"run": "train", "gang": f"train-a{attempt}", "store": "s3://bucket/runs"}
        return AttemptGang(**{**given, "attempt": attempt, **more})

    return make
