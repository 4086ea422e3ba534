"""rerail-train on the cluster's own Argo in other forms: ranks restarted in place, bare pods, a store on a volume."""

import json
import shutil
from collections.abc import Iterator

import pytest
from rig.claims import CLAIM, volume
from rig.gangs import full
from rig.library import Trained, installed
from rig.training import BEFORE, MIDDLE, SHARED, supervised, traced

STEPS_USER = 65534
"""Steps run as nobody: who shares a folder with them has to be the same."""


@pytest.fixture
def trained(cluster, argo, gang) -> Iterator[Trained]:
    with installed(cluster, gang.namespace):
        yield Trained(argo, gang)


def same_training(trained, baseline, *, how):
    found = trained.gang.compare(baseline)
    assert found.identical, found.differences
    document = trained.report()
    assert document["outcome"] == "done", trained.told()
    assert [row["how"] for row in document["attempts"]] == ["fresh", how], trained.told()
    return document


@full
def test_a_restart_in_the_same_pods_is_told_by_the_runs_own_node(trained, baseline):
    gang = trained.gang
    trained.submit(traced(gang, environment={"RERAIL_DRILL_RAISE": f"step={MIDDLE},rank=1,attempt=1"}))
    trained.ended("Succeeded")
    assert ("fresh", "Succeeded") in trained.steps()
    assert "assess" not in {name for name, _ in trained.steps()}, "one gang is one node"
    words = trained.words("fresh")
    assert words.startswith("done at step 100 in 2 attempts; "), words
    assert words.endswith(f", and attempt 2 went on from step {BEFORE} in the same pods"), words
    same_training(trained, baseline, how="in-place")


@full
def test_a_restart_in_the_same_pods_is_told_also_by_a_node_that_hands_over(trained, baseline):
    gang = trained.gang
    raising = {"RERAIL_DRILL_RAISE": f"step={MIDDLE},rank=1,attempt=1"}
    trained.submit(traced(gang, environment=raising, delay_s=0.2))
    trained.wait_step(10, attempt=2)
    gang.kill_pod(gang.pods()[2])
    trained.ended("Succeeded")
    words = trained.node("fresh(0)")["message"]
    assert f", and attempt 2 went on from step {BEFORE} in the same pods; " in words
    assert "attempt 3 goes on from step " in words
    assert trained.words("fresh") in words, "the node above shows it among its outputs"
    found = gang.compare(baseline)
    assert found.identical, found.differences


@full
@pytest.mark.usefixtures("s3")
def test_a_gang_of_bare_pods(argo, tmp_path, baseline):
    cluster, namespace = argo.cluster, argo.namespace
    with installed(cluster, namespace), supervised(cluster, namespace, tmp_path, backend="podgroup") as gang:
        trained = Trained(argo, gang)
        trained.submit(traced(gang), backend="podgroup")
        trained.wait_step(MIDDLE)
        assert not cluster.read("vcjob", "-n", namespace)["items"]
        gang.kill_pod(gang.pods()[1])
        trained.ended("Succeeded")
        assert ("resume", "Succeeded") in trained.steps()
        assert "attempt 2 goes on from step " in trained.node("fresh(0)")["message"]
        same_training(trained, baseline, how="new-gang")
        left = cluster.read("podgroups", "-n", namespace, "-l", f"rerail.dev/run={gang.name}")["items"]
        assert not [one for one in left if one["metadata"]["name"].endswith("-a1")]


@full
@pytest.mark.usefixtures("s3")
def test_a_store_on_a_volume_is_mounted_by_every_step(argo, tmp_path, baseline):
    """As the README says: a patch of the Workflow mounts the claim, and the gang's manifest mounts it as well."""
    cluster, namespace = argo.cluster, argo.namespace
    folder = SHARED / namespace / "volume"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    for body in volume(namespace, str(folder), "ReadWriteMany"):
        cluster.kubectl("create", "-f", "-", document=body)
    try:
        with (
            installed(cluster, namespace),
            supervised(cluster, namespace, tmp_path, store=folder.as_uri()) as gang,
        ):
            gang.trace.chmod(0o777)
            trained = Trained(argo, gang)
            mount = {"name": CLAIM, "mountPath": str(folder)}
            patch = {
                "volumes": [{"name": CLAIM, "persistentVolumeClaim": {"claimName": CLAIM}}],
                "containers": [{"name": "main", "volumeMounts": [mount]}],
            }
            same = {"securityContext": {"runAsUser": STEPS_USER}}
            trained.submit(
                traced(gang, claims={str(folder): CLAIM}, pod=same), spec={"podSpecPatch": json.dumps(patch)}
            )
            trained.wait_step(MIDDLE)
            gang.kill_pod(gang.pods()[1])
            trained.ended("Succeeded")
            document = same_training(trained, baseline, how="new-gang")
            assert document["attempts"][1]["started_from_step"] == BEFORE
            assert {"commits", "shards", "ledger"} <= {path.name for path in (folder / gang.name).iterdir()}
    finally:
        cluster.kubectl("delete", "pv", namespace, "--wait=false", "--ignore-not-found")
        shutil.rmtree(folder, ignore_errors=True)
