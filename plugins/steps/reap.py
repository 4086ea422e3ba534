"""``rerail step reap``: gangs whose Workflow is over save, and are ended. Other runs are left alone.

Of a Workflow that goes on only steps on lost nodes are touched: they are given up, so that Argo starts them elsewhere.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final

from rerail.plugins.checkpoint import retention
from rerail.plugins.checkpoint.attempts import read_run
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.evict.find import Place, open_place, places
from rerail.plugins.gang.clusters import FANOUT, Wanted, supervised
from rerail.plugins.gang.ledger import newest_entry
from rerail.plugins.kube.resources import PODS
from rerail.plugins.steps.ending import save_and_end
from rerail.plugins.steps.lost import give_up_lost
from rerail.plugins.steps.workflow import WORKFLOWS, read_workflow
from rerail.plugins.volcano import PodGroup, VolcanoClient, VolcanoJob
from rerail.plugins.volcano.enums import FINAL_PHASES, JobPhase
from rerail.policies.documents import RunDoc, Value
from rerail.policies.errors import RerailError
from rerail.policies.owners import WorkflowRef, called
from rerail.policies.reaping import reaping, why_reap
from rerail.policies.recovery import RecoveryPolicy
from rerail.policies.retention import AnyOf, EveryN, LatestN, RetentionPolicy
from rerail.policies.workloads.attempt import GANG_LABEL, RUN_LABEL, WORKFLOW_LABEL
from rerail.policies.workloads.fanout import POD_LABEL
from rerail.policies.workloads.reading import read_workload

_OVER: Final = frozenset({*FINAL_PHASES, JobPhase.ABORTED})
_ENDED_POD: Final = ("Succeeded", "Failed")

Obj = dict[str, Any]
Log = Callable[[str], None]


class Reaped(Value):
    """What was done about one run.

    Attributes:
        failed: It could not be dealt with.
    """

    run: str
    namespace: str
    words: str
    failed: bool = False


@dataclass(slots=True)
class Reaper:
    """Looks once at every gang that was made for a Workflow.

    Attributes:
        client: Volcano's API.
        namespace: Where to look.
        deadline_s: How long a save may take, or longer where the run's own policy says so.
        log: Takes one line for people.
        wall_s: Epoch seconds.
    """

    client: VolcanoClient
    namespace: str
    deadline_s: float
    log: Log
    wall_s: Callable[[], float] = time.time
    _kinds: dict[str, str] = field(default_factory=dict)

    def perform(self) -> list[Reaped]:
        """One line for each run that was dealt with; one that fails keeps none of the others from it.

        Raises:
            RerailError: Gangs cannot be listed.
        """
        done: list[Reaped] = []
        self._lost()
        for place, alive in self._found():
            try:
                words = self._one(place, alive=alive)
            except RerailError as error:
                words, failed = f"not dealt with: {error}", True
            else:
                failed = False
            if words:
                done.append(Reaped(run=place.run, namespace=place.namespace, words=words, failed=failed))
                self.log(f"run {place.run} in {place.namespace}: {words}")
        return done

    def _lost(self) -> None:
        """Give up steps on lost nodes; where nobody may look at nodes, none is known to be lost."""
        try:
            give_up_lost(self.client.api, self.namespace, wall_s=self.wall_s(), log=self.log)
        except RerailError as error:
            self.log(f"steps on lost nodes are not looked for: {error}")

    def _found(self) -> Iterator[tuple[Place, bool]]:
        """Each run once, with whether anything of it is left that holds room or devices."""
        api = self.client.api
        told: dict[str, Place] = {}
        alive: dict[str, bool] = {}
        pods: list[Obj] = list(api.list(PODS, namespace=self.namespace, labels=WORKFLOW_LABEL).items)
        for job in api.list(VolcanoJob.RESOURCE, namespace=self.namespace, labels=WORKFLOW_LABEL).items:
            run = str(job["metadata"]["labels"].get(RUN_LABEL, ""))
            self._kinds[run] = "vcjob"
            phase = str((((job.get("status") or {}).get("state")) or {}).get("phase") or JobPhase.PENDING)
            alive[run] = alive.get(run, False) or phase not in _OVER
            pods += [_as_pod(job, task) for task in job["spec"].get("tasks") or []]
        for run in self._with_groups():
            alive[run] = True
        for pod in pods:
            run = str(pod["metadata"]["labels"].get(RUN_LABEL, ""))
            if POD_LABEL in pod["metadata"]["labels"]:
                self._kinds[run] = FANOUT
            ended = (pod.get("status") or {}).get("phase", "") in (*_ENDED_POD, "")
            alive[run] = alive.get(run, False) or not ended
        for place in places(pods):
            if place.store:
                told[place.run] = place
        for run, is_alive in sorted(alive.items()):
            if run in told:
                yield told[run], is_alive
            elif is_alive and run:
                self.log(f"run {run}: its gangs do not say where their store is; left alone")

    def _with_groups(self) -> Iterator[str]:
        """Runs with a PodGroup of their own; a job's goes with the job."""
        for group in self.client.api.list(PodGroup.RESOURCE, namespace=self.namespace, labels=WORKFLOW_LABEL).items:
            run = str(group["metadata"]["labels"].get(RUN_LABEL, ""))
            owners = {one.get("kind") for one in group["metadata"].get("ownerReferences") or []}
            if WORKFLOWS.kind in owners:
                self._kinds[run] = FANOUT
            if VolcanoJob.RESOURCE.kind not in owners:
                yield run

    def _one(self, place: Place, *, alive: bool) -> str:
        opened = open_place(place)
        doc = read_run(opened)
        entry = newest_entry(opened)
        state = entry.state if entry is not None else None
        owner = (state.owner if state is not None else "") or doc.owner
        workflow = WorkflowRef.of(owner)
        if workflow is None:
            return ""

        def over() -> str:
            return why_reap(workflow, read_workflow(self.client.api, workflow))

        why = over()
        if not why:
            return ""
        move = reaping(why, phase=state.phase if state is not None else None, left=alive)
        if move == "leave":
            return self._retained(opened, doc) if state is not None and state.phase in ("done", "stopped") else ""
        with ExitStack() as held:
            kind = self._kinds.get(place.run, "podgroup")
            supervisor = supervised(_wanted(place, doc, owner, kind), self.client, held, log=self.log)
            policy = supervisor.policy
            deadline_s = max(self.deadline_s, policy.save_within_s, policy.end_grace_s)
            last = save_and_end(supervisor, why, deadline_s=deadline_s, log=self.log, wanted=lambda: bool(over()))
            if not supervisor.is_ours(last):
                return f"left alone: {called(last.owner)} took it over meanwhile"
            if last.phase not in ("done", "stopped") and not over():
                return f"left alone: {workflow} goes on again"
            left = supervisor.backend.gangs(place.run)
        still = f"; still there: {', '.join(left)}" if left else ""
        step = last.attempts[-1].last_commit_step if last.attempts else None
        return f"{why}: ended, {last.phase}, newest commit of the attempt: {'none' if step is None else step}{still}"

    def _retained(self, run: RunStore, doc: RunDoc) -> str:
        """Old checkpoints of a run that is over; while it goes on, its own supervisor sees to that."""
        if run.away:
            return ""
        policy = RecoveryPolicy.from_mapping(dict(doc.policy), f"run.json of run {run.run!r}")
        rules: list[RetentionPolicy] = [LatestN(n=policy.keep_last)]
        if policy.keep_every_steps:
            rules.append(EveryN(steps=policy.keep_every_steps))
        gone = retention.collect(run, AnyOf(*rules), keep_clean_s=policy.keep_clean_s, wall=self.wall_s)
        return f"{len(gone.deleted)} checkpoints deleted, {gone.freed_bytes} bytes" if gone.deleted else ""


def _as_pod(job: Obj, task: Obj) -> Obj:
    """A task's template as the pod that it would be: it says where the store is, before there are pods."""
    template = task.get("template") or {}
    labels = {**((template.get("metadata") or {}).get("labels") or {}), **(job["metadata"].get("labels") or {})}
    named = {key: labels[key] for key in (RUN_LABEL, GANG_LABEL) if key in labels}
    metadata = {"namespace": job["metadata"].get("namespace", ""), "name": "", "labels": named}
    return {"metadata": metadata, "spec": template.get("spec") or {}}


def _wanted(place: Place, doc: RunDoc, owner: str, kind: str) -> Wanted:
    policy = RecoveryPolicy.from_mapping(dict(doc.policy), f"run.json of run {place.run!r}")
    workload = read_workload(dict(doc.workload or {}), f"run.json of run {place.run!r}", run=place.run)
    return Wanted(
        kind=kind,
        workload=workload,
        store=place.store,
        control=place.control,
        policy=policy,
        owner=owner,
    )
