"""The cluster as it is watched: one thread for each kind, every change told with what was there before."""

import sys
import threading
from collections.abc import Callable, Sequence

from rerail.plugins.kube.api import ALL_NAMESPACES, KubeApi
from rerail.plugins.kube.resources import ResourceType
from rerail.plugins.kube.watch import Watch
from rerail.policies.errors import RerailError
from rig.standin.objects import Obj, name_of, namespace_of, uid_of

Listener = Callable[[ResourceType, str, Obj | None, Obj], None]
"""Told of kind, change (added, modified, deleted), the object before, and the object."""


class Store:
    """What is known of the kinds that are watched. Safe for use by several threads."""

    def __init__(self, api: KubeApi, kinds: Sequence[ResourceType], tell: Listener) -> None:
        self._api = api
        self._tell = tell
        self._known: dict[ResourceType, dict[tuple[str, str], Obj]] = {kind: {} for kind in kinds}
        self._lock = threading.RLock()
        self._watches = {kind: Watch(api, kind, namespace=_everywhere(kind), patience_s=None) for kind in kinds}
        self._synced = {kind: threading.Event() for kind in kinds}
        self._threads = [threading.Thread(target=self._follow, args=(kind,), daemon=True) for kind in kinds]
        self.broken = threading.Event()
        """Set where a kind can no longer be watched: without rights, or not installed."""

    def start(self) -> None:
        """Begin to watch, and wait until everything was listed once."""
        for thread in self._threads:
            thread.start()
        for synced in self._synced.values():
            while not synced.wait(0.2) and not self.broken.is_set():
                pass

    def stop(self) -> None:
        for watch in self._watches.values():
            watch.stop()
        for thread in self._threads:
            thread.join()

    def get(self, kind: ResourceType, namespace: str, name: str) -> Obj | None:
        with self._lock:
            return self._known[kind].get((namespace, name))

    def all(self, kind: ResourceType) -> list[Obj]:
        with self._lock:
            return list(self._known[kind].values())

    def put(self, kind: ResourceType, one: Obj) -> None:
        """Remember what a write of our own returned, before the watch tells it."""
        with self._lock:
            known = self._known[kind].get(_key(one))
            if known is not None and uid_of(known) == uid_of(one) and _age(known) < _age(one):
                self._known[kind][_key(one)] = one

    def _follow(self, kind: ResourceType) -> None:
        seen: dict[tuple[str, str], Obj] = {}
        try:
            for event in self._watches[kind]:
                if event.change == "synced":
                    self._synced[kind].set()
                    continue
                # The items of a list do not name their kind.
                one = {"apiVersion": kind.api_version, "kind": kind.kind, **event.object}
                before = seen.pop(_key(one), None)
                if event.change != "deleted":
                    seen[_key(one)] = one
                self._remember(kind, event.change, one)
                self._tell(kind, event.change, before, one)
        except RerailError as error:
            sys.stderr.write(f"cannot watch {kind.full_name}: {error}\n")
            self.broken.set()

    def _remember(self, kind: ResourceType, change: str, one: Obj) -> None:
        with self._lock:
            known = self._known[kind].get(_key(one))
            if change == "deleted":
                self._known[kind].pop(_key(one), None)
            elif known is None or uid_of(known) != uid_of(one) or _age(known) <= _age(one):
                self._known[kind][_key(one)] = one


def _everywhere(kind: ResourceType) -> str | None:
    return ALL_NAMESPACES if kind.namespaced else None


def _key(one: Obj) -> tuple[str, str]:
    return namespace_of(one), name_of(one)


def _age(one: Obj) -> int:
    """Of two states of one object in etcd, the later one has the higher number."""
    return int(one["metadata"].get("resourceVersion") or 0)
