"""What the backends of a cluster share: a user's workload, rendered anew for each attempt, and the view of its pods."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rerail.plugins.gang.cluster import GangWatch, refusal_words
from rerail.plugins.gang.volumes import Volumes
from rerail.plugins.kube.api import Obj
from rerail.plugins.kube.resources import PODS
from rerail.plugins.trainer.orders import gang_number
from rerail.plugins.volcano.check import Problem
from rerail.policies.errors import ForbiddenError, InvalidObjectError, QuotaExceededError, TransientError
from rerail.policies.recovery import RecoveryPolicy
from rerail.policies.supervisor.observations import GangView
from rerail.policies.supervisor.state import GangSpec, PodShape
from rerail.policies.workloads.attempt import GANG_LABEL, AttemptGang
from rerail.policies.workloads.workload import Workload

PORT = 29400
"""Where the ranks of a gang meet: every gang has host names of its own, so one port serves all."""


def waiting(pods: Iterable[Obj], grace_s: int) -> list[Obj]:
    """Those of the pods that are not told to go yet, or have longer than ``grace_s``."""
    return [
        pod
        for pod in pods
        if not pod["metadata"].get("deletionTimestamp")
        or (pod["metadata"].get("deletionGracePeriodSeconds") or 0) > grace_s
    ]


@dataclass(slots=True)
class ClusterBackend(ABC):
    """A gang of pods in a cluster; see the port ``GangBackend``.

    Attributes:
        workload: What the user wants to run.
        watch: Watches and judges the run's gangs.
        store: Address of the run's store, as pods reach it.
        policy: The run's policy.
        control: Address of the store of control documents, where it is another one.
        owner: Who drives the run.
        priority_class: PriorityClass of every attempt; empty leaves the user's.
        hostnames: The label ``kubernetes.io/hostname`` of nodes, by name.
        volumes: The workload's claims; None where nobody waits for a detach.
    """

    workload: Workload
    watch: GangWatch
    store: str
    policy: RecoveryPolicy
    control: str | None = None
    owner: str = ""
    priority_class: str = ""
    hostnames: Callable[[Collection[str]], Mapping[str, str]] = lambda _nodes: {}
    volumes: Volumes | None = None
    held: dict[str, str] = field(default_factory=dict)

    @property
    @abstractmethod
    def shape(self) -> tuple[PodShape, ...]:
        """The pods that hold ranks, for the run's first decision."""

    @abstractmethod
    def render(self, gang: GangSpec) -> list[dict[str, Any]]:
        """The objects of a gang, in the order in which they are created."""

    @abstractmethod
    def create(self, gang: GangSpec) -> None:
        """Create the objects of a gang that are not there, and adopt those that carry our run and gang.

        Raises:
            TransientError: An object of this name is being deleted.
            RefusedError: A name belongs to something else.
        """

    @abstractmethod
    def problems(self, gang: GangSpec) -> tuple[Problem, ...]:
        """What speaks against creating this gang, asked of the API server."""

    def submit(self, gang: GangSpec) -> None:
        """Create the gang, or adopt it; see the port.

        Raises:
            TransientError: The API server does not take it now: a quota, a closed queue or another admission, or an
                object of its name that is being deleted. ``view`` tells it as what the gang waits for.
            RefusedError: A right is missing, or a name belongs to something else.
        """
        if gang.nodes:
            self.held.pop(gang.name, None)
            return
        try:
            self.create(gang)
        except QuotaExceededError as error:
            self.held[gang.name] = refusal_words(error)
            raise
        except (InvalidObjectError, ForbiddenError) as error:
            if isinstance(error, ForbiddenError) and error.rule:
                raise
            # An admission of the cluster. The first attempt was tried before the run was created, so this may pass.
            self.held[gang.name] = refusal_words(error)
            raise TransientError(str(error)) from error
        self.held.pop(gang.name, None)

    def view(self, gang: str) -> GangView:
        """Every pod of ``gang``; see the port."""
        seen = self.watch.view(gang, tuple(f"{gang}-{pod.suffix}" for pod in self.shape))
        held = self.held.get(gang)
        placed = len(seen.pods) == len(self.shape) and all(pod.node for pod in seen.pods)
        if not held or placed:  # another supervisor may have had it accepted
            return seen
        return seen.model_copy(update={"waits": held, "absent": False})

    def why_hold(self, excluded: Collection[str]) -> str:
        """Which volume the next gang would wait for; see the port ``HoldsVolumes``."""
        return "" if self.volumes is None else self.volumes.why_hold(excluded)

    def attempt(self, gang: GangSpec) -> AttemptGang:
        """What recovery adds to the workload for this gang."""
        number = gang_number(gang.name) or 1
        again = self.policy.restart_priority_class if number > 1 else ""
        return AttemptGang(
            run=self.watch.run,
            gang=gang.name,
            attempt=number,
            excluded_nodes=gang.excluded_nodes,
            hostnames=dict(self.hostnames(gang.excluded_nodes)),
            grace_s=max(gang.grace_s, self.policy.end_grace_s),
            store=self.store,
            control=self.control,
            hold_s=self.policy.hold_s,
            poll_s=min(self.policy.poll_s, 1.0),
            owner=self.owner,
            priority_class=again or self.priority_class,
        )

    def delete_pods(self, gang: str, grace_s: float) -> None:
        """Ask once for the deletion of a gang's live pods, or again where their deadline is to come sooner.

        Never with a grace of 0: that frees a pod's name, not the device that its processes hold.
        """
        grace = max(1, round(grace_s))
        if waiting(self.watch.snapshot().live(gang), grace):
            self.watch.api.delete_all(PODS, labels={GANG_LABEL: gang}, grace_s=grace)
