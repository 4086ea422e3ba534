"""Gangs as Volcano jobs: one vcjob per attempt, made from the user's own manifest, ended by an order and a deadline."""

import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

from rerail.plugins.gang.cluster import GangWatch, is_ours, quota_words
from rerail.plugins.kube.resources import PODS
from rerail.plugins.trainer.orders import gang_number
from rerail.plugins.volcano import JobAction, JobPhase, VolcanoJob
from rerail.plugins.volcano.enums import FINAL_PHASES
from rerail.policies.documents import Rendezvous
from rerail.policies.errors import AlreadyExistsError, QuotaExceededError, RefusedError, TransientError
from rerail.policies.recovery import RecoveryPolicy
from rerail.policies.supervisor.observations import GangView
from rerail.policies.supervisor.state import GangSpec, PodShape
from rerail.policies.workloads.attempt import GANG_LABEL, AttemptGang
from rerail.policies.workloads.vcjob import layout, render_vcjob, rendezvous_host
from rerail.policies.workloads.workload import Workload

PORT = 29400
_ENDING = (JobPhase.TERMINATING, JobPhase.ABORTING, JobPhase.COMPLETING)


@dataclass(slots=True)
class VcjobBackend:
    """The port ``GangBackend`` on vcjobs.

    Attributes:
        workload: The user's job.
        watch: Reads and judges the run's gangs.
        store: Address of the run's store, as pods reach it.
        policy: The run's policy.
        control: Address of the store of control documents, where it is another one.
        owner: Who drives the run.
        priority_class: PriorityClass of every attempt; empty leaves the user's.
        hostnames: The label ``kubernetes.io/hostname`` of nodes, by name.
    """

    workload: Workload
    watch: GangWatch
    store: str
    policy: RecoveryPolicy
    control: str | None = None
    owner: str = ""
    priority_class: str = ""
    hostnames: Callable[[Collection[str]], Mapping[str, str]] = lambda _nodes: {}
    _held: dict[str, str] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[PodShape, ...]:
        """The pods that hold ranks, for the run's first decision."""
        return layout(self.workload)

    def view(self, gang: str) -> GangView:
        """Every pod of ``gang``; see the port."""
        seen = self.watch.view(gang, tuple(f"{gang}-{pod.suffix}" for pod in self.shape))
        held = self._held.get(gang)
        return seen.model_copy(update={"waits": held, "absent": False}) if held and seen.absent else seen

    def gangs(self, run: str) -> tuple[str, ...]:
        """Gangs of which anything is left to end."""
        del run  # the watch reads one run
        seen = self.watch.snapshot()
        return tuple(name for name in sorted({*seen.jobs, *seen.pods} - {""}) if not self.watch.ended(name))

    def attempt(self, gang: GangSpec) -> AttemptGang:
        """What recovery adds to the user's job for this gang."""
        return AttemptGang(
            run=self.watch.run,
            gang=gang.name,
            attempt=gang_number(gang.name) or 1,
            excluded_nodes=gang.excluded_nodes,
            hostnames=dict(self.hostnames(gang.excluded_nodes)),
            grace_s=max(gang.grace_s, self.policy.end_grace_s),
            store=self.store,
            control=self.control,
            hold_s=self.policy.hold_s,
            poll_s=min(self.policy.poll_s, 1.0),
            owner=self.owner,
            priority_class=self.priority_class,
        )

    def submit(self, gang: GangSpec) -> None:
        """Create the job, or adopt the one that carries our run and gang; see the port.

        Raises:
            TransientError: A quota, or an object of this name that is being deleted, is in the way now.
            RefusedError: The name belongs to something else.
        """
        if gang.nodes:
            return
        job = VolcanoJob.from_dict(render_vcjob(self.workload, self.attempt(gang)))
        try:
            self.watch.client.create(job)
        except QuotaExceededError as error:
            self._held[gang.name] = quota_words(error)
            raise TransientError(self._held[gang.name]) from error
        except AlreadyExistsError as error:
            found = self.watch.client.get(VolcanoJob, gang.name)
            if not is_ours(found.metadata.labels, run=self.watch.run, gang=gang.name):
                raise RefusedError(
                    f"vcjob {gang.name!r} exists and is not a gang of run {self.watch.run!r}: choose another run name, "
                    "or delete that job"
                ) from error
            if found.deleting:
                raise TransientError(f"vcjob {gang.name!r} is being deleted; its name is not free yet") from error
        self._held.pop(gang.name, None)
        self.watch.changed()

    def end(self, gang: str, grace_s: float) -> bool:
        """Go on ending ``gang``: the controller is told, so that nothing comes back, and every pod has its deadline."""
        seen = self.watch.snapshot()
        job = seen.jobs.get(gang)
        if job is not None and not job.deleting and job.phase not in (*FINAL_PHASES, *_ENDING):
            self.watch.client.order(job, JobAction.TERMINATE_JOB, reason="the attempt is over")
        if delete_pods(self.watch, gang, grace_s):
            self.watch.changed()
        return self.watch.ended(gang)

    def rendezvous(self, gang: GangSpec) -> Rendezvous:
        """The pod of rank 0, by its name of the headless Service that the plugin ``svc`` makes, and a fresh id."""
        return Rendezvous(id=secrets.token_hex(8), host=rendezvous_host(self.workload, gang.name), port=PORT)


def delete_pods(watch: GangWatch, gang: str, grace_s: float) -> bool:
    """Ask once for the deletion of a gang's live pods, or again where their deadline is to come sooner.

    Never with a grace of 0: that frees a pod's name, not the device that its processes hold.
    """
    grace = max(1, round(grace_s))
    waiting = [
        pod
        for pod in watch.snapshot().live(gang)
        if not pod["metadata"].get("deletionTimestamp")
        or (pod["metadata"].get("deletionGracePeriodSeconds") or 0) > grace
    ]
    if waiting:
        watch.api.delete_all(PODS, labels={GANG_LABEL: gang}, grace_s=grace)
    return bool(waiting)
