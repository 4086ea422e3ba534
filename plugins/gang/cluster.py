"""What the gangs of one run look like in a cluster: watched, and judged with memory, for every backend there."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from threading import Event, Lock
from typing import Any, Final, Self

from rerail.plugins.gang.pods import HELD_BACK, PodMemory, facts_of, held_back, is_ghost
from rerail.plugins.kube.api import KubeApi
from rerail.plugins.kube.cache import Cache
from rerail.plugins.kube.resources import PODS
from rerail.plugins.kube.watch import Change
from rerail.plugins.volcano import PodGroup, Queue, VolcanoClient, VolcanoJob
from rerail.plugins.volcano.enums import FINAL_PHASES, JobPhase
from rerail.plugins.volcano.facts import gang_facts
from rerail.policies.errors import ForbiddenError, NotFoundError, RerailError, TransientError
from rerail.policies.supervisor.observations import GangView, PodView, StuckView
from rerail.policies.volcano_verdict import (
    QUEUE_MISSING,
    GangFacts,
    PodFacts,
    StuckTimers,
    Verdict,
    judge_gang,
    stuck_states,
)
from rerail.policies.workloads.attempt import GANG_LABEL, RUN_LABEL

Obj = dict[str, Any]

TIMERS: Final = StuckTimers(stranded_s=30.0, inqueue_s=600.0)
"""A gang that waits its turn looks like one that leaks quota: only a long wait tells them apart."""

_OVER: Final = FINAL_PHASES | {JobPhase.ABORTED}
"""No pod of these runs; a person may resume an aborted job, and then it is ended once more."""

_GOING: Final = frozenset({JobPhase.TERMINATING, JobPhase.ABORTING, JobPhase.COMPLETING})
_LIVE: Final = frozenset({"Pending", "Running", "Unknown"})
_QUEUE_EVERY_S: Final = 5.0
_BURST_S: Final = 0.1
"""What one change brings about comes in many; it is looked at once."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything of a run, as one pass saw it.

    Attributes:
        jobs: Vcjobs by gang; of another backend, none.
        groups: PodGroups by gang.
        pods: Pods by gang.
    """

    jobs: Mapping[str, VolcanoJob]
    groups: Mapping[str, PodGroup]
    pods: Mapping[str, list[Obj]]

    def live(self, gang: str) -> Iterator[Obj]:
        """Pods that may still hold processes."""
        return (pod for pod in self.pods.get(gang, ()) if (pod.get("status") or {}).get("phase", "Pending") in _LIVE)


@dataclass(slots=True)
class GangWatch:
    """Watches and judges the gangs of one run; use it in a ``with`` statement.

    Attributes:
        client: Volcano's API, in the run's namespace.
        with_jobs: Whether gangs are vcjobs; else PodGroups with pods of their own.
        memory: What was seen of pods.
        as_ours: A pod as the run knows it, where somebody else names its pods.
        timers: From when on a state is stuck.
        now: The cluster's wall clock.
    """

    run: str
    client: VolcanoClient
    with_jobs: bool
    memory: PodMemory
    as_ours: Callable[[Obj], Obj] = lambda pod: pod
    timers: StuckTimers = TIMERS
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    clock: Callable[[], float] = time.monotonic
    _pods: Cache[Obj] = field(init=False)
    _groups: Cache[Obj] = field(init=False)
    _jobs: Cache[Obj] | None = field(init=False)
    _since: dict[tuple[str, str], float] = field(default_factory=dict)
    _queues: dict[str, tuple[float, str | None]] = field(default_factory=dict)
    _news: Lock = field(default_factory=Lock)
    _live: dict[str, Obj] = field(default_factory=dict)
    _went: list[Obj] = field(default_factory=list)
    _changed: Event = field(default_factory=Event)

    @property
    def api(self) -> KubeApi:
        """The API server."""
        return self.client.api

    def __post_init__(self) -> None:
        kept: dict[str, Any] = {"keep": lambda one: one, "labels": {RUN_LABEL: self.run}}
        self._pods = Cache(self.api, PODS, on_change=self._told, **kept)
        told: dict[str, Any] = {"on_change": lambda _change, _one: self.wake(), **kept}
        self._groups = Cache(self.api, PodGroup.RESOURCE, **told)
        self._jobs = Cache(self.api, VolcanoJob.RESOURCE, **told) if self.with_jobs else None

    def __enter__(self) -> Self:
        for cache in self._caches():
            cache.start()
        return self

    def __exit__(self, *_: object) -> None:
        for cache in self._caches():
            cache.stop()

    def _caches(self) -> tuple[Cache[Obj], ...]:
        return (self._pods, self._groups, *((self._jobs,) if self._jobs is not None else ()))

    def snapshot(self) -> Snapshot:
        """What is there, as three watches have it: looking costs no request.

        Raises:
            TransientError: The API server does not answer.
            RefusedError: A right is missing.
        """
        pods: dict[str, list[Obj]] = defaultdict(list)
        for pod in self._living():
            pods[_gang_of(pod)].append(pod)
        jobs = [VolcanoJob.from_dict(one) for one in (self._jobs.values() if self._jobs is not None else ())]
        groups = {_gang_of(one): PodGroup.from_dict(one) for one in self._groups.values()}
        return Snapshot({job.name: job for job in jobs}, groups, pods)

    def _told(self, change: Change, pod: Obj) -> None:
        """In the watch's thread: a pod that goes between two looks is kept as it was when it went."""
        name, ours = str(pod["metadata"]["name"]), self.as_ours(pod)
        with self._news:
            if change == "deleted":
                self._went.append(ours)
                self._live.pop(name, None)
            else:
                self._live[name] = ours
        self.wake()

    def wake(self) -> None:
        """End the doze: there is something to look at."""
        self._changed.set()

    def doze(self, within_s: float) -> None:
        """Wait so long, or until something of the gangs changed since this returned last, or somebody woke us."""
        burst_s = min(_BURST_S, within_s)
        self._changed.wait(within_s - burst_s)
        time.sleep(burst_s)
        self._changed.clear()

    def _living(self) -> list[Obj]:
        """The pods that are there; what those that went said last is remembered first."""
        self._pods.check()
        with self._news:
            live, went = list(self._live.values()), self._went
            self._went = []
        for pod, facts in zip(went, facts_of(went, self.memory, now=self.now()), strict=True):
            self.memory.view(pod, facts)
        return sorted(live, key=lambda pod: str(pod["metadata"]["name"]))

    def facts(self, gang: str) -> tuple[GangFacts, list[tuple[Obj, PodFacts]]]:
        """What counts about a gang, and its pods with what counts about each."""
        seen = self.snapshot()
        pods = seen.pods.get(gang, [])
        each = facts_of(pods, self.memory, now=self.now())
        job, group = seen.jobs.get(gang), seen.groups.get(gang)
        if self.with_jobs:
            queue = job.spec.queue if job is not None and job.phase == JobPhase.PENDING else None
            facts = gang_facts(
                job, name=gang, now=self.now(), group=group, queue_state=self._queue_state(queue) if queue else None
            )
        else:
            facts = self._of_group(gang, group, each)
        return facts.model_copy(update={"pods": tuple(each)}), list(zip(pods, each, strict=True))

    def view(self, gang: str, expected: tuple[str, ...]) -> GangView:
        """A gang as the machine sees it.

        Args:
            gang: Its name.
            expected: The pods that hold its ranks, in order.
        """
        facts, pods = self.facts(gang)
        there = {each.name: self.memory.view(pod, each) for pod, each in pods}
        over = facts.phase in _OVER or (facts.phase in _GOING and not there)
        missing = over or (not facts.found and bool(there))
        views: list[PodView] = []
        for name in expected:
            if name in there:
                views.append(there[name])
            elif missing or self.memory.knows(name):
                views.append(self.memory.lost(name))
        verdict = self._verdict(facts)
        unplaced = [name for name in expected if name not in there or not there[name].node]
        waits = verdict.why if facts.found and not over and unplaced else ""
        return GangView(
            name=gang,
            pods=tuple(views),
            waits=waits,
            stuck=self._stuck(gang, facts, verdict, pods),
            absent=not facts.found and not there,
        )

    def ended(self, gang: str) -> bool:
        """Whether nothing of the gang runs or will run; what lies on a node that does not report counts as nothing."""
        facts, pods = self.facts(gang)
        if any(each.phase in _LIVE and not is_ghost(each) for _, each in pods):
            return False
        return not facts.found or not self.with_jobs or facts.phase in _OVER | _GOING

    def _of_group(self, gang: str, group: PodGroup | None, pods: list[PodFacts]) -> GangFacts:
        """The facts of a gang without a vcjob: its phase is the group's, and it is over when all its pods are."""
        if group is None:
            return GangFacts(name=gang, found=False)
        condition = group.unschedulable
        phase = "Running" if group.phase in ("Running", "Unknown", "Completed") else "Pending"
        if pods and all(pod.phase in ("Succeeded", "Failed") for pod in pods):
            phase = JobPhase.TERMINATED
        queue = group.spec.queue or "default"
        return GangFacts(
            name=gang,
            phase=phase,
            min_available=group.spec.min_member or 0,
            group_phase=str(group.phase),
            unschedulable=None if condition is None or phase == "Running" else condition.reason or "Unschedulable",
            message="" if condition is None else condition.message or "",
            queue=queue,
            queue_state=self._queue_state(queue) if phase == "Pending" else None,
        )

    def _verdict(self, facts: GangFacts) -> Verdict:
        at_s = self.clock()
        states = stuck_states(facts)
        for key in [key for key in self._since if key[0] == facts.name and key[1] not in (*states, "image")]:
            del self._since[key]
        held = {code: at_s - self._since.setdefault((facts.name, code), at_s) for code in states}
        return judge_gang(facts, held, self.timers)

    def _stuck(
        self, gang: str, facts: GangFacts, verdict: Verdict, pods: list[tuple[Obj, PodFacts]]
    ) -> StuckView | None:
        if verdict.stuck in ("S7", "S8") or (verdict.stuck == "S3" and facts.found):
            return None  # S7, S8: told by ``waits``, which has a bound of its own; a ghost is no reason to end a gang
        if verdict.stuck is not None:
            return StuckView(code=verdict.stuck, why=verdict.why, way_out=verdict.way_out, pods=verdict.pods)
        return self._held_back(gang, pods)

    def _held_back(self, gang: str, pods: list[tuple[Obj, PodFacts]]) -> StuckView | None:
        at_s = self.clock()
        found = [(each.name, held) for pod, each in pods if (held := held_back(pod)) is not None]
        if not found:
            self._since.pop((gang, "image"), None)
            return None
        name, (reason, message) = min(found, key=lambda one: HELD_BACK[one[1][0]])
        if at_s - self._since.setdefault((gang, "image"), at_s) < HELD_BACK[reason]:
            return None
        return StuckView(
            code="image",
            why=f"the container of pod {name} cannot begin: {reason}: {message}",
            way_out="correct the image or what the container needs, then run the same command again",
            pods=tuple(name for name, _ in found),
        )

    def _queue_state(self, name: str) -> str | None:
        """The queue's state, asked for at most every few seconds; None where nobody may look, or gets an answer."""
        at_s = self.clock()
        known = self._queues.get(name)
        if known is not None and at_s - known[0] < _QUEUE_EVERY_S:
            return known[1]
        try:
            state: str | None = str(self.client.get(Queue, name).status.state or "Unknown")
        except NotFoundError:
            state = QUEUE_MISSING
        except (ForbiddenError, TransientError):
            state = None
        self._queues[name] = (self.clock(), state)
        return state


def _gang_of(one: Obj) -> str:
    return str((one["metadata"].get("labels") or {}).get(GANG_LABEL, ""))


def is_ours(labels: Mapping[str, str], *, run: str, gang: str) -> bool:
    """Whether an object carries our run id and gang name, so that it may be adopted."""
    return labels.get(RUN_LABEL) == run and labels.get(GANG_LABEL) == gang


def refusal_words(error: RerailError) -> str:
    """Why a gang is not created yet, for people who look at the run."""
    return f"the API server does not accept the gang yet: {error}"
