"""What ``rerail simulate`` shows: the rules side by side on one trace, and what follows for interval and spares."""

import math
from collections.abc import Callable, Sequence

from pydantic import Field

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
from rerail.policies.simulate.trace import DAY_S, Trace, TraceFacts, facts, node_mtbf_s

CAVEATS = (
    "the trace's faults happen on their nodes whether or not the gang sits there: a node that is spared still fails",
    "the gang has its nodes for itself and waits for as long as it takes; a run gives up after capacity_wait_s",
    "every outage is noted on its node, as where all runs of a cluster share one ledger; it names no device",
    "after the third fault within 60 days a person gives a node back, --person after its repair",
)
_YEAR_S = 365 * DAY_S
_GRID = 24
_WIDEST = 16.0


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
    gpus_per_node: int = Field(8)
    save_cost_s: float
    restart_cost_s: float
    interval_s: float | None = None
    spares: int | None = None
    placements: int = 4
    person_s: float = DAY_S


class Row(Value):
    """One set of rules on the trace, over all placements.

    Attributes:
        spares: Nodes beside the gang's own.
        change_percent: Of the interruptions, against no memory on the same spares; None where that was not run.
        mtbf_h: Held hours between interruptions; None without interruptions.
        ettr_run: Productive share of the time with nodes; ``ettr_job`` of all time, which is the goodput.
        waiting_percent: Share of the time without enough nodes.
        gpu_h_lost_per_day: GPU-hours of the gang, without spares, that did not train, per day.
        expected_ettr: What the formula for independent faults says for ``ettr_run`` at this MTBF; None outside of its
            regime, or without interruptions.
    """

    policy: str
    spares: int
    interruptions_per_year: float
    change_percent: float | None
    mtbf_h: float | None
    ettr_run: float
    ettr_job: float
    waiting_percent: float
    gpu_h_lost_per_day: float
    expected_ettr: float | None


class SparesPoint(Value):
    """One size of the spare pool: what the job achieves, and what of that each node paid for achieves."""

    spares: int
    ettr_job: float
    useful_share: float


class Advice(Value):
    """What follows.

    Attributes:
        interval_s: Seconds between the beginnings of two saves.
        best_interval_s: The best fixed interval found by trying; ``best_ettr`` and ``advised_ettr`` compare them.
        why: In words.
    """

    interval_s: float
    spares: int
    best_interval_s: float
    best_ettr: float
    advised_ettr: float
    spares_tried: tuple[SparesPoint, ...]
    why: tuple[str, ...]


class Study(Value):
    """The whole answer."""

    trace: TraceFacts
    question: Question
    interval_s: float
    policies: tuple[Row, ...]
    advice: Advice
    caveats: tuple[str, ...] = CAVEATS


def study(trace: Trace, asked: Question, chance: Randomness, *, tell: Callable[[str], None]) -> Study:
    """Replay the trace under each set of rules, and advise.

    Args:
        trace: The faults.
        asked: The job.
        chance: Orders the nodes.
        tell: Is told what is being done, for people.

    Raises:
        UsageError: The question cannot be answered on this trace; says why.
    """
    _check(asked, trace)
    costs = Costs(asked.save_cost_s, asked.restart_cost_s)
    cadence = _cadence(asked, node_mtbf_s(trace) / asked.nodes)
    interval_s = save_times_s(cadence, costs)[1]
    if interval_s > trace.horizon_s:
        raise UsageError(
            f"an interval of {interval_s:g} s is longer than the trace of {trace.horizon_s:g} s: no save would happen; "
            "give a shorter --interval or a longer trace"
        )
    bench = _Bench(trace, asked, costs, cadence, _orders(trace, asked, chance))
    advised, points = _spares(bench, tell)
    everything = len(trace.nodes) - asked.nodes
    spares = advised if asked.spares is None else asked.spares
    rows = _rows(bench, everything, spares, tell)
    advice = _advice(bench, advised, points)
    return Study(trace=facts(trace), question=asked, interval_s=interval_s, policies=rows, advice=advice)


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


def _cadence(asked: Question, mtbf_s: float) -> Every | YoungDaly:
    return YoungDaly(mtbf_s=mtbf_s) if asked.interval_s is None else Every(seconds=asked.interval_s)


def _orders(trace: Trace, asked: Question, chance: Randomness) -> list[list[str]]:
    orders = []
    for _ in range(asked.placements):
        order = list(trace.nodes)
        chance.shuffle(order)
        orders.append(order)
    return orders


class _Bench:
    """Replays of one question on one trace; each is made once."""

    def __init__(
        self, trace: Trace, asked: Question, costs: Costs, cadence: Every | YoungDaly, orders: Sequence[list[str]]
    ) -> None:
        self.trace, self.asked, self.costs, self.cadence = trace, asked, costs, cadence
        self._orders = orders
        self._known: dict[tuple[Rules, int], list[Replay]] = {}

    def rules(self, *, probation: bool, offenders: bool) -> Rules:
        return Rules(probation=probation, offenders=offenders, person_s=self.asked.person_s)

    @property
    def all_rules(self) -> Rules:
        return self.rules(probation=True, offenders=True)

    def pools(self, spares: int) -> list[list[str]]:
        return [order[: self.asked.nodes + spares] for order in self._orders]

    def replays(self, rules: Rules, spares: int) -> list[Replay]:
        key = (rules, spares)
        if key not in self._known:
            self._known[key] = [
                replay(self.trace, self.asked.nodes, order=pool, rules=rules) for pool in self.pools(spares)
            ]
        return self._known[key]

    def tally(self, rules: Rules, spares: int, cadence: Every | YoungDaly | None = None) -> Tally:
        return together(tally(one, cadence or self.cadence, self.costs) for one in self.replays(rules, spares))

    def oracle(self, spares: int) -> Tally:
        seen = (foresee(self.trace, self.asked.nodes, order=pool, costs=self.costs) for pool in self.pools(spares))
        return together(tally_saved_in_time(one, self.costs) for one in seen)

    def useful_share(self, found: Tally, spares: int) -> float:
        """Of all the time of all nodes that the job holds, what trained."""
        return found.ettr_job * self.asked.nodes / (self.asked.nodes + spares)


def _rows(bench: _Bench, everything: int, spares: int, tell: Callable[[str], None]) -> tuple[Row, ...]:
    none = bench.rules(probation=False, offenders=False)
    plan = [
        ("no memory", none, everything),
        ("+ probation", bench.rules(probation=True, offenders=False), everything),
        ("+ offender rules", bench.all_rules, everything),
        ("no spares: no memory", none, 0),
        ("no spares: all rules", bench.all_rules, 0),
        (f"{spares} spares: no memory", none, spares),
        (f"{spares} spares: all rules", bench.all_rules, spares),
    ]
    rows: list[Row] = []
    for name, rules, size in plan:
        if (rules, size) in [(done, other) for _, done, other in plan[: len(rows)]]:
            continue
        tell(f"{name}: {bench.asked.placements} placements on {bench.asked.nodes} + {size} nodes")
        before = bench.tally(none, size).interruptions
        rows.append(_row(bench, name, bench.tally(rules, size), size, before))
    for size in dict.fromkeys((everything, spares)):
        before = bench.tally(none, size).interruptions
        name = "oracle" if size == everything else f"{size} spares: oracle"
        rows.append(_row(bench, name, bench.oracle(size), size, before, formula=False))
    return tuple(rows)


def _row(bench: _Bench, name: str, found: Tally, spares: int, before: int, *, formula: bool = True) -> Row:
    asked, costs = bench.asked, bench.costs
    work_s = save_times_s(bench.cadence, costs)[1] - costs.save_s
    expected = expected_ettr(found.mtbf_s, work_s, costs) if formula and found.interruptions and work_s > 0 else None
    return Row(
        policy=name,
        spares=spares,
        interruptions_per_year=round(found.interruptions * _YEAR_S / found.elapsed_s, 1),
        change_percent=round(100 * (found.interruptions / before - 1), 1) if before else None,
        mtbf_h=round(found.mtbf_s / 3600, 2) if found.interruptions else None,
        ettr_run=round(found.ettr_run, 4),
        ettr_job=round(found.ettr_job, 4),
        waiting_percent=round(100 * found.waited_s / found.elapsed_s, 2),
        gpu_h_lost_per_day=round(24 * asked.nodes * asked.gpus_per_node * (1 - found.ettr_job), 1),
        expected_ettr=None if expected is None else round(expected, 4),
    )


def _sizes(most: int) -> list[int]:
    """0, 1, 2, 3, 4, 6, 8, 12, 16, 24 ... up to ``most``."""
    sizes, size = [0, 1, 2, 3], 4
    while size < most:
        sizes += [size, size * 3 // 2]
        size *= 2
    return [*(size for size in sizes if size < most), most]


def _spares(bench: _Bench, tell: Callable[[str], None]) -> tuple[int, tuple[SparesPoint, ...]]:
    """The spare pool by which each node that is paid for trains most; sizes are tried upwards, then around the best."""
    points: dict[int, SparesPoint] = {}

    def share(size: int) -> float:
        if size not in points:
            tell(f"spares: trying {size}")
            found = bench.tally(bench.all_rules, size)
            points[size] = SparesPoint(
                spares=size,
                ettr_job=round(found.ettr_job, 4),
                useful_share=round(bench.useful_share(found, size), 4),
            )
        return points[size].useful_share

    best, most = 0, len(bench.trace.nodes) - bench.asked.nodes
    sizes = _sizes(most)
    for size in sizes:
        if bench.asked.nodes <= share(best) * (bench.asked.nodes + size):
            break  # even if that many spares made it train all the time, each node would train less
        if share(size) > share(best):
            best = size
    at = sizes.index(best)
    for other in sizes[max(0, at - 1) : at + 2]:
        share((best + other) // 2)
    best = max(points, key=lambda size: (points[size].useful_share, -size))
    return best, tuple(points[size] for size in sorted(points))


def _advice(bench: _Bench, spares: int, points: Sequence[SparesPoint]) -> Advice:
    rules, costs = bench.all_rules, bench.costs
    found = bench.tally(rules, spares)
    cadence = YoungDaly(mtbf_s=found.mtbf_s) if found.interruptions else YoungDaly(mtbf_s=bench.trace.horizon_s)
    interval_s = save_times_s(cadence, costs)[1]
    advised = bench.tally(rules, spares, _every(interval_s, costs))
    best_s, best = _best_interval(bench, rules, spares, interval_s)
    point = next(one for one in points if one.spares == spares)
    bare = next(one for one in points if one.spares == 0)
    nodes = bench.asked.nodes
    rate = f"an interruption every {_words(found.mtbf_s)}" if found.interruptions else "no interruption at all"
    daly = f"interval {_words(interval_s)}: Daly's for saves of {_words(costs.save_s)} and {rate}"
    tried = (
        f"the best fixed interval that was tried is {_words(best_s)}: ETTR {best:.4f}, with the advised one "
        f"{advised.ettr_job:.4f}; an interruption costs about {_words(interval_s / 2 + costs.restart_s)} of the gang"
    )
    held = (
        f"{spares} spares: {nodes} + {spares} nodes train {point.useful_share:.1%} of the time that is paid for, "
        f"without spares {bare.useful_share:.1%}; more spares idle more than they save"
    )
    return Advice(
        interval_s=round(interval_s, 1),
        spares=spares,
        best_interval_s=round(best_s, 1),
        best_ettr=round(best, 4),
        advised_ettr=round(advised.ettr_job, 4),
        spares_tried=tuple(points),
        why=(daly, tried, held),
    )


def _every(interval_s: float, costs: Costs) -> Every:
    return Every(seconds=max(interval_s, 1.01 * costs.save_s))


def _best_interval(bench: _Bench, rules: Rules, spares: int, around_s: float) -> tuple[float, float]:
    """The best of fixed intervals from a sixteenth of ``around_s`` to sixteen times it, and its ETTR."""
    tried: dict[float, float] = {}
    for step in range(-_GRID, _GRID + 1):
        every = _every(around_s * _WIDEST ** (step / _GRID), bench.costs)
        seconds = every.seconds or around_s
        if seconds <= bench.trace.horizon_s:
            tried[seconds] = bench.tally(rules, spares, every).ettr_job
    best_s = max(tried, key=lambda seconds: tried[seconds])
    return best_s, tried[best_s]


def _words(seconds: float) -> str:
    if math.isinf(seconds):
        return "never"
    for unit, size in (("d", DAY_S), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
