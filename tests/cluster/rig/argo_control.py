"""Argo on the cluster: its definitions and rights, its controller and its server, as Argo's own cluster-wide install.

Each runs under its ServiceAccount with the rights that Argo's manifests give it, and the controller watches all
namespaces. The server lets nobody in without a token of their own (``--auth-mode=client``).
"""

import json
import signal
import urllib.error
import urllib.request
from typing import Any

from rig import argo_builds, layout, processes, services
from rig.api import CA, SERVER, Api, kubeconfig_of
from rig.clock import wait_for

NAMESPACE = "argo"
CONTROLLER, ARGO_SERVER = "argo-controller", "argo-server"
ACCOUNTS = {CONTROLLER: "argo", ARGO_SERVER: "argo-server"}
"""The ServiceAccount of each daemon."""
CONFIG = "workflow-controller-configmap"
PORT = 2746
ADDRESS = f"http://{layout.CONTROL}:{PORT}"
HEALTH = f"http://{layout.CONTROL}:6060/healthz"
S3_SECRET = "argo-artifacts"
"""The Secret of each namespace with the keys of the S3 server, which steps and whoever opens an artifact read."""
START_DEADLINE_S = 90.0
TOKEN_S = 30 * 24 * 3600
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
RIGHTS = "/apis/rbac.authorization.k8s.io/v1"
ENV = {
    "LEADER_ELECTION_DISABLE": "true",
    "DEFAULT_REQUEUE_TIME": "1s",
    # The last status of a pod is seen also when the pod goes at once.
    "ARGO_POD_STATUS_CAPTURE_FINALIZER": "true",
    "ARGO_PROGRESS_PATCH_TICK_DURATION": "1s",
}


def _config() -> dict[str, str]:
    """What Argo reads from its ConfigMap; each value is YAML, of which JSON is a part."""
    endpoint = services.S3_ENDPOINT.removeprefix("http://")
    s3 = {
        "bucket": services.BUCKET,
        "endpoint": endpoint,
        "insecure": True,
        "accessKeySecret": {"name": S3_SECRET, "key": "accesskey"},
        "secretKeySecret": {"name": S3_SECRET, "key": "secretkey"},
        "keyFormat": "argo/{{workflow.namespace}}/{{workflow.name}}/{{pod.name}}",
    }
    parts: dict[str, Any] = {
        "artifactRepository": {"s3": s3},
        "failedPodRestart": {"enabled": True, "maxRestarts": 3},
        "metricsConfig": {"enabled": True, "secure": False},
    }
    return {name: json.dumps(part) for name, part in parts.items()}


def define(client: Api) -> None:
    """Create Argo's definitions, namespace, accounts, rights and ConfigMap, and wait until the kinds are served."""
    folder = argo_builds.definitions()
    names = set()
    for file in sorted(folder.glob("argoproj.io_*.json")):
        definition = json.loads(file.read_text())
        names.add(definition["metadata"]["name"])
        client.create(CRDS, definition)
    client.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    for document in json.loads((folder / "install.json").read_text()):
        for subject in document.get("subjects", []):
            subject["namespace"] = NAMESPACE
        kind = f"{document['kind'].lower()}s"
        inside = "" if kind.startswith("cluster") else f"/namespaces/{NAMESPACE}"
        client.create(f"{'/api/v1' if kind == 'serviceaccounts' else RIGHTS}{inside}/{kind}", document)
    config = {"metadata": {"name": CONFIG}, "data": _config()}
    client.create(f"/api/v1/namespaces/{NAMESPACE}/configmaps", config)
    client.call("PATCH", f"/api/v1/namespaces/{NAMESPACE}/configmaps/{CONFIG}", config, "application/merge-patch+json")

    def served() -> bool:
        found = {each["name"] for each in client.get("/apis/argoproj.io/v1alpha1").get("resources", [])}
        return {name.partition(".")[0] for name in names} <= found

    hint = str(layout.LOGS / "kube-apiserver.log")
    wait_for("Argo's definitions are served", served, deadline_s=START_DEADLINE_S, hint=hint)
    for name, account in ACCOUNTS.items():
        _write_kubeconfig(client, name, account)


def _write_kubeconfig(client: Api, name: str, account: str) -> None:
    request = {"spec": {"expirationSeconds": TOKEN_S}}
    answer = client.call("POST", f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{account}/token", request)
    context = {"cluster": "rerail-cluster", "user": account, "namespace": NAMESPACE}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "rerail-cluster", "cluster": {"server": SERVER, "certificate-authority": str(CA)}}],
        "users": [{"name": account, "user": {"token": answer["status"]["token"]}}],
        "contexts": [{"name": "rerail-cluster", "context": context}],
        "current-context": "rerail-cluster",
    }
    path = kubeconfig_of(name)
    path.touch(mode=0o600)
    path.write_text(json.dumps(config, indent=1))


def start_argo() -> None:
    """Start the controller and the server where they do not run, and wait until both answer."""
    folder = argo_builds.programs()
    controller = [
        str(folder / "workflow-controller"),
        f"--kubeconfig={kubeconfig_of(CONTROLLER)}",
        f"--namespace={NAMESPACE}",
        f"--executor-image={layout.ARGOEXEC_IMAGE}",
        "--executor-image-pull-policy=IfNotPresent",
        "--qps=100",
        "--burst=200",
    ]
    server = [
        str(folder / "argo"),
        "server",
        f"--kubeconfig={kubeconfig_of(ARGO_SERVER)}",
        f"--namespace={NAMESPACE}",
        "--auth-mode=client",
        "--secure=false",
        f"--port={PORT}",
        "--kube-api-qps=100",
        "--kube-api-burst=200",
    ]
    for name, command in ((CONTROLLER, controller), (ARGO_SERVER, server)):
        if processes.pid_of(name) is None:
            # The server reads from it how to reach the API, and puts its caller's token in place of its own.
            processes.start(name, command, space=layout.SPACE, env={**ENV, "KUBECONFIG": str(kubeconfig_of(name))})
    wait_ready()


def stop_argo(sign: signal.Signals = signal.SIGTERM) -> None:
    """End the controller and the server; workflows, their pods and their gangs stay as they are."""
    for name in (CONTROLLER, ARGO_SERVER):
        processes.stop(name, sign)


def wait_ready() -> None:
    """Wait until the controller says it is sound, and the server lets nobody in without a token."""

    def answers() -> bool:
        for name in (CONTROLLER, ARGO_SERVER):
            processes.check(name)
        return _status(HEALTH) == 200 and _status(f"{ADDRESS}/api/v1/info") == 401

    wait_for("Argo answers", answers, deadline_s=START_DEADLINE_S, hint=f"{layout.LOGS}/argo-*.log")


def _status(url: str) -> int:
    """The HTTP status of a GET; 0 without an answer."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=5) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code
    except OSError:
        return 0
