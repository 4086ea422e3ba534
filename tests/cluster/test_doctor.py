"""`rerail doctor` on a real API server, with Volcano's and Argo's own definitions."""

import json
import secrets
from pathlib import Path

import pytest
from rig.access import Cluster
from typer.testing import CliRunner

from rerail.plugins.cli.main import build

CONF = Path(__file__).with_name("volcano-scheduler.conf")


@pytest.fixture
def doctor(cluster: Cluster, namespace, s3, monkeypatch):
    """Findings by check, with the exit code under ``exit``."""
    assert s3 is None
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))

    def look(*words: str):
        words = ("doctor", "-o", "json", "-n", namespace, "--scheduler-conf", str(CONF), *words)
        done = CliRunner().invoke(build(["doctor"]), words)
        assert done.exit_code in (0, 1), (done.output, done.exception)
        found = {"exit": done.exit_code}
        for one in json.loads(done.stdout):
            found.setdefault(one["check"], []).append(one)
        return found

    return look


def test_our_own_cluster_and_its_store_pass(cluster, doctor):
    found = doctor("--store", f"s3://{cluster.bucket}/doctor-{secrets.token_hex(4)}", "--orphans")
    for check in ("api-server", "clock", "volcano-crds", "rights", "store", "orphans"):
        assert [one["verdict"] for one in found[check]] == ["ok"], found[check]
    assert {one["check"] for one in found["scheduler-gang-breaks"]}, "no extender stands in the rig's configuration"
    assert found["exit"] == 0, found
    if cluster.ours and "argo-version" in found:
        assert found["argo-version"][0]["verdict"] in ("ok", "skipped")


def test_an_account_without_rights_is_told_what_it_lacks_and_what_gives_it(doctor, namespace):
    found = doctor("--account", "default")
    (rights,) = found["rights"]
    assert rights["verdict"] == "fail"
    assert (
        f"ServiceAccount {namespace}/default may not get jobs.batch.volcano.sh in namespace {namespace!r}"
        in (rights["found"])
    )
    assert f"rerail rights --backend vcjob --namespace {namespace} --account default" in rights["way_out"]
    assert found["exit"] == 1


def test_a_gang_of_a_run_that_nobody_knows_is_found(cluster, doctor, namespace):
    labels = {"rerail.dev/run": "gone", "rerail.dev/gang": "gone-a1"}
    group = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "gone-a1", "namespace": namespace, "labels": labels},
        "spec": {"minMember": 1, "queue": "default"},
    }
    cluster.kubectl("apply", "-f", "-", document=group)
    (orphan,) = doctor("--orphans")["orphans"]
    assert orphan["verdict"] == "skipped"
    assert f"gang {namespace}/gone-a1" in orphan["found"]
