"""What the executor needs from the world around a run; local processes, vcjobs and PodGroups implement it."""

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from rerail.policies.documents import Rendezvous
from rerail.policies.faults import FaultSignal
from rerail.policies.supervisor.observations import GangView, NodeView
from rerail.policies.supervisor.state import GangSpec


@runtime_checkable
class GangBackend(Protocol):
    """Creates, shows and ends gangs of pods. All methods may be called by any number of supervisors at once.

    Every method raises ``TransientError`` when the backend does not answer, and ``RefusedError`` when it is forbidden.
    """

    def view(self, gang: str) -> GangView:
        """All pods of ``gang`` that exist or left word; no pods where it was never submitted."""
        ...

    def gangs(self, run: str) -> tuple[str, ...]:
        """Names of the run's gangs of which anything is left to end."""
        ...

    def submit(self, gang: GangSpec) -> None:
        """Create the pods that do not exist and never did; adopt the others, also those that ended.

        A gang whose spec names nodes that a scheduler chose existed once: it is never created again.
        """
        ...

    def end(self, gang: str, grace_s: float) -> bool:
        """Go on ending every process of ``gang``: SIGTERM once, SIGKILL when ``grace_s`` seconds passed since.

        Does not wait. The time of the SIGTERM outlives the caller, so a successor goes on where this one was.

        Returns:
            Whether nothing of the gang is left.
        """
        ...

    def rendezvous(self, gang: GangSpec) -> Rendezvous:
        """Where the ranks of the next start of ``gang`` meet, with a fresh id."""
        ...


@runtime_checkable
class HoldsVolumes(Protocol):
    """What a backend may have besides: volumes that a lost node can keep from the next gang."""

    def why_hold(self, excluded: Collection[str]) -> str:
        """Why the next gang, which keeps away from the nodes ``excluded``, should not be opened yet; empty if it may.

        Raises:
            TransientError: No answer, and that means hold.
        """
        ...


@runtime_checkable
class Nodes(Protocol):
    """The nodes that gangs run on, as far as the supervisor may see and mark them."""

    def views(self) -> tuple[NodeView, ...] | None:
        """Every node with its slots; None where nobody may look at nodes."""
        ...

    def mark(self, node: str, incident: str, reason: str, *, device: str = "") -> None:
        """Keep new work off ``node``, and note incident and device; once per incident, however often it is asked.

        Raises:
            TransientError: Not now.
            NotFoundError: There is no such node.
        """
        ...

    def signals(self) -> tuple[FaultSignal, ...]:
        """Fault signals seen so far, oldest first; each keeps its identity from call to call."""
        ...


@runtime_checkable
class Guard(Protocol):
    """Tokens that all runs of one machine or cluster share. ``TransientError`` means no answer, and that means hold."""

    def ask_submission(self, run: str, attempt: int, *, since_s: float | None = None) -> str:
        """Ask to submit the gang of an attempt; the reason to hold, or an empty string. Once per attempt.

        ``since_s``: of a gang that was taken away; when its run asked for its first one, epoch seconds.
        """
        ...

    def ask_quarantine(self, node: str, incident: str, *, nodes: int, fenced: int) -> str:
        """Ask to fence a node for everybody; the reason to hold, or an empty string. Once per incident."""
        ...


@runtime_checkable
class Pause(Protocol):
    """A switch for all runs of one machine or cluster. ``RerailError`` means no answer: what was said last counts."""

    def why(self) -> str:
        """Why no run may be recovered now; empty while all may."""
        ...


@dataclass(frozen=True, slots=True)
class Clock:
    """Time as the executor uses it, replaced as a whole by simulations.

    Attributes:
        wall_s: Epoch seconds, for records.
        monotonic_s: Seconds for deadlines; survives nothing.
        sleep: Waits that many seconds.
    """

    wall_s: Callable[[], float] = time.time
    monotonic_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
