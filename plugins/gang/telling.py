"""Events on nodes, gangs and the Workflow, each with its incident. The supervisor never waits for them, nor fails."""

import hashlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, Self

from rerail.plugins.kube.api import KubeApi, Patience
from rerail.plugins.kube.events import About, with_uid, write_event
from rerail.plugins.kube.resources import NODES, ResourceType
from rerail.plugins.volcano.job import JOBS
from rerail.plugins.volcano.podgroup import POD_GROUPS
from rerail.policies.errors import RerailError, TransientError
from rerail.policies.owners import WorkflowRef
from rerail.policies.supervisor.news import News, news
from rerail.policies.supervisor.state import LedgerEntry, RunState

COMPONENT: Final = "rerail-supervisor"
_WORKFLOWS: Final = ResourceType("argoproj.io", "v1alpha1", "workflows", "Workflow", product="Argo Workflows")
_MOST: Final = 200
_TRIES: Final = 5
_AGAIN_S: Final = 2.0
_FAREWELL_S: Final = 3.0


@dataclass(frozen=True, slots=True)
class _Telling:
    about: About
    news: News
    at_s: float


@dataclass(slots=True)
class Teller:
    """Writes Events in a thread of its own; use it in a ``with`` statement.

    Attributes:
        api: The API server.
        kind: Of the gangs' backend: vcjob or podgroup.
        owner: Who drives the run; a Workflow is told as well.
        log: Takes one line about each kind of Event that cannot be written, once.
    """

    api: KubeApi
    kind: str
    owner: str = ""
    log: Callable[[str], None] = lambda _line: None
    _before: RunState | None = None
    _owed: deque[_Telling] = field(default_factory=lambda: deque(maxlen=_MOST))
    _news: threading.Condition = field(default_factory=threading.Condition)
    _leaving: bool = False
    _said: set[str] = field(default_factory=set)
    _thread: threading.Thread | None = None

    def __post_init__(self) -> None:
        once = Patience(request_s=5.0, total_s=0.0)
        api = self.api
        self.api = KubeApi(api.connection, patience=once, clock=api.clock, sleep=api.sleep, jitter=api.jitter)

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._loop, name="rerail-events", daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._news:
            self._leaving = True
            self._news.notify_all()
        if self._thread is not None:
            self._thread.join(_FAREWELL_S)

    def entry(self, entry: LedgerEntry) -> None:
        """Take one decision, as ``Supervisor.on_event`` does."""
        found = news(self._before, entry.state)
        self._before = entry.state
        with self._news:
            self._owed.extend(_Telling(about, one, entry.at_s) for one in found for about in self._objects(one))
            self._news.notify_all()

    def _objects(self, one: News) -> Iterator[About]:
        if one.gang:
            yield About(JOBS if self.kind == "vcjob" else POD_GROUPS, one.gang, self.api.namespace)
        if one.node:
            yield About(NODES, one.node)
        workflow = WorkflowRef.of(self.owner)
        if workflow is not None and one.reason == "GangFaulted":  # its steps tell the rest
            yield About(_WORKFLOWS, workflow.name, workflow.namespace, workflow.uid)

    def _loop(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._owed or self._leaving)
                if not self._owed:
                    return
                telling = self._owed.popleft()
            self._tell(telling)

    def _tell(self, telling: _Telling) -> None:
        for number in range(_TRIES):
            try:
                self._write(telling)
            except TransientError as error:
                self._say("", f"Events cannot be written now: {error}")
                if number + 1 < _TRIES and not self._leaving:
                    self._pause()
                    continue
            except RerailError as error:
                kind = telling.about.resource.full_name
                self._say(kind, f"Events of {kind} are not written: {error}")
            return

    def _pause(self) -> None:
        until_s = time.monotonic() + _AGAIN_S
        with self._news:
            self._news.wait_for(lambda: self._leaving or time.monotonic() >= until_s, timeout=_AGAIN_S)

    def _write(self, telling: _Telling) -> None:
        about, one = telling.about, telling.news
        key = f"{about.resource.full_name}/{one.reason}/{one.incident}/{one.gang}"
        write_event(
            self.api,
            with_uid(self.api, about),
            name=f"{about.name[:40].rstrip('.-')}.{hashlib.sha256(key.encode()).hexdigest()[:16]}",
            reason=one.reason,
            text=one.text,
            warning=one.warning,
            component=COMPONENT,
            at_s=telling.at_s,
        )

    def _say(self, about: str, line: str) -> None:
        if about not in self._said:
            self._said.add(about)
            self.log(line)
