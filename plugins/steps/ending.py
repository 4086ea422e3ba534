"""The end of a run that nobody wants any more: its ranks save, its gang goes, and the ledger says why."""

from collections.abc import Callable
from dataclasses import dataclass

from rerail.plugins.evict.preevict import LiveGang, PodsLeft, PreEvict
from rerail.plugins.gang.executor import Supervisor
from rerail.plugins.gang.ledger import newest_entry
from rerail.policies.eviction import EvictionBounds
from rerail.policies.supervisor.state import RunState

MARGIN_S = 60.0
"""After the pods' own grace, how long a gang may take to be gone."""


@dataclass(slots=True)
class _Supervised:
    """The port ``GangPods`` on a gang that its own supervisor ends."""

    supervisor: Supervisor
    gang: str
    reason: str

    def left(self) -> PodsLeft:
        seen = self.supervisor.backend.view(self.gang)
        return PodsLeft(alive=tuple(pod.name for pod in seen.pods if pod.phase in ("pending", "running")))

    def evict(self) -> str:
        self.supervisor.ask_stop(self.reason)
        self.supervisor.step()
        return ""

    def grace_s(self) -> float:
        return self.supervisor.policy.end_grace_s


def is_running(supervisor: Supervisor, state: RunState) -> bool:
    """Whether ranks may run that can save."""
    if state.gang is None:
        return False
    return any(pod.phase == "running" for pod in supervisor.backend.view(state.gang.name).pods)


def save_and_end(supervisor: Supervisor, reason: str, *, deadline_s: float, log: Callable[[str], None]) -> RunState:
    """Ask the ranks to save and leave, end the gang at the deadline at the latest, and stop the run.

    May be repeated, and goes on where another one was lost. Bounded.

    Args:
        supervisor: Of the run.
        reason: Why, for the ledger and for people.
        deadline_s: How long a save may take.
        log: Takes one line for people.

    Returns:
        The last state.

    Raises:
        TransientError: The store or the API server does not answer.
    """
    clock = supervisor.clock
    entry = newest_entry(supervisor.run)
    state = entry.state if entry is not None else None
    if state is not None and state.phase == "running" and state.gang is not None and is_running(supervisor, state):
        evicted = PreEvict(
            supervisor.run,
            LiveGang(gang=state.gang.name, attempt=state.attempt),
            _Supervised(supervisor, state.gang.name, reason),
            EvictionBounds(deadline_s=deadline_s, grace_s=supervisor.policy.end_grace_s),
            reason,
            takeover_s=0.0,
            clock=clock,
            log=log,
        ).perform()
        log(f"{evicted.outcome} at step {evicted.step}")
    supervisor.ask_stop(reason)
    until_s = clock.monotonic_s() + supervisor.policy.end_grace_s + MARGIN_S
    return supervisor.drive(until=lambda: clock.monotonic_s() > until_s)
