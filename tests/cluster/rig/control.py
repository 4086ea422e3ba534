"""The control plane: etcd, the API server, the controllers and the scheduler."""

import json
import subprocess
from collections.abc import Sequence

from rig import api, processes
from rig.clock import wait_for
from rig.layout import AUDIT_LOG, BIN, CONTROL, LOGS, SERVICES, SPACE, STATE, Node

ETCD = "http://127.0.0.1:2379"
START_DEADLINE_S = 120.0
NODE_GRACE_S = 16
"""Without a heartbeat for this long a node is not ready; Kubernetes' own value is 50 s, which no test should wait."""
TOLERATION_S = 10
"""Pods leave a node that is not ready after this long, unless they say otherwise; Kubernetes' own value is 300 s."""


def start(nodes: Sequence[Node]) -> None:
    """Start etcd and the API server, which makes its own certificate."""
    account_key = api.CERTIFICATES / "service-accounts.key"
    api.CERTIFICATES.mkdir(parents=True)
    subprocess.run(["openssl", "genrsa", "-out", account_key, "2048"], check=True, capture_output=True)
    api.write_credentials(nodes)
    policy = STATE / "audit-policy.json"
    omitted = {"omitStages": ["RequestReceived"], "rules": [{"level": "Metadata"}]}
    policy.write_text(json.dumps({"apiVersion": "audit.k8s.io/v1", "kind": "Policy", **omitted}))
    LOGS.mkdir(exist_ok=True)
    etcd = [
        str(BIN / "etcd"),
        f"--data-dir={STATE / 'etcd'}",
        f"--listen-client-urls={ETCD}",
        f"--advertise-client-urls={ETCD}",
    ]
    # The data live as long as the cluster: syncing them to the disk would only slow the tests down.
    processes.start("etcd", [*etcd, "--listen-peer-urls=http://127.0.0.1:2380", "--unsafe-no-fsync"], space=SPACE)
    apiserver = [
        str(BIN / "kube-apiserver"),
        f"--etcd-servers={ETCD}",
        "--bind-address=0.0.0.0",
        "--secure-port=443",
        f"--advertise-address={CONTROL}",
        f"--cert-dir={api.CERTIFICATES}",
        f"--token-auth-file={api.TOKENS}",
        "--kubelet-preferred-address-types=InternalIP",
        "--authorization-mode=Node,RBAC",
        "--allow-privileged=true",
        f"--service-cluster-ip-range={SERVICES}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-signing-key-file={account_key}",
        f"--service-account-key-file={account_key}",
        f"--default-not-ready-toleration-seconds={TOLERATION_S}",
        f"--default-unreachable-toleration-seconds={TOLERATION_S}",
        f"--audit-policy-file={policy}",
        f"--audit-log-path={AUDIT_LOG}",
    ]
    processes.start("kube-apiserver", apiserver, space=SPACE)


def wait_ready() -> api.Api:
    """Wait for the API server and return a client."""

    def ready() -> bool:
        processes.check("etcd")
        processes.check("kube-apiserver")
        return api.CA.exists() and api.Api().get("/readyz") == "ok"

    wait_for("the API server is ready", ready, deadline_s=START_DEADLINE_S, hint=str(LOGS / "kube-apiserver.log"))
    return api.Api()


def start_controllers() -> None:
    """Start the controller manager and the scheduler."""
    manager = [
        str(BIN / "kube-controller-manager"),
        f"--kubeconfig={api.kubeconfig_of('kube-controller-manager')}",
        f"--root-ca-file={api.CA}",
        f"--service-account-private-key-file={api.CERTIFICATES / 'service-accounts.key'}",
        "--leader-elect=false",
        "--node-monitor-period=2s",
        f"--node-monitor-grace-period={NODE_GRACE_S}s",
    ]
    processes.start("kube-controller-manager", manager, space=SPACE)
    scheduler = [
        str(BIN / "kube-scheduler"),
        f"--kubeconfig={api.kubeconfig_of('kube-scheduler')}",
        "--leader-elect=false",
    ]
    processes.start("kube-scheduler", scheduler, space=SPACE)


def wait_accounts(client: api.Api) -> None:
    """Wait until pods can be created: their namespace has its service account, with the API server's certificate."""

    def there() -> bool:
        processes.check("kube-controller-manager")
        account = client.get("/api/v1/namespaces/default/serviceaccounts/default")
        return bool(account and client.get("/api/v1/namespaces/default/configmaps/kube-root-ca.crt"))

    wait_for("service accounts", there, deadline_s=START_DEADLINE_S, hint=str(LOGS / "kube-controller-manager.log"))
