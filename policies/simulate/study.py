"""What ``rerail simulate`` shows: the rules side by side on one trace, and what follows for interval and spares."""

from collections.abc import Callable
from typing import Final

from rerail.policies.documents import Value
from rerail.policies.simulate.advice import Advice, advise
from rerail.policies.simulate.bench import Bench, Question
from rerail.policies.simulate.goodput import Tally
from rerail.policies.simulate.replay import Rules
from rerail.policies.simulate.synthetic import Randomness
from rerail.policies.simulate.trace import DAY_S, Trace, TraceFacts, facts

CAVEATS: Final = (
    "the trace's faults happen on their nodes whether or not the gang sits there: a node that is spared still fails",
    "the gang has its nodes for itself and waits for as long as it takes; a run gives up after capacity_wait_s",
    "every outage is noted on its node, as where all runs of a cluster share one ledger; it names no device",
    "after the third fault within 60 days a person gives a node back, --person after its repair",
)
_YEAR_S: Final = 365 * DAY_S


class Row(Value):
    """One set of rules on the trace, over all placements.

    Attributes:
        spares: Nodes beside the gang's own.
        change_percent: Of the interruptions, against no memory on the same spares; None where nothing interrupted that.
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


class Study(Value):
    """The whole answer.

    Attributes:
        interval_s: Seconds between the beginnings of two saves in all ``policies``.
    """

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
    bench = Bench(trace, asked, chance)
    advice = advise(bench, tell=tell)
    rows = _rows(bench, advice.spares if asked.spares is None else asked.spares, tell)
    return Study(trace=facts(trace), question=asked, interval_s=bench.interval_s, policies=rows, advice=advice)


def _rows(bench: Bench, spares: int, tell: Callable[[str], None]) -> tuple[Row, ...]:
    none, most = bench.rules(probation=False, offenders=False), bench.most_spares
    named: list[tuple[str, Rules, int]] = [
        ("no memory", none, most),
        ("+ probation", bench.rules(offenders=False), most),
        ("+ offender rules", bench.rules(), most),
        ("no spares: no memory", none, 0),
        ("no spares: all rules", bench.rules(), 0),
        (f"{spares} spares: no memory", none, spares),
        (f"{spares} spares: all rules", bench.rules(), spares),
    ]
    plan: dict[tuple[Rules, int], str] = {}
    for name, rules, size in named:
        plan.setdefault((rules, size), name)
    rows: list[Row] = []
    for (rules, size), name in plan.items():
        tell(f"{name}: {bench.asked.placements} placements on {bench.asked.nodes} + {size} nodes")
        found = bench.tally(rules, size)
        expected = bench.expected(found, bench.interval_s)
        rows.append(_row(bench, name, found, size, before=bench.tally(none, size).interruptions, expected=expected))
    for size in dict.fromkeys((most, spares)):
        name = "oracle" if size == most else f"{size} spares: oracle"
        rows.append(_row(bench, name, bench.oracle(size), size, before=bench.tally(none, size).interruptions))
    return tuple(rows)


def _row(bench: Bench, name: str, found: Tally, spares: int, *, before: int, expected: float | None = None) -> Row:
    return Row(
        policy=name,
        spares=spares,
        interruptions_per_year=round(found.interruptions * _YEAR_S / found.elapsed_s, 1),
        change_percent=round(100 * (found.interruptions / before - 1), 1) if before else None,
        mtbf_h=round(found.mtbf_s / 3600, 2) if found.interruptions else None,
        ettr_run=round(found.ettr_run, 4),
        ettr_job=round(found.ettr_job, 4),
        waiting_percent=round(100 * found.waited_s / found.elapsed_s, 2),
        gpu_h_lost_per_day=round(24 * bench.asked.nodes * bench.asked.gpus_per_node * (1 - found.ettr_job), 1),
        expected_ettr=expected,
    )
