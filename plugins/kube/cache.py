"""The objects of a collection as they are now, kept by one watch in a thread of its own.

One list when it starts, then changes as they come: reading costs no request, however often it is done.
"""

import threading
from collections.abc import Callable, Mapping
from typing import Final, Generic, TypeVar

from rerail.plugins.kube.api import KubeApi, Obj
from rerail.plugins.kube.resources import ResourceType
from rerail.plugins.kube.watch import Change, Watch
from rerail.policies.errors import ClusterUnreachableError, RerailError

T = TypeVar("T")

_JOIN_S: Final = 5.0
_REFUSED_S: Final = 300.0
"""A watch that ran and is refused now counts as refused after so long: an API server that has just begun knows no
rights yet, and says no to everybody."""
_AGAIN_S: Final = 5.0
"""How soon such a watch is tried again."""


class Cache(Generic[T]):
    """Safe for use by several threads. ``stop`` it when it is no longer wanted.

    Args:
        api: The API server.
        resource: What to keep.
        keep: What of an object is kept; called in the watch's thread.
        namespace: The connection's by default; ``ALL_NAMESPACES`` for every one.
        labels: Only objects with these labels.
        fields: A field selector.
        on_change: Called in the watch's thread with each object that was added, changed or deleted.
        relist_s: Seconds between full lists, which correct what a stream lost.
        first_s: Seconds from the start for which readers wait for the first list.
        stale_s: Seconds without an API server after which what was kept is no answer any more.
        again_s: Seconds until a refused watch (rights, login) is tried again.
    """

    def __init__(
        self,
        api: KubeApi,
        resource: ResourceType,
        *,
        keep: Callable[[Obj], T],
        namespace: str | None = None,
        labels: Mapping[str, str] | str | None = None,
        fields: str | None = None,
        on_change: Callable[[Change, Obj], object] = lambda _change, _one: None,
        relist_s: float = 300.0,
        first_s: float = 10.0,
        stale_s: float = 15.0,
        again_s: float = 60.0,
    ) -> None:
        self._api = api
        self._what = resource.full_name
        self._keep = keep
        self._on_change = on_change
        self._first_s, self._stale_s, self._again_s = first_s, stale_s, again_s
        self._watch = Watch(
            api,
            resource,
            namespace=namespace,
            labels=labels,
            fields=fields,
            relist_s=relist_s,
            patience_s=None,
        )
        self._news = threading.Condition()
        self._kept: dict[tuple[str, str], T] = {}
        self._own: dict[tuple[str, str], str] = {}
        self._synced = False
        self._refused: RerailError | None = None
        self._refused_at_s = 0.0
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._started_s = 0.0

    def start(self) -> None:
        """Begin to watch; does nothing where it runs already. Reading starts it as well."""
        with self._news:
            if self._thread is None and not self._stopped.is_set():
                self._started_s = self._api.clock()
                self._thread = threading.Thread(target=self._run, name=f"rerail-watch-{self._what}", daemon=True)
                self._thread.start()

    def stop(self) -> None:
        """End the watch and its thread. It cannot be started again."""
        self._stopped.set()
        self._watch.stop()
        if self._thread is not None:
            self._thread.join(_JOIN_S)

    def values(self) -> tuple[T, ...]:
        """All of them, as they are now.

        Raises:
            ClusterUnreachableError: Nothing was listed yet, or the API server has not answered for ``stale_s``.
            RerailError: The watch was refused.
        """
        with self._news:
            self._wait()
            return tuple(self._kept.values())

    def check(self) -> None:
        """Find out whether what is kept may be relied upon; ``get`` does not ask.

        Raises:
            RerailError: As for ``values``.
        """
        with self._news:
            self._wait()

    def get(self, name: str, namespace: str = "") -> T | None:
        """One of them if it is known now; does not wait, and does not say why not."""
        with self._news:
            return self._kept.get((namespace, name))

    def take(self, one: Obj) -> None:
        """Keep what the API server answered to a write of ours, so that it is seen before its event comes."""
        key, version = _key(one), _version(one)
        with self._news:
            if self._synced and key in self._kept:
                self._own[key] = version
                self._kept[key] = self._keep(one)

    def _wait(self) -> None:
        """Wait for the first list, and refuse to answer where there is none, or none that still holds."""
        self.start()
        left_s = max(0.0, self._started_s + self._first_s - self._api.clock())
        self._news.wait_for(lambda: self._synced or self._refused is not None, timeout=left_s)
        if self._refused is not None:
            if self._synced and self._api.clock() - self._refused_at_s <= _REFUSED_S:
                raise ClusterUnreachableError(f"{self._what} are not told now: {self._refused}")
            raise self._refused.with_traceback(None)  # raised again and again, it would grow by each
        if self._thread is None or not self._thread.is_alive():
            raise ClusterUnreachableError(f"{self._what} are not watched: the watch was stopped")
        trouble = self._watch.trouble
        if not self._synced:
            told = f": {trouble[0]}" if trouble else ""
            raise ClusterUnreachableError(f"{self._what} were not listed within {self._first_s:g} s{told}")
        if trouble is not None and self._api.clock() - trouble[1] > self._stale_s:
            raise ClusterUnreachableError(
                f"what is known of {self._what} is older than {self._stale_s:g} s: {trouble[0]}"
            )

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                for event in self._watch:
                    self._happened(event.change, event.object)
            except RerailError as error:
                with self._news:
                    if self._refused is None:
                        self._refused_at_s = self._api.clock()
                    self._refused = error
                    self._news.notify_all()
            self._stopped.wait(min(self._again_s, _AGAIN_S) if self._synced else self._again_s)

    def _happened(self, change: Change, one: Obj) -> None:
        with self._news:
            if change == "synced":
                self._own.clear()
                self._synced, self._refused = True, None
                self._news.notify_all()
                return
            key = _key(one)
            if change == "deleted":
                self._own.pop(key, None)
                self._kept.pop(key, None)
            elif not self._older(key, one):
                self._own.pop(key, None)
                self._kept[key] = self._keep(one)
        self._on_change(change, one)

    def _older(self, key: tuple[str, str], one: Obj) -> bool:
        """Whether an event tells of a state before a write of ours; versions that are no numbers are not compared."""
        own, version = self._own.get(key, ""), _version(one)
        return own.isdecimal() and version.isdecimal() and int(version) < int(own)


def _key(one: Obj) -> tuple[str, str]:
    metadata = one.get("metadata") or {}
    return str(metadata.get("namespace") or ""), str(metadata.get("name") or "")


def _version(one: Obj) -> str:
    return str((one.get("metadata") or {}).get("resourceVersion") or "")
