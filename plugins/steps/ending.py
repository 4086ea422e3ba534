"""The end of a run that nobody wants any more: its ranks save, its gang goes, and the ledger says why."""

from collections.abc import Callable
from dataclasses import dataclass

from rerail.plugins.evict.preevict import LiveGang, PodsLeft, PreEvict
from rerail.plugins.gang.executor import Supervisor
from rerail.plugins.gang.ledger import newest_entry
from rerail.policies.errors import TransientError
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
    still: Callable[[], bool]

    def left(self) -> PodsLeft:
        seen = self.supervisor.backend.view(self.gang)
        return PodsLeft(alive=tuple(pod.name for pod in seen.pods if pod.phase in ("pending", "running")))

    def evict(self) -> str:
        if not self.still():
            return "nobody wants its end any more"
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


def save_and_end(
    supervisor: Supervisor,
    reason: str,
    *,
    deadline_s: float,
    log: Callable[[str], None],
    wanted: Callable[[], bool] = lambda: True,
) -> RunState:
    """Ask the ranks to save and leave, end the gang at the deadline at the latest, and stop the run.

    May be repeated, and goes on where another one was lost. Bounded. A run that another owner takes over meanwhile, or
    whose end is not wanted any more, is left as it is: look at the owner and the phase of the state.

    Args:
        supervisor: Of the run.
        reason: Why, for the ledger and for people.
        deadline_s: How long a save may take.
        log: Takes one line for people.
        wanted: Whether the run's end is still wanted; asked again and again while the save is waited for.

    Returns:
        The last state.

    Raises:
        TransientError: The store or the API server does not answer.
    """

    def still() -> bool:
        now = newest_entry(supervisor.run)
        return (now is None or supervisor.is_ours(now.state)) and wanted()

    def waits() -> bool:
        try:
            return still()
        except TransientError:  # who does not answer changes nothing; it is asked once more before the end
            return True

    clock = supervisor.clock
    entry = newest_entry(supervisor.run)
    state = entry.state if entry is not None else None
    if state is not None and state.phase == "running" and state.gang is not None and is_running(supervisor, state):
        evicted = PreEvict(
            supervisor.run,
            LiveGang(gang=state.gang.name, attempt=state.attempt),
            _Supervised(supervisor, state.gang.name, reason, still),
            EvictionBounds(deadline_s=deadline_s, grace_s=supervisor.policy.end_grace_s),
            reason,
            takeover_s=0.0,
            wanted=waits,
            clock=clock,
            log=log,
        ).perform()
        log(f"{evicted.outcome} at step {evicted.step}")
    if not still() and (entry := newest_entry(supervisor.run)) is not None:
        return entry.state
    supervisor.ask_stop(reason)
    until_s = clock.monotonic_s() + supervisor.policy.end_grace_s + MARGIN_S
    return supervisor.drive(until=lambda: clock.monotonic_s() > until_s)
