"""The question that a study is asked, and the replays that answer it, each made once."""

import math
from collections.abc import Sequence

from rerail.policies.cadence import Every, YoungDaly
from rerail.policies.documents import Value
from rerail.policies.errors import UsageError
from rerail.policies.simulate.goodput import (
    Costs,
    Tally,
    expected_ettr,
    save_times_s,
    tally,
    tally_saved_in_time,
    together,
)
from rerail.policies.simulate.oracle import foresee
from rerail.policies.simulate.replay import Replay, Rules, replay
from rerail.policies.simulate.synthetic import Randomness
from rerail.policies.simulate.trace import DAY_S, Trace, node_mtbf_s


class Question(Value):
    """What is asked.

    Attributes:
        nodes: Whole nodes that the gang needs.
        gpus_per_node: For GPU-hours.
        save_cost_s: Training time that one save takes away.
        restart_cost_s: From a fault to the first step.
        interval_s: Time between the beginnings of two saves; None lets the production cadence choose.
        spares: Nodes that the job holds beside the gang; None lets the study choose.
        placements: Random orders of the nodes over which everything is averaged.
        person_s: How long a person takes to give a repeat offender back.
    """

    nodes: int
    gpus_per_node: int = 8
    save_cost_s: float
    restart_cost_s: float
    interval_s: float | None = None
    spares: int | None = None
    placements: int = 4
    person_s: float = DAY_S


class Bench:
    """One question on one trace.

    Raises:
        UsageError: The question cannot be answered on this trace; says why.
    """

    def __init__(self, trace: Trace, asked: Question, chance: Randomness) -> None:
        _check(asked, trace)
        self.trace, self.asked = trace, asked
        self.costs = Costs(asked.save_cost_s, asked.restart_cost_s)
        self.cadence = (
            YoungDaly(mtbf_s=node_mtbf_s(trace) / asked.nodes)
            if asked.interval_s is None
            else Every(seconds=asked.interval_s)
        )
        self.interval_s = save_times_s(self.cadence, self.costs)[1]
        if self.interval_s > trace.horizon_s:
            raise UsageError(
                f"an interval of {self.interval_s:g} s is longer than the trace of {trace.horizon_s:g} s: no save "
                "would happen; give a shorter --interval or a longer trace"
            )
        self._orders = [_shuffled(trace.nodes, chance) for _ in range(asked.placements)]
        self._known: dict[tuple[Rules, int], list[Replay]] = {}

    @property
    def most_spares(self) -> int:
        """All nodes of the pool that the gang does not need."""
        return len(self.trace.nodes) - self.asked.nodes

    def rules(self, *, probation: bool = True, offenders: bool = True) -> Rules:
        """Rules with the asked person."""
        return Rules(probation=probation, offenders=offenders, person_s=self.asked.person_s)

    def tally(self, rules: Rules, spares: int, cadence: Every | YoungDaly | None = None) -> Tally:
        """All placements under some rules on the gang's nodes and some spares."""
        key = (rules, spares)
        if key not in self._known:
            self._known[key] = [
                replay(self.trace, self.asked.nodes, order=pool, rules=rules) for pool in self._pools(spares)
            ]
        return together(tally(one, cadence or self.cadence, self.costs) for one in self._known[key])

    def oracle(self, spares: int) -> Tally:
        """The same for somebody who knows every fault."""
        seen = (foresee(self.trace, self.asked.nodes, order=pool, costs=self.costs) for pool in self._pools(spares))
        return together(tally_saved_in_time(one, self.costs) for one in seen)

    def useful_share(self, found: Tally, spares: int) -> float:
        """Of all the time of all nodes that the job holds, what trained."""
        return found.ettr_job * self.asked.nodes / (self.asked.nodes + spares)

    def expected(self, found: Tally, interval_s: float) -> float | None:
        """The formula's ETTR at the MTBF that was found; None where it does not hold, or nothing was interrupted."""
        work_s = interval_s - self.costs.save_s
        if not found.interruptions or work_s <= 0:
            return None
        ettr = expected_ettr(found.mtbf_s, work_s, self.costs)
        return None if ettr is None else round(ettr, 4)

    def _pools(self, spares: int) -> list[list[str]]:
        return [order[: self.asked.nodes + spares] for order in self._orders]


def _shuffled(nodes: Sequence[str], chance: Randomness) -> list[str]:
    order = list(nodes)
    chance.shuffle(order)
    return order


def _check(asked: Question, trace: Trace) -> None:
    room = len(trace.nodes)
    if not 1 <= asked.nodes <= room:
        raise UsageError(
            f"--nodes {asked.nodes}: {trace.source} has a pool of {room} nodes, so give 1 to {room}; a trace names "
            "only the nodes that failed, and --pool says how many there were"
        )
    if asked.spares is not None and not 0 <= asked.spares <= room - asked.nodes:
        raise UsageError(
            f"--spares {asked.spares}: beside {asked.nodes} of {room} nodes there are 0 to {room - asked.nodes}"
        )
    for option, number in (("--gpus-per-node", asked.gpus_per_node), ("--placements", asked.placements)):
        if number < 1:
            raise UsageError(f"{option} {number}: at least 1")
    if not 0 <= asked.person_s < math.inf:
        raise UsageError(f"--person {asked.person_s:g}: a time from 0")
    if asked.restart_cost_s >= trace.horizon_s:
        raise UsageError(
            f"--restart-cost {asked.restart_cost_s:g}: nothing would ever train in a trace of {trace.horizon_s:g} s"
        )
