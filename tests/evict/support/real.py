"""A real API server with the few words of the fake one that these tests use; nodes and pods that no kubelet runs."""

import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from rerail.plugins.evict.slots.nvsentinel import DRAIN_REQUESTS, definition
from rerail.plugins.kube.api import KubeApi
from rerail.plugins.kube.resources import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, NODES, PODS, ResourceType
from rerail.policies.errors import AlreadyExistsError, ConflictError, NotFoundError, RerailError

Obj = dict[str, Any]

BUDGETS = ResourceType("policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget")
ACCOUNTS = ResourceType("", "v1", "serviceaccounts", "ServiceAccount")
KINDS = {"pods": PODS, "nodes": NODES, "drainrequests": DRAIN_REQUESTS}
OURS = {"key": "rerail.dev/test", "value": "slots", "effect": "NoSchedule"}
DEADLINE_S = 30.0


class RealApi:
    """A namespace and two nodes of its own on a real API server."""

    def __init__(self, api: KubeApi) -> None:
        self.api = api
        self.id = uuid.uuid4().hex[:8]
        self.namespace = f"rerail-test-{self.id}"
        self.nodes = (f"rerail-test-{self.id}-1", f"rerail-test-{self.id}-2")
        self.evicted: list[str] = []
        self.over = threading.Event()
        with suppress(AlreadyExistsError):
            api.create(CUSTOM_RESOURCE_DEFINITIONS, definition())
        api.create(NAMESPACES, {"metadata": {"name": self.namespace}})
        self.until(lambda: api.get(ACCOUNTS, "default", namespace=self.namespace))
        self.until(lambda: [api.list(DRAIN_REQUESTS, namespace=self.namespace)])
        for name in self.nodes:
            api.create(NODES, {"metadata": {"name": name}, "spec": {"taints": [OURS]}})
            self.report(name)
        self.kubelet = threading.Thread(target=self.end_pods, daemon=True)
        self.kubelet.start()

    def report(self, node: str, **info: str) -> None:
        ready = {"type": "Ready", "status": "True", "reason": "Told", "message": ""}
        body = {"status": {"conditions": [ready], "nodeInfo": info} if info else {"conditions": [ready]}}
        self.api.patch(NODES, node, body, kind="strategic", subresource="status")

    def until(self, test: Callable[[], Any]) -> Any:
        end = time.monotonic() + DEADLINE_S
        while True:
            with suppress(RerailError):
                if found := test():
                    return found
            assert time.monotonic() < end, "it did not come in time"
            time.sleep(0.05)

    def end_pods(self) -> None:
        """What a kubelet does with pods that are to go."""
        while not self.over.wait(0.1):
            with suppress(RerailError):
                for pod in self.api.list(PODS, namespace=self.namespace).items:
                    if pod["metadata"].get("deletionTimestamp"):
                        self.evicted.append(pod["metadata"]["name"])
                        self.remove("pods", self.namespace, pod["metadata"]["name"])

    def put(self, plural: str, one: Obj) -> Obj:
        namespace = one["metadata"].get("namespace")
        if plural == "pods":
            one = {**one, "spec": {**one["spec"], "tolerations": [{"operator": "Exists"}]}}
            made = self.api.create(PODS, one, namespace=namespace)
            body = {"status": one.get("status") or {"phase": "Running"}}
            return self.api.patch(PODS, made["metadata"]["name"], body, namespace=namespace, subresource="status")
        return self.api.create(KINDS[plural], one, namespace=namespace)

    def remove(self, plural: str, namespace: str, name: str) -> None:
        with suppress(NotFoundError):
            self.api.delete(KINDS[plural], name, namespace=namespace or None, grace_s=0)

    def change(self, plural: str, namespace: str, name: str, how: Callable[[Obj], object]) -> None:
        while True:
            one = self.api.get(KINDS[plural], name, namespace=namespace or None)
            how(one)
            with suppress(ConflictError):
                self.api.replace(KINDS[plural], one, namespace=namespace or None)
                return

    def find(self, plural: str) -> list[Obj]:
        kind = KINDS[plural]
        return list(self.api.list(kind, namespace=self.namespace if kind.namespaced else None).items)

    def keep(self, name: str, *label: str) -> None:
        selector = {"matchLabels": {label[0]: label[1]}}
        body = {"metadata": {"name": name}, "spec": {"minAvailable": 100, "selector": selector}}
        self.api.create(BUDGETS, body, namespace=self.namespace)
        self.until(lambda: "disruptionsAllowed" in self.api.get(BUDGETS, name, namespace=self.namespace)["status"])

    def let_go(self, name: str) -> None:
        self.api.delete(BUDGETS, name, namespace=self.namespace)

    def close(self) -> None:
        self.over.set()
        self.kubelet.join(10)
        for name in self.nodes:
            self.remove("nodes", "", name)
        self.api.delete(NAMESPACES, self.namespace)
