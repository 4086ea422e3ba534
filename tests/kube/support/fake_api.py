# ruff: noqa: ARG002, C901, N815, PLR0912, PLR0917 -- one closure with a method per verb, all of one signature
"""A small API server for faults that a real one does not make on demand. Not a Kubernetes: no schemas, no controllers.

It keeps objects with uids and resourceVersions, serves get, list (with pages), create, update, patch, delete (also of
collections, where bound pods stay) and watch (with bookmarks), and misbehaves as told:

    api.deny("create", "jobs")                  403 as RBAC answers
    api.fail("GET", "/jobs", 503, times=2)      an answer instead of the right one; ``code`` 0: hang up
    api.lose_reply("POST", "/jobs")             do it, then hang up
    api.hang("GET", "/jobs")                    take the request and never answer
    api.compact()                               forget history: older watches get 410
    api.streams.append(Stream(...))             how the next watch behaves
    api.uninstall("batch.volcano.sh")           a group without CRDs
"""

import copy
import itertools
import json
import re
import threading
import time
import uuid
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

Obj = dict[str, Any]

KNOWN = {
    "jobs": ("batch.volcano.sh", "Job"),
    "commands": ("bus.volcano.sh", "Command"),
    "podgroups": ("scheduling.volcano.sh", "PodGroup"),
    "queues": ("scheduling.volcano.sh", "Queue"),
    "drainrequests": ("nvsentinel.nvidia.com", "DrainRequest"),
    "pods": ("", "Pod"),
    "nodes": ("", "Node"),
    "configmaps": ("", "ConfigMap"),
    "events": ("", "Event"),
    "services": ("", "Service"),
    "selfsubjectaccessreviews": ("authorization.k8s.io", "SelfSubjectAccessReview"),
}
PATH = re.compile(
    r"/(?:api|apis/(?P<group>[^/]+))/(?P<version>v[^/]+)"
    r"(?:/namespaces/(?P<namespace>[^/]+)(?=/))?/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?(?:/(?P<sub>[^/]+))?"
)
REASONS = {400: "BadRequest", 404: "NotFound", 409: "Conflict", 410: "Expired", 422: "Invalid", 429: "TooManyRequests"}


def status(code: int, message: str, reason: str | None = None, **details: Any) -> Obj:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason or REASONS.get(code, "InternalError"),
        "message": message,
        **({"details": details} if details else {}),
    }


@dataclass
class Stream:
    """How one watch behaves.

    gone            answer 410 at once
    error           send this Status as an ERROR event after ``after`` events, then end
    after           events that pass first
    swallow         of the events that follow, these many are never sent
    cut             then hang up within a line
    close           then end cleanly
    garbage         then send a line that is no JSON, and go on
    silent          keep the connection open and send nothing
    """

    gone: bool = False
    error: Obj | None = None
    after: int = 0
    swallow: int = 0
    cut: bool = False
    close: bool = False
    garbage: bool = False
    silent: bool = False


@dataclass
class Fault:
    method: str
    path: str
    code: int
    times: int
    act: str = "answer"
    retry_after: str | None = None
    body: Obj | None = None


@dataclass
class FakeApi:
    url: str = ""
    objects: dict[tuple[str, str, str], Obj] = field(default_factory=dict)
    history: list[tuple[int, str, Obj]] = field(default_factory=list)
    oldest: int = 0
    streams: deque[Stream] = field(default_factory=deque)
    faults: list[Fault] = field(default_factory=list)
    denied: set[tuple[str, str]] = field(default_factory=set)
    absent: set[str] = field(default_factory=set)
    requests: list[tuple[str, str]] = field(default_factory=list)
    bodies: list[tuple[str, str, Any]] = field(default_factory=list)
    agents: set[str] = field(default_factory=set)
    hooks: list[Any] = field(default_factory=list)
    answers: Any = None  # path -> (code, content), or None where nothing special is answered
    page: int | None = None
    bookmark_s: float = 0.2
    stopping: bool = False
    epoch: int = 0
    bookmarked: int = 0

    def __post_init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.versions = itertools.count(101)
        self.version = 100

    # What tests tell it.

    def deny(self, verb: str, plural: str) -> None:
        self.denied.add((verb, plural))

    def fail(self, method: str, path: str, code: int, *, times: int = 1, retry_after: str | None = None, body=None):
        self.faults.append(Fault(method, path, code, times, retry_after=retry_after, body=body))

    def lose_reply(self, method: str, path: str, *, times: int = 1) -> None:
        self.faults.append(Fault(method, path, 0, times, act="lose"))

    def hang(self, method: str, path: str, *, times: int = 1) -> None:
        self.faults.append(Fault(method, path, 0, times, act="hang"))

    def uninstall(self, group: str) -> None:
        self.absent.add(group)

    def compact(self) -> None:
        with self.changed:
            self.oldest = self.version
            self.history.clear()

    def end_streams(self) -> None:
        """End all watches that run, cleanly."""
        with self.changed:
            self.epoch += 1
            self.changed.notify_all()

    def asked(self, method: str, part: str) -> int:
        return sum(one == method and part in path for one, path in list(self.requests))

    # What tests do behind the client's back, as controllers would.

    def put(self, plural: str, one: Obj, *, quiet: bool = False) -> Obj:
        """Store an object; ``quiet``: no event tells of it."""
        with self.changed:
            one = copy.deepcopy(one)
            metadata = one.setdefault("metadata", {})
            key = (plural, metadata.get("namespace", ""), metadata["name"])
            before = self.objects.get(key)
            metadata.setdefault("uid", before["metadata"]["uid"] if before else str(uuid.uuid4()))
            metadata.setdefault("creationTimestamp", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))
            metadata["resourceVersion"] = self._next()
            one.setdefault("kind", KNOWN[plural][1])
            self.objects[key] = one
            if not quiet:
                self._record("MODIFIED" if before else "ADDED", plural, one, before)
            return copy.deepcopy(one)

    def change(self, plural: str, namespace: str, name: str, change, *, quiet: bool = False) -> Obj:
        with self.changed:
            one = copy.deepcopy(self.objects[plural, namespace, name])
            change(one)
            return self.put(plural, one, quiet=quiet)

    def remove(self, plural: str, namespace: str, name: str, *, quiet: bool = False) -> None:
        with self.changed:
            one = self.objects.pop((plural, namespace, name), None)
            if one is None:
                return
            one["metadata"]["resourceVersion"] = self._next()
            if not quiet:
                self._record("DELETED", plural, one)

    def find(self, plural: str) -> list[Obj]:
        with self.changed:
            return [copy.deepcopy(one) for key, one in self.objects.items() if key[0] == plural]

    def _next(self) -> str:
        self.version = next(self.versions)
        return str(self.version)

    def _record(self, change: str, plural: str, one: Obj, before: Obj | None = None) -> None:
        entry = {"plural": plural, "object": copy.deepcopy(one), "before": copy.deepcopy(before)}
        self.history.append((self.version, change, entry))
        self.changed.notify_all()

    def fault(self, method: str, path: str) -> Fault | None:
        with self.changed:
            for one in self.faults:
                if one.method == method and one.path in path and one.times > 0:
                    one.times -= 1
                    return one
        return None

    def stop(self) -> None:
        with self.changed:
            self.stopping = True
            self.changed.notify_all()


def matches(one: Obj, labels: str, fields: str) -> bool:
    own = one["metadata"].get("labels") or {}
    for part in filter(None, labels.split(",")):
        key, equals, value = part.partition("=")
        if (own.get(key) != value) if equals else (key not in own):
            return False
    for part in filter(None, fields.split(",")):
        key, _, value = part.partition("=")
        at: Any = one
        for step in key.removesuffix("!").split("."):
            at = (at or {}).get(step)
        if ((at or "") == value) == key.endswith("!"):
            return False
    return True


def seen_as(change: str, entry: Obj, labels: str, fields: str) -> str | None:
    """How a watch with selectors tells a change: an object that comes to match is added, one that ceases is deleted."""
    now = matches(entry["object"], labels, fields)
    if change != "MODIFIED":
        return change if now else None
    before = matches(entry["before"], labels, fields)
    if now:
        return "MODIFIED" if before else "ADDED"
    return "DELETED" if before else None


def merge(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def apply(one: Obj, operations: list[Obj]) -> Obj:
    one = copy.deepcopy(one)
    for operation in operations:
        *steps, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        at: Any = one
        for step in steps:
            at = at[int(step)] if isinstance(at, list) else at[step]
        key: Any = int(last) if isinstance(at, list) else last
        if operation["op"] == "test":
            if at[key] != operation["value"]:
                raise ValueError(f"testing value {operation['path']} failed")
        elif operation["op"] == "remove":
            del at[key]
        else:
            if operation["op"] == "replace" and isinstance(at, dict) and key not in at:
                raise ValueError(f"replace operation does not apply: doc is missing key: {operation['path']}")
            at[key] = operation["value"]
    return one


def handler(api: FakeApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # headers and body are two writes: without this each answer waits for 40 ms
        timeout = 30

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            self.serve(self.command)

        do_POST = do_PUT = do_PATCH = do_DELETE = do_GET

        def serve(self, method: str) -> None:
            url = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            raw = self.rfile.read(length) if length else b""
            api.requests.append((method, self.path))
            api.agents.add(self.headers.get("User-Agent", ""))
            self.epoch = api.epoch  # before the faults: a watch that none of them met ends with ``end_streams``
            fault = api.fault(method, self.path)
            if fault is not None and fault.act == "hang":
                with api.changed:
                    api.changed.wait_for(lambda: api.stopping, timeout=30)
                self.hang_up()
                return
            if fault is not None and fault.act == "answer":
                if fault.code == 0:
                    self.hang_up()
                    return
                headers = {"Retry-After": fault.retry_after} if fault.retry_after else {}
                self.answer(fault.code, fault.body or status(fault.code, "told to"), headers)
                return
            query = {key: values[0] for key, values in parse_qs(url.query).items()}
            body = json.loads(raw) if raw else None
            api.bodies.append((method, self.path, copy.deepcopy(body)))
            code, content = self.route(method, unquote(url.path), query, body)
            if fault is not None:
                self.hang_up()
            elif content is not None:
                self.answer(code, content)
            with api.changed:
                hooks = list(api.hooks)
            for hook in hooks:
                hook(method, url.path)

        def hang_up(self) -> None:
            self.close_connection = True
            with suppress(OSError):
                self.connection.shutdown(2)

        def answer(self, code: int, content: Obj, headers: dict[str, str] | None = None) -> None:
            data = json.dumps(content).encode()
            with suppress(OSError):
                self.send_response(code)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                for key, value in (headers or {}).items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(data)

        def route(self, method: str, path: str, query: dict[str, str], body: Any) -> tuple[int, Obj | None]:
            if api.answers is not None and (answer := api.answers(path)) is not None:
                return answer
            found = PATH.fullmatch(path)
            plural = found["plural"] if found else ""
            group = (found["group"] or "") if found else ""
            if not found or KNOWN.get(plural, ("?",))[0] != group or group in api.absent:
                return 404, status(404, "the server could not find the requested resource", retryAfterSeconds=0)
            namespace, name, sub = found["namespace"] or "", found["name"], found["sub"]
            verb = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(method) or (
                "get" if name else "watch" if query.get("watch") == "true" else "list"
            )
            verb = "deletecollection" if verb == "delete" and not name else verb
            if (verb, plural) in api.denied:
                where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
                text = f'User "tester" cannot {verb} resource "{plural}" in API group "{group}" {where}'
                return 403, status(403, f'{plural}.{group} "{name or ""}" is forbidden: {text}', "Forbidden")
            if plural in ("selfsubjectaccessreviews", "subjectaccessreviews"):
                wanted = body["spec"]["resourceAttributes"]
                return 201, {**body, "status": {"allowed": (wanted["verb"], wanted["resource"]) not in api.denied}}
            if verb == "watch":
                self.watch(plural, namespace, query)
                return 200, None
            with api.changed:
                return getattr(self, verb)(plural, group, namespace, name, sub, query, body)

        def missing(self, plural: str, group: str, name: str) -> tuple[int, Obj]:
            full = f"{plural}.{group}" if group else plural
            return 404, status(404, f'{full} "{name}" not found', name=name, kind=plural, group=group)

        def get(self, plural, group, namespace, name, sub, query, body):
            one = api.objects.get((plural, namespace, name))
            return (200, copy.deepcopy(one)) if one else self.missing(plural, group, name)

        def list(self, plural, group, namespace, name, sub, query, body):
            found = [
                one
                for key, one in sorted(api.objects.items())
                if key[0] == plural
                and (not namespace or key[1] == namespace)
                and matches(one, query.get("labelSelector", ""), query.get("fieldSelector", ""))
            ]
            at, version = 0, api.version
            if "continue" in query:
                at, version = map(int, query["continue"].split("."))
                if version < api.oldest:
                    return 410, status(410, "The provided continue parameter is too old", "Expired")
            size = min(int(query.get("limit") or 500), api.page or 500)
            metadata: Obj = {"resourceVersion": str(version)}
            if at + size < len(found):
                metadata["continue"] = f"{at + size}.{version}"
            return 200, {"kind": "List", "metadata": metadata, "items": copy.deepcopy(found[at : at + size])}

        def create(self, plural, group, namespace, name, sub, query, body):
            metadata = body.setdefault("metadata", {})
            if namespace:
                metadata.setdefault("namespace", namespace)
            if not metadata.get("name"):
                metadata["name"] = metadata["generateName"] + uuid.uuid4().hex[:5]
            key = (plural, namespace, metadata["name"])
            if key in api.objects:
                text = f'{plural}.{group} "{metadata["name"]}" already exists'
                return 409, status(409, text, "AlreadyExists", name=metadata["name"], kind=plural)
            if query.get("fieldValidation") == "Strict" and "bogus" in (body.get("spec") or {}):
                return 400, status(400, 'strict decoding error: unknown field "spec.bogus"')
            if query.get("dryRun") == "All":
                metadata["uid"] = "dry"
                return 201, body
            metadata.pop("resourceVersion", None)
            return 201, api.put(plural, body)

        def update(self, plural, group, namespace, name, sub, query, body):
            one = api.objects.get((plural, namespace, name))
            if one is None:
                return self.missing(plural, group, name)
            if (
                body["metadata"].get("resourceVersion", one["metadata"]["resourceVersion"])
                != one["metadata"]["resourceVersion"]
            ):
                return 409, status(409, f'Operation cannot be fulfilled on {plural} "{name}": modified')
            return 200, body if query.get("dryRun") == "All" else api.put(plural, body)

        def patch(self, plural, group, namespace, name, sub, query, body):
            one = api.objects.get((plural, namespace, name))
            if one is None:
                return self.missing(plural, group, name)
            wanted = body.get("metadata", {}).get("resourceVersion") if isinstance(body, dict) else None
            if wanted and wanted != one["metadata"]["resourceVersion"]:
                return 409, status(409, f'Operation cannot be fulfilled on {plural} "{name}": modified')
            try:
                new = apply(one, body) if isinstance(body, list) else merge(one, body)
            except (ValueError, KeyError, IndexError) as error:
                return 422, status(422, str(error))
            return 200, new if query.get("dryRun") == "All" else api.put(plural, new)

        def delete(self, plural, group, namespace, name, sub, query, body):
            one = api.objects.get((plural, namespace, name))
            if one is None:
                return self.missing(plural, group, name)
            uid = ((body or {}).get("preconditions") or {}).get("uid")
            if uid and uid != one["metadata"]["uid"]:
                text = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {one['metadata']['uid']}"
                return 409, status(409, text)
            if query.get("dryRun") == "All":
                return 200, copy.deepcopy(one)
            owns = any(
                owner["uid"] == one["metadata"]["uid"]
                for other in api.objects.values()
                for owner in other["metadata"].get("ownerReferences") or []
            )
            if owns and (body or {}).get("propagationPolicy") == "Foreground":
                new = copy.deepcopy(one)
                new["metadata"]["deletionTimestamp"] = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                new["metadata"]["finalizers"] = ["foregroundDeletion"]
                return 200, api.put(plural, new)
            api.remove(plural, namespace, name)
            return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 200}

        def deletecollection(self, plural, group, namespace, name, sub, query, body):
            asked = (query.get("labelSelector", ""), query.get("fieldSelector", ""))
            every = sorted(api.objects.items())
            for one in [one for key, one in every if key[:2] == (plural, namespace) and matches(one, *asked)]:
                metadata, spec = one["metadata"], one.get("spec") or {}
                grace_s = (body or {}).get("gracePeriodSeconds", spec.get("terminationGracePeriodSeconds", 30))
                over = (one.get("status") or {}).get("phase") in ("Succeeded", "Failed")
                if plural != "pods" or not spec.get("nodeName") or over or grace_s == 0:
                    api.remove(plural, namespace, metadata["name"])
                    continue
                if metadata.get("deletionGracePeriodSeconds", grace_s + 1) <= grace_s:
                    continue  # a deadline is only ever brought forward
                due = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + grace_s))
                marks = {"deletionTimestamp": due, "deletionGracePeriodSeconds": grace_s}
                api.put(plural, {**one, "metadata": {**metadata, **marks}})
            return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success", "code": 200}

        # The watch, chunk by chunk.

        def watch(self, plural: str, namespace: str, query: dict[str, str]) -> None:
            with api.changed:
                how = api.streams.popleft() if api.streams else Stream()
                since = int(query.get("resourceVersion") or 0)
                expired = since < api.oldest
            if how.gone:
                self.answer(410, status(410, "too old resource version", "Expired"))
                return
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            with suppress(OSError):
                if expired:
                    self.event("ERROR", status(410, f"too old resource version: {since} ({api.oldest})", "Expired"))
                    self.finish_stream()
                    return
                self.follow(plural, namespace, query, how, since)
            self.close_connection = True

        def follow(self, plural: str, namespace: str, query: dict[str, str], how: Stream, since: int) -> None:
            end = time.monotonic() + float(query.get("timeoutSeconds") or 30)
            sent = swallowed = 0
            while not api.stopping and api.epoch == self.epoch and time.monotonic() < end:
                with api.changed:
                    if not api.history or api.history[-1][0] <= since:
                        api.changed.wait(timeout=api.bookmark_s)
                    if since < api.oldest:
                        self.event("ERROR", status(410, "compacted", "Expired"))
                        break
                    entries = [entry for entry in api.history if entry[0] > since]
                    version = api.version
                if how.silent:
                    continue
                for number, change, entry in entries:
                    one = entry["object"]
                    since = number
                    if entry["plural"] != plural or (namespace and one["metadata"].get("namespace") != namespace):
                        continue
                    told = seen_as(change, entry, query.get("labelSelector", ""), query.get("fieldSelector", ""))
                    if told is None:
                        continue
                    if sent >= how.after:
                        if swallowed < how.swallow:
                            swallowed += 1
                            continue
                        if how.cut:
                            self.cut(told, one)
                            return
                    self.event(told, one)
                    sent += 1
                if sent >= how.after:
                    if how.error is not None:
                        self.event("ERROR", how.error)
                        break
                    if how.garbage:
                        how.garbage = False
                        self.chunk(b"<html>proxy</html>\n")
                    if how.close:
                        break
                if not entries and query.get("allowWatchBookmarks") == "true":
                    since = max(since, version)
                    self.event("BOOKMARK", {"kind": "X", "metadata": {"resourceVersion": str(since)}})
                    with api.changed:
                        api.bookmarked = since
                        api.changed.notify_all()
            self.finish_stream()

        def event(self, change: str, one: Obj) -> None:
            self.chunk(json.dumps({"type": change, "object": one}).encode() + b"\n")

        def chunk(self, data: bytes) -> None:
            self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
            self.wfile.flush()

        def cut(self, change: str, one: Obj) -> None:
            line = json.dumps({"type": change, "object": one}).encode()
            half = line[: len(line) // 2]
            self.wfile.write(f"{len(half):x}\r\n".encode() + half + b"\r\n")
            self.wfile.flush()
            self.hang_up()

        def finish_stream(self) -> None:
            self.wfile.write(b"0\r\n\r\n")
            self.wfile.flush()

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass


def serve() -> tuple[FakeApi, Any]:
    """Start one on loopback; returns it and what stops it."""
    api = FakeApi()
    server = _Server(("127.0.0.1", 0), handler(api))
    api.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()

    def stop() -> None:
        api.stop()
        server.shutdown()
        server.server_close()
        thread.join(10)

    return api, stop


def kubeconfig(url: str, namespace: str = "team") -> str:
    context = {"cluster": "fake", "user": "tester"}
    named = {"fake": namespace, "other": "elsewhere"}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "fake",
        "clusters": [{"name": "fake", "cluster": {"server": url}}],
        "users": [{"name": "tester", "user": {"token": "secret-token"}}],
        "contexts": [{"name": name, "context": {**context, "namespace": one}} for name, one in named.items()],
    }
    return json.dumps(content)
