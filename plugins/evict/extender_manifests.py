"""What the extender needs in a cluster, as data: its Deployment, its rights, who may reach it, and who asks it."""

from collections.abc import Mapping
from typing import Any, Final

from rerail.plugins.evict.deployed import account, deployment, labels
from rerail.plugins.kube.resources import EVENTS, PODS, PRIORITY_CLASSES, ResourceType
from rerail.plugins.volcano.podgroup import POD_GROUPS
from rerail.plugins.volcano.queue import QUEUES

NAME: Final = "rerail-extender"
PORT: Final = 8765

RIGHTS: Final[Mapping[ResourceType, tuple[str, ...]]] = {
    PODS: ("list", "watch"),
    POD_GROUPS: ("list", "watch", "patch"),
    EVENTS: ("create",),
}
"""The least that the extender needs, in every namespace with gangs."""

LOCK_RIGHTS: Final[Mapping[ResourceType, tuple[str, ...]]] = {
    **RIGHTS,
    PODS: ("list", "watch", "patch"),
    QUEUES: ("list", "watch"),
    PRIORITY_CLASSES: ("list", "watch"),
}
"""The same with ``--locks``; queues and priority classes belong to the whole cluster."""


def network_policy(namespace: str, *, scheduler_namespace: str = "volcano-system") -> dict[str, Any]:
    """Only Volcano's scheduler may ask: the protocol has no login. Probes come from the node and pass.

    Args:
        namespace: Of the extender.
        scheduler_namespace: Of the scheduler, whose pods carry Volcano's own label.
    """
    scheduler = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": scheduler_namespace}},
        "podSelector": {"matchLabels": {"app": "volcano-scheduler"}},
    }
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": NAME, "namespace": namespace},
        "spec": {
            "podSelector": {"matchLabels": labels(NAME)},
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [scheduler], "ports": [{"protocol": "TCP", "port": PORT}]}],
        },
    }


def manifests(
    namespace: str,
    image: str,
    *,
    hold_s: float,
    starve_s: float | None = None,
    store_secret: str = "",
    scheduler_namespace: str = "volcano-system",
) -> list[dict[str, Any]]:
    """Everything for ``kubectl apply``: account, rights, Deployment, Service, NetworkPolicy.

    Args:
        namespace: Where it runs.
        image: An image with ``rerail[cli,control]``.
        hold_s: The most that an evictor waits for one gang.
        starve_s: How long a PodGroup waits for room before the lock of a gang is opened for it; None opens none.
        store_secret: A Secret with the usual AWS variables, for stores on S3; empty for none.
        scheduler_namespace: Of Volcano's scheduler.
    """
    metadata = {"name": NAME, "namespace": namespace}
    # Not /healthz: without an API server, or a right, it still answers, and no answer would be a no for ever.
    probe = {"tcpSocket": {"port": PORT}, "periodSeconds": 5}
    rights = RIGHTS if starve_s is None else LOCK_RIGHTS
    locks = [] if starve_s is None else ["--locks", f"--starve-s={starve_s:g}"]
    # One, and never two: its answers rest on what it remembers, and a restart reads that back.
    program = deployment(
        NAME,
        namespace,
        image,
        ["serve", "extender", f"--listen=0.0.0.0:{PORT}", f"--hold-s={hold_s:g}", *locks],
        store_secret=store_secret,
        ports=[{"name": "http", "containerPort": PORT}],
        readinessProbe=probe,
    )
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata,
        "spec": {"selector": labels(NAME), "ports": [{"name": "http", "port": PORT, "targetPort": PORT}]},
    }
    return [
        *account(NAME, namespace, rights),
        program,
        service,
        network_policy(namespace, scheduler_namespace=scheduler_namespace),
    ]


def scheduler_conf(url: str, *, resource: str = "nvidia.com/gpu") -> dict[str, Any]:
    """A configuration of Volcano's scheduler that asks the extender: one tier, the extender last.

    Args:
        url: Of the extender, for example ``http://rerail-extender.rerail:8765``.
        resource: The extender is asked only for evictors that request it.
    """
    arguments = {
        "extender.urlPrefix": url,
        "extender.httpTimeout": "1s",
        "extender.preemptableVerb": "preemptable",
        "extender.reclaimableVerb": "reclaimable",
        "extender.managedResources": [resource],
        "extender.ignorable": True,
    }
    plugins: list[dict[str, Any]] = [
        {"name": "priority"},
        # With it no gang of full size is ever a victim, with or without consent.
        {"name": "gang", "enablePreemptable": False, "enableReclaimable": False},
        {"name": "conformance"},
        {"name": "overcommit"},
        # By its order a new job comes before a gang that lost one member (volcano #5805).
        {"name": "drf", "enablePreemptable": False, "enableJobOrder": False},
        {"name": "predicates"},
        {"name": "proportion"},
        {"name": "nodeorder"},
        {"name": "binpack"},
        {"name": "extender", "arguments": arguments},
    ]
    return {"actions": "allocate, preempt, reclaim, backfill", "tiers": [{"plugins": plugins}]}
