"""Looks at one job, its pods, group, queue and nodes, and remembers since when each state has held."""

from collections.abc import Callable
from datetime import datetime

from rerail.plugins.kube.api import KubeApi, Obj
from rerail.plugins.kube.resources import EVENTS, NODES, PODS
from rerail.plugins.volcano.facts import gang_facts, owned_by
from rerail.plugins.volcano.job import JOB_NAME_LABEL, JOB_NAMESPACE_LABEL, VolcanoJob
from rerail.plugins.volcano.podgroup import PodGroup
from rerail.plugins.volcano.queue import Queue
from rerail.policies.errors import ForbiddenError, NotFoundError, NotInstalledError
from rerail.policies.volcano_verdict import (
    QUEUE_MISSING,
    GangFacts,
    StuckCode,
    StuckTimers,
    Verdict,
    judge_gang,
    stuck_states,
)


class Observer:
    """Judges one job each time it is asked to look.

    What the account may not read (nodes and queues are cluster-wide) is left out of the judgement, not guessed.

    Args:
        api: The API server.
        name: The job.
        namespace: The API's own by default.
        uid: Only this very job: another one of its name means that it is gone.
        timers: From when on a state is stuck.
        now: The cluster's wall clock, for the age of deletions.
    """

    def __init__(
        self,
        api: KubeApi,
        name: str,
        *,
        namespace: str | None,
        uid: str | None,
        timers: StuckTimers | None,
        now: Callable[[], datetime],
    ) -> None:
        self._api = api
        self._name = name
        self._place = namespace or api.namespace
        self._uid = uid
        self._timers = timers or StuckTimers()
        self._now = now
        self._since: dict[StuckCode, float] = {}

    def look(self, *, final_commit: bool | None = None) -> Verdict:
        """Read what there is and judge it.

        Args:
            final_commit: Whether the run's own marker says that the work is done; None where there is no marker.
        """
        facts = self.facts(final_commit=final_commit)
        at = self._api.clock()
        states = stuck_states(facts)
        self._since = {code: self._since.get(code, at) for code in states}
        return judge_gang(facts, {code: at - since for code, since in self._since.items()}, self._timers)

    def facts(self, *, final_commit: bool | None = None) -> GangFacts:
        """Read what there is."""
        job = self._job()
        if job is None:
            return gang_facts(None, name=self._name, now=self._now(), final_commit=final_commit)
        self._uid = job.uid
        labels = {JOB_NAME_LABEL: self._name, JOB_NAMESPACE_LABEL: self._place}
        pods = self._api.list(PODS, namespace=self._place, labels=labels).items
        mine = tuple(pod for pod in pods if owned_by(pod, job.uid))
        return gang_facts(
            job,
            name=self._name,
            now=self._now(),
            pods=mine,
            group=self._group(job),
            queue_state=self._queue_state(job.spec.queue) if job.phase == "Pending" else None,
            ready_nodes=self._ready_nodes(mine),
            events=self._events(job) if job.phase == "Terminated" else (),
            final_commit=final_commit,
        )

    def _job(self) -> VolcanoJob | None:
        try:
            job = VolcanoJob.from_dict(self._api.get(VolcanoJob.RESOURCE, self._name, namespace=self._place))
        except NotInstalledError:
            raise
        except NotFoundError:
            return None
        return job if self._uid in (None, job.uid) else None

    def _group(self, job: VolcanoJob) -> PodGroup | None:
        try:
            return PodGroup.from_dict(self._api.get(PodGroup.RESOURCE, job.pod_group_name, namespace=self._place))
        except (NotFoundError, ForbiddenError):
            return None

    def _queue_state(self, name: str) -> str | None:
        try:
            queue = Queue.from_dict(self._api.get(Queue.RESOURCE, name))
        except NotFoundError:
            return QUEUE_MISSING
        except ForbiddenError:
            return None
        return str(queue.status.state or "Unknown")

    def _ready_nodes(self, pods: tuple[Obj, ...]) -> frozenset[str] | None:
        """Names of the ready nodes among those of pods that are to go; only they need a look."""
        names = {
            str(pod["spec"]["nodeName"])
            for pod in pods
            if pod["metadata"].get("deletionTimestamp") and pod["spec"].get("nodeName")
        }
        ready: set[str] = set()
        for name in sorted(names):
            try:
                node = self._api.get(NODES, name)
            except NotFoundError:
                continue
            except ForbiddenError:
                return None
            conditions = (node.get("status") or {}).get("conditions") or []
            if any(one.get("type") == "Ready" and one.get("status") == "True" for one in conditions):
                ready.add(name)
        return frozenset(ready)

    def _events(self, job: VolcanoJob) -> tuple[Obj, ...]:
        try:
            return self._api.list(EVENTS, namespace=self._place, fields=f"involvedObject.uid={job.uid}").items
        except ForbiddenError:
            return ()
