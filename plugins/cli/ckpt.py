"""``rerail ckpt``: look at a run's checkpoints, verify them, ask what a resume would take, keep and delete."""

import secrets
from typing import Annotated

import typer

from rerail.plugins.checkpoint.manifests import load_manifest
from rerail.plugins.checkpoint.notes import mark_commit, read_marks, unmark_commit
from rerail.plugins.checkpoint.open import open_run
from rerail.plugins.checkpoint.resolve import Resolution, resolve
from rerail.plugins.checkpoint.retention import collect, survey
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.checkpoint.verify import verify
from rerail.plugins.cli.output import Output, OutputOption, emit
from rerail.policies import keys
from rerail.policies.errors import NotFoundError, ResumeBlockedError, StoreUnreachableError, UsageError
from rerail.policies.manifest import Layout
from rerail.policies.retention import AnyOf, Best, EveryN, LatestN, MaxAge, RetentionPolicy

RunOption = Annotated[str, typer.Option("--run", "-r", envvar="RERAIL_RUN", help="Name of the run.")]
StoreOption = Annotated[
    str, typer.Option("--store", envvar="RERAIL_STORE", help="Store address: file:///dir or s3://bucket/prefix.")
]
ControlOption = Annotated[
    str | None,
    typer.Option("--control", envvar="RERAIL_CONTROL", help="Store of control documents, where it is another one."),
]
AttemptOption = Annotated[
    int | None, typer.Option("--attempt", help="The attempt that wrote it; needed only if several wrote this step.")
]

ckpt = typer.Typer(
    name="ckpt",
    help="Look at, verify, resolve, keep and delete the checkpoints of a run.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)


def register(app: typer.Typer) -> None:
    """Add ``ckpt`` to the ``rerail`` command."""
    app.add_typer(ckpt, name="ckpt")


def _existing(run: str, store: str, control: str | None) -> RunStore:
    """The run's stores, if the run is there; a misspelt name must not look like a run without checkpoints."""
    opened = open_run(run, store=store, control=control)
    if not opened.control.page("", limit=1).entries:
        raise NotFoundError(
            f"run {run!r} is not at {opened.control.url} (nothing is there); check --run, --store and the mount"
        )
    return opened


@ckpt.command("ls")
def list_checkpoints(
    *,
    run: RunOption,
    store: StoreOption,
    control: ControlOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List the checkpoints of a run, newest first.

    ON_CHAIN says whether a resume may take it: commits of an attempt that a newer one left behind do not count. MARKS
    are bad (damage was met), suspect (a faulty device took part) and pin (never deleted). This reads manifests only;
    `rerail ckpt verify` reads and hashes the files.
    """
    opened = _existing(run, store, control)
    seen = survey(opened)
    marks = read_marks(opened)
    rows = []
    for fact in seen.facts:
        manifest = seen.manifests.get(fact.name)
        rows.append(
            {
                "step": fact.step,
                "attempt": fact.attempt,
                "reason": manifest.reason if manifest else "unreadable",
                "on_chain": fact.on_chain,
                "marks": sorted(mark.kind for mark in marks if (mark.attempt, mark.step) == fact.name),
                "files": len(manifest.files) if manifest else None,
                "size_bytes": sum(entry.size for entry in manifest.files) if manifest else None,
                "full": manifest.full if manifest else None,
                "temporary": fact.temporary,
                "loss": fact.loss,
            }
        )
    for name, steps in seen.foreign.items():
        typer.echo(f"rerail: checkpoints of run {name!r} lie here (steps {', '.join(map(str, steps))})", err=True)
    emit(rows, output)


@ckpt.command("show")
def show_checkpoint(
    *,
    step: Annotated[int, typer.Argument(help="Completed optimizer steps of the checkpoint.")],
    run: RunOption,
    store: StoreOption,
    control: ControlOption = None,
    attempt: AttemptOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the manifest of one checkpoint: parts of the state, files, counters, layout, snapshots, certificate."""
    opened = _existing(run, store, control)
    stored = load_manifest(opened, _attempt_of(opened, step, attempt), step)
    emit(
        {
            "key": keys.manifest(stored.ref.attempt, step),
            "digest": stored.ref.digest,
            **stored.manifest.model_dump(mode="json"),
        },
        output,
    )


@ckpt.command("verify")
def verify_checkpoints(
    *,
    run: RunOption,
    store: StoreOption,
    control: ControlOption = None,
    step: Annotated[list[int] | None, typer.Option("--step", help="Only this step; may be given again.")] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Read and hash every file of the checkpoints and hold it against its manifest. Exits with 1 on damage."""
    opened = _existing(run, store, control)
    found = verify(opened, step or None)
    emit([verdict.model_dump(mode="json") for verdict in found], output)
    if not all(verdict.ok for verdict in found):
        raise typer.Exit(1)


@ckpt.command("resolve")
def resolve_run(
    *,
    run: RunOption,
    store: StoreOption,
    control: ControlOption = None,
    step: Annotated[int | None, typer.Option("--step", help="Exactly this step, and no other one.")] = None,
    known: Annotated[
        bool, typer.Option("--known", help="The run had an attempt before: an empty store is then a wrong one.")
    ] = False,
    world_size: Annotated[
        int | None, typer.Option("--world-size", min=1, help="Ranks of the gang that will load it.")
    ] = None,
    tp: Annotated[int, typer.Option("--tp", min=1, help="Tensor parallelism of that gang.")] = 1,
    pp: Annotated[int, typer.Option("--pp", min=1, help="Pipeline parallelism of that gang.")] = 1,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say from which checkpoint the next attempt goes on, and which newer ones it skips and why.

    Exits with 3 if the resume is blocked (the reason and the ways out are in the document), and with 4 if the step or
    the run is not there.
    """
    opened = open_run(run, store=store, control=control)
    layout = None if world_size is None else Layout(world_size=world_size, tp=tp, pp=pp)
    try:
        found = resolve(opened, known=known, step=step, layout=layout)
    except StoreUnreachableError as error:
        found = Resolution(
            run=run,
            decision="blocked",
            reason=str(error),
            options=("try again when the store answers", "check --store, the endpoint and the network"),
        )
    emit(found, output)
    if found.decision == "blocked":
        raise typer.Exit(ResumeBlockedError.exit_code)


@ckpt.command("gc")
def collect_checkpoints(
    *,
    run: RunOption,
    store: StoreOption,
    control: ControlOption = None,
    keep_last: Annotated[int | None, typer.Option("--keep-last", min=1, help="Keep the newest N.")] = None,
    every_steps: Annotated[
        int | None, typer.Option("--every-steps", min=1, help="Keep those at whole multiples of N steps.")
    ] = None,
    best: Annotated[int | None, typer.Option("--best", min=1, help="Keep the N with the lowest loss.")] = None,
    max_age_s: Annotated[
        float | None, typer.Option("--max-age-s", min=0.001, help="Keep those younger than this many seconds.")
    ] = None,
    keep_clean_s: Annotated[
        float, typer.Option("--keep-clean-s", min=0.0, help="Keep the newest good one older than this, in seconds.")
    ] = 21600.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete checkpoints that no policy keeps, and files of saves that never became a commit.

    A checkpoint stays if any of the given policies keeps it. Always kept: the newest good one, what the current start
    loads, the newest good one older than --keep-clean-s, pins, and every file that a kept checkpoint needs. A running
    supervisor collects by itself; use this for runs that nobody supervises.
    """
    policies: list[RetentionPolicy] = []
    if keep_last is not None:
        policies.append(LatestN(n=keep_last))
    if every_steps is not None:
        policies.append(EveryN(steps=every_steps))
    if best is not None:
        policies.append(Best(n=best))
    if max_age_s is not None:
        policies.append(MaxAge(max_age_s=max_age_s))
    if not policies:
        raise UsageError("no policy was given; say what to keep, for example --keep-last 3 or --every-steps 1000")
    opened = _existing(run, store, control)
    emit(collect(opened, AnyOf(*policies), dry_run=dry_run, keep_clean_s=keep_clean_s), output)


@ckpt.command("pin")
def pin_checkpoint(
    *,
    step: Annotated[int, typer.Argument(help="Completed optimizer steps of the checkpoint.")],
    run: RunOption,
    store: StoreOption,
    control: ControlOption = None,
    attempt: AttemptOption = None,
    why: Annotated[str, typer.Option("--why", help="Reason, for people.")] = "pinned by hand",
    remove: Annotated[bool, typer.Option("--remove", help="Take the pin away.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Keep a checkpoint for good: no policy deletes it until the pin is removed."""
    opened = _existing(run, store, control)
    chosen = _attempt_of(opened, step, attempt)
    if remove:
        unmark_commit(opened, attempt=chosen, step=step, kind="pin")
    else:
        mark_commit(opened, attempt=chosen, step=step, kind="pin", why=why, writer=secrets.token_hex(8))
    emit({"run": run, "attempt": chosen, "step": step, "pinned": not remove}, output)


def _attempt_of(run: RunStore, step: int, attempt: int | None) -> int:
    """The attempt that a step of the chain belongs to; one off the chain has to be named."""
    facts = [fact for fact in survey(run).facts if fact.step == step and attempt in {None, fact.attempt}]
    facts = [fact for fact in facts if fact.on_chain] or facts
    if not facts:
        have = ", ".join(str(other) for other in sorted({fact.step for fact in survey(run).facts})) or "none"
        raise NotFoundError(f"step {step} not found{f' in attempt {attempt}' if attempt else ''} (have {have})")
    if len(facts) > 1:
        named = ", ".join(str(fact.attempt) for fact in facts)
        raise UsageError(f"step {step} was committed by attempts {named}, none of them on the chain; give --attempt")
    return facts[0].attempt
