"""Argo as a test uses it: workflows of one namespace, through the server's API, as a user with few rights."""

import base64
import gzip
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import yaml

from rig.access import DEADLINE_S, Cluster
from rig.argo_control import ADDRESS, S3_SECRET, start_argo, stop_argo

__all__ = ["Answer", "Argo", "Node", "RefusedError", "start_argo", "stop_argo"]

USER = "argo-user"
FINISHED = ("Succeeded", "Failed", "Error")
KINDS = {
    "Workflow": ("workflows", "workflow"),
    "WorkflowTemplate": ("workflow-templates", "template"),
    "CronWorkflow": ("cron-workflows", "cronWorkflow"),
}
"""By kind: the API's path, and the field of its request."""


class RefusedError(Exception):
    """The server refused; ``code`` is the HTTP status."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class Node(NamedTuple):
    """A node of a workflow, as its users see it."""

    name: str
    """Its display name."""
    phase: str
    message: str


@dataclass(frozen=True)
class Answer:
    """What a browser gets."""

    body: bytes
    headers: Mapping[str, str]
    """By name in lower case."""


@dataclass(frozen=True)
class Argo:
    cluster: Cluster
    namespace: str
    token: str
    """Of a ServiceAccount that may submit workflows here, and read what they made."""

    @classmethod
    def prepare(cls, cluster: Cluster, namespace: str) -> "Argo":
        """Give a namespace what steps need: the keys of the artifacts' store, and the right to report results."""
        keys = {"accesskey": cluster.s3_env["AWS_ACCESS_KEY_ID"], "secretkey": cluster.s3_env["AWS_SECRET_ACCESS_KEY"]}
        kinds = ["workflows", "workflowtemplates", "cronworkflows"]
        every = ["create", "get", "list", "watch", "update", "patch", "delete"]
        rights = [
            {"apiGroups": ["argoproj.io"], "resources": kinds, "verbs": every},
            {"apiGroups": [""], "resources": ["pods/log"], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch", "delete"]},  # for a retry
            {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [S3_SECRET], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["configmaps", "serviceaccounts", "events"], "verbs": ["get", "list"]},
        ]
        report = [{"apiGroups": ["argoproj.io"], "resources": ["workflowtaskresults"], "verbs": ["create", "patch"]}]
        group = "rbac.authorization.k8s.io"
        items: list[dict[str, Any]] = [
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": S3_SECRET}, "stringData": keys},
            {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": USER}},
        ]
        for role, rules, account in (("argo-executor", report, "default"), (USER, rights, USER)):
            meta, ref = {"name": role}, {"apiGroup": group, "kind": "Role", "name": role}
            subjects = [{"kind": "ServiceAccount", "name": account, "namespace": namespace}]
            version = f"{group}/v1"
            items.append({"apiVersion": version, "kind": "Role", "metadata": meta, "rules": rules})
            binding = {"kind": "RoleBinding", "metadata": meta, "roleRef": ref, "subjects": subjects}
            items.append({"apiVersion": version, **binding})
        document = {"apiVersion": "v1", "kind": "List", "items": items}
        cluster.kubectl("apply", "-n", namespace, "-f", "-", document=document)
        return cls(cluster, namespace, cluster.kubectl("create", "token", USER, "-n", namespace).strip())

    def call(self, method: str, path: str, body: Any = None) -> Answer:
        """One request to the server.

        Raises:
            RefusedError: It answered with an error.
        """
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{ADDRESS}{path}", data=data, headers=headers, method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=30) as answer:
                return Answer(answer.read(), {name.lower(): value for name, value in answer.headers.items()})
        except urllib.error.HTTPError as error:
            with error:
                raise RefusedError(f"{method} {path}: {error.code} {error.read()[:1000]!r}", error.code) from None

    def _json(self, method: str, path: str, body: Any = None) -> Any:
        return json.loads(self.call(method, path, body).body)

    def submit(self, document: Mapping[str, Any] | str) -> str:
        """Create a Workflow, WorkflowTemplate or CronWorkflow, given as YAML or as a document; returns its name."""
        given = yaml.safe_load(document) if isinstance(document, str) else dict(document)
        path, field = KINDS[given["kind"]]
        made = self._json("POST", f"/api/v1/{path}/{self.namespace}", {"namespace": self.namespace, field: given})
        return str(made["metadata"]["name"])

    def submit_template(self, template: str, kind: str = "WorkflowTemplate", **options: Any) -> str:
        """Submit a Workflow from a template, as the form of the UI does; returns its name.

        Args:
            template: The template's name.
            kind: WorkflowTemplate, ClusterWorkflowTemplate or CronWorkflow.
            options: Argo's submitOptions, such as ``parameters=["key=value"]``, ``labels="a=b"`` or ``name="one"``.
        """
        body = {"resourceKind": kind, "resourceName": template, "submitOptions": options}
        made = self._json("POST", f"/api/v1/workflows/{self.namespace}/submit", body)
        return str(made["metadata"]["name"])

    def workflow(self, name: str) -> Any:
        """The Workflow, from the API server, so that it can be read while Argo is down; its nodes unpacked."""
        found = self.cluster.read("workflow", name, "-n", self.namespace)
        status = found.setdefault("status", {})
        if packed := status.pop("compressedNodes", None):
            status["nodes"] = json.loads(gzip.decompress(base64.b64decode(packed)))
        return found

    def wait(self, name: str, *phases: str, deadline_s: float = DEADLINE_S) -> Any:
        """Wait until the workflow is in one of these phases; fails at once when it finished in another one."""

        def reached() -> bool:
            phase = self.workflow(name)["status"].get("phase", "")
            if phase in FINISHED and phase not in phases:
                raise AssertionError(f"workflow {name} is {phase}, not {' or '.join(phases)}\n{self.story(name)}")
            return phase in phases

        try:
            self.cluster.wait(f"workflow {name} is {' or '.join(phases)}", reached, deadline_s)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.story(name)}") from None
        return self.workflow(name)

    def nodes(self, name: str) -> list[Node]:
        """The nodes of a workflow in the order in which they started."""
        return [
            Node(node["displayName"], node.get("phase", ""), node.get("message", "")) for node in self.whole_nodes(name)
        ]

    def whole_nodes(self, name: str) -> list[Any]:
        """The same with all that Argo knows of each: id, type, templateName, inputs, outputs, hostNodeName, ..."""
        found = self.workflow(name)["status"].get("nodes", {}).values()
        return sorted(found, key=lambda node: (node.get("startedAt") or "", node["name"]))

    def node(self, name: str, display_name: str) -> Any:
        """The whole node of this display name; there must be exactly one."""
        (found,) = [node for node in self.whole_nodes(name) if node["displayName"] == display_name]
        return found

    def pod_of(self, name: str, display_name: str) -> str:
        """The pod of a node; empty while there is none."""
        listed = self.cluster.read("pods", "-n", self.namespace, "-l", f"workflows.argoproj.io/workflow={name}")
        mark = "workflows.argoproj.io/node-name"
        names = {node["name"] for node in self.whole_nodes(name) if node["displayName"] == display_name}
        pods = [pod["metadata"] for pod in listed["items"] if pod["metadata"]["annotations"].get(mark) in names]
        return str(pods[0]["name"]) if pods else ""

    def story(self, name: str) -> str:
        """The workflow and its nodes in lines, for whoever reads a failed test."""
        status = self.workflow(name)["status"]
        head = f"{name}: {status.get('phase', 'not seen by the controller')} {status.get('message', '')}"
        return "\n  ".join([head.rstrip(), *(" | ".join(node) for node in self.nodes(name))])

    def stop(self, name: str) -> None:
        """Stop a workflow as the UI does: exit hooks run."""
        self._json("PUT", f"/api/v1/workflows/{self.namespace}/{name}/stop", {"name": name})

    def terminate(self, name: str) -> None:
        """Terminate it as the UI does: no hook runs."""
        self._json("PUT", f"/api/v1/workflows/{self.namespace}/{name}/terminate", {"name": name})

    def retry(self, name: str) -> None:
        """Retry a workflow that failed, as the UI does: what succeeded stays, the rest runs again."""
        self._json("PUT", f"/api/v1/workflows/{self.namespace}/{name}/retry", {"name": name})

    def answer(self, name: str, display_name: str, **outputs: str) -> None:
        """Answer a node that waits for a person, as the UI does: set its outputs, and let it go on."""
        asked = {"name": name, "namespace": self.namespace, "nodeFieldSelector": f"displayName={display_name}"}
        path = f"/api/v1/workflows/{self.namespace}/{name}"
        self._json("PUT", f"{path}/set", {**asked, "outputParameters": json.dumps(outputs)})
        self._json("PUT", f"{path}/resume", asked)

    def artifact(self, name: str, node_id: str, artifact: str, file: str = "") -> Answer:
        """Open an output artifact as the UI does."""
        parts = ["artifact-files", self.namespace, "workflows", name, node_id, "outputs", artifact]
        path = "/".join(urllib.parse.quote(part, safe="") for part in parts)
        return self.call("GET", f"/{path}{f'/{file}' if file else ''}")
