"""From where does a run go on? At most 5 requests when the newest commit is good, whatever has piled up.

LIST commits, GET the newest start, LIST marks, GET the manifest, LIST its folder. No hashing here: ranks compare
digests while they load, and mark what they find. Only damage, ``bad`` and ``suspect`` lead to an older commit;
everything else that keeps a commit from being used blocks, because an older one would lose work for no reason.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from rerail.plugins.checkpoint.listing import Commits, Marks, RequestMeter
from rerail.plugins.checkpoint.manifests import StoredManifest, load_manifest
from rerail.plugins.checkpoint.store import RunStore
from rerail.policies import keys
from rerail.policies.documents import ChainLink, RunDoc, Skipped, Start
from rerail.policies.errors import DamagedError, NewerFormatError, NotFoundError, RefusedError
from rerail.policies.lineage import chain_from, links
from rerail.policies.manifest import Layout, Manifest
from rerail.policies.resolving import (
    Resolution,
    exhausted,
    size_problems,
    told,
    topology_mismatch,
    topology_options,
)

__all__ = ["Resolution", "read_start", "resolve", "resolve_below"]


_MARKED: dict[str, str] = {
    "bad": "marked bad",
    "doomed": "being deleted by retention",
    "suspect": "marked suspect",
}


def read_start(run: RunStore, attempt: int) -> Start:
    """The start of one attempt.

    Raises:
        NotFoundError: The attempt was not started.
        DamagedError: The document is not what was written, or belongs elsewhere.
    """
    key = keys.start(attempt)
    try:
        data = run.control.get(key)
    except NotFoundError:
        raise NotFoundError(f"attempt {attempt} of run {run.run!r} was not started ({key})") from None
    start = Start.decode(data, f"{run.control.url}: {key}")
    if (start.run, start.attempt) != (run.run, attempt):
        raise DamagedError(f"{key}: the start of attempt {start.attempt} of run {start.run!r} (copied here?)")
    return start


def resolve(run: RunStore, *, known: bool = False, step: int | None = None, layout: Layout | None = None) -> Resolution:
    """Find the newest usable commit of the chain.

    Args:
        run: The run's stores.
        known: Labels, or a Workflow, say that the run had an attempt: then an empty store is a wrong store.
        step: An explicit wish. A commit that is damaged or not there is then never replaced by another one; a suspect
            one is taken, since the wish is explicit.
        layout: The gang that will load it; None leaves the question to the start.

    Returns:
        The decision. ``blocked`` is an answer, with its reason and options, not an exception.

    Raises:
        NotFoundError: ``step`` is not on the chain, or there is no such run and nobody claims that there was.
        StoreUnreachableError: The store does not answer; nothing was decided.
    """
    meter = RequestMeter(run)
    try:
        found = resolve_below(run, Commits(run.control), known=known, step=step, layout=layout)
    except NewerFormatError as error:
        found = _blocked(run, str(error), ("upgrade Rerail to the version that wrote it",))
    except RefusedError as error:
        found = _blocked(run, str(error), (f"grant this identity reading and listing of {run.control.url}",))
    return found.model_copy(update={"requests": meter.count()})


def resolve_below(
    run: RunStore,
    commits: Commits,
    *,
    below: int = keys.ATTEMPT_LIMIT,
    known: bool = False,
    step: int | None = None,
    layout: Layout | None = None,
    world_size: int | None = None,
    suspect: Callable[[Manifest], str | None] | None = None,
) -> Resolution:
    """Resolve from a listing that was read already, looking only at attempts smaller than ``below``.

    Opening attempt n passes n, and the listing that it made after its seal. ``world_size`` alone compares only that.
    ``suspect`` says why a commit cannot be trusted although nobody marked it yet; such a commit is passed over.
    Raises as ``resolve``, and NewerFormatError and RefusedError as they come.
    """
    newest = commits.newest("start", below=below)
    if newest is None:
        if step is not None:
            raise NotFoundError(f"step {step} not found (have none)")
        return _without_start(run, commits, below=below, known=known)
    try:
        start = read_start(run, newest)
    except DamagedError as error:
        options = ("restore this start from a copy of the store", f"rerail run --from {run.run}@STEP as a new run")
        return _blocked(run, f"the lineage cannot be read: {error}", options)
    readable = links(start)
    search = _Search(run, commits, readable, start, Marks(run.control))
    if step is not None:
        return _explicit(search, step, layout, world_size)
    skipped: list[Skipped] = []
    suspects = 0
    for candidate in search.candidates():
        kinds = search.marks.of(candidate.attempt, candidate.step)
        if kinds & {"bad", "doomed", "suspect"}:
            why = next(_MARKED[kind] for kind in ("bad", "doomed", "suspect") if kind in kinds)
            suspects += kinds & {"bad", "doomed", "suspect"} == {"suspect"}
        else:
            verdict = search.judge(candidate)
            doubt = suspect(verdict.manifest) if suspect and isinstance(verdict, StoredManifest) else None
            if doubt is not None:
                verdict = f"suspect: {doubt}"
                suspects += 1
            if isinstance(verdict, StoredManifest):
                return search.accept(candidate, verdict, tuple(skipped), layout, world_size)
            why = verdict
        skipped.append(Skipped(attempt=candidate.attempt, step=candidate.step, why=why))
    if not skipped and start.load is None:
        return _fresh(run, f"attempt {newest} and all before it made no commit: there is nothing to lose", known=known)
    reason, ways_out = exhausted(run.run, tuple(skipped), suspects=suspects)
    return _blocked(run, reason, ways_out, tuple(skipped))


class _Candidate(NamedTuple):
    attempt: int
    step: int


@dataclass(frozen=True, slots=True, eq=False)
class _Search:
    run: RunStore
    commits: Commits
    readable: tuple[ChainLink, ...]
    start: Start
    marks: Marks

    def candidates(self) -> Iterator[_Candidate]:
        """All commits of the chain, newest first. What the newest start loaded comes even if it is gone by now."""
        load = self.start.load
        for link in self.readable:
            if link.step is None:
                continue
            top = link.step
            if load is not None and (link.attempt, link.step) == (load.attempt, load.step):
                yield _Candidate(load.attempt, load.step)
                top = load.step - 1
            if top >= 0:
                for step in self.commits.steps(link.attempt, top):
                    yield _Candidate(link.attempt, step)

    def judge(self, candidate: _Candidate) -> StoredManifest | str:
        """The manifest if it and its files' sizes are right, else why it is passed over."""
        try:
            stored = load_manifest(self.run, candidate.attempt, candidate.step, named=self.start.load)
        except (DamagedError, NotFoundError) as error:
            return f"damaged: {error}"
        if self.run.away:
            return stored
        # One page: a checkpoint of more files than a page shows is judged by its first ones here, to stay within the
        # bound of requests, and by all digests when it is loaded.
        page = self.run.shards.page(stored.manifest.folder)
        sizes = {entry.key: entry.size for entry in page.entries}
        listed_to = None if page.next_after is None else page.entries[-1].key
        problems = size_problems(stored.manifest, sizes, listed_to=listed_to)
        return f"damaged: {told(problems)}" if problems else stored

    def accept(
        self,
        candidate: _Candidate,
        stored: StoredManifest,
        skipped: tuple[Skipped, ...],
        layout: Layout | None,
        world_size: int | None,
    ) -> Resolution:
        """Resume from it, unless the gang cannot load its layout: an older commit has the same problem."""
        saved = stored.manifest.layout
        wanted = layout
        if wanted is None and world_size is not None:
            dp = saved.dp if world_size == saved.world_size else max(1, world_size // (saved.tp * saved.pp))
            wanted = saved.model_copy(update={"world_size": world_size, "dp": dp})
        mismatch = topology_mismatch(saved, wanted) if wanted is not None else None
        if mismatch:
            return _blocked(self.run, mismatch, topology_options(saved), skipped)
        return Resolution(
            run=self.run.run,
            decision="resume",
            step=candidate.step,
            attempt=candidate.attempt,
            manifest=keys.manifest(candidate.attempt, candidate.step),
            digest=stored.ref.digest,
            chain=chain_from(self.readable, candidate.attempt, candidate.step),
            skipped=skipped,
            reason=f"step {candidate.step} of attempt {candidate.attempt} is the newest good commit of the chain",
            final=stored.manifest.reason == "final",
        )


def _explicit(search: _Search, step: int, layout: Layout | None, world_size: int | None) -> Resolution:
    available = []
    for candidate in search.candidates():
        if candidate.step == step:
            break
        available.append(candidate.step)
    else:
        have = ", ".join(str(other) for other in sorted(available)) or "none"
        raise NotFoundError(f"step {step} not found (have {have})")
    kinds = search.marks.of(candidate.attempt, step)
    verdict = search.judge(candidate)
    if kinds & {"bad", "doomed"} or isinstance(verdict, str):
        why = verdict if isinstance(verdict, str) else _MARKED["bad" if "bad" in kinds else "doomed"]
        options = (f"leave the step out: rerail ckpt resolve --run {search.run.run} takes the newest good one",)
        skipped = (Skipped(attempt=candidate.attempt, step=step, why=why),)
        return _blocked(search.run, f"step {step} was asked for and cannot be used: {why}", options, skipped)
    found = search.accept(candidate, verdict, (), layout, world_size)
    if found.decision != "resume":
        return found
    note = ", although it is marked suspect" if "suspect" in kinds else ""
    return found.model_copy(update={"reason": f"step {step} was asked for{note}"})


def _without_start(run: RunStore, commits: Commits, *, below: int, known: bool) -> Resolution:
    if commits.newest("manifest", below=below) is not None:
        options = ("restore the starts from a copy of the store", f"look at it: rerail ckpt ls --run {run.run}")
        return _blocked(run, "there are commits and no start: the lineage is lost", options)
    earlier = commits.newest("seal", below=below)
    if below != keys.ATTEMPT_LIMIT and below > 1 and earlier is None:
        moved = (f"check the address: is {run.control.url} the store of the attempts before?",)
        return _blocked(run, f"attempt {below} cannot start fresh: no earlier attempt is in this store", moved)
    return _fresh(run, "no attempt was started, and no commit exists", known=known)


def _fresh(run: RunStore, reason: str, *, known: bool) -> Resolution:
    """Step 0, if the run's own document proves that this is the run's store and not an empty mount."""
    try:
        RunDoc.decode(run.control.get(keys.RUN), f"{run.control.url}: {keys.RUN}")
    except NotFoundError:
        gone = f"{keys.RUN} of run {run.run!r} is not at {run.control.url}"
        if not known:
            raise NotFoundError(
                f"{gone}; check the name and the address, or submit the run (rerail run --name {run.run} ...)"
            ) from None
        options = (
            "check the address and the mount: a wrong mount looks like an empty store",
            f"restore {keys.RUN} and the folders beside it from a copy",
            "begin again under a new run name, if the checkpoints are really lost",
        )
        return _blocked(run, f"{gone}, although the run had an attempt before", options)
    except DamagedError as error:
        return _blocked(run, str(error), (f"restore {keys.RUN} from a copy of the store",))
    return Resolution(run=run.run, decision="fresh", step=0, reason=reason)


def _blocked(run: RunStore, reason: str, options: tuple[str, ...], skipped: tuple[Skipped, ...] = ()) -> Resolution:
    return Resolution(run=run.run, decision="blocked", reason=reason, options=options, skipped=skipped)
