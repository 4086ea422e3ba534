"""The cluster is what the other tests of this folder take it for."""

import json
from typing import Any

import pytest
from rig import machines

SLEEP = "import time; time.sleep(600)"


def test_two_nodes_or_more_are_ready_and_have_gpus(cluster):
    assert len(cluster.ready_nodes()) >= 2
    assert cluster.gpus() >= 2


def test_a_pod_runs_our_image_and_imports_rerail(pods):
    code = """
import json, platform
import numpy, rerail.plugins.trainer.launch, rerail.plugins.checkpoint.store, rerail.examples.local_gang
print(json.dumps({"python": platform.python_version(), "numpy": numpy.__version__}))
"""
    pods.start("imports", code)
    pods.wait("imports", "Succeeded")

    found = json.loads(pods.log("imports"))
    assert found["python"].startswith("3.11.")


def test_the_launch_command_is_there(pods):
    pods.start("launch", "import subprocess; print(subprocess.check_output(['rerail-launch', '--help'], text=True))")
    pods.wait("launch", "Succeeded")

    assert "COMMAND" in pods.log("launch").upper()


def test_a_pod_reaches_one_on_another_node_by_its_name_of_a_headless_service(cluster, namespace, pods):
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "gang", "namespace": namespace},
        "spec": {"clusterIP": "None", "selector": {"gang": "one"}, "publishNotReadyAddresses": True},
    }
    cluster.kubectl("create", "-f", "-", document=service)
    here, there = list(cluster.ready_nodes())[:2]
    serve = """
import socket
with socket.create_server(("", 4000)) as server:
    line, _ = server.accept()
    line.sendall(b"hello from " + socket.gethostname().encode())
"""
    ask = """
import socket, time
end = time.monotonic() + 60
while True:
    try:
        line = socket.create_connection(("rank-0.gang", 4000), timeout=5)
        break
    except OSError as error:
        assert time.monotonic() < end, error
        time.sleep(0.2)
print(line.recv(100).decode())
"""
    pods.start("rank-0", serve, node=here, hostname="rank-0", subdomain="gang")
    cluster.kubectl("label", "pod", "rank-0", "gang=one", "-n", namespace)
    pods.start("rank-1", ask, node=there)
    ended = pods.wait("rank-1", "Succeeded")

    assert pods.log("rank-1").strip() == "hello from rank-0"
    assert ended["spec"]["nodeName"] != pods.get("rank-0")["spec"]["nodeName"]


@pytest.mark.alone
def test_gpus_are_counted(cluster, pods):
    each, count = cluster.gpus(), len(cluster.ready_nodes())
    for number in range(count):
        pods.start(f"fills-{number}", SLEEP, gpus=each)
    used = {pods.wait(f"fills-{number}", "Running")["spec"]["nodeName"] for number in range(count)}
    pods.start("too-many", SLEEP, gpus=1)

    assert len(used) == count

    def refused() -> bool:
        conditions = pods.get("too-many")["status"].get("conditions", [])
        return any("Insufficient nvidia.com/gpu" in condition.get("message", "") for condition in conditions)

    cluster.wait("the scheduler says why the last pod waits", refused)


def test_pods_reach_s3_which_writes_on_condition(cluster, pods):
    if not cluster.bucket:
        pytest.skip("no bucket: set RERAIL_CLUSTER_BUCKET and the AWS variables")
    code = """
import os, uuid, boto3
from botocore.exceptions import ClientError
client, bucket, key = boto3.client("s3"), os.environ["BUCKET"], f"smoke/{uuid.uuid4()}"
client.put_object(Bucket=bucket, Key=key, Body=b"first", IfNoneMatch="*")
try:
    client.put_object(Bucket=bucket, Key=key, Body=b"second", IfNoneMatch="*")
except ClientError as error:
    kept = client.get_object(Bucket=bucket, Key=key)["Body"].read()
    print(error.response["ResponseMetadata"]["HTTPStatusCode"], kept)
"""
    pods.start("writes", code)
    pods.wait("writes", "Succeeded")

    assert pods.log("writes").strip() == "412 b'first'"


def test_sigterm_reaches_training_and_leaves_its_grace_period(cluster, namespace, pods):
    code = """
import signal, sys, time
def leave(*_):
    print("saving", flush=True)
    time.sleep(2)
    print("saved", flush=True)
    sys.exit(75)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
time.sleep(600)
"""
    pods.start("saves", code, terminationGracePeriodSeconds=30)
    cluster.wait("the handler is there", lambda: "ready" in pods.log("saves"))
    cluster.kubectl(
        "patch",
        "pod",
        "saves",
        "-n",
        namespace,
        "--type=json",
        "-p",
        json.dumps([{"op": "add", "path": "/metadata/finalizers", "value": ["rerail.test/look-first"]}]),
    )
    cluster.kubectl("delete", "pod", "saves", "-n", namespace, "--wait=false")
    pods.wait("saves", "Failed")

    state = pods.get("saves")["status"]["containerStatuses"][0]["state"]["terminated"]
    cluster.kubectl(
        "patch", "pod", "saves", "-n", namespace, "--type=json", "-p", '[{"op":"remove","path":"/metadata/finalizers"}]'
    )
    assert state["exitCode"] == 75


@pytest.mark.alone
def test_a_stopped_node_is_lost_and_comes_back(cluster, pods):
    name = max(cluster.ready_nodes())
    node = cluster.node(name)
    pods.start("ghost", SLEEP, node=name)
    pods.wait("ghost", "Running")
    machines.stop(node)
    try:
        lost_s = cluster.wait("the node is not ready", lambda: name not in cluster.ready_nodes())
        cluster.wait("the pod is told to leave", lambda: "deletionTimestamp" in pods.get("ghost")["metadata"])
        assert pods.get("ghost")["status"]["phase"] == "Running", "nobody is there to end it"
    finally:
        machines.start_again(node)

    assert lost_s < 60
    cluster.wait(
        "the pod is gone", lambda: not cluster.kubectl("get", "pod", "ghost", "-n", pods.namespace, check=False)
    )


def test_volcano_runs_a_gang_on_both_nodes(cluster, namespace):
    if cluster.volcano == "none":
        pytest.skip("this cluster has no Volcano")
    container = {
        "name": "main",
        "image": cluster.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-c", "import os, time; print(os.environ['VC_TASK_INDEX']); time.sleep(3)"],
        "resources": {"limits": {"nvidia.com/gpu": str(cluster.gpus())}},
    }
    job = {
        "apiVersion": "batch.volcano.sh/v1alpha1",
        "kind": "Job",
        "metadata": {"name": "gang", "namespace": namespace},
        "spec": {
            "schedulerName": "volcano",
            "minAvailable": 2,
            "plugins": {"env": [], "svc": []},
            "tasks": [
                {
                    "name": "rank",
                    "replicas": 2,
                    "minAvailable": 2,
                    "template": {"spec": {"restartPolicy": "Never", "containers": [container]}},
                }
            ],
        },
    }
    cluster.kubectl("create", "-f", "-", document=job)
    used = {node_of(cluster, namespace, f"gang-rank-{index}") for index in range(2)}

    assert len(used) == 2
    cluster.wait(
        "the job is completed",
        lambda: (
            cluster.read("jobs.batch.volcano.sh", "gang", "-n", namespace)["status"]["state"]["phase"] == "Completed"
        ),
    )


def node_of(cluster: Any, namespace: str, name: str) -> str:
    def found() -> str:
        return cluster.kubectl("get", "pod", name, "-n", namespace, "-o", "jsonpath={.spec.nodeName}", check=False)

    cluster.wait(f"pod {name} has a node", lambda: bool(found()))
    return found()
