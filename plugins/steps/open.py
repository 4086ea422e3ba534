"""``rerail step open``: an attempt's PodGroup stands, and Argo is told what it needs to make the pods of the ranks.

After a fault it judges first what follows, as ``rerail step assess`` does: one pod less before the new ranks.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.gang.executor import Supervisor
from rerail.plugins.gang.fanout import FanoutBackend
from rerail.plugins.kube.api import KubeApi
from rerail.plugins.steps.assess import perform as judge
from rerail.plugins.steps.resolve import how_of
from rerail.plugins.steps.run import RunStep
from rerail.plugins.steps.simple import AUTHORITIES
from rerail.plugins.steps.workflow import annotate, tell
from rerail.policies.errors import RerailError
from rerail.policies.handover import StepExit, told
from rerail.policies.supervisor.state import GangSpec, LedgerEntry, RunState
from rerail.policies.workloads.fanout import refuse_manifest

NO_GANG: Final = "-"
"""In place of a gang's name: there is none to make pods for."""

_BEYOND: Final = ("done", "stopped")


@dataclass(slots=True)
class OpenStep(RunStep):
    """Drives a run until the gang of an attempt stands, and leaves its supervision to the step ``run``."""

    def _driven(self, supervisor: Supervisor, standing: LedgerEntry | None, api: KubeApi) -> StepExit:
        backend = supervisor.backend
        assert isinstance(backend, FanoutBackend)
        refuse_manifest(backend.workload, volumes=(AUTHORITIES,))
        self._reopened(supervisor, standing, api)

        def stands() -> bool:
            state = supervisor.state
            assert state is not None
            opened = state.phase == "running" and supervisor.settled
            return opened or self._leaving.told

        state = supervisor.drive(until=stands)
        supervisor.refuse_anothers(state)
        if state.phase in _BEYOND or state.gang is None:
            self.outputs.write(how="done" if state.phase == "done" else "resume", attempt=state.attempt, gang=NO_GANG)
            self.outputs.words(told(state))
            return StepExit.STOPPED
        if state.phase != "running":
            return StepExit.LEFT
        self._tell_ranks(supervisor.run, state, backend, state.gang)
        return StepExit.DONE

    def _tell_ranks(self, run: RunStore, state: RunState, backend: FanoutBackend, gang: GangSpec) -> None:
        ranks = backend.ranks(gang)
        # Whose pods are there, of another Workflow that was taken over, is supervised; twice the same rank must not be.
        count = 0 if backend.has_pods(gang.name) else ranks.count
        self.outputs.write(
            how=how_of(run, state),
            attempt=state.attempt,
            gang=gang.name,
            replicas=count,
            image=ranks.image,
            command=json.dumps(ranks.command),
            resources=json.dumps(ranks.resources),
            affinity=json.dumps(ranks.affinity),
            grace_s=ranks.grace_s,
            priority_class=json.dumps(ranks.priority_class),
            world_size=ranks.environment["WORLD_SIZE"],
            local_ranks=ranks.environment["RERAIL_LOCAL_RANKS"],
            hold_s=ranks.environment["RERAIL_HOLD_S"],
            poll_s=ranks.environment["RERAIL_POLL_S"],
        )
        self.outputs.words(f"gang {gang.name} stands; {told(state)}")


def begin(step: OpenStep, api: KubeApi | None) -> StepExit:
    """Open the attempt that a Workflow begins with; what keeps it from that is told to the Workflow, too.

    Raises:
        RerailError: The run cannot be driven; says why and what to do.
    """
    try:
        return _leaves(step.perform())
    except RerailError as error:
        words = f"run {step.inputs.run_name(None)}: {error}"
        if api is not None:
            with suppress(RerailError):
                annotate(api, step.inputs.workflow, reason=words)
                tell(api, step.inputs.workflow, "GangGaveUp", words, at_s=step.clock.wall_s())
        raise


def follow(step: OpenStep, api: KubeApi | None) -> StepExit:
    """Judge what follows an attempt that did not succeed, and open the next one.

    Never fails: the runner of the next attempt meets what keeps the run from going on, and says so.
    """
    inputs, outputs, log = step.inputs, step.outputs, step.log
    if judge(inputs, outputs, api, log=log, clock=step.clock).decision != "again":
        return StepExit.DONE
    try:
        ended = step.perform()
    except RerailError as error:
        log(f"the next attempt is not opened here: {error}")
        return StepExit.DONE
    if ended is StepExit.STOPPED:  # meanwhile
        judge(inputs, outputs, api, log=log, clock=step.clock)
    return _leaves(ended)


def _leaves(ended: StepExit) -> StepExit:
    """A run that is over is no failure of this step: those after it say what it is."""
    return ended if ended is StepExit.LEFT else StepExit.DONE
