"""Orders to the job controller, with what vcctl leaves out: was the order taken, and did the job move?

The controller deletes a Command when it takes it, looks the job up by name alone, reports no result, and while a job is
Restarting it swallows Abort, Terminate and Complete. So: wait until the job can hear it, send it with the current uid,
wait until it is taken, wait until the phase moved, and send it again where it was swallowed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from rerail.plugins.kube.api import KubeApi
from rerail.plugins.volcano.base import Metadata, OwnerReference
from rerail.plugins.volcano.command import Command
from rerail.plugins.volcano.enums import FINAL_PHASES, JobAction, JobPhase
from rerail.plugins.volcano.job import VolcanoJob
from rerail.plugins.volcano.waiting import Target
from rerail.policies.errors import (
    AlreadyExistsError,
    ClusterUnreachableError,
    ConditionError,
    ConflictError,
    DeadlineError,
    NotFoundError,
    UsageError,
)

POLL_S: Final = 0.2
RESEND_AFTER_S: Final = 10.0
"""An order that was taken and moved nothing for so long is sent again."""

_EXPECTED: Final[dict[JobAction, frozenset[JobPhase]]] = {
    JobAction.ABORT_JOB: frozenset({JobPhase.ABORTING, JobPhase.ABORTED}),
    JobAction.TERMINATE_JOB: frozenset({JobPhase.TERMINATING, JobPhase.TERMINATED}),
    JobAction.COMPLETE_JOB: frozenset({JobPhase.COMPLETING, JobPhase.COMPLETED}),
    JobAction.RESTART_JOB: frozenset({JobPhase.RESTARTING}),
    JobAction.RESUME_JOB: frozenset({JobPhase.RESTARTING}),
}
_RESTARTS: Final = frozenset({JobAction.RESTART_JOB, JobAction.RESUME_JOB})


@dataclass(frozen=True, slots=True)
class CommandOutcome:
    """What an order did.

    Attributes:
        action: The order.
        phase_before: The job's phase when it was sent (the last time).
        phase_after: The phase, or the proof of a restart, that was waited for.
        sent: How often it was sent.
        accepted_s: Seconds until the controller took it, since the first.
        moved_s: Seconds until the job moved, since the first.
    """

    action: JobAction
    phase_before: str
    phase_after: str
    sent: int
    accepted_s: float
    moved_s: float


class Commands:
    """Sends orders.

    Args:
        api: The API server.
        token: Gives a random hexadecimal text of twice so many characters; part of a Command's name.
    """

    def __init__(self, api: KubeApi, token: Callable[[int], str]) -> None:
        self._api = api
        self._token = token

    def send(
        self, name: str, action: JobAction, *, namespace: str | None, uid: str | None, timeout_s: float, reason: str
    ) -> CommandOutcome:
        """Send an order and see it done.

        Args:
            name: The job.
            action: AbortJob, TerminateJob, CompleteJob, RestartJob or ResumeJob; others do nothing as a Command.
            namespace: Its namespace.
            uid: Only this very job; where none is given, the one that has the name now.
            timeout_s: Seconds for everything.
            reason: Recorded in the Command.

        Raises:
            UsageError: An action that a Command cannot carry.
            ConditionError: The job is in a phase from which the order does nothing.
            ConflictError: The job was replaced by another one of its name.
            DeadlineError: It was not taken (the Command is withdrawn), or taken without effect.
        """
        if action not in _EXPECTED:
            possible = ", ".join(sorted(_EXPECTED))
            raise UsageError(f"a Command cannot carry {action!r}: it names no task or pod; possible: {possible}")
        action = JobAction(action)
        begun = self._api.clock()
        deadline = begun + timeout_s
        job = self._hearing(name, action, namespace, uid, deadline)
        before, version = job, job.status.version
        sent, accepted_s = 0, 0.0
        while True:
            sent += 1
            before = job
            self._deliver(job, action, reason, deadline)
            accepted_s = accepted_s or self._api.clock() - begun
            resend_at = min(deadline, self._api.clock() + RESEND_AFTER_S)
            while True:
                job = self._read(name, namespace, job.uid)
                if _moved(job, action, version):
                    moved_s = self._api.clock() - begun
                    return CommandOutcome(action, str(before.phase), str(job.phase), sent, accepted_s, moved_s)
                self._refuse_if_useless(job, action, after=str(before.phase))
                if self._api.clock() >= resend_at:
                    break
                self._api.sleep(POLL_S)
            if self._api.clock() >= deadline:
                target = Target(VolcanoJob.RESOURCE.full_name, name, job.metadata.namespace)
                raise DeadlineError(
                    f"{action.value} was taken {sent} times by the controller, but {target} is still '{job.phase}' "
                    f"after {timeout_s:g} s; delete the job instead"
                )
            job = self._hearing(name, action, namespace, job.uid, deadline)

    def _hearing(
        self, name: str, action: JobAction, namespace: str | None, uid: str | None, deadline: float
    ) -> VolcanoJob:
        """The job, in a phase in which it does not swallow the order."""
        while True:
            job = self._read(name, namespace, uid)
            self._refuse_if_useless(job, action, after="")
            if job.phase != JobPhase.RESTARTING:
                return job
            if self._api.clock() >= deadline:
                raise DeadlineError(
                    f"job {name!r} stays Restarting, in which it swallows {action.value}: not sent; delete it instead"
                )
            self._api.sleep(POLL_S)
            uid = job.uid

    def _read(self, name: str, namespace: str | None, uid: str | None) -> VolcanoJob:
        job = VolcanoJob.from_dict(self._api.get(VolcanoJob.RESOURCE, name, namespace=namespace))
        if uid is not None and job.uid != uid:
            raise ConflictError(
                f"job {name!r} is another one now (uid {job.uid}, not {uid}); Volcano acts by name: not sent"
            )
        return job

    @staticmethod
    def _refuse_if_useless(job: VolcanoJob, action: JobAction, *, after: str) -> None:
        wanted = _EXPECTED[action]
        if job.phase in FINAL_PHASES and job.phase not in wanted:
            came = f" (it was {after!r} when {action.value} was sent)" if after else ""
            raise ConditionError(f"job {job.name!r} is '{job.phase}', which nothing changes any more{came}")
        if action is JobAction.RESUME_JOB and not after and job.phase not in (JobPhase.ABORTING, JobPhase.ABORTED):
            raise ConditionError(f"job {job.name!r} is '{job.phase}'; ResumeJob acts only on an aborted job")
        if action is JobAction.RESTART_JOB and job.phase == JobPhase.ABORTED:
            raise ConditionError(f"job {job.name!r} is Aborted; RestartJob does nothing there, ResumeJob does")

    def post(self, job: VolcanoJob, action: JobAction, *, reason: str = "", suffix: str) -> Command:
        """Create the Command, and wait for nothing; the same ``suffix`` again is the same order."""
        owner = OwnerReference(
            api_version=VolcanoJob.RESOURCE.api_version,
            kind=VolcanoJob.RESOURCE.kind,
            name=job.name,
            uid=job.uid,
            controller=True,
            block_owner_deletion=True,
        )
        # A name of our own, not generateName: a create whose answer was lost is repeated without a second order.
        command = Command(
            metadata=Metadata(
                name=f"{job.name}-{str(action).lower()}-{suffix}",
                namespace=job.metadata.namespace,
                owner_references=[owner],
            ),
            action=action,
            target=owner,
            reason=reason or None,
        )
        self._create(command)
        return command

    def _deliver(self, job: VolcanoJob, action: JobAction, reason: str, deadline: float) -> None:
        """Create the Command and wait until the controller has taken it."""
        command = self.post(job, action, reason=reason, suffix=self._token(4))
        while True:
            try:
                self._api.get(Command.RESOURCE, command.name, namespace=command.metadata.namespace)
            except NotFoundError:
                return
            if self._api.clock() >= deadline:
                break
            self._api.sleep(POLL_S)
        try:
            self._api.delete(Command.RESOURCE, command.name, namespace=command.metadata.namespace)
        except NotFoundError:
            return
        raise DeadlineError(
            f"no controller took the command {action.value} for job {job.name!r}; it is withdrawn. Does "
            "vc-controller-manager run, with the feature gate QueueCommandSync on (its default)?"
        )

    def _create(self, command: Command) -> None:
        for last in (False, False, True):
            try:
                self._api.create(Command.RESOURCE, command.to_dict())
            except AlreadyExistsError:
                return
            except ClusterUnreachableError as error:
                if last or not error.outcome_unknown:
                    raise
                self._api.sleep(self._api.patience.pause_s(1, self._api.jitter()))
            else:
                return


def _moved(job: VolcanoJob, action: JobAction, version: int) -> bool:
    """Whether the job did what was ordered; a restart may be over before anybody looked."""
    if action in _RESTARTS:
        return job.status.version > version or job.phase == JobPhase.RESTARTING
    return job.phase in _EXPECTED[action]
