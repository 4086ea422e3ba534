"""The job controller: one request at a time, from line to action, and what an action does to pods, group and status."""

import copy
from typing import Final

from rerail.plugins.kube.api import KubeApi
from rerail.plugins.kube.resources import PODS, ResourceType
from rerail.plugins.volcano import Command, JobAction, JobEvent, JobPhase, PodGroup, Queue, VolcanoJob
from rerail.plugins.volcano.base import moment
from rerail.policies.errors import AlreadyExistsError, NotFoundError, RerailError
from rig.standin import refusals, requests, states
from rig.standin.jobpods import Plugins, marked, pod_name, pod_of
from rig.standin.jobstatus import asks, count, least, moved, plain
from rig.standin.objects import (
    ENDED,
    OUT_OF_SYNC,
    Obj,
    annotations_of,
    leaving,
    name_of,
    namespace_of,
    owned_by_a_job,
    owner_reference,
    phase_of,
)
from rig.standin.requests import Request
from rig.standin.store import Store
from rig.standin.teller import Teller, log
from rig.standin.work import WorkQueue

TRIES: Final = 15
"""After so many failures of one request the job is terminated."""


class JobController:
    def __init__(self, api: KubeApi, teller: Teller) -> None:
        self._api = api
        self._teller = teller
        self._plugins = Plugins(api)
        self._line: WorkQueue[Request] = WorkQueue()
        self.store: Store

    def hear(self, kind: ResourceType, change: str, before: Obj | None, one: Obj) -> None:
        """Put what a change means in line."""
        request: Request | None = None
        if kind == VolcanoJob.RESOURCE and change != "deleted" and asks(before, one):
            request = Request(namespace=namespace_of(one), job=name_of(one))
        elif kind == PODS and owned_by_a_job(one):
            request = requests.from_pod(change, before, one, task_completed=self._task_completed(one))
        elif kind == PodGroup.RESOURCE and change == "modified":
            request = requests.from_group(before, one)
        elif kind == Command.RESOURCE and change == "added":
            request = self._order(one)
        if request is not None:
            self._line.add(request)

    def work(self, patience_s: float) -> None:
        """Handle the next request, if one comes."""
        request = self._line.next(patience_s)
        content = self.store.get(VolcanoJob.RESOURCE, request.namespace, request.job) if request else None
        if request is None or content is None:
            return
        job = VolcanoJob.from_dict(copy.deepcopy(content))
        found = refusals.of_job(job)
        if found:
            self._teller.tell(content, refusals.REASON, refusals.words(found), warning=True)
            return
        action = requests.action_of(job, request)
        if action != JobAction.SYNC_JOB:
            self._teller.tell(content, "ExecuteAction", f"Start to execute action {action} ")
        try:
            self._act(job, action)
        except RerailError as error:
            log(f"{request}: {error}")
            self._again(request, content, action)
        else:
            self._line.forget(request)

    def _again(self, request: Request, content: Obj, action: str) -> None:
        if self._line.failures(request) < TRIES:
            self._line.failed(request)
            return
        self._teller.tell(content, "ExecuteAction", f"Job failed on action {action} for retry limit reached")
        current = self.store.get(VolcanoJob.RESOURCE, request.namespace, request.job) or content
        try:
            self._act(VolcanoJob.from_dict(copy.deepcopy(current)), JobAction.TERMINATE_JOB)
        except RerailError as error:
            log(f"giving up: {error}")

    def _order(self, command: Obj) -> Request | None:
        target = command.get("target") or {}
        if target.get("kind") == "Queue":
            return None  # ``Upkeep`` carries those out
        if target.get("kind") != "Job":
            self._teller.tell(command, refusals.REASON, refusals.words([f"Commands for a {target.get('kind')}"]))
            return None
        try:
            self._api.delete(Command.RESOURCE, name_of(command), namespace=namespace_of(command))
        except NotFoundError:
            return None
        job = self.store.get(VolcanoJob.RESOURCE, namespace_of(command), target["name"])
        action = str(command.get("action"))
        if job is not None:
            self._teller.tell(job, "CommandIssued", f"Start to execute command {action}, and clean it up")
        return Request(
            namespace=namespace_of(command), job=target["name"], event=JobEvent.COMMAND_ISSUED, action=action
        )

    def _task_completed(self, pod: Obj) -> bool:
        marks = annotations_of(pod)
        content = self.store.get(VolcanoJob.RESOURCE, namespace_of(pod), marks.get("volcano.sh/job-name", ""))
        if content is None:
            return False
        job = VolcanoJob.from_dict(content)
        task = next((task for task in job.spec.tasks if task.name == marks.get("volcano.sh/task-spec")), None)
        done = [
            one
            for one in self._pods(job)
            if annotations_of(one).get("volcano.sh/task-spec") == marks["volcano.sh/task-spec"]
        ]
        return task is not None and 0 < task.replicas <= sum(phase_of(one) == "Succeeded" for one in done)

    def _pods(self, job: VolcanoJob) -> list[Obj]:
        """Its pods, by name alone, as in the real one: those of an earlier job of its name count too."""
        place, name = job.metadata.namespace, job.name
        found = [pod for pod in self.store.all(PODS) if namespace_of(pod) == place and owned_by_a_job(pod)]
        return [pod for pod in found if annotations_of(pod).get("volcano.sh/job-name") == name]

    def _act(self, job: VolcanoJob, action: str) -> None:
        if job.deleting:
            return
        step = states.step_of(str(job.phase), action)
        if step.kill:
            self._kill(job, step)
        else:
            self._sync(job, step.move)

    def _kill(self, job: VolcanoJob, step: states.Step) -> None:
        status = job.status
        status.version += 1
        last = status.retry_count >= job.spec.max_retry - 1
        terminating = 0
        for pod in self._pods(job):
            if leaving(pod):
                terminating += 1
            elif not (phase_of(pod) in ENDED and (step.keep_ended or last)):
                self._delete(pod)
                terminating += 1
        count(job, [], terminating)
        if step.move(job.spec, status):
            moved(job)
        begun, ended = moment(job.metadata.creation_timestamp), moment(status.state.last_transition_time)
        if begun and ended:
            status.running_duration = f"{(ended - begun).total_seconds():.0f}s"
        self._plugins.end(job)
        self._write(job)
        try:
            self._api.delete(PodGroup.RESOURCE, job.pod_group_name, namespace=job.metadata.namespace)
        except NotFoundError:
            return

    def _delete(self, pod: Obj) -> None:
        """Delete a pod so that its end is no eviction."""
        name, place = name_of(pod), namespace_of(pod)
        try:
            self._api.patch(PODS, name, {"metadata": {"annotations": {OUT_OF_SYNC: "true"}}}, namespace=place)
            self._api.delete(PODS, name, namespace=place)
        except NotFoundError:
            return

    def _sync(self, job: VolcanoJob, move: states.Move) -> None:
        if self.store.get(Queue.RESOURCE, "", job.spec.queue) is None:
            raise NotFoundError(f"job {job.name!r}: queue {job.spec.queue!r} does not exist")
        if job.phase == JobPhase.PENDING:
            job = self._begin(job)
        else:
            self._plugins.change(job)
        group = self._group(job)
        before = copy.deepcopy(job.status.to_dict())
        if group is None or phase_of(group) in ("", "Pending"):
            move(job.spec, job.status)
        else:
            self._tell_of_group(job, group)
            terminating, pods = self._level(job)
            count(job, pods, terminating)
            job.status.min_available = job.spec.min_available or 0
            job.status.running_duration = None
            move(job.spec, job.status)
        if plain(job.status.to_dict()) != plain(before):
            moved(job)
            self._write(job)

    def _begin(self, job: VolcanoJob) -> VolcanoJob:
        if not job.status.state.phase:
            job.status.state.phase = JobPhase.PENDING
            job.status.min_available = job.spec.min_available or 0
            moved(job)
            job = self._write(job)
        self._plugins.begin(job)
        return job

    def _group(self, job: VolcanoJob) -> Obj | None:
        """The job's group, made or brought into line first; None where it is not seen yet."""
        found = self.store.get(PodGroup.RESOURCE, str(job.metadata.namespace), job.pod_group_name)
        spec = {
            "minMember": job.spec.min_available or 0,
            "minTaskMember": {
                str(task.name): task.replicas if task.min_available is None else task.min_available
                for task in job.spec.tasks
            },
            "queue": job.spec.queue,
            "minResources": least(job),
            **({"priorityClassName": job.spec.priority_class_name} if job.spec.priority_class_name else {}),
        }
        if found is None:
            metadata = {
                "name": job.pod_group_name,
                "namespace": job.metadata.namespace,
                "annotations": job.metadata.annotations,
                "labels": job.metadata.labels,
                "ownerReferences": [owner_reference(job).to_dict()],
            }
            body = {"apiVersion": PodGroup.RESOURCE.api_version, "kind": "PodGroup", "metadata": metadata, "spec": spec}
            try:
                self._api.create(PodGroup.RESOURCE, body, strict=False)
            except AlreadyExistsError:
                return None
        elif any(found["spec"].get(key) != value for key, value in spec.items()):
            patch = {"spec": spec}
            self._api.patch(PodGroup.RESOURCE, job.pod_group_name, patch, namespace=job.metadata.namespace)
        return found

    def _level(self, job: VolcanoJob) -> tuple[int, list[Obj]]:
        """Make missing pods, delete those too many; how many are leaving, and those that stay."""
        present = {name_of(pod): pod for pod in self._pods(job)}
        wanted = {
            pod_name(job, task, index): (task, index) for task in job.spec.tasks for index in range(task.replicas)
        }
        surplus = [pod for name, pod in present.items() if name not in wanted or (marked(pod) and not leaving(pod))]
        staying = [pod for name, pod in present.items() if name in wanted and not leaving(pod)]
        terminating = sum(leaving(pod) for name, pod in present.items() if name in wanted) + len(surplus)
        try:
            missing = [pod_of(job, *wanted[name]) for name in sorted(wanted.keys() - present.keys())]
            staying += [self._api.create(PODS, pod, strict=False) for pod in missing]
        except AlreadyExistsError:
            log(f"a pod of {job.name} is there already; it is counted when it is seen")
        except RerailError as error:
            self._teller.tell(job.to_dict(), "FailedCreate", f"Error creating pods: {error}", warning=True)
            raise
        for pod in surplus:
            self._delete(pod)
        return terminating, staying

    def _tell_of_group(self, job: VolcanoJob, content: Obj) -> None:
        condition = PodGroup.from_dict(content).unschedulable
        if condition is not None:
            message = f"PodGroup {job.metadata.namespace}:{job.name} unschedulable, reason: {condition.message}"
            self._teller.tell(job.to_dict(), "PodGroupPending", message, warning=True)

    def _write(self, job: VolcanoJob) -> VolcanoJob:
        written = self._api.replace(VolcanoJob.RESOURCE, job.to_dict(), subresource="status", strict=False)
        self.store.put(VolcanoJob.RESOURCE, written)
        return VolcanoJob.from_dict(copy.deepcopy(written))
