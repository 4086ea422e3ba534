"""Volcano: its resource definitions, and its two programs where RERAIL_VOLCANO_BIN names their folder."""

import os
import shutil
from pathlib import Path
from typing import Any

import yaml

from rig import processes
from rig.api import Api, kubeconfig_of
from rig.clock import ClusterError, wait_for
from rig.layout import CHECKOUT, LOGS, SCHEDULER_CONF, SPACE

DEFINITIONS = CHECKOUT.parent / "shared" / "data" / "volcano-crds"
CONF = Path(__file__).resolve().parents[1] / "volcano-scheduler.conf"
PROGRAMS = ("vc-controller-manager", "vc-scheduler")
START_DEADLINE_S = 60.0
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
KINDS = (
    ("batch.volcano.sh", "v1alpha1", "Job", "jobs", "Namespaced", True, ("vcjob", "vj")),
    ("bus.volcano.sh", "v1alpha1", "Command", "commands", "Namespaced", False, ()),
    ("scheduling.volcano.sh", "v1beta1", "PodGroup", "podgroups", "Namespaced", False, ("pg", "podgroup-v1beta1")),
    ("scheduling.volcano.sh", "v1beta1", "Queue", "queues", "Cluster", True, ("q", "queue-v1beta1")),
    ("topology.volcano.sh", "v1alpha1", "HyperNode", "hypernodes", "Cluster", True, ("hn",)),
    ("nodeinfo.volcano.sh", "v1alpha1", "Numatopology", "numatopologies", "Cluster", False, ("numatopo",)),
)
"""Group, version, kind, plural, scope, whether status is a resource of its own, short names."""
DEFAULTS: dict[str, dict[str, str | int]] = {
    "Job": {"queue": "default", "maxRetry": 3},
    "PodGroup": {"queue": "default"},
    "Queue": {"weight": 1},
}
"""What Volcano's own definitions fill in, and its programs rely on."""


def programs() -> Path | None:
    """The folder of the real Volcano, or None.

    Raises:
        ClusterError: The variable names a folder that lacks a program.
    """
    named = os.environ.get("RERAIL_VOLCANO_BIN")
    if not named:
        return None
    folder = Path(named).resolve()
    missing = [name for name in PROGRAMS if not os.access(folder / name, os.X_OK)]
    if missing:
        raise ClusterError(
            f"RERAIL_VOLCANO_BIN={named} has no program {' and no '.join(missing)}; unset it, or fill it"
        )
    return folder


def _minimal(named: tuple[str, str, str, str, str, bool, tuple[str, ...]]) -> Any:
    """A definition that takes every field, for a machine without Volcano's own."""
    group, version, kind, plural, scope, status, short = named
    any_fields: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    types = {str: "string", int: "integer"}
    filled = {name: {"type": types[type(value)], "default": value} for name, value in DEFAULTS.get(kind, {}).items()}
    schema = any_fields | ({"properties": {"spec": any_fields | {"properties": filled}}} if filled else {})
    names = {
        "kind": kind,
        "listKind": f"{kind}List",
        "plural": plural,
        "singular": kind.lower(),
        "shortNames": list(short),
    }
    served = {
        "name": version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}} if status else {},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "names": names, "scope": scope, "versions": [served]},
    }


def define(client: Api) -> str:
    """Create Volcano's resource definitions, wait until they are served, and say which they are."""
    files = sorted(DEFINITIONS.glob("*.yaml"))
    texts = [file.read_text() for file in files]
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found = [each for text in texts for each in yaml.load_all(text, loader) if each]
    definitions = found or [_minimal(kind) for kind in KINDS]
    for definition in definitions:
        client.create(CRDS, definition)
    names = {definition["metadata"]["name"] for definition in definitions}

    def served() -> bool:
        conditions = {
            item["metadata"]["name"]: item.get("status", {}).get("conditions") or []
            for item in client.get(CRDS).get("items", [])
        }
        return all(
            any(each["type"] == "Established" and each["status"] == "True" for each in conditions.get(name, []))
            for name in names
        )

    wait_for("Volcano's definitions are served", served, deadline_s=START_DEADLINE_S, hint="the API server's log")
    return "Volcano's own" if found else "minimal"


def start(folder: Path) -> None:
    """Start Volcano's controllers and its scheduler, without its webhooks."""
    SCHEDULER_CONF.parent.mkdir()
    shutil.copyfile(CONF, SCHEDULER_CONF)
    common = [
        "--leader-elect=false",
        "--scheduler-name=volcano",
        "--enable-healthz=false",
        "--enable-metrics=true",
        "-v=3",
    ]
    controllers = [
        str(folder / "vc-controller-manager"),
        f"--kubeconfig={kubeconfig_of('volcano-controllers')}",
        "--controllers=+job-controller,+pg-controller,+queue-controller,+gc-controller",
        "--worker-threads=1",
        "--listen-address=127.0.0.1:8081",
        "--max-requeue-num=15",
        *common,
    ]
    processes.start("volcano-controllers", controllers, space=SPACE)
    scheduler = [
        str(folder / "vc-scheduler"),
        f"--kubeconfig={kubeconfig_of('volcano-scheduler')}",
        f"--scheduler-conf={SCHEDULER_CONF}",
        "--schedule-period=1s",
        "--feature-gates=ResourceTopology=false",
        "--node-worker-threads=2",
        "--csi-storage=false",
        "--cache-dumper=false",
        "--listen-address=127.0.0.1:8080",
        *common,
    ]
    env = {"DEBUG_SOCKET_DIR": str(SCHEDULER_CONF.parent)}
    processes.start("volcano-scheduler", scheduler, space=SPACE, env=env)


def wait_ready(client: Api) -> None:
    """Wait until the default queue takes jobs."""

    def open_queue() -> bool:
        for name in ("volcano-controllers", "volcano-scheduler"):
            processes.check(name)
        queue = client.get("/apis/scheduling.volcano.sh/v1beta1/queues/default")
        return bool(queue) and queue.get("status", {}).get("state") == "Open"

    wait_for("Volcano's default queue is open", open_queue, deadline_s=START_DEADLINE_S, hint=f"{LOGS}/volcano-*.log")
