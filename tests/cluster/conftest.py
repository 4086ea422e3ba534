"""The cluster that ``make cluster-up`` made, or another one, for the tests of this folder.

RERAIL_CLUSTER              sample or full; without it these tests are skipped (make cluster-test and -full set it)
RERAIL_CLUSTER_KUBECONFIG   run against this cluster instead, in fresh namespaces; never tried outside our own cluster
RERAIL_CLUSTER_IMAGE        the training image there (it must have rerail and numpy)
RERAIL_CLUSTER_BUCKET       a bucket there; the usual AWS variables say how pods reach it

cluster        session: kubeconfig, kubectl, image, S3, which Volcano: rig.access.Cluster
namespace      a fresh namespace, removed after the test
pods           factory in that namespace: pods.start(name, code, ...), pods.wait(name, phase), pods.log(name)
gangs          the same for vcjobs that ask for slots, a resource that only they use: rig.gangs.Gangs
argo           workflows in that namespace, through Argo's server: rig.argo.Argo
s3             session: this process reaches the cluster's S3 server as pods do
baseline       session: the uninterrupted training of examples/01, in the same image: rig.training.Gang
gang           one supervised run in that namespace, not started yet; its processes end with the test

@pytest.mark.alone   this test marks or stops nodes, or fills the cluster: no test of another session runs meanwhile,
                     and all nodes are sound before and afterwards
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from rig import layout, services, turn
from rig.access import Cluster, Pods
from rig.argo import Argo, start_argo
from rig.gangs import SLOTS_PER_NODE, Gangs, set_slots
from rig.library import PATIENT
from rig.training import QUEUE, Gang, supervised, traced

from rerail.plugins.volcano import VolcanoClient

S3_VARIABLES = ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION")

TIMEOUT_S = 900
"""Of a story: a node is found lost after a minute, and its node and pods come back after more."""


def pytest_report_header() -> list[str]:
    """Every report says on what it ran."""
    if not os.environ.get("RERAIL_CLUSTER"):
        return []
    other = os.environ.get("RERAIL_CLUSTER_KUBECONFIG")
    if other:
        return [f"cluster: another one, {other}"]
    if not layout.SETTINGS.exists():
        return ["cluster: not up"]
    found = json.loads(layout.SETTINGS.read_text())
    volcano, definitions, argo = found["volcano"], found["definitions"], found.get("argo", "none")
    return [f"cluster: {len(found['nodes'])} nodes; Volcano: {volcano}; its definitions: {definitions}; Argo: {argo}"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("cluster")
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    ours = os.environ.get("RERAIL_CLUSTER") and not os.environ.get("RERAIL_CLUSTER_KUBECONFIG")
    if not ours or not layout.KUBECONFIG.exists() or not item.path.is_relative_to(Path(__file__).parent):
        return (yield)
    if any(True in mark.args for mark in item.iter_markers("skipif")):
        return (yield)  # skipped: it waits for nobody, and nobody for it
    with turn.taken(alone=item.get_closest_marker("alone") is not None):
        return (yield)


@pytest.fixture(scope="session")
def cluster() -> Cluster:
    size = os.environ.get("RERAIL_CLUSTER")
    if not size:
        pytest.skip("needs a cluster: make cluster-up, then make cluster-test (which sets RERAIL_CLUSTER)")
    full = size == "full"
    named = os.environ.get("RERAIL_CLUSTER_KUBECONFIG")
    if named:
        image = os.environ.get("RERAIL_CLUSTER_IMAGE", "")
        if not image:
            pytest.skip("RERAIL_CLUSTER_KUBECONFIG is set, and no RERAIL_CLUSTER_IMAGE says what its pods run")
        env = {name: os.environ[name] for name in S3_VARIABLES if name in os.environ}
        bucket = os.environ.get("RERAIL_CLUSTER_BUCKET", "")
        program = shutil.which("kubectl") or "kubectl"
        ask = [program, f"--kubeconfig={named}", "get", "crd", "jobs.batch.volcano.sh"]
        found = subprocess.run(ask, capture_output=True, check=False).returncode == 0
        volcano = "real, of that cluster" if found else "none"
        return Cluster(Path(named), image, bucket, env, volcano, full, program, ours=False)
    if os.geteuid() != 0:
        pytest.skip("the cluster belongs to root, and this is not root")
    if not layout.KUBECONFIG.exists():
        pytest.skip(f"the cluster is not up ({layout.KUBECONFIG} is missing): make cluster-up")
    found = json.loads(layout.SETTINGS.read_text())
    return Cluster(
        layout.KUBECONFIG,
        found["image"],
        found["bucket"],
        services.s3_env(),
        found["volcano"],
        full,
        found["kubectl"],
        ours=True,
    )


@pytest.fixture(autouse=True)
def _sound(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.node.get_closest_marker("alone") is None:
        yield
        return
    cluster = request.getfixturevalue("cluster")
    if cluster.ours:
        cluster.heal()
    yield
    if cluster.ours:
        cluster.heal()


@pytest.fixture
def namespace(cluster: Cluster) -> Iterator[str]:
    name = f"rerail-test-{secrets.token_hex(4)}"
    cluster.kubectl("create", "namespace", name)
    account = ("serviceaccount/default", "configmap/kube-root-ca.crt")
    cluster.wait(
        "the service account", lambda: cluster.kubectl("get", *account, "-n", name, check=False).count("\n") > 2
    )
    yield name
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def pods(cluster: Cluster, namespace: str) -> Pods:
    return Pods(cluster, namespace)


@pytest.fixture
def argo(cluster: Cluster, namespace: str) -> Argo:
    if not cluster.ours or "argo" not in json.loads(layout.SETTINGS.read_text()):
        pytest.skip("only our own cluster has an Argo for tests, since it was brought up by this rig: make cluster-up")
    # A test that was killed may have left it down.
    start_argo()
    return Argo.prepare(cluster, namespace)


@pytest.fixture
def slots(cluster: Cluster) -> Iterator[int]:
    """Two slots on each of two nodes, for this test alone, also beside other sessions; how many that is."""
    if cluster.volcano == "none":
        pytest.skip("this cluster has no Volcano")
    nodes = sorted(cluster.ready_nodes())[:2]
    with turn.slots():
        for node in nodes:
            set_slots(cluster, node, SLOTS_PER_NODE)
        yield len(nodes) * SLOTS_PER_NODE
        for node in nodes:
            set_slots(cluster, node, None)


@pytest.fixture
def gangs(cluster: Cluster, namespace: str, slots: int) -> Iterator[Gangs]:
    assert slots == 4
    with VolcanoClient.connect(cluster.kubeconfig, namespace=namespace) as client:
        yield Gangs(cluster, namespace, client)
        # Whoever comes next needs the slots now, not when the namespace is gone.
        cluster.kubectl("delete", "vcjob,pods", "--all", "-n", namespace, "--wait=false")
        cluster.wait("the slots are free", lambda: not gangs_left(cluster, namespace))


def gangs_left(cluster: Cluster, namespace: str) -> bool:
    return bool(cluster.kubectl("get", "pods", "-n", namespace, "-o", "name", check=False))


@pytest.fixture(scope="session")
def s3(cluster: Cluster) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in cluster.s3_env.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def baseline(cluster: Cluster, s3: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gang]:
    assert s3 is None
    if not cluster.ours:
        pytest.skip("the comparison needs a folder that all nodes share: only the nodes of our own cluster have one")
    queue = {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "Queue",
        "metadata": {"name": QUEUE},
        "spec": {"weight": 1, "reclaimable": False},
    }
    cluster.heal()
    cluster.kubectl("apply", "-f", "-", document=queue)
    name = f"rerail-test-baseline-{secrets.token_hex(4)}"
    cluster.kubectl("create", "namespace", name)
    with supervised(cluster, name, tmp_path_factory.mktemp("baseline")) as gang:
        # Beside other sessions ranks may stand still for a while, and wait for room.
        gang.start(traced(gang, delay_s=0.0), policy=PATIENT)
        gang.end()
        assert len(gang.report().attempts) == 1, f"the baseline was disturbed; run the tests again\n{gang.said()}"
        yield gang
    cluster.kubectl("delete", "namespace", name, "--wait=false")


@pytest.fixture
def gang(cluster: Cluster, namespace: str, s3: None, tmp_path: Path) -> Iterator[Gang]:
    assert s3 is None
    with supervised(cluster, namespace, tmp_path) as one:
        yield one
