"""The crash points of an operation on one backend: listed by a recording, and each carried out and judged."""

import itertools
import secrets
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from crash_disk import Disk, Event, Recorder, Tree, plant, read_tree
from crash_story import OURS, Ack, Code, Operation, Process, judge

from rerail.plugins.checkpoint import proof
from rerail.plugins.checkpoint.posix import PosixStore
from rerail.plugins.checkpoint.store import Store
from rerail.policies.errors import RerailError

KILL, POWER, REPLY, REQUEST = "kill", "un-synced lost", "reply lost", "request lost"


class Point(NamedTuple):
    """One way to fail: before call ``boundary`` (calls done until then), or in it where a request or reply is lost."""

    operation: str
    backend: str
    boundary: int
    mode: str

    @property
    def column(self) -> str:
        """The mode's column of the table: what rivals do is told by the operation's tests."""
        return self.mode.partition(":")[0]


class Found(NamedTuple):
    """What a point showed: the number of states that were recovered from, and everything wrong."""

    states: int
    wrong: list[str]


class Crash(BaseException):
    """Ends an operation as SIGKILL does: nothing that cleans up gets through any more."""


@contextmanager
def another_process() -> Iterator[None]:
    """What runs inside has proven no store yet, and waits for no lock of this process."""
    lock, proven = proof._lock, set(proof._proven)
    proof._lock = threading.Lock()
    try:
        yield
    finally:
        proof._lock = lock
        proof._proven.clear()
        proof._proven.update(proven)


def folder_store(root: Path, name: str, recorder: Recorder | None = None) -> PosixStore:
    """A store whose temporary names are known beforehand, so that two recordings can be compared."""
    numbers = itertools.count()
    return PosixStore(
        root, files=recorder, token=lambda: f"{name}{next(numbers):04d}", clock=lambda: 0.0, sleep=lambda _: None
    )


def attempt_it(operation: Callable[[Process], Any], process: Process) -> list[str]:
    """Do it; a typed error is an answer, anything else is wrong."""
    try:
        operation(process)
    except RerailError:
        return []
    except (OSError, ValueError, LookupError) as error:
        return [f"an untyped error came out: {type(error).__name__}: {error}"]
    return []


def kill_here() -> None:
    """SIGKILL for this very process."""
    signal.raise_signal(signal.SIGKILL)


@dataclass
class FolderLab:
    """The points of one operation on a POSIX folder."""

    name: str
    operation: Operation
    scratch: Path
    code: Code = OURS
    recorder: type[Recorder] = Recorder
    trust: Callable[[Store], Store] = lambda store: store
    world_size: int = 2
    killer: Callable[[dict[str, Any]], tuple[int, list[Ack]]] | None = None
    backend: str = "posix"
    events: list[Event] = field(default_factory=list)
    acks: list[tuple[int, Ack]] = field(default_factory=list)
    length: int = 0

    def __post_init__(self) -> None:
        self._number = itertools.count()
        self._base: list[Event] = []
        self._base_acks: list[Ack] = []
        self._judged: dict[tuple[object, ...], list[str]] = {}
        self.template = self.scratch / "template"
        self.template.mkdir(parents=True)
        recorder = Recorder(self.template)  # what is broken is only the operation, or every point would show it
        process = Process(folder_store(self.template, "old", recorder), "history", self.world_size)
        process.ack = self._base_acks.append
        self.operation.prepare(process)
        self._base = recorder.events
        self._record()

    def _process(self, root: Path, name: str, recorder: Recorder, ack: Callable[[Ack], None]) -> Process:
        store = self.trust(folder_store(root, name, recorder))
        return Process(store, name, self.world_size, ack, self.code)

    def _fresh(self) -> Path:
        root = self.scratch / f"{next(self._number)}"
        shutil.copytree(self.template, root)
        return root

    def _record(self) -> None:
        root = self._fresh()
        recorder = self.recorder(root)
        self.operation.act(self._process(root, "act", recorder, lambda ack: self.acks.append((recorder.done, ack))))
        self.events, self.length = recorder.events, recorder.done
        shutil.rmtree(root)

    def disk(self, boundary: int, *, half: bool = False) -> Disk:
        """The disk when ``boundary`` calls are done; with ``half``, the next one is a write that got half through."""
        disk, done = Disk(), 0
        for event in self._base:
            disk.apply(event)
        for event in self.events:
            if done == boundary:
                if half and event.call == "write":
                    disk.apply(event._replace(data=event.data[: len(event.data) // 2]))
                break
            disk.apply(event)
            done += event.ok
        return disk

    def told(self, boundary: int) -> list[Ack]:
        """What was acknowledged until then, by history and the operation."""
        return self._base_acks + [ack for at, ack in self.acks if at <= boundary]

    def points(self) -> list[Point]:
        """Every point, in order."""
        found = []
        for boundary in range(self.length + 1):
            found.append(Point(self.name, self.backend, boundary, KILL))
            if self.disk(boundary).after_power_cut():
                found.append(Point(self.name, self.backend, boundary, POWER))
            if boundary < self.length:
                found.append(Point(self.name, self.backend, boundary, REPLY))
                found += [
                    Point(self.name, self.backend, boundary, f"overtaken: {who}") for who in self.operation.rivals
                ]
        return found

    def carry_out(self, point: Point) -> Found:
        """Let it happen, recover, and tell what is wrong."""
        if point.mode == KILL:
            return self._killed(point.boundary)
        if point.mode == POWER:
            ways = self.disk(point.boundary).after_power_cut()
            told = self.told(point.boundary)
            return Found(len(ways), [text for way, tree in ways.items() for text in self._judge_tree(tree, told, way)])
        if point.mode == REPLY:
            return self._reply_lost(point.boundary)
        return self._overtaken(point.boundary, point.mode.partition(": ")[2])

    def _killed(self, boundary: int) -> Found:
        """By a real SIGKILL where there is a killer, else by the recording's picture: the two are the same."""
        told, tree = self.told(boundary), self.disk(boundary).tree()
        if self.killer:
            wrong = self._really_killed(self.killer, boundary, tree)
        else:
            wrong = self._judge_tree(tree, told, "killed")
        torn = self.disk(boundary, half=True).tree()
        if torn == tree:
            return Found(1, wrong)
        return Found(2, wrong + self._judge_tree(torn, told, "killed within a write"))

    def _really_killed(
        self, killer: Callable[[dict[str, Any]], tuple[int, list[Ack]]], boundary: int, expected: Tree
    ) -> list[str]:
        root = self.scratch / f"{next(self._number)}"
        job = {"job": "folder", "operation": self.name, "template": str(self.template), "root": str(root)}
        ended, acks = killer({**job, "boundary": boundary, "world_size": self.world_size})
        told = self._base_acks + acks
        assert ended == -signal.SIGKILL
        assert self._blurred(read_tree(root)) == self._blurred(expected)
        assert [ack.key for ack in told] == [ack.key for ack in self.told(boundary)]
        return [f"killed: {text}" for text in self.judge_folder(root, told)]

    def _blurred(self, tree: Tree) -> object:
        """Without bytes that are random in each run."""
        return {path: data and len(data) for path, data in tree.items()} if self.operation.random else tree

    def _reply_lost(self, boundary: int) -> Found:
        root = self._fresh()
        told = list(self._base_acks)
        recorder = self.recorder(root, lose=boundary)
        wrong = attempt_it(self.operation.act, self._process(root, "act", recorder, told.append))
        return Found(1, wrong + self.judge_folder(root, told))

    def _overtaken(self, boundary: int, who: str) -> Found:
        root = self._fresh()
        told = list(self._base_acks)
        recorder = self.recorder(root)
        after: list[tuple[dict[str, Tree], list[Ack]]] = []
        wrong: list[str] = []

        def before(done: int) -> None:
            if done != boundary or after:
                return
            after.append(({}, []))
            rival = self.recorder(root)
            rival.events = recorder.events
            with another_process():
                wrong.extend(attempt_it(self.operation.rivals[who], self._process(root, "rival", rival, told.append)))
            disk = Disk()
            for event in self._base + recorder.events:
                disk.apply(event)
            after.append((disk.after_power_cut(), list(told)))

        recorder.before = before
        wrong += attempt_it(self.operation.act, self._process(root, "act", recorder, told.append))
        wrong += self.judge_folder(root, told)
        states = 1
        for ways, acks in after:
            states += len(ways)
            wrong += [text for way, tree in ways.items() for text in self._judge_tree(tree, acks, f"then {way}")]
        return Found(states, wrong)

    def _judge_tree(self, tree: Tree, told: list[Ack], how: str) -> list[str]:
        seen = (frozenset(tree.items()), tuple(told))
        if seen not in self._judged:
            self._judged[seen] = self.judge_folder(plant(tree, self.scratch / f"{next(self._number)}"), told)
        return [f"{how}: {text}" for text in self._judged[seen]]

    def judge_folder(self, root: Path, told: list[Ack]) -> list[str]:
        """Recover from what lies there, with the product's own store, and remove it."""
        wrong = judge(folder_store(root, "new"), self.operation, told, world_size=self.world_size)
        shutil.rmtree(root)
        return wrong


@dataclass
class BucketLab:
    """The points of one operation on S3. Its requests pass a proxy, that can lose them or their replies."""

    name: str
    operation: Operation
    bucket: str
    direct: Any
    proxied: Any
    proxy: Any
    make_store: Callable[[Any], Store]
    prepared: dict[Callable[[Process], Any], tuple[dict[str, bytes], list[Ack]]]
    code: Code = OURS
    trust: Callable[[Store], Store] = lambda store: store
    world_size: int = 1
    backend: str = "s3"
    sent: list[tuple[str, str]] = field(default_factory=list)
    length: int = 0
    acknowledged: int = 0

    def __post_init__(self) -> None:
        self._own = secrets.token_hex(8)
        self._number = itertools.count()
        self._before: Callable[[], None] = lambda: None
        self._there = self.make_store(self.direct)
        self._through = self.make_store(self.proxied)
        self.proxied.meta.events.register("before-send.s3", self._sending, unique_id="crash")
        if self.operation.prepare not in self.prepared:
            template, acks = self.prefix(), list[Ack]()
            process = Process(self._there.below(template), "history", self.world_size, acks.append)
            self.operation.prepare(process)
            self.prepared[self.operation.prepare] = self.read(template), acks
        self.template, self._base_acks = self.prepared[self.operation.prepare]
        self.proxy.requests.clear()
        self.sent.clear()
        prefix = self.plant(self.template)
        acks: list[Ack] = []
        self.operation.act(self._process(self._through, prefix, "act", acks.append))
        self.acknowledged = len(acks)
        self.length = len(self.sent)
        self.recorded = list(self.sent)
        self.received = [(request.method, request.target) for request in self.proxy.requests]

    def prefix(self) -> str:
        """A prefix that nobody has used."""
        return f"crash/{self._own}-{next(self._number)}"

    def _sending(self, request: Any, **_: object) -> None:
        self._before()
        where = urlsplit(request.url)
        self.sent.append((request.method, f"{where.path}?{where.query}" if where.query else where.path))

    def _process(self, store: Store, prefix: str, name: str, ack: Callable[[Ack], None]) -> Process:
        return Process(self.trust(store.below(prefix)), name, self.world_size, ack, self.code)

    def process(self, prefix: str, ack: Callable[[Ack], None]) -> Process:
        """The process that does the operation, below a prefix."""
        return self._process(self._through, prefix, "act", ack)

    def plant(self, objects: dict[str, bytes]) -> str:
        """Put these objects under a new prefix."""
        prefix = self.prefix()
        with ThreadPoolExecutor(8) as pool:
            list(
                pool.map(
                    lambda one: self.direct.put_object(Bucket=self.bucket, Key=f"{prefix}/{one[0]}", Body=one[1]),
                    objects.items(),
                )
            )
        return prefix

    def read(self, prefix: str) -> dict[str, bytes]:
        """All objects under a prefix, by key below it."""
        answer = self.direct.list_objects_v2(Bucket=self.bucket, Prefix=f"{prefix}/")
        keys = [one["Key"] for one in answer.get("Contents", []) if not one["Key"].endswith("/")]
        return {
            key.removeprefix(f"{prefix}/"): self.direct.get_object(Bucket=self.bucket, Key=key)["Body"].read()
            for key in keys
        }

    def points(self) -> list[Point]:
        """Every point, in order."""
        found = []
        for boundary in range(self.length + 1):
            found.append(Point(self.name, self.backend, boundary, KILL))
            if boundary < self.length:
                modes = [REQUEST, REPLY, *(f"overtaken: {who}" for who in self.operation.rivals)]
                found += [Point(self.name, self.backend, boundary, mode) for mode in modes]
        return found

    def carry_out(self, point: Point) -> Found:
        """Let it happen, recover, and tell what is wrong."""
        prefix, told = self.plant(self.template), list(self._base_acks)
        process = self.process(prefix, told.append)
        wrong: list[str] = []
        if point.mode == KILL:
            self.killed(process, point.boundary)
        elif point.mode in {REQUEST, REPLY}:
            wrong += self._lossy(process, point.boundary, reply=point.mode == REPLY)
            if len(told) - len(self._base_acks) != self.acknowledged:
                wrong.append("one lost message is no reason to fail, and not all was acknowledged")
        else:
            wrong += self._overtaken(process, point.boundary, prefix, point.mode.partition(": ")[2])
        untouched = () if self.operation.collects else self._base_acks
        there = self._there.below(prefix)
        wrong += judge(there, self.operation, told, world_size=self.world_size, untouched=untouched)
        return Found(1, wrong)

    def killed(self, process: Process, boundary: int) -> None:
        """End the operation before its request ``boundary``; what it would still send does not leave the process."""
        start = len(self.sent)

        def before() -> None:
            if len(self.sent) - start >= boundary:
                raise Crash

        self._before = before
        try:
            with suppress(Crash):
                self.operation.act(process)
        finally:
            self._before = lambda: None

    def _lossy(self, process: Process, boundary: int, *, reply: bool) -> list[str]:
        seen = itertools.count()

        def at_the_point(*_: object) -> None:
            if next(seen) == boundary:
                raise self.proxy.drop

        before = self.proxy.on_request, self.proxy.on_reply
        if reply:
            self.proxy.on_reply = at_the_point
        else:
            self.proxy.on_request = at_the_point
        try:
            return attempt_it(self.operation.act, process)
        finally:
            self.proxy.on_request, self.proxy.on_reply = before

    def _overtaken(self, process: Process, boundary: int, prefix: str, who: str) -> list[str]:
        start, wrong = len(self.sent), []

        def before() -> None:
            if len(self.sent) - start == boundary:
                self._before = lambda: None
                with another_process():
                    rival = self._process(self._through, prefix, "rival", process.ack)
                    wrong.extend(attempt_it(self.operation.rivals[who], rival))

        self._before = before
        try:
            wrong += attempt_it(self.operation.act, process)
        finally:
            self._before = lambda: None
        return wrong
