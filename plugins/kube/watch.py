"""A watch that does not lose anything: the state now, then every change, for as long as it is wanted.

It lists, then watches from there. A stream that ends, breaks within a line or goes silent is opened again at the last
known point; where that point is gone (410, as an answer or within the stream) it lists again. It also lists again every
``relist_s``: a server or proxy that swallowed an event is corrected then. After a list, changes are found by comparison
(same uid and same resourceVersion = unchanged; no other order of versions is assumed), so that a deletion that nobody
saw is still reported, and an object that was replaced under its name is one deleted and one added.
"""

import json
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from rerail.plugins.kube.api import KubeApi, Listing, Obj, Patience, selector
from rerail.plugins.kube.errors import Call, error_of
from rerail.plugins.kube.resources import ResourceType
from rerail.plugins.kube.transport import Lines
from rerail.policies.errors import ClusterUnreachableError, ExpiredError, TransientError

Change = Literal["added", "modified", "deleted", "synced"]

SILENCE_MARGIN_S: Final = 5.0
"""How much longer than the watch's own end the stream may be silent before it counts as broken."""

_LONG_S: Final = 5.0
"""After an outage of more than this, all is listed: a stream tells what was missed bit by bit."""
_LIVELY_S: Final = 1.0
"""A stream that ends sooner, without an event, is a failure: opening it again at once would be a storm."""


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One change.

    Attributes:
        change: ``synced`` comes after each list, without an object: all of the state at that time was reported.
        object: The object after the change; for ``deleted`` the last state that was seen of it.
    """

    change: Change
    object: Obj


class Watch:
    """Iterate over it in one thread; ``stop`` it from any.

    Args:
        api: The API server.
        resource: What to watch.
        namespace: The connection's by default; ``ALL_NAMESPACES`` for every one.
        name: Only this object.
        labels: Only objects with these labels.
        fields: A field selector.
        for_s: Seconds after which the iteration ends; None: never.
        relist_s: Seconds between full lists.
        patience_s: Seconds without any success after which the failure is raised; None: never.
        on_trouble: Told of each failure that is survived.
    """

    def __init__(
        self,
        api: KubeApi,
        resource: ResourceType,
        *,
        namespace: str | None = None,
        name: str | None = None,
        labels: Mapping[str, str] | str | None = None,
        fields: str | None = None,
        for_s: float | None = None,
        relist_s: float = 60.0,
        patience_s: float | None = 120.0,
        on_trouble: Callable[[TransientError], object] | None = None,
    ) -> None:
        self._api = api
        self._resource = resource
        self._namespace = namespace
        self._labels = labels
        self._fields = ",".join(part for part in (f"metadata.name={name}" if name else "", fields or "") if part)
        self._for_s = for_s
        self._relist_s = relist_s
        self._patience_s = patience_s
        self._on_trouble = on_trouble
        self._known: dict[tuple[str, str], Obj] = {}
        self._version = ""
        self._stopped = threading.Event()
        self._stream: Lines | None = None
        self._call = Call("watch", resource, api.place(resource, namespace))
        self._list_at = 0.0
        self._worked = 0.0
        self._failures = 0
        self._expired = 0
        self._trouble: tuple[TransientError, float] | None = None

    @property
    def trouble(self) -> tuple[TransientError, float] | None:
        """The newest failure that is being survived, and since when nothing worked; None while all is well."""
        return self._trouble

    @property
    def known(self) -> tuple[Obj, ...]:
        """The state as last reported."""
        return tuple(self._known.values())

    def stop(self) -> None:
        """End the iteration, also while it waits for an event."""
        self._stopped.set()
        stream = self._stream
        if stream is not None:
            stream.end()

    def __iter__(self) -> Iterator[WatchEvent]:
        """Yield changes until ``stop`` or ``for_s``.

        Raises:
            ClusterUnreachableError: Nothing worked for ``patience_s``.
            RerailError: What trying again does not change: rights, a kind that is not installed.
        """
        clock = self._api.clock
        end = math.inf if self._for_s is None else clock() + self._for_s
        self._list_at = clock()
        self._works()
        while not self._stopped.is_set() and clock() < end:
            try:
                if clock() >= self._list_at:
                    yield from self._compared(self._list(end - clock()))
                    self._list_at = clock() + self._relist_s
                    self._worked, self._failures, self._trouble = clock(), 0, None
                    yield WatchEvent("synced", {})
                else:
                    yield from self._followed(min(self._list_at, end) - clock())
            except ExpiredError as error:
                self._list_at = clock()
                self._expired += 1
                self._survive(error, self._expired - 1)
            except TransientError as error:
                self._failures += 1
                if self._patience_s is not None and clock() - self._worked > self._patience_s:
                    raise
                self._survive(error, self._failures)

    def _works(self) -> None:
        self._worked, self._failures, self._expired = self._api.clock(), 0, 0
        self._trouble = None

    def _survive(self, error: TransientError, failures: int) -> None:
        """Tell of a failure and pause; a first expiry costs no pause, a server that always says 410 does."""
        now_s = self._api.clock()
        self._trouble = error, self._trouble[1] if self._trouble else now_s
        if now_s - self._trouble[1] > _LONG_S:
            self._list_at = now_s
        if self._on_trouble is not None:
            self._on_trouble(error)
        if failures:
            self._stopped.wait(self._api.retry_pause_s(error, failures))

    def _followed(self, window_s: float) -> Iterator[WatchEvent]:
        """Follow one stream to its end."""
        begun = self._api.clock()
        told = False
        for event in self._streamed(window_s):
            told = True
            self._works()
            if event is not None:
                yield event
        if self._stopped.is_set():
            return
        if not told and self._api.clock() - begun < min(_LIVELY_S, window_s):
            raise ClusterUnreachableError(f"cannot {self._call}: the stream ended at once")
        self._works()

    def _list(self, left_s: float) -> Listing:
        # Once, and no longer than is left: trying again is the loop's business.
        patience = Patience(request_s=max(1.0, min(left_s, self._api.patience.request_s)), total_s=0.0)
        return self._api.list(
            self._resource,
            namespace=self._namespace,
            labels=self._labels,
            fields=self._fields or None,
            patience=patience,
        )

    def _compared(self, listing: Listing) -> Iterator[WatchEvent]:
        """Report how a list differs from what is known."""
        found = {_key(one): one for one in listing.items}
        for key in [key for key in self._known if key not in found]:
            yield WatchEvent("deleted", self._known.pop(key))
        for one in found.values():
            yield from self._changed(one)
        self._version = listing.resource_version

    def _streamed(self, window_s: float) -> Iterator[WatchEvent | None]:
        """Read one stream; None stands for a bookmark, or an event that told nothing new."""
        query = {
            "resourceVersion": self._version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(max(1, math.ceil(window_s))),
        }
        if self._labels:
            query["labelSelector"] = selector(self._labels)
        if self._fields:
            query["fieldSelector"] = self._fields
        stream = self._api.stream(
            self._resource, namespace=self._namespace, query=query, timeout_s=window_s + SILENCE_MARGIN_S
        )
        self._stream = stream
        self._trouble = None
        try:
            if self._stopped.is_set():
                return
            for line in stream:
                change, content = self._read(line)
                if change == "BOOKMARK":
                    yield None
                elif change == "DELETED":
                    gone = self._known.get(_key(content))
                    if gone is not None and _uid(gone) == _uid(content):
                        del self._known[_key(content)]
                        yield WatchEvent("deleted", content)
                    else:
                        yield None
                else:
                    yield from tuple(self._changed(content)) or (None,)
                self._version = str((content.get("metadata") or {}).get("resourceVersion") or self._version)
        finally:
            self._stream = None
            stream.end()

    def _read(self, line: bytes) -> tuple[str, Obj]:
        try:
            event: Any = json.loads(line)
            change, content = event["type"], event["object"]
        except (ValueError, KeyError, TypeError) as error:
            # Whatever came in between is unknown now: list again.
            raise ExpiredError(
                f"cannot {self._call}: a line of the stream is no event ({error}); listing again"
            ) from error
        if change == "ERROR":
            raise error_of(
                int(content.get("code") or 500), json.dumps({**content, "kind": "Status"}).encode(), self._call
            )
        return str(change), content

    def _changed(self, one: Obj) -> Iterator[WatchEvent]:
        before = self._known.get(_key(one))
        if before is not None and _uid(before) == _uid(one):
            self._known[_key(one)] = one
            if _version(before) != _version(one):
                yield WatchEvent("modified", one)
            return
        if before is not None:
            del self._known[_key(one)]
            yield WatchEvent("deleted", before)
        self._known[_key(one)] = one
        yield WatchEvent("added", one)


def _key(one: Obj) -> tuple[str, str]:
    metadata = one.get("metadata") or {}
    return str(metadata.get("namespace") or ""), str(metadata.get("name") or "")


def _uid(one: Obj) -> str:
    return str((one.get("metadata") or {}).get("uid") or "")


def _version(one: Obj) -> str:
    return str((one.get("metadata") or {}).get("resourceVersion") or "")
