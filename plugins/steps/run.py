"""``rerail step run``: drives one gang of a run, opens the next attempt after a fault, and hands over.

Whatever is lost, and when: the ledger holds what was decided, effects are repeated, and the next runner adopts. A step
leaves with ``NEXT`` only when all that the ledger orders is done, so that nothing waits for the step after it.
"""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType
from typing import Final

from rerail.plugins.gang.clusters import supervised
from rerail.plugins.gang.executor import Supervisor
from rerail.plugins.gang.ledger import entry_at, newest_entry
from rerail.plugins.gang.ports import Clock
from rerail.plugins.kube.api import KubeApi
from rerail.plugins.steps.ending import save_and_end
from rerail.plugins.steps.inputs import Inputs
from rerail.plugins.steps.outputs import Outputs
from rerail.plugins.steps.workflow import annotate, read_workflow
from rerail.plugins.volcano import VolcanoClient
from rerail.policies.documents import Heartbeat
from rerail.policies.errors import NotFoundError, RefusedError, RerailError, TransientError
from rerail.policies.handover import StepExit, gang_of_step, may_reopen, outcome, told
from rerail.policies.reaping import WorkflowView, ends
from rerail.policies.supervisor.state import LedgerEntry, RunState

BEGIN_WITHIN_S: Final = 600.0
"""How long a store or an API server that does not answer is waited for before anything is known of the run."""

_AGAIN_S: Final = 2.0

Log = Callable[[str], None]


@dataclass(slots=True)
class Leaving:
    """Whether the pod was told to go."""

    told: bool = False

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Hear SIGTERM (and Ctrl-C, for whoever tries a step by hand) while the block runs."""

        def leave(_number: int, _frame: FrameType | None) -> None:
            self.told = True

        before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@dataclass(slots=True)
class RunStep:
    """One runner.

    Attributes:
        inputs: What the template said. Where it names the gang, every other one is the next step's.
        outputs: Where Argo is told.
        log: Takes one line for people.
        on_event: Takes each decision.
        clock: For waits before there is a supervisor.
    """

    inputs: Inputs
    outputs: Outputs
    log: Log = lambda _line: None
    on_event: Callable[[LedgerEntry], None] = lambda _entry: None
    clock: Clock = field(default_factory=Clock)
    _leaving: Leaving = field(default_factory=Leaving)

    def perform(self) -> StepExit:
        """Drive the gang to the end of this step.

        Raises:
            RerailError: The run cannot be driven; says why and what to do.
        """
        begun_s = self.clock.monotonic_s()
        with self._leaving.heard():
            while True:
                with ExitStack() as held:
                    try:
                        client = held.enter_context(VolcanoClient.connect(namespace=self.inputs.workflow.namespace))
                        supervisor = supervised(
                            self.inputs.wanted(), client, held, log=self.log, on_event=self.on_event
                        )
                        standing = newest_entry(supervisor.run)
                    except TransientError as error:
                        if self._leaving.told:
                            return StepExit.LEFT
                        if self.clock.monotonic_s() - begun_s > BEGIN_WITHIN_S:
                            raise
                        self.log(f"{error}; trying again")
                    else:
                        return self._driven(supervisor, standing, client.api)
                self.clock.sleep(_AGAIN_S)

    def _driven(self, supervisor: Supervisor, standing: LedgerEntry | None, api: KubeApi) -> StepExit:
        reopened = self._reopened(supervisor, standing, api)
        gang = self.inputs.text("gang") or gang_of_step(standing.state if standing else None, reopened=reopened)
        begun = standing.state.phase_number if standing else -1

        def over() -> bool:
            nonlocal gang
            state = supervisor.state
            assert state is not None
            if not gang and state.gang is not None and (not reopened or state.phase_number > begun + 1):
                gang = state.gang.name
            self._progress(supervisor.heartbeat)
            handed = outcome(gang, state, settled=supervisor.settled) == "next"
            return handed or self._leaving.told

        state = supervisor.drive(until=over)
        self._progress(supervisor.heartbeat, done=state.phase == "done")
        supervisor.refuse_anothers(state)
        found = outcome(gang, state, settled=supervisor.settled)
        if self._leaving.told and found is None:
            return self._left(supervisor, api)
        assert found is not None
        return self._tell(found, state)

    def _reopened(self, supervisor: Supervisor, standing: LedgerEntry | None, api: KubeApi) -> bool:
        """Let a run that stopped try again, where a person brought this step to it."""
        if standing is None or standing.state.phase != "stopped":
            return False
        view = self._view(api)
        marked = f"run {supervisor.run.run}: "
        gave_up = view is not None and view.reason.startswith(marked)
        if view is not None and ends(view):
            return False
        taken = (
            standing.number > 0 and entry_at(supervisor.run, standing.number - 1).state.owner != standing.state.owner
        )
        if not may_reopen(standing.state, taken_over=taken, gave_up=gave_up):
            return False
        supervisor.reopen(f"{self.inputs.workflow} was run again")
        if gave_up:
            with suppress(RerailError):
                annotate(api, self.inputs.workflow, reason=None)
        return True

    def _view(self, api: KubeApi) -> WorkflowView | None:
        """The Workflow; None where nobody can tell."""
        try:
            return read_workflow(api, self.inputs.workflow)
        except (TransientError, RefusedError, NotFoundError) as error:
            self.log(f"{self.inputs.workflow} cannot be read: {error}")
            return None

    def _left(self, supervisor: Supervisor, api: KubeApi) -> StepExit:
        """The pod has to go: end the gang if nobody will follow, else leave it to the next runner."""
        view = self._view(api)
        if view is None or not ends(view):
            self.log("this runner was told to go; the gang goes on, and the next runner takes it up")
            return StepExit.LEFT
        asked = "gone" if not view.found else "being deleted" if view.deleting else "being stopped"
        state = save_and_end(
            supervisor,
            f"{self.inputs.workflow} is {asked}",
            deadline_s=self.inputs.deadline_s,
            log=self.log,
        )
        supervisor.refuse_anothers(state)
        if state.phase == "done":
            return self._tell("done", state)
        self.outputs.write(outcome="stopped", attempt=state.attempt)
        self.outputs.words(told(state))
        return StepExit.STOPPED

    def _progress(self, beat: Heartbeat | None, *, done: bool = False) -> None:
        """Move the progress bar; nothing depends on it."""
        if beat is not None and beat.total_steps:
            with suppress(OSError):
                self.outputs.progress(beat.total_steps if done else beat.step, beat.total_steps)

    def _tell(self, found: str, state: RunState) -> StepExit:
        words = told(state)
        record = state.attempts[-1] if state.attempts else None
        before = state.attempts[-2].n if found == "next" and len(state.attempts) > 1 else state.attempt
        self.outputs.write(
            outcome=found,
            attempt=before,
            next_attempt=state.attempt if found == "next" else "",
            from_step=record.started_from_step or 0 if record is not None else 0,
        )
        self.outputs.words(words)
        self.log(words)
        return {"done": StepExit.DONE, "next": StepExit.NEXT}.get(found, StepExit.STOPPED)
