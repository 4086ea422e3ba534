"""A store in a folder: on a volume that all nodes can mount, and on one of a single node with its documents on S3."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from rig import machines, network
from rig.claims import CLAIM, volume
from rig.gangs import full
from rig.training import BEFORE, MIDDLE, SHARED, Gang, finished, supervised, traced


@pytest.fixture
def stored(cluster, namespace, s3, tmp_path) -> Iterator[Callable[..., Gang]]:
    """Factory of a gang whose store is a folder on a volume of these access modes; start it with ``on_claim``.

    hostPath stands for a volume of the network: every node of our cluster is this machine.
    """
    assert s3 is None
    if not cluster.ours:
        pytest.skip("the volume is a folder of this machine, and only the nodes of our own cluster are this machine")
    folder = SHARED / namespace / "volume"
    with ExitStack() as held:

        def make(mode: str, mounted_at: str = str(folder), **more: Any) -> Gang:
            folder.mkdir(parents=True)
            for body in volume(namespace, str(folder), mode):
                cluster.kubectl("create", "-f", "-", document=body)
            seen_at = f"file://{folder}"
            options = {"store": f"file://{mounted_at}", "seen_at": seen_at, **more}
            return held.enter_context(supervised(cluster, namespace, tmp_path, **options))

        yield make
    cluster.kubectl("delete", "pv", namespace, "--wait=false", "--ignore-not-found")
    shutil.rmtree(folder.parent, ignore_errors=True)


def on_claim(gang: Gang, **more: Any) -> dict[str, Any]:
    return traced(gang, claims={gang.store.removeprefix("file://"): CLAIM}, **more)


def on_the_volume(gang: Gang) -> set[str]:
    """What kinds of files the store's folder holds."""
    assert gang.seen_at
    return {path.name for path in (Path(gang.seen_at.removeprefix("file://")) / gang.name).iterdir()}


def test_a_killed_pod_with_the_store_on_a_volume_of_many_nodes(stored, baseline):
    gang = stored("ReadWriteMany")
    gang.start(on_claim(gang))
    gang.wait_step(MIDDLE)
    gang.kill_pod(gang.pods()[1])
    report = finished(gang, baseline)

    assert report.attempts[1].started_from_step >= BEFORE
    assert {"commits", "shards", "ledger"} <= on_the_volume(gang)


@pytest.mark.alone
def test_a_lost_node_with_the_store_on_a_volume_of_many_nodes(cluster, stored, baseline):
    gang = stored("ReadWriteMany")
    gang.start(on_claim(gang))
    gang.wait_step(MIDDLE)
    lost = cluster.node(gang.pods()[-1]["spec"]["nodeName"])
    try:
        network.cut(lost)
        machines.stop(lost)
        report = finished(gang, baseline)
    finally:
        network.mend(lost)
        machines.start_again(lost)

    assert report.incidents[0].class_ == "node-lost"
    assert lost.name not in report.attempts[1].nodes
    assert report.attempts[1].started_from_step >= BEFORE


@full
def test_a_killed_pod_with_the_store_on_a_volume_of_one_node(cluster, stored, baseline):
    node = min(cluster.ready_nodes())
    away = "/checkpoints"
    assert not Path(away).exists(), "as on every machine that is not that node"
    gang = stored("ReadWriteOnce", away, control=f"s3://{cluster.bucket}/control")
    gang.start(on_claim(gang, pod={"nodeSelector": {"kubernetes.io/hostname": node}}))
    gang.wait_step(MIDDLE)
    gang.kill_pod(gang.pods()[1])
    report = finished(gang, baseline)

    assert report.attempts[1].how == "new-gang"
    assert {name for row in report.attempts for name in row.nodes} == {node}
    assert on_the_volume(gang) == {"shards"}, "everything else is on S3"
    assert "is not mounted here" in gang.said()
    assert not Path(away).exists()


def attachment(cluster, volume_name: str, node: str) -> None:
    """What a driver that attaches volumes would leave behind; the volume itself needs no attaching."""
    body = {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "VolumeAttachment",
        "metadata": {"name": volume_name},
        "spec": {"attacher": "rerail.test", "nodeName": node, "source": {"persistentVolumeName": volume_name}},
    }
    cluster.kubectl("create", "-f", "-", document=body)
    patch = '{"status": {"attached": true}}'
    cluster.kubectl("patch", "volumeattachment", volume_name, "--subresource=status", "--type=merge", "-p", patch)


@full
@pytest.mark.alone
def test_the_next_gang_waits_until_a_volume_of_one_node_is_detached(cluster, stored, baseline):
    gang = stored("ReadWriteOnce")
    gang.start(on_claim(gang))
    gang.wait_step(MIDDLE)
    sick = str(gang.pods()[-1]["spec"]["nodeName"])
    attachment(cluster, gang.namespace, sick)
    condition = {"type": "NvidiaXID79Error", "status": "True", "reason": "XID79", "message": "fallen off the bus"}
    try:
        with cluster.condition(sick, condition):
            held = gang.wait("the run holds", lambda state: state.phase == "waiting" and "attached" in state.reason)
            assert held.reason == (
                f"claim {CLAIM} (volume {gang.namespace}) is still attached to node {sick}, "
                "which this run keeps away from"
            )
            gone = {pod["status"]["phase"] for pod in gang.pods()}
            assert gone <= {"Succeeded", "Failed"}, "no GPU is held meanwhile"
            cluster.kubectl("delete", "volumeattachment", gang.namespace)
            report = finished(gang, baseline)
    finally:
        cluster.kubectl("delete", "volumeattachment", gang.namespace, "--ignore-not-found")

    assert sick not in report.attempts[1].nodes
