"""Gangs as Volcano jobs: one vcjob per attempt, made from the user's own manifest, ended by an order and a deadline."""

import secrets
from dataclasses import dataclass, field
from typing import Any, Final

from rerail.plugins.gang.cluster import is_ours
from rerail.plugins.gang.submitted import PORT, ClusterBackend
from rerail.plugins.volcano import JobAction, JobPhase, VolcanoJob
from rerail.plugins.volcano.check import Problem
from rerail.plugins.volcano.enums import FINAL_PHASES
from rerail.policies.documents import Rendezvous
from rerail.policies.errors import AlreadyExistsError, NotFoundError, RefusedError, TransientError
from rerail.policies.supervisor.state import GangSpec, PodShape
from rerail.policies.workloads.vcjob import layout, render_vcjob, rendezvous_host

ORDER_AGAIN_S: Final = 10.0
"""An order that moved nothing for so long is given again: a job that is Restarting swallows it."""

_ENDING: Final = (JobPhase.TERMINATING, JobPhase.ABORTING, JobPhase.ABORTED, JobPhase.COMPLETING)


@dataclass(slots=True)
class VcjobBackend(ClusterBackend):
    """The port ``GangBackend`` on vcjobs."""

    _ordered: dict[str, float] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[PodShape, ...]:
        """The pods that hold ranks."""
        return layout(self.workload)

    def render(self, gang: GangSpec) -> list[dict[str, Any]]:
        """The one vcjob."""
        return [render_vcjob(self.workload, self.attempt(gang))]

    def problems(self, gang: GangSpec) -> tuple[Problem, ...]:
        """What speaks against creating this gang: the job itself, its queue, and the server's opinion."""
        return self.watch.client.preflight(VolcanoJob.from_dict(self.render(gang)[0]))

    def gangs(self, run: str) -> tuple[str, ...]:
        """Gangs of which anything is left to end."""
        del run  # the watch reads one run
        seen = self.watch.snapshot()
        return tuple(name for name in sorted({*seen.jobs, *seen.pods} - {""}) if not self.watch.ended(name))

    def create(self, gang: GangSpec) -> None:
        """Create the job, or adopt the one that carries our run and gang."""
        client = self.watch.client
        try:
            client.create(VolcanoJob.from_dict(self.render(gang)[0]))
        except AlreadyExistsError as error:
            try:
                found = client.get(VolcanoJob, gang.name)
            except NotFoundError:
                raise TransientError(f"vcjob {gang.name!r} went away meanwhile") from error
            if not is_ours(found.metadata.labels, run=self.watch.run, gang=gang.name):
                raise RefusedError(
                    f"vcjob {gang.name!r} exists and is not a gang of run {self.watch.run!r}: choose another run name, "
                    "or delete that job"
                ) from error
            if found.deleting:
                raise TransientError(f"vcjob {gang.name!r} is being deleted; its name is not free yet") from error

    def end(self, gang: str, grace_s: float) -> bool:
        """Go on ending ``gang``: the controller is told, so that nothing comes back, and every pod has its deadline."""
        job = self.watch.snapshot().jobs.get(gang)
        if job is not None and not job.deleting and job.phase not in (*FINAL_PHASES, *_ENDING):
            self._order(job)
        self.delete_pods(gang, grace_s)
        return self.watch.ended(gang)

    def _order(self, job: VolcanoJob) -> None:
        """Tell the controller to end a job: once, and again where it moves nothing."""
        at_s = self.watch.clock()
        before_s = self._ordered.get(job.uid)
        if before_s is None or at_s - before_s >= ORDER_AGAIN_S:
            self.watch.client.order(job, JobAction.TERMINATE_JOB, reason="the attempt is over")
            self._ordered[job.uid] = at_s

    def rendezvous(self, gang: GangSpec) -> Rendezvous:
        """The pod of rank 0, by its name of the headless Service that the plugin ``svc`` makes, and a fresh id."""
        return Rendezvous(id=secrets.token_hex(8), host=rendezvous_host(self.workload, gang.name), port=PORT)
