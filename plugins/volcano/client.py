"""The typed client: ``client.get(VolcanoJob, "llama-a1")`` gives a VolcanoJob."""

import builtins
import secrets
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Generic, Self, TypeVar, overload

from rerail.plugins.kube.api import FIELD_MANAGER, KubeApi, Obj, Patience, Propagation
from rerail.plugins.kube.resources import PODS
from rerail.plugins.kube.watch import Change, Watch
from rerail.plugins.volcano.base import ClusterObject, NamespacedObject, VolcanoObject
from rerail.plugins.volcano.check import Problem, check_job
from rerail.plugins.volcano.commands import CommandOutcome, Commands
from rerail.plugins.volcano.deletion import Gone, delete_and_prove
from rerail.plugins.volcano.enums import JobAction
from rerail.plugins.volcano.facts import owned_by
from rerail.plugins.volcano.job import VolcanoJob
from rerail.plugins.volcano.podgroup import PodGroup
from rerail.plugins.volcano.queue import Queue
from rerail.plugins.volcano.verdicts import Observer
from rerail.plugins.volcano.waiting import Condition, Target, await_condition
from rerail.policies.documents import canonical, digest_of
from rerail.policies.errors import (
    AlreadyExistsError,
    ClusterUnreachableError,
    InvalidObjectError,
    NotFoundError,
    NotInstalledError,
    RerailError,
    TransientError,
)
from rerail.policies.volcano_verdict import StuckTimers, Verdict

R = TypeVar("R", bound=VolcanoObject)
N = TypeVar("N", bound=NamespacedObject)
C = TypeVar("C", bound=ClusterObject)

SPEC_HASH: Final = "rerail.dev/spec-hash"
"""Annotation with the digest of what was sent, by which a repeated create knows its own object again."""

_SERVER_WRITES: Final = ("uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink")


@dataclass(frozen=True, slots=True)
class Event(Generic[R]):
    """One change; ``object`` is None for ``synced``, which says that all of the state was reported."""

    change: Change
    object: R | None


class VolcanoClient:
    """Volcano's API with types. Safe for use by several threads.

    Args:
        api: The API server; its namespace is used where none is given.
        now: The cluster's wall clock, for the age of deletions.
        field_manager: Recorded as the writer of fields.
    """

    def __init__(
        self,
        api: KubeApi,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        field_manager: str = FIELD_MANAGER,
    ) -> None:
        self.api = api
        self._now = now
        self._field_manager = field_manager

    @classmethod
    def connect(
        cls,
        kubeconfig: str | Path | None = None,
        *,
        context: str | None = None,
        namespace: str | None = None,
        patience: Patience | None = None,
    ) -> Self:
        """Connect with a kubeconfig (else ``$KUBECONFIG``, else ~/.kube/config), or as the pod that this runs in."""
        return cls(KubeApi.connect(kubeconfig, context=context, namespace=namespace, patience=patience))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close idle connections."""
        self.api.close()

    @overload
    def get(self, kind: type[C], name: str) -> C: ...
    @overload
    def get(self, kind: type[N], name: str, *, namespace: str | None = None) -> N: ...
    def get(self, kind: type[VolcanoObject], name: str, *, namespace: str | None = None) -> VolcanoObject:
        """Read one object.

        Raises:
            NotFoundError: It is not there.
            NotInstalledError: Volcano is not.
            ForbiddenError: Names the rule that is missing.
        """
        return kind.from_dict(self.api.get(kind.RESOURCE, name, namespace=namespace))

    @overload
    def list(self, kind: type[C], *, labels: Mapping[str, str] | str | None = None) -> tuple[C, ...]: ...
    @overload
    def list(
        self, kind: type[N], *, namespace: str | None = None, labels: Mapping[str, str] | str | None = None
    ) -> tuple[N, ...]: ...
    def list(
        self,
        kind: type[VolcanoObject],
        *,
        namespace: str | None = None,
        labels: Mapping[str, str] | str | None = None,
    ) -> tuple[VolcanoObject, ...]:
        """Read all objects of a kind in a namespace (``ALL_NAMESPACES`` for every one), or those with these labels."""
        found = self.api.list(kind.RESOURCE, namespace=namespace, labels=labels)
        return tuple(kind.from_dict(one) for one in found.items)

    def create(self, one: R, *, dry_run: bool = False, uid: str | None = None) -> R:
        """Create an object; strict: a field that this Volcano does not know is an error.

        The object carries the digest of what was sent (annotation ``rerail.dev/spec-hash``). Where the name is taken by
        an object with the same digest, that one is returned: so a create whose answer was lost may be repeated, by this
        call itself or after a restart.

        Args:
            one: The object. Its namespace is the client's where it names none.
            dry_run: Let the server judge, webhooks included, and store nothing.
            uid: The uid that it had when it was seen before; another object with the same digest is refused.

        Returns:
            The object as stored, with what webhooks and defaults made of it.

        Raises:
            AlreadyExistsError: The name is taken by something else, or by an object that is being deleted.
            InvalidObjectError: Not accepted; names the field.
            QuotaExceededError: A quota is used up.
        """
        body = self._stamped(one)
        kind, failures, begun = type(one), 0, self.api.clock()
        while True:
            try:
                made = self.api.create(kind.RESOURCE, body, dry_run=dry_run, field_manager=self._field_manager)
                return kind.from_dict(made)
            except AlreadyExistsError as error:
                if dry_run or not one.name:
                    raise
                found = self._own(kind, body, uid, error)
                if found is not None:
                    return found
                failures += 1
                lost: TransientError | AlreadyExistsError = error
            except ClusterUnreachableError as error:
                failures += 1
                if not error.outcome_unknown or not one.name:
                    raise
                lost = error
            if self.api.clock() - begun > self.api.patience.total_s:
                raise lost
            pause_s = self.api.patience.pause_s(failures, self.api.jitter())
            self.api.sleep(pause_s)

    def replace(self, one: R, *, dry_run: bool = False) -> R:
        """Replace an object that was read before.

        Raises:
            ConflictError: It changed since it was read. PodGroups are rewritten by the scheduler all the time.
        """
        made = self.api.replace(type(one).RESOURCE, one.to_dict(), dry_run=dry_run, field_manager=self._field_manager)
        return type(one).from_dict(made)

    @overload
    def patch(self, kind: type[C], name: str, patch: Obj | tuple[Obj, ...], *, dry_run: bool = False) -> C: ...
    @overload
    def patch(
        self,
        kind: type[N],
        name: str,
        patch: Obj | tuple[Obj, ...],
        *,
        namespace: str | None = None,
        dry_run: bool = False,
    ) -> N: ...
    def patch(
        self,
        kind: type[VolcanoObject],
        name: str,
        patch: Obj | tuple[Obj, ...],
        *,
        namespace: str | None = None,
        dry_run: bool = False,
    ) -> VolcanoObject:
        """Change parts of an object: an object is merged, a tuple holds operations of JSON patch.

        On a live vcjob only minAvailable, tasks[*].replicas, tasks[*].minAvailable and priorityClassName may change
        (``scale`` does the first three); annotations and labels are free.

        Raises:
            InvalidObjectError: Refused; a merge that would replace the whole list of tasks is refused here already.
        """
        if issubclass(kind, VolcanoJob) and isinstance(patch, dict) and "tasks" in (patch.get("spec") or {}):
            raise InvalidObjectError(
                f"cannot patch jobs.batch.volcano.sh {name!r}: a merge replaces the whole list spec.tasks; use "
                "operations such as {'op': 'replace', 'path': '/spec/tasks/0/replicas', 'value': 4}, or scale()"
            )
        made = self.api.patch(
            kind.RESOURCE,
            name,
            patch,
            namespace=namespace,
            dry_run=dry_run,
            repeatable=isinstance(patch, dict),
            field_manager=self._field_manager,
        )
        return kind.from_dict(made)

    def scale(
        self,
        name: str,
        replicas: Mapping[str, int],
        *,
        min_available: int | None = None,
        namespace: str | None = None,
    ) -> VolcanoJob:
        """Change the size of tasks, by name, and of the gang.

        Raises:
            NotFoundError: The job, or a task, is not there.
            ConflictError: The tasks changed meanwhile.
        """
        job = self.get(VolcanoJob, name, namespace=namespace)
        index = {task.name: at for at, task in enumerate(job.spec.tasks)}
        operations: list[Obj] = []
        for task, count in replicas.items():
            if task not in index:
                raise NotFoundError(f"job {name!r} has no task {task!r}; it has {', '.join(map(str, index))}")
            path = f"/spec/tasks/{index[task]}"
            operations.append({"op": "test", "path": f"{path}/name", "value": task})
            operations.append({"op": "replace", "path": f"{path}/replicas", "value": count})
            own = job.spec.tasks[index[task]].min_available
            if own is not None and own > count:
                operations.append({"op": "replace", "path": f"{path}/minAvailable", "value": count})
        if min_available is not None:
            operations.append({"op": "add", "path": "/spec/minAvailable", "value": min_available})
        return self.patch(VolcanoJob, name, tuple(operations), namespace=namespace)

    def watch(
        self,
        kind: type[R],
        *,
        name: str | None = None,
        namespace: str | None = None,
        labels: Mapping[str, str] | str | None = None,
        for_s: float | None = None,
        relist_s: float = 60.0,
        patience_s: float | None = 120.0,
        on_trouble: Callable[[TransientError], object] | None = None,
    ) -> Iterator[Event[R]]:
        """Yield the state now, as ``added``, then ``synced``, then every change; see ``kube.watch.Watch``.

        It survives expired history, broken streams and lost events; a deletion that nobody saw is reported, too.

        Args:
            kind: What to watch.
            name: Only this object.
            namespace: The client's by default.
            labels: Only objects with these labels.
            for_s: Seconds after which it ends; None: never.
            relist_s: Seconds between full lists.
            patience_s: Seconds without success after which the failure is raised.
            on_trouble: Told of each failure that is survived.
        """
        watch = Watch(
            self.api,
            kind.RESOURCE,
            namespace=namespace,
            name=name,
            labels=labels,
            for_s=for_s,
            relist_s=relist_s,
            patience_s=patience_s,
            on_trouble=on_trouble,
        )
        for event in watch:
            yield Event(event.change, None if event.change == "synced" else kind.from_dict(event.object))

    def wait(
        self,
        kind: type[R],
        name: str,
        until: Condition[R],
        *,
        timeout_s: float,
        fail_on: Condition[R] = (),
        namespace: str | None = None,
        uid: str | None = None,
        poll_s: float = 30.0,
    ) -> R:
        """Wait for phases, or for a function of the object to be true.

        Args:
            kind: Its model.
            name: Its name.
            until: Awaited phases, or a function.
            timeout_s: Seconds to wait at most.
            fail_on: Phases, or a function, at which waiting ends with ConditionError.
            namespace: The client's by default.
            uid: Only this very object; another one of its name means that it is gone.
            poll_s: Seconds between full reads, beside the watch.

        Raises:
            ConditionError: ``fail_on`` came.
            NotFoundError: It is not there, was deleted, or is another one.
            DeadlineError: Nothing of this came in time.
        """
        place = self.api.place(kind.RESOURCE, namespace)
        trouble: list[TransientError] = []
        watch = Watch(
            self.api,
            kind.RESOURCE,
            namespace=namespace,
            name=name,
            for_s=timeout_s,
            relist_s=poll_s,
            patience_s=None,
            on_trouble=trouble.append,
        )
        target = Target(kind.RESOURCE.full_name, name, place)
        return await_condition(
            watch, kind, target, until=until, fail_on=fail_on, uid=uid, timeout_s=timeout_s, trouble=trouble
        )

    def command(
        self,
        name: str,
        action: JobAction,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        timeout_s: float = 60.0,
        reason: str = "",
    ) -> CommandOutcome:
        """Order the job controller to do something with a job, and see it done; see ``commands.Commands``."""
        orders = Commands(self.api, secrets.token_hex)
        return orders.send(name, action, namespace=namespace, uid=uid, timeout_s=timeout_s, reason=reason)

    def order(self, job: VolcanoJob, action: JobAction, *, reason: str = "") -> None:
        """Order the job controller to do something with a job, and wait for nothing; ``command`` sees it done.

        The order is one however often it is given, as long as no controller has taken it.
        """
        Commands(self.api, secrets.token_hex).post(job, action, reason=reason, suffix=job.uid[:8])

    def delete(
        self,
        kind: type[VolcanoObject],
        name: str,
        *,
        namespace: str | None = None,
        uid: str | None = None,
        timeout_s: float = 120.0,
        propagation: Propagation = "Foreground",
    ) -> Gone:
        """Delete an object and prove that it, and of a job every pod, is gone; see ``deletion.delete_and_prove``."""
        return delete_and_prove(
            self.api,
            kind,
            name,
            namespace=namespace,
            uid=uid,
            timeout_s=timeout_s,
            propagation=propagation,
            now=self._now,
        )

    def pods(self, job: VolcanoJob) -> tuple[Obj, ...]:
        """The pods of this job, as plain dicts; those of another job that had its name are left out."""
        place = job.metadata.namespace or self.api.namespace
        labels = {**job.pod_labels, "volcano.sh/job-namespace": place}
        found = self.api.list(PODS, namespace=place, labels=labels).items
        return tuple(pod for pod in found if not job.uid or owned_by(pod, job.uid))

    def verdict(
        self,
        name: str,
        *,
        namespace: str | None = None,
        final_commit: bool | None = None,
        timers: StuckTimers | None = None,
    ) -> Verdict:
        """What has become of a job, judged by its pods and group, once.

        A single look cannot know for how long a state has held: only states whose timer is 0 are told as stuck. Use
        ``observe`` to look again and again.
        """
        return self.observe(name, namespace=namespace, timers=timers).look(final_commit=final_commit)

    def observe(
        self, name: str, *, namespace: str | None = None, uid: str | None = None, timers: StuckTimers | None = None
    ) -> Observer:
        """An observer of one job, which remembers since when a state has held."""
        return Observer(self.api, name, namespace=namespace, uid=uid, timers=timers, now=self._now)

    def preflight(self, job: VolcanoJob, *, dry_run: bool = True) -> tuple[Problem, ...]:
        """What speaks against creating a job: its own faults, its queue, and the server's opinion (dry run).

        Reads that the account may not make are left out, and said so as a warning.

        Raises:
            NotInstalledError: Volcano is not installed.
            ClusterUnreachableError: The API server does not answer.
        """
        return self._asked(job, [*check_job(job), *self._queue_problems(job.spec.queue)], dry_run=dry_run)

    def check_group(self, group: PodGroup, *, dry_run: bool = True) -> tuple[Problem, ...]:
        """What speaks against creating a PodGroup: its queue, and the server's opinion; as ``preflight``."""
        return self._asked(group, [*self._queue_problems(group.spec.queue or "default")], dry_run=dry_run)

    def _asked(self, one: VolcanoObject, problems: builtins.list[Problem], *, dry_run: bool) -> tuple[Problem, ...]:
        if dry_run and not any(problem.severity == "error" for problem in problems):
            try:
                self.create(one, dry_run=True)
            except (NotInstalledError, ClusterUnreachableError):
                raise
            except AlreadyExistsError as error:
                problems.append(Problem("error", "metadata.name", str(error)))
            except TransientError as error:  # a quota: it may pass
                problems.append(Problem("warning", "", str(error)))
            except RerailError as error:
                problems.append(Problem("error", "", str(error)))
        return tuple(problems)

    def _queue_problems(self, name: str) -> Iterator[Problem]:
        field = "spec.queue"
        if name == "root":
            yield Problem("error", field, "jobs cannot go to 'root'; name a leaf queue")
            return
        try:
            queue = self.get(Queue, name)
        except (NotInstalledError, ClusterUnreachableError):
            raise
        except NotFoundError:
            yield Problem("error", field, f"queue {name!r} does not exist; create it, or name another")
            return
        except RerailError as error:
            yield Problem("warning", field, f"queue {name!r} could not be looked at: {error}")
            return
        if not queue.is_open:
            state = str(queue.status.state or "not opened yet by the queue controller")
            yield Problem("error", field, f"queue {name!r} is {state}; open it, or name another")

    def _stamped(self, one: VolcanoObject) -> dict[str, Any]:
        """What is sent: without status and server-written fields, with namespace and digest."""
        body = one.to_dict()
        body.pop("status", None)
        metadata = {key: value for key, value in (body.get("metadata") or {}).items() if key not in _SERVER_WRITES}
        if one.RESOURCE.namespaced:
            metadata.setdefault("namespace", self.api.namespace)
        annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != SPEC_HASH}
        body["metadata"] = {**metadata, **({"annotations": annotations} if annotations else {})}
        if not annotations:
            body["metadata"].pop("annotations", None)
        body["metadata"]["annotations"] = {**annotations, SPEC_HASH: digest_of(canonical(body))}
        return body

    def _own(self, kind: type[R], body: dict[str, Any], uid: str | None, error: AlreadyExistsError) -> R | None:
        """The object that has the name, where it is ours; None where it went away meanwhile."""
        metadata = body["metadata"]
        try:
            found = kind.from_dict(self.api.get(kind.RESOURCE, metadata["name"], namespace=metadata.get("namespace")))
        except NotFoundError:
            return None
        target = Target(kind.RESOURCE.full_name, found.name, found.metadata.namespace)
        if found.deleting:
            raise AlreadyExistsError(
                f"{target} is being deleted; choose another name: pods of both would mix (volcano #2284)"
            ) from error
        theirs = found.metadata.annotations.get(SPEC_HASH)
        if theirs != metadata["annotations"][SPEC_HASH]:
            raise AlreadyExistsError(
                f"{target} exists and is not what is to be created (its digest is {theirs}); choose another name, or "
                "delete it"
            ) from error
        if uid is not None and found.uid != uid:
            raise AlreadyExistsError(f"{target} is another object of the same content (uid {found.uid})") from error
        return found
