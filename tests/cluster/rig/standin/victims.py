"""Who may be evicted for whom: the plugins of the one tier are asked in turn, and only what all name is taken."""

import json
import urllib.request
from collections.abc import Callable, Sequence
from typing import Final

from rig.standin.conf import Conf, Extender
from rig.standin.model import READY, SLACK, Task, plus
from rig.standin.objects import namespace_of
from rig.standin.session import Session
from rig.standin.shares import Share
from rig.standin.teller import log

Names = list[Task] | None
"""The victims that a plugin names; None where it abstains."""
CRITICAL: Final = frozenset({"system-cluster-critical", "system-node-critical"})


class Jury:
    def __init__(self, session: Session, conf: Conf, shares: dict[str, Share]) -> None:
        self._session = session
        self._conf = conf
        self._shares = shares

    def victims(self, question: str, evictor: Task, candidates: Sequence[Task]) -> list[Task]:
        """Those candidates that may be evicted for a task.

        As in the real one, an empty answer ends it with nobody, and so does an empty intersection only at the end: in
        the middle, the next plugin starts afresh.

        Args:
            question: preemptable or reclaimable.
            evictor: For whom.
            candidates: Tasks on one node.
        """
        agreed: list[Task] = []
        plugins = self._conf.preemptable if question == "preemptable" else self._conf.reclaimable
        for plugin in plugins:
            named = self._ask(plugin, question, evictor, list(candidates))
            if named is None:
                continue
            if not named:
                return []
            uids = {task.uid for task in named}
            agreed = [task for task in agreed if task.uid in uids] if agreed else named
        return agreed

    def _ask(self, plugin: str, question: str, evictor: Task, candidates: list[Task]) -> Names:
        plugins: dict[str, Callable[[Task, list[Task]], Names]] = {
            "priority": self._priority,
            "gang": self._gang,
            "conformance": self._conformance,
            "proportion": self._proportion,
        }
        if plugin == "extender":
            assert self._conf.extender
            return ask(self._conf.extender, question, evictor, candidates)
        return plugins[plugin](evictor, candidates)

    def _priority(self, evictor: Task, candidates: list[Task]) -> Names:
        gangs = self._session.gangs
        own = gangs[evictor.group]

        def lower(task: Task) -> bool:
            if task.group == evictor.group:
                return task.priority < evictor.priority
            return gangs[task.group].priority < own.priority

        return [task for task in candidates if lower(task)]

    def _gang(self, _: Task, candidates: list[Task]) -> Names:
        """Only what a gang can spare."""
        spare = {key: gang.count(READY) - gang.least for key, gang in self._session.gangs.items()}
        found: list[Task] = []
        for task in candidates:
            if spare[task.group] > 0:
                spare[task.group] -= 1
                found.append(task)
        return found

    @staticmethod
    def _conformance(_: Task, candidates: list[Task]) -> Names:
        return [
            task
            for task in candidates
            if task.pod["spec"].get("priorityClassName") not in CRITICAL and namespace_of(task.pod) != "kube-system"
        ]

    def _proportion(self, _: Task, candidates: list[Task]) -> Names:
        """Only from queues that have more than they deserve, and only as long as they do."""
        taken: list[Task] = []
        rest = {queue: share.allocated for queue, share in self._shares.items()}
        for task in candidates:
            queue = self._session.gangs[task.group].queue
            deserved = self._shares[queue].deserved
            if any(value > deserved.get(name, 0.0) + SLACK for name, value in rest[queue].items()):
                rest[queue] = plus(rest[queue], task.asked, -1)
                taken.append(task)
        return taken


def ask(extender: Extender, question: str, evictor: Task, candidates: list[Task]) -> Names:
    """Ask the service. No answer, in time and in good order, is a refusal, whether it is ignorable or not."""
    if extender.managed and not extender.managed & evictor.asked.keys():
        return None
    body = {"evictor": evictor.described(), "evictees": [task.described() for task in candidates]}
    request = urllib.request.Request(
        f"{extender.url.rstrip('/')}/{extender.verbs[question]}",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=extender.timeout_s) as answer:
            content = json.loads(answer.read())
    except (OSError, ValueError) as error:
        log(f"the extender {extender.url} did not answer: {error}")
        return []
    if content.get("status", 0) == 0:
        return None
    uids = {one.get("UID") for one in content.get("victims") or []}
    return [task for task in candidates if task.uid in uids]
