"""Whether two runs are bit for bit the same training: every parameter, the loss of every step, the samples seen."""

from dataclasses import dataclass
from pathlib import Path

from rerail.plugins.checkpoint.attempts import read_start
from rerail.plugins.checkpoint.commit import read_manifest
from rerail.plugins.checkpoint.resolve import resolve
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.drill.world import trace_lines
from rerail.policies.manifest import Manifest

_SHOWN = 3


@dataclass(frozen=True)
class Comparison:
    """The outcome of a comparison.

    Attributes:
        identical: Everything agrees.
        steps: Number of steps compared.
        samples: Number of sample ids compared.
        differences: The first few differences, in words.
    """

    identical: bool
    steps: int
    samples: int
    differences: tuple[str, ...]


def final_commit(run: RunStore) -> Manifest | None:
    """The final commit of a run that is done; None while there is none."""
    found = resolve(run)
    if found.decision != "resume" or found.attempt is None or found.step is None:
        return None
    manifest = read_manifest(run, found.attempt, found.step)
    return manifest if manifest.reason == "final" else None


def history(
    run: RunStore, trace: Path, *, last_attempt: int, world_size: int
) -> dict[tuple[int, int], dict[str, object]]:
    """What counts of all attempts, by (rank, step): of each attempt the steps up to where the next one loaded."""
    counted: dict[tuple[int, int], dict[str, object]] = {}
    limit: int | None = None
    for attempt in range(last_attempt, 0, -1):
        start = read_start(run, attempt)
        first = start.load.step if start.load else 0
        for rank in range(world_size):
            for line in trace_lines(trace, attempt, rank):
                step = int(str(line["step"]))
                if step > first and (limit is None or step <= limit):
                    counted.setdefault((rank, step), line)
        limit = first if limit is None else min(limit, first)
    return counted


def compare(run: RunStore, trace: Path, baseline: RunStore, baseline_trace: Path, *, attempts: int) -> Comparison:
    """Compare a run with the uninterrupted one of the same seed."""
    ours, theirs = final_commit(run), final_commit(baseline)
    if ours is None or theirs is None:
        missing = run.run if ours is None else baseline.run
        return Comparison(identical=False, steps=0, samples=0, differences=(f"run {missing!r} has no final commit",))
    differences: list[str] = []
    world_size = ours.layout.world_size
    left = history(run, trace, last_attempt=attempts, world_size=world_size)
    right = history(baseline, baseline_trace, last_attempt=1, world_size=world_size)
    expected = {(rank, step) for rank in range(world_size) for step in range(1, ours.step + 1)}
    for name, found in (("run", left), ("baseline", right)):
        missing_steps = sorted(expected - found.keys())
        if missing_steps:
            rank, step = missing_steps[0]
            differences.append(f"{name}: {len(missing_steps)} steps without a trace, first step {step} of rank {rank}")
    for place in sorted(expected & left.keys() & right.keys(), key=lambda place: (place[1], place[0])):
        if left[place] != right[place]:
            fields = [name for name in left[place] if left[place][name] != right[place].get(name)]
            differences.append(f"rank {place[0]} step {place[1]}: {', '.join(fields)} differ")
    # The first step that differs tells most; the rest follows from it.
    differences = [*differences[:1], *_parameters(ours, theirs)]
    samples = sum(len(line["samples"]) for line in left.values() if isinstance(line["samples"], list))
    return Comparison(
        identical=not differences,
        steps=len({step for _, step in left}),
        samples=samples,
        differences=tuple(differences[:_SHOWN]),
    )


def _parameters(ours: Manifest, theirs: Manifest) -> list[str]:
    """Compare the digests of all state of the two final commits, by rank and file name."""
    differences = []
    if ours.step != theirs.step:
        differences.append(f"final step {ours.step} is not {theirs.step}")
    for part in ("model", "optimizer", "scheduler", "rng", "scaler", "data"):
        left, right = _digests(ours, part), _digests(theirs, part)
        if not left and ours.parts[part].value != theirs.parts[part].value:
            differences.append(f"final {part} differs")
        if left != right:
            differences.append(f"final {part} differs")
    if ours.state_digests != theirs.state_digests:
        differences.append("digests of the ranks' final states differ")
    return differences


def _digests(manifest: Manifest, part: str) -> dict[tuple[int, str], str]:
    files = set(manifest.parts[part].files)
    return {
        (entry.rank, entry.path.rsplit("/", maxsplit=1)[-1]): entry.digest
        for entry in manifest.files
        if entry.path in files
    }
