"""Requests to the API server on plain dicts, with bounded retries and answers as typed errors."""

import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, Self, cast

from rerail.plugins.kube.config import Connection, connect
from rerail.plugins.kube.errors import Call
from rerail.plugins.kube.resources import ACCESS_REVIEWS, OTHERS_ACCESS_REVIEWS, PODS, ResourceType
from rerail.plugins.kube.transport import Lines
from rerail.policies.errors import ClusterUnreachableError, ExpiredError, TransientError, UsageError

ALL_NAMESPACES: Final = "*"
"""In place of a namespace: every one."""

_SYSTEM_RANDOM: Final = secrets.SystemRandom()

PAGE: Final = 500
FIELD_MANAGER: Final = "rerail"

Obj = dict[str, Any]
Propagation = Literal["Foreground", "Background", "Orphan"]
PatchKind = Literal["json", "merge", "strategic"]

_PATCH_TYPES: Final[Mapping[PatchKind, str]] = {
    "json": "application/json-patch+json",
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
}


@dataclass(frozen=True, slots=True)
class Listing:
    """A consistent list and the point of history at which it was true."""

    items: tuple[Obj, ...]
    resource_version: str


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a single request is tried.

    Attributes:
        request_s: Longest wait for one answer.
        total_s: From the first try on, no new try begins after this.
        first_pause_s: Pause after the first failure; doubles, with jitter.
        longest_pause_s: Where doubling ends. A Retry-After of the server counts up to here as well.
    """

    request_s: float = 30.0
    total_s: float = 30.0
    first_pause_s: float = 0.25
    longest_pause_s: float = 5.0

    def pause_s(self, failures: int, jitter: float) -> float:
        """Pause after the ``failures``-th failure in a row; ``jitter`` lies in 0..1."""
        full = min(self.longest_pause_s, self.first_pause_s * 2.0 ** min(failures - 1, 16))
        return full * (0.5 + jitter / 2)


def selector(labels: Mapping[str, str] | str | None) -> str:
    """A label selector from equal pairs, or as given."""
    if labels is None or isinstance(labels, str):
        return labels or ""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


class KubeApi:
    """The API server, as far as we need it. Safe for use by several threads.

    Reads, and writes that may be repeated, are tried again on 429, 5xx and silence until ``patience`` ends; other
    writes only where they were surely not carried out. Every error names what was asked.

    Args:
        connection: From ``connect``.
        patience: How long one request is tried.
        clock: Monotonic seconds.
        sleep: Waits a number of seconds.
        jitter: Gives numbers in 0..1.
    """

    def __init__(
        self,
        connection: Connection,
        *,
        patience: Patience | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
        jitter: Callable[[], float] = _SYSTEM_RANDOM.random,
    ) -> None:
        self.connection = connection
        self.patience = patience or Patience()
        self.clock = clock
        self.sleep = sleep
        self.jitter = jitter

    @classmethod
    def connect(
        cls,
        kubeconfig: str | Path | None = None,
        *,
        context: str | None = None,
        namespace: str | None = None,
        patience: Patience | None = None,
    ) -> Self:
        """Connect as ``config.connect`` says."""
        return cls(connect(kubeconfig, context=context, namespace=namespace), patience=patience)

    @property
    def namespace(self) -> str:
        """The namespace used where none is given."""
        return self.connection.namespace

    def get(
        self, resource: ResourceType, name: str, *, namespace: str | None = None, subresource: str | None = None
    ) -> Obj:
        """Read one object.

        Raises:
            NotFoundError: It is not there.
        """
        call = Call("get", resource, self.place(resource, namespace), name, subresource)
        return self._send(call, "GET", self._path(call), repeatable=True)

    def list(
        self,
        resource: ResourceType,
        *,
        namespace: str | None = None,
        labels: Mapping[str, str] | str | None = None,
        fields: str | None = None,
        patience: Patience | None = None,
    ) -> Listing:
        """Read a collection in pages, consistently. A page that came too late (410) begins the list anew."""
        call = Call("list", resource, self.place(resource, namespace))
        asked = {"limit": str(PAGE)}
        if labels:
            asked["labelSelector"] = selector(labels)
        if fields:
            asked["fieldSelector"] = fields
        for last_round in (False, False, True):
            try:
                return self._pages(call, asked, patience)
            except ExpiredError:
                if last_round:
                    raise
        raise AssertionError("unreachable")

    def create(
        self,
        resource: ResourceType,
        body: Obj,
        *,
        namespace: str | None = None,
        dry_run: bool = False,
        strict: bool = True,
        field_manager: str = FIELD_MANAGER,
    ) -> Obj:
        """Create an object.

        Args:
            resource: Its kind.
            body: The whole object.
            namespace: Where; the body's own, else the connection's.
            dry_run: Let the server judge (schema, admission, quota of names) and store nothing.
            strict: Unknown and double fields are an error.
            field_manager: Recorded as the writer of the fields.

        Raises:
            AlreadyExistsError: The name is taken.
            InvalidObjectError: Not accepted as it stands.
            ClusterUnreachableError: With ``outcome_unknown`` where the object may be there all the same.
        """
        metadata = body.get("metadata") or {}
        place = self.place(resource, namespace or metadata.get("namespace"))
        call = Call("create", resource, place, metadata.get("name"))
        path = resource.path(place)
        return self._send(call, "POST", path, query=_writes(dry_run, strict, field_manager), body=body)

    def replace(
        self,
        resource: ResourceType,
        body: Obj,
        *,
        namespace: str | None = None,
        subresource: str | None = None,
        dry_run: bool = False,
        strict: bool = True,
        field_manager: str = FIELD_MANAGER,
    ) -> Obj:
        """Replace an object; its ``metadata.resourceVersion`` says which state of it was read.

        Raises:
            ConflictError: It changed since.
        """
        metadata = body.get("metadata") or {}
        place = self.place(resource, namespace or metadata.get("namespace"))
        call = Call("update", resource, place, metadata.get("name"), subresource)
        return self._send(call, "PUT", self._path(call), query=_writes(dry_run, strict, field_manager), body=body)

    def patch(
        self,
        resource: ResourceType,
        name: str,
        patch: Obj | tuple[Obj, ...],
        *,
        namespace: str | None = None,
        kind: PatchKind | None = None,
        subresource: str | None = None,
        repeatable: bool = False,
        dry_run: bool = False,
        strict: bool = True,
        field_manager: str = FIELD_MANAGER,
    ) -> Obj:
        """Change parts of an object.

        Args:
            resource: Its kind.
            name: Its name.
            patch: A tuple of JSON-patch operations, or an object to merge.
            namespace: The connection's by default.
            kind: Guessed from ``patch``: operations are ``json``, an object is ``merge``.
            subresource: For example ``status``.
            repeatable: Whether doing it twice is doing it once, so that it may be tried again.
            dry_run: Store nothing.
            strict: Unknown fields are an error.
            field_manager: Recorded as the writer of the fields.
        """
        call = Call("patch", resource, self.place(resource, namespace), name, subresource)
        chosen: PatchKind = kind or ("merge" if isinstance(patch, dict) else "json")
        return self._send(
            call,
            "PATCH",
            self._path(call),
            query=_writes(dry_run, strict, field_manager),
            body=patch if isinstance(patch, dict) else list(patch),
            content_type=_PATCH_TYPES[chosen],
            repeatable=repeatable,
        )

    def delete(
        self,
        resource: ResourceType,
        name: str,
        *,
        namespace: str | None = None,
        propagation: Propagation = "Background",
        uid: str | None = None,
        grace_s: int | None = None,
        dry_run: bool = False,
    ) -> Obj:
        """Ask for an object's deletion; it may stay for a while, with a ``deletionTimestamp``.

        Args:
            resource: Its kind.
            name: Its name.
            namespace: The connection's by default.
            propagation: What becomes of objects that it owns.
            uid: Only if it still is this one; then, and only then, the request may be tried again.
            grace_s: Overrides a pod's grace period, in seconds.
            dry_run: Delete nothing.

        Raises:
            NotFoundError: It is not there.
            ConflictError: Another object has the name now (``uid``).
        """
        call = Call("delete", resource, self.place(resource, namespace), name)
        body: Obj = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": propagation}
        if uid:
            body["preconditions"] = {"uid": uid}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        query = {"dryRun": "All"} if dry_run else {}
        return self._send(call, "DELETE", self._path(call), query=query, body=body, repeatable=uid is not None)

    def evict(self, name: str, *, namespace: str | None = None, uid: str | None = None, dry_run: bool = False) -> None:
        """Ask once for a pod's eviction; it goes with its own grace period. Nothing is tried again here.

        Args:
            name: The pod.
            namespace: The connection's by default.
            uid: Only if it still is this one.
            dry_run: Only find out whether it would be allowed.

        Raises:
            NotFoundError: It is not there.
            ConflictError: Another pod has the name now (``uid``).
            DisruptionBudgetError: A PodDisruptionBudget is in the way; names it.
            ClusterUnreachableError: No answer, or not now.
        """
        call = Call("create", PODS, self.place(PODS, namespace), name, "eviction")
        body: Obj = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": call.namespace},
            "deleteOptions": {
                **({"preconditions": {"uid": uid}} if uid else {}),
                **({"dryRun": ["All"]} if dry_run else {}),
            },
        }
        once = replace(self.patience, total_s=0.0)
        query = {"dryRun": "All"} if dry_run else {}
        self._send(call, "POST", self._path(call), query=query, body=body, repeatable=True, patience=once)

    def delete_all(
        self,
        resource: ResourceType,
        *,
        labels: Mapping[str, str],
        fields: str = "",
        namespace: str | None = None,
        grace_s: int | None = None,
    ) -> None:
        """Ask for the deletion of every object that carries ``labels``; none is no error.

        Args:
            resource: Their kind.
            labels: At least one; all objects of a namespace are never meant.
            fields: A field selector; of the objects with the labels only these.
            namespace: The connection's by default.
            grace_s: Overrides the pods' grace periods, in seconds.
        """
        if not labels:
            raise UsageError(f"deleting every object of {resource.full_name} needs labels to choose by")
        call = Call("deletecollection", resource, self.place(resource, namespace))
        body: Obj = {"kind": "DeleteOptions", "apiVersion": "v1"}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        query = {"labelSelector": selector(labels)} | ({"fieldSelector": fields} if fields else {})
        self._send(call, "DELETE", resource.path(call.namespace), query=query, body=body, repeatable=True)

    def stream(
        self,
        resource: ResourceType,
        *,
        namespace: str | None,
        query: Mapping[str, str],
        timeout_s: float,
    ) -> Lines:
        """Open a watch; for ``watch.Watch``, which survives its end."""
        call = Call("watch", resource, self.place(resource, namespace))
        return self.connection.transport.stream(
            call, resource.path(call.namespace), query={**query, "watch": "true"}, timeout_s=timeout_s
        )

    def log(
        self,
        name: str,
        *,
        namespace: str | None = None,
        container: str | None = None,
        tail_lines: int | None = None,
        follow: bool = False,
        silence_s: float = 3600.0,
    ) -> Lines:
        """The log of a pod's container, line by line.

        Args:
            name: The pod.
            namespace: The connection's by default.
            container: Needed where the pod has several.
            tail_lines: Only so many of the last lines.
            follow: Go on until the container ends.
            silence_s: The longest silence.

        Raises:
            NotFoundError: It is not there.
            RerailError: It has no log yet, or not for us.
        """
        call = Call("get", PODS, self.place(PODS, namespace), name, "log")
        query = {"follow": "true"} if follow else {}
        query |= {"container": container} if container else {}
        query |= {"tailLines": str(tail_lines)} if tail_lines is not None else {}
        return self.connection.transport.stream(call, self._path(call), query=query, timeout_s=silence_s)

    def may(
        self,
        verb: str,
        resource: ResourceType,
        *,
        namespace: str | None = None,
        name: str | None = None,
        subresource: str | None = None,
        account: str | None = None,
    ) -> bool:
        """Whether the access rules allow ``verb`` there (on the object ``name``), by the API server's own word.

        Args:
            verb: As in RBAC rules.
            resource: The kind.
            namespace: The connection's by default.
            name: Of one object; None asks for all.
            subresource: For example ``status``.
            account: A ServiceAccount, as ``namespace/name``, which takes a right to ask for; us by default.
        """
        attributes = {"verb": verb, "group": resource.group, "version": resource.version, "resource": resource.plural}
        place = self.place(resource, namespace)
        if place:
            attributes["namespace"] = place
        if name:
            attributes["name"] = name
        if subresource:
            attributes["subresource"] = subresource
        review = OTHERS_ACCESS_REVIEWS if account else ACCESS_REVIEWS
        spec: Obj = {"resourceAttributes": attributes}
        if account:
            of, _, own = account.rpartition("/")
            groups = ["system:serviceaccounts", f"system:serviceaccounts:{of}", "system:authenticated"]
            spec |= {"user": f"system:serviceaccount:{of}:{own}", "groups": groups}
        body: Obj = {"apiVersion": review.api_version, "kind": review.kind, "spec": spec}
        answer = self._send(Call("create", review), "POST", review.path(None), body=body, repeatable=True)
        return bool((answer.get("status") or {}).get("allowed"))

    def close(self) -> None:
        """Close idle connections."""
        self.connection.transport.close()

    def place(self, resource: ResourceType, namespace: str | None) -> str | None:
        """The namespace a request goes to: the one given, else the connection's; None for every one or none."""
        if namespace == ALL_NAMESPACES:
            return None
        if namespace is None:
            return self.namespace if resource.namespaced else None
        return namespace

    def _pages(self, call: Call, asked: dict[str, str], patience: Patience | None) -> Listing:
        items: list[Obj] = []
        query = dict(asked)
        path = call.resource.path(call.namespace)
        while True:
            page = self._send(call, "GET", path, query=query, repeatable=True, patience=patience)
            items += cast("list[Obj]", page.get("items") or [])
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                return Listing(tuple(items), str(metadata.get("resourceVersion") or ""))
            query["continue"] = metadata["continue"]

    def _path(self, call: Call) -> str:
        return call.resource.path(call.namespace, call.name or "", call.subresource)

    def _send(
        self,
        call: Call,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = "application/json",
        repeatable: bool = False,
        patience: Patience | None = None,
    ) -> Obj:
        times = patience or self.patience
        begun = self.clock()
        failures = 0
        while True:
            try:
                return self.connection.transport.send(
                    call,
                    method,
                    path,
                    query=query or {},
                    body=body,
                    content_type=content_type,
                    timeout_s=times.request_s,
                )
            except ClusterUnreachableError as error:
                failures += 1
                pause_s = self.retry_pause_s(error, failures)
                spent = self.clock() - begun + pause_s > times.total_s
                if spent or (error.outcome_unknown and not repeatable):
                    raise
            self.sleep(pause_s)

    def retry_pause_s(self, error: TransientError, failures: int) -> float:
        """How long to wait before the next try: the server's wish where it is bearable, else our own back-off."""
        own = self.patience.pause_s(failures, self.jitter())
        return min(self.patience.longest_pause_s, max(own, error.retry_after_s or 0.0))


def _writes(dry_run: bool, strict: bool, field_manager: str) -> dict[str, str]:
    query = {"fieldManager": field_manager, "fieldValidation": "Strict" if strict else "Warn"}
    if dry_run:
        query["dryRun"] = "All"
    return query
