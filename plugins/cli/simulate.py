"""``rerail simulate``: what the recovery rules are worth on a trace of faults, and which spares to hold."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rerail.plugins.cli.output import Output, OutputOption, emit
from rerail.policies.errors import NotFoundError, UsageError
from rerail.policies.units import duration_s

if TYPE_CHECKING:
    from rerail.policies.simulate.study import Study
    from rerail.policies.simulate.trace import Trace


def register(app: typer.Typer) -> None:
    """Add ``simulate`` to the ``rerail`` command."""
    app.command("simulate")(simulate)


def simulate(
    *,
    nodes: Annotated[int, typer.Option("--nodes", help="Whole nodes that the gang needs.")],
    save_cost: Annotated[str, typer.Option("--save-cost", help="Training time that one save takes away.")] = "60s",
    restart_cost: Annotated[str, typer.Option("--restart-cost", help="From a fault to the first step.")] = "10m",
    gpus_per_node: Annotated[int, typer.Option("--gpus-per-node", help="For GPU-hours.")] = 8,
    interval: Annotated[
        str, typer.Option("--interval", help="From the beginning of a save to the next; auto chooses by Daly.")
    ] = "auto",
    spares: Annotated[
        int | None,
        typer.Option("--spares", help="Nodes held beside the gang; without it, those advised.", show_default=False),
    ] = None,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            help="Faults as in stepfun-ai/InfiniteHBD-Trace (JSON); without it, a made-up trace with its statistics.",
            show_default=False,
        ),
    ] = None,
    pool: Annotated[
        int | None,
        typer.Option(
            "--pool",
            help="Nodes that there were. A trace names only those that failed; a made-up one has 400.",
            show_default=False,
        ),
    ] = None,
    days: Annotated[float | None, typer.Option("--days", help="Length of a made-up trace.", show_default="349")] = None,
    placements: Annotated[int, typer.Option("--placements", help="Random orders of the nodes to average over.")] = 4,
    person: Annotated[
        str, typer.Option("--person", help="How long a person takes to give a repeat offender back.")
    ] = "1d",
    seed: Annotated[int, typer.Option("--seed", help="Of all chance: the same seed, the same answer.")] = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """Replay node faults under the rules that Rerail recovers by, and advise a save interval and a number of spares.

    Probation, the rules on repeat offenders and spares are switched on one by one, beside an oracle that knows every
    fault and the analytic E[ETTR].
    """
    import random

    from rerail.policies.simulate.bench import Question
    from rerail.policies.simulate.study import study

    asked = Question(
        nodes=nodes,
        gpus_per_node=gpus_per_node,
        save_cost_s=_above_0(save_cost, "--save-cost"),
        restart_cost_s=_above_0(restart_cost, "--restart-cost"),
        interval_s=None if interval == "auto" else _above_0(interval, "--interval"),
        spares=spares,
        placements=placements,
        person_s=duration_s(person, "--person"),
    )
    chance = random.Random(seed)  # noqa: S311 - a simulation, repeatable by its seed
    if trace is None:
        from rerail.policies.simulate.synthetic import synthetic_trace

        faults = synthetic_trace(chance, nodes=400 if pool is None else pool, days=349.0 if days is None else days)
    elif days is not None:
        raise UsageError(f"--days {days:g} is the length of a made-up trace; {trace} has its own")
    else:
        faults = _read(trace, pool)
    found = study(faults, asked, chance, tell=lambda line: print(line, file=sys.stderr))  # noqa: T201
    _show(found, output)


def _above_0(text: str, option: str) -> float:
    seconds = duration_s(text, option)
    if not seconds > 0:
        raise UsageError(f"{option} {text}: a time above 0 is wanted, for example {option} 60s")
    return seconds


def _read(path: Path, pool: int | None) -> "Trace":
    from rerail.policies.simulate.trace import read_trace

    try:
        document: Any = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise NotFoundError(f"trace {path} is not there; check --trace, or leave it out for a made-up one") from None
    except OSError as error:
        raise UsageError(f"trace {path} cannot be read: {error.strerror}; check --trace") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"trace {path} is no JSON: {error}; check --trace") from None
    return read_trace(document, str(path), pool=pool)


def _show(found: "Study", output: Output) -> None:
    from rerail.policies.simulate.advice import words

    if output is not Output.TABLE:
        emit(found, output)
        return
    emit(
        [
            {
                "policy": row.policy,
                "spares": row.spares,
                "stops/year": row.interruptions_per_year,
                "change": "-" if row.change_percent is None else f"{row.change_percent:+.1f} %",
                "MTBF": "-" if row.mtbf_h is None else f"{row.mtbf_h:g} h",
                "ettr run": f"{row.ettr_run:.4f}",
                "E[ETTR]": _share(row.expected_ettr),
                "ettr job": f"{row.ettr_job:.4f}",
                "waiting": f"{row.waiting_percent:g} %",
            }
            for row in found.policies
        ],
        output,
    )
    emit(
        [
            {
                "saves": point.interval,
                "every": "-" if point.interval_s is None else words(point.interval_s),
                "ettr run": f"{point.ettr_run:.4f}",
                "E[ETTR]": _share(point.expected_ettr),
                "ettr job": f"{point.ettr_job:.4f}",
            }
            for point in found.advice.intervals
        ],
        output,
    )
    about = found.trace
    emit(
        {
            "advice": [
                f"save every {found.advice.interval_s:.0f} s, hold {found.advice.spares} spares",
                *found.advice.why,
            ],
            "trace": (
                f"{about.source}: {about.outages} outages of {about.nodes} nodes in {about.days:g} days, "
                f"{about.again_within_1d:.0%} of the nodes given back failed again within a day"
            ),
            "unknown": f"{about.overlapping} outages with overlapping faults, {about.open_at_end} without an end",
            "mind": list(found.caveats),
        },
        output,
    )


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"
