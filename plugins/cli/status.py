"""``rerail status RUN``: where a run stands, from its store alone."""

import time
from contextlib import ExitStack
from typing import Any

import typer

from rerail.plugins.cli.locate import ControlOption, Located, NamespaceOption, RunArgument, StoreOption, locate
from rerail.plugins.cli.output import Output, OutputOption, emit


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("status")(status)


def status(
    run: RunArgument,
    *,
    store: StoreOption = None,
    control: ControlOption = None,
    namespace: NamespaceOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show where a run stands: its phase and why, what the ranks do, its attempts, and from where it would go on.

    It reads the run's store and nothing else; without --store the run's pods say where that is.

    Exit codes: 0 shown, 2 bad input, 3 the store does not answer, 4 there is no such run.
    """
    with ExitStack() as held:
        found = document(locate(run, store, control, namespace, held), now_s=time.time())
    if output is not Output.TABLE:
        emit(found, output)
        return
    lists = {name: found.pop(name) for name in ("attempts", "incidents")}
    if (decided_at_s := found.pop("decided_at_s")) is not None:
        found["decided"] = f"{time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(decided_at_s))} UTC: {found.pop('note')}"
    emit({name: value for name, value in found.items() if value not in (None, "", {})}, output)
    for rows in lists.values():
        if rows:
            emit(rows, output)


def document(found: Located, *, now_s: float) -> dict[str, Any]:
    """What is known of a run.

    Args:
        found: The run.
        now_s: Wall clock, epoch seconds; only for the age of the ranks' last word.
    """
    from rerail.plugins.checkpoint.notes import read_heartbeat, why_paused
    from rerail.plugins.checkpoint.resolve import resolve
    from rerail.plugins.cli.driving import attempt_rows, incident_rows
    from rerail.plugins.gang.ledger import newest_entry

    entry = newest_entry(found.run)
    state = entry.state if entry is not None else None
    beat = read_heartbeat(found.run)
    newest = resolve(found.run, known=state is not None)
    told = None
    if beat is not None and state is not None and beat.attempt == state.attempt and state.phase == "running":
        of = f" of {beat.total_steps}" if beat.total_steps else ""
        told = f"{beat.phase}, step {beat.step}{of}, said {max(0.0, now_s - beat.at_s):.0f} s ago"
    return {
        "run": found.run.run,
        "store": found.store,
        "namespace": found.namespace or None,
        "owner": found.doc.owner,
        "phase": state.phase if state else "submitted",
        "reason": state.reason if state else "no supervisor has begun it yet",
        "paused": why_paused(found.run) or (state.paused if state else "") or None,
        "decided_at_s": entry.at_s if entry else None,
        "note": entry.note if entry else None,
        "attempt": state.attempt if state else None,
        "gang": state.gang.name if state and state.gang else None,
        "nodes": list(state.attempts[-1].nodes) if state and state.attempts else [],
        "ranks": told,
        "step": beat.step if beat else None,
        "total_steps": beat.total_steps if beat else None,
        "resume": {"decision": newest.decision, "step": newest.step, "reason": newest.reason},
        "quarantined": dict(state.quarantined) if state else {},
        "attempts": attempt_rows(state) if state else [],
        "incidents": incident_rows(state) if state else [],
    }
