"""rerail-train-fanout on the cluster's own Argo and Volcano: ranks are nodes of the Workflow, and fall together."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from rig import machines, network
from rig.gangs import full
from rig.library import Trained, installed, without_steps
from rig.training import MIDDLE, POLICY, QUEUE, RANKS, SAVE_EVERY, STEPS

TEMPLATE = "rerail-train-fanout-v0-1"
PRE_EVICT = "rerail-pre-evict-v0-1"
XID = {"type": "NvidiaXID79Error", "status": "True", "reason": "XID79", "message": "GPU 0 has fallen off the bus"}


@dataclass
class Fanned(Trained):
    """A gang whose pods are the Workflow's."""

    def begin(self, *, delay_s: float = 0.08, **parameters: str) -> str:
        """Submit it as somebody who has no manifest does; the trace's folder comes by the Workflow's own patch."""
        words = ["python3", "-u", "-m", "rerail.examples.local_gang.train"]
        words += [f"--steps={STEPS}", f"--save-every={SAVE_EVERY}", "--batch=70", "--samples=3640"]
        given = {
            "store": self.gang.store,
            "run": self.gang.name,
            "image": self.gang.cluster.image,
            "command": " ".join([*words, f"--step-delay-s={delay_s}"]),
            "replicas": str(RANKS),
            "gpus-per-replica": "1",
            "queue": QUEUE,
            "policy": json.dumps(dict(POLICY)),
            "rerail-image": self.gang.cluster.image,
            "deadline-s": "20",
            **{key.replace("_", "-"): value for key, value in parameters.items()},
        }
        mount = {"name": "trace", "mountPath": "/trace"}
        main = {"name": "main", "env": [{"name": "RERAIL_TRACE", "value": "/trace"}], "volumeMounts": [mount]}
        volume = {"name": "trace", "hostPath": {"path": str(self.gang.trace)}}
        document = {
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "Workflow",
            "metadata": {"generateName": f"{self.gang.name}-"},
            "spec": {
                "workflowTemplateRef": {"name": TEMPLATE},
                "arguments": {"parameters": [{"name": key, "value": value} for key, value in given.items()]},
                "podSpecPatch": json.dumps({"volumes": [volume], "containers": [main]}),
            },
        }
        self.name = self.argo.submit(document)
        return self.name

    def ranks(self, attempt: int) -> dict[str, Any]:
        """The pods of an attempt's ranks, by the name that the run knows."""
        labels = ((pod["metadata"]["labels"], pod) for pod in self.gang.pods())
        return {own["rerail.dev/pod"]: pod for own, pod in labels if own["rerail.dev/attempt"] == str(attempt)}

    def nodes_of_ranks(self, attempt: int) -> list[Any]:
        """The Workflow's nodes of an attempt's ranks."""
        wanted = {"name": "attempt", "value": str(attempt)}
        return [
            node
            for node in self.argo.whole_nodes(self.name)
            if node["type"] == "Pod" and node["templateName"] == "rank" and wanted in node["inputs"]["parameters"]
        ]

    def groups(self) -> list[str]:
        """PodGroups of the run, and those that Volcano made by itself for its pods."""
        found = self.gang.cluster.read("podgroups", "-n", self.gang.namespace)["items"]
        return sorted(
            one["metadata"]["name"]
            for one in found
            if one["metadata"].get("labels", {}).get("rerail.dev/run")
            or one["metadata"]["name"].startswith("podgroup-")
        )

    def kill(self, attempt: int, index: int) -> None:
        """SIGKILL to all processes of a rank's own container."""
        self.gang.kill_pod({"metadata": {"name": f"{self.gang.name}-a{attempt}-{index}"}})


@pytest.fixture
def fanned(cluster, argo, gang) -> Iterator[Fanned]:
    with installed(cluster, gang.namespace):
        yield Fanned(argo, gang)


def same_training(fanned, baseline, *, attempts):
    """Bit for bit, and the report says so."""
    found = fanned.gang.compare(baseline)
    assert found.identical, found.differences
    document = fanned.report()
    assert (document["outcome"], len(document["attempts"])) == ("done", attempts), fanned.told()
    for incident in document["incidents"]:
        print(f"{incident['class']}: first new step {incident['mttr_s']:.1f} s after the fault")
    return document


def living(fanned):
    return [pod for pod in fanned.gang.pods() if pod["status"].get("phase") in ("Pending", "Running")]


@full
def test_it_trains_to_the_end_as_pods_of_the_workflow(fanned, baseline):
    name = fanned.begin()
    fanned.wait_step(10)
    gang = f"{fanned.gang.name}-a1"
    assert sorted(fanned.ranks(1)) == [f"{gang}-{index}" for index in range(RANKS)]
    assert fanned.groups() == [gang], "one group, and none that Volcano makes by itself"
    (group,) = fanned.gang.cluster.read("podgroups", "-n", fanned.gang.namespace)["items"]
    assert (group["spec"]["minMember"], group["status"]["phase"]) == (RANKS, "Running")
    for pod in fanned.ranks(1).values():
        assert [owner["name"] for owner in pod["metadata"]["ownerReferences"]] == [name]
        assert pod["spec"]["serviceAccountName"] == "rerail-rank"
    assert fanned.gang.cluster.read("vcjob", "-n", fanned.gang.namespace)["items"] == []
    fanned.ended("Succeeded")
    assert [node["phase"] for node in fanned.nodes_of_ranks(1)] == ["Succeeded"] * RANKS
    shown = ("resolve", "open", "fresh", "ranks", "assess", "report")
    assert [step for step in fanned.steps() if step[0] in shown] == [
        ("resolve", "Succeeded"), ("open", "Succeeded"), ("fresh", "Succeeded"), ("ranks", "Succeeded"),
        ("report", "Succeeded"),
    ]  # fmt: skip
    assert fanned.node("fresh(0)")["progress"] == "100/100"
    same_training(fanned, baseline, attempts=1)
    assert fanned.groups() == []


@full
def test_a_rank_that_is_killed_ends_all_and_the_next_have_a_group_of_their_own(fanned, baseline):
    fanned.begin()
    fanned.wait_step(MIDDLE)
    first = fanned.ranks(1)
    fanned.kill(1, 1)
    fanned.wait_step(1, attempt=2)
    assert fanned.groups() == [f"{fanned.gang.name}-a2"]
    assert sorted(fanned.ranks(2)) == [f"{fanned.gang.name}-a2-{index}" for index in range(RANKS)]
    fanned.ended("Succeeded")
    same_training(fanned, baseline, attempts=2)
    ended = fanned.nodes_of_ranks(1)
    assert len(ended) == len(first) == RANKS
    assert {node["phase"] for node in ended} <= {"Failed", "Error"}, "each of them, and none was tried again"
    assert [node["phase"] for node in fanned.nodes_of_ranks(2)] == ["Succeeded"] * RANKS
    names = [step for step in fanned.steps() if step[0] in ("fresh", "ranks", "assess", "resume", "next-attempt")]
    assert sorted(names) == sorted([
        ("fresh", "Failed"), ("ranks", "Succeeded"), ("assess", "Succeeded"), ("next-attempt", "Succeeded"),
        ("resume", "Succeeded"), ("ranks", "Succeeded"),
    ])  # fmt: skip


@full
@pytest.mark.alone
def test_a_lost_gpu_moves_all_ranks_to_another_node(cluster, fanned, baseline):
    fanned.begin()
    fanned.wait_step(MIDDLE)
    sick = str(fanned.ranks(1)[f"{fanned.gang.name}-a1-{RANKS - 1}"]["spec"]["nodeName"])
    with cluster.condition(sick, XID):
        fanned.ended("Succeeded")
    document = same_training(fanned, baseline, attempts=2)
    assert f"XID 79 on {sick} ended attempt 1 at step " in fanned.node("fresh(0)")["message"]
    assert sick not in document["attempts"][1]["nodes"]
    assert {node["hostNodeName"] for node in fanned.nodes_of_ranks(2)} == set(document["attempts"][1]["nodes"])


@contextmanager
def ranks_on(cluster, namespace, node) -> Iterator[Callable[[], None]]:
    """A node on which ranks have room and steps are not put; gives what makes room elsewhere."""
    (other,) = (name for name in cluster.ready_nodes() if name != node)
    limits = {"limits": {machines.GPU: str(cluster.gpus())}}
    container = {"name": "main", "image": cluster.image, "command": ["sleep", "900"], "resources": limits}
    filler = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "filler"},
        "spec": {"nodeName": other, "containers": [container], "terminationGracePeriodSeconds": 0},
    }
    with without_steps(cluster, node):
        cluster.kubectl("create", "-n", namespace, "-f", "-", document=filler)
        cluster.wait(
            "the other node is full",
            lambda: cluster.read("pod", "filler", "-n", namespace)["status"].get("phase") == "Running",
        )
        yield lambda: cluster.kubectl("delete", "pod", "filler", "-n", namespace)


def reaped(fanned) -> Callable[[], bool]:
    """Whether the Workflow has succeeded after the reaper came once more; the runner itself may be before it."""

    def succeeded() -> bool:
        fanned.reap()
        return fanned.argo.workflow(fanned.name)["status"]["phase"] == "Succeeded"

    return succeeded


@full
@pytest.mark.alone
def test_a_lost_node_keeps_neither_the_next_attempt_nor_the_workflow(cluster, fanned, baseline):
    node = min(cluster.ready_nodes())
    lost = cluster.node(node)
    with ranks_on(cluster, fanned.gang.namespace, node) as make_room:
        fanned.begin(delay_s=0.5)
        fanned.wait_step(MIDDLE)
        assert {str(pod["spec"]["nodeName"]) for pod in fanned.ranks(1).values()} == {node}
        assert fanned.node("fresh(0)")["hostNodeName"] != node
        try:
            network.cut(lost)
            machines.stop(lost)
            make_room()
            fanned.wait_step(1, attempt=2)
            assert "Running" in {one["phase"] for one in fanned.nodes_of_ranks(1)}, "ghosts, as Argo sees them"
            fanned.until("the Workflow has no ghosts left", reaped(fanned))
        finally:
            network.mend(lost)
            machines.start_again(lost)
    document = same_training(fanned, baseline, attempts=2)
    assert document["incidents"][0]["class"] == "node-lost"
    assert node not in document["attempts"][1]["nodes"]


@full
def test_a_workflow_that_a_person_stops_saves_and_leaves_nothing(fanned):
    name = fanned.begin(delay_s=0.3)
    fanned.wait_step(MIDDLE)
    fanned.argo.stop(name)
    fanned.ended("Failed")
    fanned.until("its ranks are gone", lambda: not living(fanned))
    fanned.until("its group is gone", lambda: not fanned.groups())
    state = fanned.gang.state()
    assert state.phase == "stopped"
    assert state.attempts[0].last_commit_step >= MIDDLE, "after a save"
    assert fanned.report()["outcome"] == "stopped"


@full
def test_an_eviction_saves_first_and_the_next_ranks_lose_nothing(fanned, baseline):
    fanned.begin(delay_s=0.2)
    fanned.wait_step(MIDDLE)
    argo, image = fanned.argo, fanned.gang.cluster.image
    given = {"gang": f"{fanned.gang.name}-a1", "store": fanned.gang.store, "deadline-s": "20", "rerail-image": image}
    asked = argo.submit_template(PRE_EVICT, parameters=[f"{key}={value}" for key, value in given.items()])
    argo.wait(asked, "Succeeded", "Failed")
    assert argo.workflow(asked)["status"]["phase"] == "Succeeded", argo.story(asked)
    fanned.ended("Succeeded")
    document = same_training(fanned, baseline, attempts=2)
    assert document["lost_steps"] == 0


@full
def test_a_stopped_run_goes_on_in_another_workflow_that_takes_it_over(fanned, baseline):
    first = fanned.begin(delay_s=0.2)
    fanned.wait_step(MIDDLE)
    fanned.argo.stop(first)
    fanned.ended("Failed")
    saved = fanned.gang.state().attempts[0].last_commit_step
    fanned.begin(delay_s=0.2, take_over="true")
    fanned.ended("Succeeded")
    assert ("resume", "Succeeded") in fanned.steps(), fanned.told()
    assert fanned.gang.state().attempts[1].started_from_step == saved
    same_training(fanned, baseline, attempts=2)
