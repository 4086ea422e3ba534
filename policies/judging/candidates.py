"""Checkpoints as a bare listing shows them, and what is wrong with each: the rules for folders without our manifest."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from rerail.policies.errors import UsageError
from rerail.policies.judging import names
from rerail.policies.judging.reading import listed

FileLayout = Literal["ours", "generic", "hf-trainer", "torch-dcp", "s3"]

_SAME_SIZE: Final = 0.05
_TRUNCATED: Final = 0.5


@dataclass(frozen=True)
class Entry:
    """One object of a listing; ``size`` in bytes. The modification time is not read: it orders nothing."""

    path: str
    size: int
    run: str | None = None
    attempt: int | None = None
    step: int | None = None
    temporary: bool = False
    target: str | None = None
    is_link: bool = False

    @property
    def name(self) -> str:
        """The last component of the path."""
        return self.path.rsplit("/", maxsplit=1)[-1]


@dataclass(frozen=True)
class Candidate:
    """What may be one checkpoint: all objects of one folder, or of one step where a checkpoint is a file."""

    folder: str
    step: int
    files: Mapping[str, Entry]
    unfinished: bool

    @property
    def runs(self) -> frozenset[str]:
        """Runs that the files say they belong to."""
        return frozenset(entry.run for entry in self.files.values() if entry.run is not None)

    @property
    def temporary(self) -> bool:
        """Equal for resume; retention may drop it as soon as a newer commit exists."""
        return any(entry.temporary for entry in self.files.values())

    @property
    def record(self) -> str | None:
        """Name of its commit record, where there is one."""
        return next((name for name in names.RECORDS if name in self.files), None)


@dataclass(frozen=True)
class Listing:
    """A listing, read: candidates from the oldest step to the newest, pointers by path, and files that name no step."""

    candidates: tuple[Candidate, ...]
    pointers: Mapping[str, str | None]
    unplaced: tuple[str, ...] = ()


def _entry(raw: Mapping[str, Any]) -> Entry:
    path, size = raw.get("path"), raw.get("size", 0)
    if not isinstance(path, str) or not isinstance(size, int):
        raise UsageError(f"entry {dict(raw)!r}: 'path' must be text and 'size' a whole number of bytes")
    target = raw.get("symlink_to") or raw.get("content")
    return Entry(
        path=path,
        size=size,
        run=raw.get("run_id"),
        attempt=raw.get("attempt"),
        step=raw.get("step"),
        temporary=bool(raw.get("is_temporary")),
        target=str(target) if target is not None else None,
        is_link=raw.get("symlink_to") is not None,
    )


def read_listing(raw_entries: Iterable[Mapping[str, Any]]) -> Listing:
    """Group a flat listing into candidates and pointers.

    Args:
        raw_entries: Objects with ``path`` and ``size`` in bytes, and optionally ``run_id``, ``attempt``, ``step``,
            ``is_temporary``, ``symlink_to`` and ``content``.

    Raises:
        UsageError: An entry has no path, or a size that is no number.
    """
    groups: dict[tuple[str, int, bool], dict[str, Entry]] = {}
    pointers: dict[str, str | None] = {}
    entries = [_entry(raw) for raw in raw_entries]
    # Only where nothing else names a step does a bare number in a file's name count (model_300.pt).
    bare = all(names.locate(entry.path) is None for entry in entries)
    unplaced = []
    for entry in entries:
        place = names.locate(entry.path, leaf_counts=bare and not names.missing_of(frozenset((entry.name,))))
        if entry.is_link or (place is None and names.is_pointer(entry.name)):
            pointers[entry.path] = entry.target
            continue
        if place is None:
            unplaced.append(entry.path)
            continue
        folder, step = place
        inside = entry.path.removeprefix(folder).lstrip("/")
        is_file = folder == entry.path
        key = (folder.rpartition("/")[0] if is_file else folder, step, names.is_unfinished(folder))
        groups.setdefault(key, {})[entry.name if is_file else inside] = entry
    candidates = [
        Candidate(
            folder=folder,
            step=next((entry.step for entry in files.values() if entry.step is not None), step),
            files=files,
            unfinished=unfinished,
        )
        for (folder, step, unfinished), files in groups.items()
    ]
    candidates.sort(key=lambda one: (one.step, one.folder))
    return Listing(tuple(candidates), pointers, tuple(unplaced))


@dataclass(frozen=True)
class Judge:
    """Says what is wrong with a candidate, given what the other candidates of the same listing look like.

    Attributes:
        layout: Whose files these are.
        world_size: Ranks that must have written, where known.
        candidates: All candidates of the listing; names and sizes of the others tell what is missing from one.
    """

    layout: FileLayout
    world_size: int | None
    candidates: Sequence[Candidate]

    def problems(self, candidate: Candidate) -> list[str]:
        """Reasons not to resume from the candidate, the gravest first; empty for a good one."""
        found = self._own_problems(candidate)
        if not found and self._comparable(candidate):
            found = self._against_others(candidate)
        return found

    def _own_problems(self, candidate: Candidate) -> list[str]:
        found = []
        if candidate.unfinished:
            found.append("incomplete: still under its temporary name")
        if any(names.is_in_progress(name) for name in candidate.files):
            found.append("incomplete: its in-progress marker is still there")
        found.extend(_zero_bytes(candidate))
        found.extend(self._mixed(candidate))
        found.extend(self._missing(candidate))
        return found

    def _mixed(self, candidate: Candidate) -> list[str]:
        found = []
        if len(candidate.runs) > 1:
            found.append(f"files of runs {listed(sorted(candidate.runs))} mixed")
        attempts = set()
        for name, entry in candidate.files.items():
            ranked = names.rank_of(name)
            # Beyond the world size a manifest tells leftovers apart: it lists its files, and no rank reads those.
            leftover = ranked is not None and self.world_size is not None and ranked[1] >= self.world_size
            if entry.attempt is not None and not (leftover and candidate.record):
                attempts.add(entry.attempt)
        if len(attempts) > 1:
            found.append(f"shards from attempts {listed(sorted(attempts))} mixed")
        return found

    def _missing(self, candidate: Candidate) -> list[str]:
        """What the layout demands and the candidate lacks."""
        numbered = names.missing_of(frozenset(candidate.files))
        if self.layout == "hf-trainer":
            lacking = [*self._hf_trainer(candidate), *numbered]
            return [f"incomplete: {listed(lacking)} missing"] if lacking else []
        if self.layout == "torch-dcp":
            return self._torch_dcp(candidate)
        found = []
        if self._needs_record() and candidate.record is None:
            found.append("no manifest")
        lacking = [*self._markers_missing(candidate), *self._ranks_missing(candidate), *numbered]
        if lacking and self.layout == "s3":
            found.append(f"{listed(lacking)} absent (HEAD 404)")
        elif lacking:
            found.append(f"incomplete: {listed(lacking)} missing")
        return found

    def _needs_record(self) -> bool:
        """Ours: always. Elsewhere: where another checkpoint of the listing has one."""
        return self.layout == "ours" or any("manifest.json" in one.files for one in self.candidates)

    def _markers_missing(self, candidate: Candidate) -> list[str]:
        """Markers of completion that other candidates have and this one lacks."""
        if any(names.is_marker(name) for name in candidate.files):
            return []
        return sorted({name for one in self.candidates for name in one.files if names.is_marker(name)})[:1]

    def _ranks_missing(self, candidate: Candidate) -> list[str]:
        """Per-rank files that ranks of the world have not written."""
        seen: dict[str, dict[int, int]] = {}
        for one in self.candidates:
            for name in one.files:
                ranked = names.rank_of(name)
                if ranked:
                    seen.setdefault(ranked[0], {})[ranked[1]] = ranked[2]
        missing: list[str] = []
        for template, ranks in seen.items():
            there = {ranked[1] for name in candidate.files if (ranked := names.rank_of(name)) and ranked[0] == template}
            # mp_rank numbers tensor-parallel ranks, which the world size does not tell.
            counted = None if template.lower().startswith("mp_rank") else self.world_size
            needed = counted or max(there, default=-1) + 1
            width = max(ranks.values())
            missing.extend(template.format(f"{rank:0{width}d}") for rank in range(needed) if rank not in there)
        return missing

    def _hf_trainer(self, candidate: Candidate) -> list[str]:
        """Files of the Hugging Face Trainer that are not there; trainer_state.json is the last that it writes."""
        files = candidate.files
        engine = any(name.startswith(("global_step", "pytorch_model_fsdp", "optimizer_0/")) for name in files)
        lacking = []
        weights = ("model", "pytorch_model", "adapter_model", "adapter")
        if not engine and not any(
            name.startswith(weights) and name.endswith((".safetensors", ".bin")) for name in files
        ):
            lacking.append("model.safetensors")
        if not engine and not any(name in files for name in ("optimizer.pt", "optimizer.bin")):
            lacking.append("optimizer.pt")
        if not engine and "scheduler.pt" not in files:
            lacking.append("scheduler.pt")
        if "trainer_state.json" not in files:
            lacking.append("trainer_state.json")
        world = self.world_size or 1
        numbered = world > 1 or any("rng_state_0.pth" in one.files for one in self.candidates)
        random_states = [f"rng_state_{rank}.pth" for rank in range(world)] if numbered else ["rng_state.pth"]
        lacking.extend(name for name in random_states if name not in files)
        return lacking

    def _torch_dcp(self, candidate: Candidate) -> list[str]:
        """``.metadata`` is what rank 0 writes when all ranks have; each rank has at least one shard."""
        found = []
        if ".metadata" not in candidate.files:
            found.append("no .metadata")
        there = {rank for name in candidate.files if (rank := names.dcp_rank(name)) is not None}
        world = self.world_size or max(there, default=-1) + 1
        lacking = [rank for rank in range(world) if rank not in there]
        if lacking:
            found.append(f"{'shard for rank' if len(lacking) == 1 else 'shards for ranks'} {listed(lacking)} missing")
        return found

    def _comparable(self, candidate: Candidate) -> bool:
        """Where neither a record nor a marker says complete, only the other checkpoints can say what belongs there."""
        if self.layout not in ("generic", "s3") or candidate.record:
            return False
        return not any(names.is_marker(name) for name in candidate.files)

    def _against_others(self, candidate: Candidate) -> list[str]:
        others = [one for one in self.candidates if one is not candidate and not self._own_problems(one)]
        if not others:
            return []
        common = set.intersection(*(set(one.files) for one in others))
        data = sorted(name for name in common if name.endswith(names.DATA_SUFFIXES) and names.step_of(name) is None)
        found = []
        missing = [name for name in data if name not in candidate.files]
        if missing:
            found.append(f"incomplete: {listed(missing)} missing")
        for name in data:
            if name not in candidate.files:
                continue
            sizes = [one.files[name].size for one in others]
            alike = max(sizes) - min(sizes) <= _SAME_SIZE * max(sizes)
            if alike and candidate.files[name].size < _TRUNCATED * min(sizes):
                found.append(f"truncated: {name} has {candidate.files[name].size} bytes where others have {sizes[-1]}")
        return found


def _zero_bytes(candidate: Candidate) -> list[str]:
    """Zero bytes are never a valid shard: names were journaled, data was not flushed."""
    counted = {
        name: entry.size
        for name, entry in candidate.files.items()
        if not names.may_be_empty(entry.name) and not names.is_unfinished(entry.name)
    }
    empty = sorted(name for name, size in counted.items() if size == 0)
    if not empty:
        return []
    return ["zero-byte files"] if len(empty) == len(counted) else [f"zero-byte files: {listed(empty)}"]


def newest_good(
    candidates: Sequence[Candidate], problems: Callable[[Candidate], list[str]]
) -> tuple[Candidate | None, dict[int, str]]:
    """Walk from the newest step back to the first good candidate; any number of bad ones does not stop the walk.

    Args:
        candidates: From the oldest step to the newest.
        problems: What is wrong with one; empty for a good one.

    Returns:
        The candidate, or None if none is good, and the steps that were passed over with the reason for each.
    """
    skipped: dict[int, str] = {}
    for candidate in reversed(candidates):
        found = problems(candidate)
        if not found:
            skipped.pop(candidate.step, None)
            return candidate, skipped
        skipped[candidate.step] = "; ".join(found)
    return None, skipped
