"""A gang of processes on this machine, as an evictor sees it."""

from dataclasses import dataclass

from rerail.plugins.evict.preevict import PodsLeft
from rerail.plugins.gang.local import LocalBackend


@dataclass(slots=True)
class LocalPods:
    """The port ``GangPods`` on processes.

    Attributes:
        backend: Of the run, on the machine that its gang runs on.
        gang: The gang.
        grace: Seconds between SIGTERM and SIGKILL.
    """

    backend: LocalBackend
    gang: str
    grace: float

    def left(self) -> PodsLeft:
        """Pods that live; one whose grace is over is killed here."""
        view = self.backend.view(self.gang)
        if any(pod.disrupted for pod in view.pods if pod.phase == "running"):
            self.backend.evict(self.gang, self.grace)
            view = self.backend.view(self.gang)
        return PodsLeft(alive=tuple(pod.name for pod in view.pods if pod.phase in ("pending", "running")))

    def evict(self) -> str:
        """SIGTERM to every pod now, SIGKILL after the grace."""
        self.backend.evict(self.gang, self.grace)
        return ""

    def grace_s(self) -> float:
        """Seconds between SIGTERM and SIGKILL."""
        return self.grace
