"""Judgements of resolve, without I/O: does a manifest agree with its place, are its files there, can a gang load it?"""

from collections.abc import Mapping
from typing import Literal

from rerail.policies import keys
from rerail.policies.documents import ChainLink, CommitRef, Skipped, Value
from rerail.policies.errors import NewerFormatError
from rerail.policies.manifest import FileEntry, Layout, Manifest

Decision = Literal["resume", "fresh", "blocked"]

DIGEST_PREFIX = "sha256:"

TELL_AT_MOST = 5
"""Problems of one kind that a verdict spells out; the rest is counted."""


class Resolution(Value):
    """From where a run goes on.

    Attributes:
        decision: ``resume`` from ``step``; ``fresh`` at step 0; ``blocked``: nothing may be used now.
        step: Completed optimizer steps of the chosen commit; 0 when fresh, None when blocked.
        attempt: The attempt that wrote the chosen commit.
        manifest: Its key; None unless resumed.
        digest: Digest of the manifest's bytes.
        chain: Lineage of a start that loads it, newest link first.
        skipped: Newer commits that were passed over, and why.
        requests: Requests that this answer cost.
        reason: Why, in one sentence.
        options: What a person can do when blocked.
        final: The chosen commit is the run's last: there is nothing left to train.
    """

    run: str
    decision: Decision
    step: int | None = None
    attempt: int | None = None
    manifest: str | None = None
    digest: str | None = None
    chain: tuple[ChainLink, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    requests: int = 0
    reason: str = ""
    options: tuple[str, ...] = ()
    final: bool = False

    @property
    def load(self) -> CommitRef | None:
        """The commit as a start names it; None unless resumed."""
        if self.attempt is None or self.step is None or self.digest is None:
            return None
        return CommitRef(attempt=self.attempt, step=self.step, digest=self.digest)


def disagreement(manifest: Manifest, *, run: str, attempt: int, step: int) -> str | None:
    """Why ``manifest`` cannot be the commit at its key: a stale, copied or foreign one. None if it agrees."""
    if manifest.run != run:
        return f"the manifest belongs to run {manifest.run!r}, not {run!r} (copied here?)"
    if (manifest.attempt, manifest.step) != (attempt, step):
        return (
            f"the manifest at attempt {attempt} step {step} says attempt {manifest.attempt} step {manifest.step} "
            "(stale or copied)"
        )
    if manifest.certificate.attempt != attempt:
        return f"the manifest of attempt {attempt} names the certificate of attempt {manifest.certificate.attempt}"
    inner = keys.parse_shard(manifest.folder)
    whole = manifest.folder.startswith(keys.SHARDS) and manifest.folder.endswith("/") and inner is not None
    if not whole or manifest.folder.count("/") != keys.SHARDS.count("/") + 1:
        return f"folder {manifest.folder!r} is no save folder of this run (shards/<attempt>.<step>.<save id>/)"
    if manifest.full and inner != keys.FolderKey(attempt, step, manifest.save_id):
        return f"folder {manifest.folder!r} is not that of save {attempt}.{step}.{manifest.save_id}"
    if not manifest.full and manifest.base != manifest.folder:
        return f"an incremental save on {manifest.base!r} cannot stand in {manifest.folder!r}"
    return None


def require_known_algorithm(entry: FileEntry) -> None:
    """Refuse to judge a file whose digest this Rerail cannot compute.

    Raises:
        NewerFormatError: The algorithm is unknown.
    """
    if not entry.digest.startswith(DIGEST_PREFIX):
        raise NewerFormatError(
            f"{entry.path}: digest {entry.digest.split(':', maxsplit=1)[0]!r} is an unknown algorithm; upgrade Rerail"
        )


def size_problems(manifest: Manifest, sizes: Mapping[str, int], *, listed_to: str | None = None) -> tuple[str, ...]:
    """What is wrong with the sizes of a commit's files.

    Args:
        manifest: The commit.
        sizes: Size in bytes by key, as listed.
        listed_to: The listing was cut after this key: files behind it are not judged here. None: it was complete.
    """
    problems: list[str] = []
    for entry in manifest.files:
        key = keys.SHARDS + entry.path
        if listed_to is not None and key > listed_to:
            continue
        size = sizes.get(key)
        if size is None:
            problems.append(f"{key} is missing")
        elif size == 0:
            problems.append(f"{key} is empty (zero bytes), expected {entry.size}")
        elif size != entry.size:
            problems.append(f"{key} has {size} bytes, expected {entry.size}")
    return tuple(problems)


def told(problems: tuple[str, ...]) -> str:
    """Problems in one line, the first few spelled out."""
    more = len(problems) - TELL_AT_MOST
    return "; ".join(problems[:TELL_AT_MOST]) + (f"; and {more} more" if more > 0 else "")


def _data_parallel(layout: Layout) -> int:
    return layout.dp if layout.dp > 1 else max(1, layout.world_size // (layout.tp * layout.pp))


def topology_mismatch(saved: Layout, wanted: Layout) -> str | None:
    """Why a gang of layout ``wanted`` cannot load a commit of layout ``saved``; None if it can."""
    if saved.reshardable:
        return None
    named = {
        "dp": (_data_parallel(saved), _data_parallel(wanted)),
        "tp": (saved.tp, wanted.tp),
        "pp": (saved.pp, wanted.pp),
        "ep": (saved.ep, wanted.ep),
    }
    differing = {name: pair for name, pair in named.items() if pair[0] != pair[1]}
    if not differing and saved.world_size != wanted.world_size:
        differing = {"world_size": (saved.world_size, wanted.world_size)}
    if not differing:
        return None
    have = " ".join(f"{name}={pair[0]}" for name, pair in differing.items())
    want = " ".join(f"{name}={pair[1]}" for name, pair in differing.items())
    return f"topology mismatch: checkpoint {have}, gang {want}, format not reshardable"


def topology_options(saved: Layout) -> tuple[str, ...]:
    """What a person can do about a layout that cannot be loaded. An older commit has the same problem."""
    return (
        f"wait for {saved.world_size} GPUs",
        "convert to universal/resharded checkpoint",
        "explicit weights-only resume (optimizer reset)",
    )


def exhausted(run: str, skipped: tuple[Skipped, ...], *, suspects: int) -> tuple[str, tuple[str, ...]]:
    """Reason and options when every commit of the chain was passed over. Never answered by a fresh start."""
    damaged = len(skipped) - suspects
    newest = skipped[0].step if skipped else 0
    if suspects and not damaged:
        reason = f"only suspect checkpoints are left ({suspects}): a faulty device took part in each"
    else:
        reason = f"no good checkpoint is left: {damaged} damaged or bad, {suspects} suspect"
    options = [f"look at them: rerail ckpt verify --run {run}"]
    if suspects:
        options.append(
            f"take a suspect one knowingly: rerail ckpt resolve --run {run} --step {newest} (then open with it)"
        )
    if damaged:
        options.append("restore the damaged files from a copy of the store")
    options.append("begin again as a new run (a new name), or fork one: rerail run --from RUN@STEP")
    return reason, tuple(options)
