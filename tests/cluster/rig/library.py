"""The rendered templates in one namespace of the tests' cluster, and a gang that a Workflow of theirs drives."""

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import yaml

from rerail.workflows.render import flat
from rig.access import Cluster
from rig.argo import Argo
from rig.layout import CHECKOUT
from rig.training import DEADLINE_S, POLICY, Gang

RIGHTS = CHECKOUT / "workflows" / "manifests" / "components" / "nodes" / "rights.yaml"
TRAIN = "rerail-train-v0-1"
REAPER = "rerail-checkpoint-gc-v0-1"
STORE_SECRET = "rerail-store"
GPU_NODE = "nvidia.com/gpu.present"
"""Steps prefer nodes without this label."""

PATIENT = {"hang_after_s": 120.0, "load_within_s": 240.0, "prepare_s": 60.0, "capacity_wait_s": 200.0}
"""No story of the DAG is about ranks that stand still, and beside other sessions they do so for a while."""
WAIT_S = 2 * DEADLINE_S


def _documents(text: str) -> list[dict[str, Any]]:
    return [one for one in yaml.safe_load_all(text) if one]


@contextmanager
def installed(cluster: Cluster, namespace: str) -> Iterator[None]:
    """Templates, accounts and their rights in a namespace; what is the cluster's goes with the block."""
    documents = _documents(flat(namespace))
    for one in documents:
        if one["kind"] == "CronWorkflow":
            one["spec"]["suspend"] = True  # tests reap when they want to
    secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": STORE_SECRET, "namespace": namespace}}
    documents.append({**secret, "stringData": dict(cluster.s3_env)})
    bindings = []
    for one in _documents(RIGHTS.read_text(encoding="utf-8")):
        for subject in one.get("subjects") or []:
            subject["namespace"] = namespace
        if one["kind"] == "ClusterRoleBinding":
            one["metadata"]["name"] += f"-{namespace}"
            bindings.append(one["metadata"]["name"])
        documents.append(one)
    everything = {"apiVersion": "v1", "kind": "List", "items": documents}
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", document=everything)
    try:
        yield
    finally:
        cluster.kubectl("delete", "clusterrolebinding", *bindings, "--wait=false", check=False)


@contextmanager
def without_steps(cluster: Cluster, node: str) -> Iterator[None]:
    """Steps are put elsewhere than on a node, as long as there is another one."""
    cluster.kubectl("label", "node", node, f"{GPU_NODE}=true", "--overwrite")
    try:
        yield
    finally:
        cluster.kubectl("label", "node", node, f"{GPU_NODE}-")


@dataclass
class Trained:
    """A gang whose supervisor is a Workflow."""

    argo: Argo
    gang: Gang
    name: str = ""

    def submit(
        self,
        manifest: Mapping[str, Any],
        *,
        policy: Mapping[str, Any] | None = None,
        spec: Mapping[str, Any] | None = None,
        **parameters: str,
    ) -> str:
        """Submit rerail-train from its template, as the form does; with ``spec`` as a Workflow that says more."""
        given = {
            "store": self.gang.store,
            "run": self.gang.name,
            "manifest": yaml.safe_dump(dict(manifest), sort_keys=False),
            "policy": yaml.safe_dump({**POLICY, **PATIENT, **(policy or {})}),
            "rerail-image": self.gang.cluster.image,
            "deadline-s": "20",
            **{key.replace("_", "-"): value for key, value in parameters.items()},
        }
        if spec is None:
            self.name = self.argo.submit_template(TRAIN, parameters=[f"{key}={value}" for key, value in given.items()])
            return self.name
        arguments = {"parameters": [{"name": key, "value": value} for key, value in given.items()]}
        workflow = {
            "apiVersion": "argoproj.io/v1alpha1",
            "kind": "Workflow",
            "metadata": {"generateName": "train-"},
            "spec": {"workflowTemplateRef": {"name": TRAIN}, "arguments": arguments, **spec},
        }
        self.name = self.argo.submit(workflow)
        return self.name

    def wait_step(self, step: int, attempt: int = 1) -> None:
        """Wait until a rank has made a step, as its trace says."""
        path = self.gang.trace / f"trace-a{attempt}-r0.jsonl"
        self.until(f"step {step} of attempt {attempt}", lambda: path.exists() and path.read_text().count("\n") >= step)

    def until(self, what: str, condition: Callable[[], Any], deadline_s: float = WAIT_S) -> Any:
        """Wait for a condition while the Workflow goes on."""
        deadline = time.monotonic() + deadline_s
        while not (found := condition()):
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not so\n{self.told()}")
            time.sleep(0.1)
        return found

    def ended(self, *phases: str) -> Any:
        """Wait for the Workflow's end."""
        try:
            return self.argo.wait(self.name, *phases, deadline_s=WAIT_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.told()}") from None

    def reap(self) -> str:
        """Run the Cron template once, by hand; returns what it says."""
        argo, gang = self.argo, self.gang
        given = [f"rerail-image={gang.cluster.image}", "deadline-s=20"]
        name = argo.submit_template(REAPER, kind="CronWorkflow", parameters=given)
        argo.wait(name, "Succeeded")
        self.until("its pod", lambda: argo.pod_of(name, name) or argo.pod_of(name, f"{name}(0)"))
        pod = argo.pod_of(name, name) or argo.pod_of(name, f"{name}(0)")
        return gang.cluster.kubectl("logs", pod, "-n", gang.namespace, "-c", "main")

    def give_up_on(self, node: str) -> None:
        """As a person does for a lost node: delete the Workflow's pods there by force; the reaper does the rest."""
        cluster, namespace = self.gang.cluster, self.gang.namespace
        listed = cluster.read("pods", "-n", namespace, "-l", f"workflows.argoproj.io/workflow={self.name}")["items"]
        there = [pod for pod in listed if pod["spec"].get("nodeName") == node]
        live = [pod["metadata"]["name"] for pod in there if pod["status"].get("phase") in ("Pending", "Running")]
        if live:
            gone = ("--force", "--grace-period=0", "--wait=false")
            cluster.kubectl("delete", "pod", *live, "-n", namespace, *gone)
            said = self.reap()
            assert all(f"pod {name}: node {node} is lost" in said for name in live), said

    def told(self) -> str:
        """What nodes, steps and pods say, for whoever reads a failed test."""
        cluster, namespace = self.gang.cluster, self.gang.namespace
        logs = cluster.kubectl(
            "logs", "-n", namespace, "-l", f"workflows.argoproj.io/workflow={self.name}", "-c", "main", "--tail=30",
            "--prefix", check=False,
        )  # fmt: skip
        pods = cluster.kubectl("get", "vcjob,podgroups,pods", "-n", namespace, "-o", "wide", check=False)
        return f"{self.argo.story(self.name)}\n{logs}\n{pods}"

    def steps(self) -> list[tuple[str, str]]:
        """Pods and DAGs of the Workflow with their phases, in order, without retries' own pods."""
        return [
            (node["displayName"], node["phase"])
            for node in self.argo.whole_nodes(self.name)
            if "(" not in node["displayName"] and node["phase"] not in ("Omitted", "Skipped")
        ]

    def node(self, name: str, number: int = -1) -> Any:
        """The node of a display name that was run, by default the newest."""
        named = [one for one in self.argo.whole_nodes(self.name) if one["displayName"] == name]
        return [one for one in named if one["phase"] not in ("Omitted", "Skipped")][number]

    def words(self, name: str) -> str:
        """What the newest step of a name told as its output ``words``, which Argo's page shows beside its node."""
        told = {one["name"]: one.get("value", "") for one in self.node(name)["outputs"]["parameters"]}
        return str(told["words"])

    def report(self) -> Any:
        """The report's document, as the UI opens it."""
        node = self._with_report()
        return json.loads(self.argo.artifact(self.name, node["id"], "report-data").body)

    def page(self) -> Any:
        """The report's page, as the UI opens it."""
        return self.argo.artifact(self.name, self._with_report()["id"], "report")

    def _with_report(self) -> Any:
        return next(
            node
            for node in reversed(self.argo.whole_nodes(self.name))
            if "report" in {one["name"] for one in (node.get("outputs") or {}).get("artifacts") or []}
        )
