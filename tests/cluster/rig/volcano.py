"""Volcano on the cluster: its resource definitions, and the real one's programs or the stand-in for tests.

RERAIL_VOLCANO_BIN names the folder of the real one's programs; without it the stand-in runs (``rig.standin``).
"""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import yaml

from rerail.plugins.volcano import generate_crds
from rig import processes
from rig.api import Api, kubeconfig_of
from rig.clock import ClusterError, wait_for
from rig.layout import CHECKOUT, LOGS, SCHEDULER_CONF, SETTINGS, SPACE

DEFINITIONS = CHECKOUT.parent / "shared" / "data" / "volcano-crds"
TESTS = Path(__file__).resolve().parents[1]
CONF = TESTS / "volcano-scheduler.conf"
PROGRAMS = ("vc-controller-manager", "vc-scheduler")
REAL = ("volcano-controllers", "volcano-scheduler")
STANDIN = ("volcano-standin",)
"""Names of the daemons."""
READY = SCHEDULER_CONF.parent / "standin.ready"
"""Made by the stand-in after its first session."""
START_DEADLINE_S = 60.0
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WATCHED_ONLY = (
    ("topology.volcano.sh", "v1alpha1", "HyperNode", "hypernodes", "Cluster"),
    ("nodeinfo.volcano.sh", "v1alpha1", "Numatopology", "numatopologies", "Cluster"),
)
"""Group, version, kind, plural, scope of kinds that we have no model of, and that the real one's programs wait for."""


def programs(named: str | None = None) -> Path | None:
    """The folder of the real Volcano, or None for the stand-in.

    Args:
        named: The folder; RERAIL_VOLCANO_BIN by default.

    Raises:
        ClusterError: The folder lacks a program.
    """
    named = named or os.environ.get("RERAIL_VOLCANO_BIN")
    if not named:
        return None
    folder = Path(named).resolve()
    missing = [name for name in PROGRAMS if not os.access(folder / name, os.X_OK)]
    if missing:
        raise ClusterError(f"{named} has no program {' and no '.join(missing)}; unset RERAIL_VOLCANO_BIN, or fill it")
    return folder


def called(folder: Path | None) -> str:
    """How reports name it."""
    return f"real, from {folder}" if folder else "stand-in"


def _bare(group: str, version: str, kind: str, plural: str, scope: str) -> Any:
    """A definition that takes every field."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()}
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
    definitions = found or [*generate_crds(), *(_bare(*kind) for kind in WATCHED_ONLY)]
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
    return "Volcano's own" if found else "made from our models"


def start(folder: Path | None) -> None:
    """Start the real one's controllers and scheduler (without webhooks), or the stand-in where there is no folder."""
    SCHEDULER_CONF.parent.mkdir(exist_ok=True)
    if not SCHEDULER_CONF.exists():
        shutil.copyfile(CONF, SCHEDULER_CONF)
    if folder:
        _start_real(folder)
    else:
        _start_standin()


def _start_standin() -> None:
    command = [
        *(sys.executable, "-m", "rig.standin"),
        f"--kubeconfig={kubeconfig_of('volcano-scheduler')}",
        f"--conf={SCHEDULER_CONF}",
        f"--ready={READY}",
    ]
    READY.unlink(missing_ok=True)
    processes.start(STANDIN[0], command, space=SPACE, env={"PYTHONPATH": str(TESTS), "PYTHONUNBUFFERED": "1"})


def _start_real(folder: Path) -> None:
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


def stop() -> None:
    """End Volcano's processes, whichever run."""
    for name in (*REAL, *STANDIN):
        processes.stop(name)


def switch(folder: Path | None) -> None:
    """Restart Volcano's processes alone, real or stand-in; jobs, groups and queues stay as they are.

    Raises:
        ClusterError: No cluster is up, or the new one does not come up.
    """
    if not SETTINGS.exists():
        raise ClusterError("the cluster is not up: make cluster-up")
    stop()
    start(folder)
    wait_ready(Api())
    settings = json.loads(SETTINGS.read_text()) | {"volcano": called(folder)}
    SETTINGS.write_text(json.dumps(settings, indent=1))


def wait_ready(client: Api) -> None:
    """Wait until the default queue takes jobs."""
    running = [name for name in (*REAL, *STANDIN) if processes.pid_of(name)]

    def open_queue() -> bool:
        for name in running:
            processes.check(name)
        if STANDIN[0] in running and not READY.exists():
            return False
        queue = client.get("/apis/scheduling.volcano.sh/v1beta1/queues/default")
        return bool(queue) and queue.get("status", {}).get("state") == "Open"

    wait_for("Volcano's default queue is open", open_queue, deadline_s=START_DEADLINE_S, hint=f"{LOGS}/volcano-*.log")
