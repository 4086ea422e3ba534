"""The templates about nodes on real Argo: a fault is answered, steps run elsewhere, and a node comes back."""

from collections.abc import Iterator

import pytest
from rig.argo import Argo
from rig.gangs import full
from rig.library import Trained, installed
from rig.training import MIDDLE, traced

from rerail.workflows import drill, inference_failover, node_fault, node_release, retry
from rerail.workflows.naming import versioned

pytestmark = [full, pytest.mark.alone]

XID = {"type": "NvidiaXID79Error", "status": "True", "reason": "XID79", "message": "GPU 0 has fallen off the bus"}
QUARANTINED = "rerail.dev/quarantined"


@pytest.fixture
def library(cluster, argo) -> Iterator[Argo]:
    with installed(cluster, argo.namespace):
        yield argo


@pytest.fixture
def sick(cluster) -> Iterator[str]:
    """A node with a lost GPU that nobody has marked."""
    node = min(cluster.ready_nodes())
    with cluster.condition(node, XID):
        yield node
    cluster.kubectl("uncordon", node)


def submit(argo, template, /, **parameters):
    given = {"rerail-image": argo.cluster.image, **{key.replace("_", "-"): value for key, value in parameters.items()}}
    return argo.submit_template(versioned(template), parameters=[f"{key}={value}" for key, value in given.items()])


def words(argo, name, display_name):
    """What a step said, as its output."""
    (node,) = [
        one
        for one in argo.whole_nodes(name)
        if one["displayName"] == display_name and one["phase"] not in ("Omitted", "Skipped")
    ]
    given = (node.get("outputs") or {}).get("parameters") or []
    return next(one["value"] for one in given if one["name"] == "words")


def keys_of_taints(cluster, node):
    return {one["key"] for one in cluster.read("node", node)["spec"].get("taints") or []}


def test_a_nodes_fault_is_judged_marked_and_the_node_emptied_and_given_back(cluster, library, sick):
    name = submit(library, node_fault.NAME, node=sick)
    library.wait(name, "Succeeded")
    assert words(library, name, "judge").startswith(f"node {sick}: gpu_lost, it is held back")
    assert f"node {sick} is marked" in words(library, name, "mark")
    node = cluster.read("node", sick)
    assert node["spec"]["unschedulable"] is True
    assert QUARANTINED in keys_of_taints(cluster, sick)

    check = {"verify_image": cluster.image, "verify_command": "python3 -c 'import rerail'", "gpus": "1"}
    name = submit(library, node_release.NAME, node=sick, **check)
    waits = ("approve", "Running")
    cluster.wait("it is checked", lambda: any(one[:2] == waits for one in library.nodes(name)))
    library.answer(name, "approve", answer="REJECT")
    library.wait(name, "Failed")
    assert any("the answer is REJECT" in node.message for node in library.nodes(name))
    assert QUARANTINED in keys_of_taints(cluster, sick)

    name = submit(library, node_release.NAME, node=sick, **check)
    cluster.wait("it is checked", lambda: any(one[:2] == waits for one in library.nodes(name)))
    assert library.node(name, "verify(0)")["hostNodeName"] == sick, "the check runs on the node, whatever its taints"
    library.answer(name, "approve", answer="APPROVE")
    library.wait(name, "Succeeded")
    assert QUARANTINED not in keys_of_taints(cluster, sick)
    assert not cluster.read("node", sick)["spec"].get("unschedulable")


def test_a_check_that_fails_gives_nothing_back(cluster, library, sick):
    library.wait(submit(library, node_fault.NAME, node=sick), "Succeeded")
    broken = {"verify_image": cluster.image, "verify_command": "echo 'GPU is lost'; exit 3", "approval": "automatic"}
    name = submit(library, node_release.NAME, node=sick, **broken)
    library.wait(name, "Failed")
    assert not any(one.name.startswith("give-back") and one.phase == "Succeeded" for one in library.nodes(name))
    assert QUARANTINED in keys_of_taints(cluster, sick)


def test_a_sound_node_is_left_alone(cluster, library):
    node = min(cluster.ready_nodes())
    name = submit(library, node_fault.NAME, node=node)
    library.wait(name, "Succeeded")
    assert words(library, name, "judge") == f"node {node}: no condition tells of a fault"
    assert not keys_of_taints(cluster, node)


def test_a_gang_on_the_node_saves_and_goes_on_elsewhere(cluster, argo, gang, baseline):
    with installed(cluster, gang.namespace):
        trained = Trained(argo, gang)
        trained.submit(traced(gang))
        trained.wait_step(MIDDLE)
        node = str(gang.pods()[-1]["spec"]["nodeName"])
        with cluster.condition(node, {**XID, "type": "NvidiaXID48Error", "reason": "XID48", "message": "DBE in GPU 0"}):
            name = submit(argo, node_fault.NAME, node=node, deadline_s="20")
            argo.wait(name, "Succeeded")
            trained.ended("Succeeded")
        cluster.kubectl("uncordon", node)
        found = gang.compare(baseline)
        assert found.identical, found.differences
        assert node not in trained.report()["attempts"][-1]["nodes"]


MINE = """
import os, sys
sys.exit(1 if os.environ["ON_NODE"] == %r else 0)
"""


def breaking_on(node, argo, kind):
    """A template of the user's that fails on a node, and nowhere else; begins there."""
    container = {
        "image": argo.cluster.image,
        "command": ["python3", "-uc", MINE % node],
        "env": [{"name": "ON_NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
    }
    prefers = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}]}
    affinity = {
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "preference": prefers}]}
    }
    work = {"name": "work", "serviceAccountName": "rerail-reader", "affinity": affinity, "container": container}
    templates = [work]
    if kind == "dag":
        templates.append({"name": "around", "dag": {"tasks": [{"name": "inner", "template": "work"}]}})
    argo.submit(
        {
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "WorkflowTemplate",
            "metadata": {"name": "mine"},
            "spec": {"templates": templates},
        }
    )
    return {"template_name": "mine", "template": "around" if kind == "dag" else "work", "settle_s": "5"}


def places(argo, name):
    """Where the user's step ran, in order."""
    pods = [one for one in argo.whole_nodes(name) if one["type"] == "Pod"]
    nodes = [one for one in pods if "work" in (one.get("templateName"), one.get("templateRef", {}).get("template"))]
    return [one["hostNodeName"] for one in nodes]


@pytest.mark.parametrize("kind", ["container", "dag"])
def test_a_step_goes_elsewhere_when_its_node_is_at_fault_and_so_do_other_workflows(cluster, library, sick, kind):
    mine = breaking_on(sick, library, kind)
    name = submit(library, retry.NAME, **mine)
    library.wait(name, "Succeeded")
    first, second = places(library, name)
    assert first == sick != second
    assert QUARANTINED in keys_of_taints(cluster, sick)
    another = submit(library, retry.NAME, **mine)
    library.wait(another, "Succeeded")
    (only,) = places(library, another)
    assert only != sick, "the mark counts for whoever comes next"


def test_a_step_that_fails_by_itself_on_a_sound_node_is_not_tried_again(cluster, library):
    node = min(cluster.ready_nodes())
    name = submit(library, retry.NAME, **breaking_on(node, library, "container"))
    library.wait(name, "Failed")
    assert places(library, name) == [node]
    assert any(one.name.startswith("give-up") and "exit code 1" in one.message for one in library.nodes(name))
    assert not keys_of_taints(cluster, node)


SERVES = """
import signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
signal.sigwait([signal.SIGTERM])
"""


def test_replicas_on_a_faulty_node_are_replaced(cluster, library, sick):
    labels = {"app": "serving"}
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
    }
    container = {
        "name": "main",
        "image": cluster.image,
        "command": ["python3", "-uc", SERVES],
    }
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "serving", "namespace": library.namespace},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"topologySpreadConstraints": [spread], "containers": [container]},
            },
        },
    }
    cluster.kubectl("create", "-f", "-", document=deployment)

    def standing():
        pods = cluster.read("pods", "-n", library.namespace, "-l", "app=serving")["items"]
        stay = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        return [pod["spec"].get("nodeName") for pod in stay if pod["status"].get("phase") == "Running"]

    cluster.wait("both serve", lambda: len(standing()) == 2)
    assert sick in standing()
    name = submit(library, inference_failover.NAME, node=sick, deployment="serving")
    library.wait(name, "Succeeded")
    assert sick not in standing()
    assert len(standing()) == 2
    assert QUARANTINED in keys_of_taints(cluster, sick)


@pytest.mark.parametrize("named", drill.NAMED)
def test_a_drill_in_a_pod_proves_its_claim(library, named):
    name = submit(library, f"{drill.NAME}-{named}")
    library.wait(name, "Succeeded", deadline_s=400)
    node = next(one for one in reversed(library.whole_nodes(name)) if (one.get("outputs") or {}).get("artifacts"))
    page = library.artifact(name, node["id"], "report")
    assert b"<svg" in page.body
