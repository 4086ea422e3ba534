"""The manifest of a checkpoint (it is the commit), and the part record that each rank writes before it."""

import re
from typing import Literal, Self

from pydantic import ConfigDict, Field, JsonValue, field_validator, model_validator

from rerail.policies.documents import Document, Value

PARTS = ("model", "optimizer", "scheduler", "step", "epoch", "rng", "scaler", "data", "distributed", "user")
"""The ten parts of a complete training state. Each has files, an inline value, or an explicit reason for absence."""

SaveReason = Literal["periodic", "request", "signal", "final"]

_UNSAFE = re.compile(r"(^/)|(^|/)\.\.?(/|$)|//|[\x00-\x1f\\]|^$")


def check_path(path: str) -> str:
    """Return ``path`` if it stays below the folder it is joined to; manifests come from outside and are not trusted."""
    if _UNSAFE.search(path) or path.endswith("/"):
        raise ValueError(f"hostile or malformed path {path!r}: relative paths below the save's folder only")
    return path


class ManifestValue(Value):
    """A part of a manifest; what a newer Rerail added to it is kept."""

    model_config = ConfigDict(frozen=True, extra="allow")


class FileEntry(ManifestValue):
    """One file of a checkpoint.

    Attributes:
        path: Relative to the run's ``shards/`` prefix, always below the manifest's folder.
        size: Bytes; zero is never a valid file.
        digest: ``sha256:`` and hexadecimal digits.
        rank: The rank that wrote it, and reads it back when it is per-rank state.
    """

    path: str
    size: int = Field(gt=0)
    digest: str
    rank: int = Field(ge=0)

    @field_validator("path")
    @classmethod
    def _path_is_safe(cls, path: str) -> str:
        return check_path(path)


class StatePart(ManifestValue):
    """One of the ten parts: exactly one of files, value and absent."""

    files: tuple[str, ...] = ()
    value: JsonValue = None
    absent: str | None = None

    @model_validator(mode="after")
    def _one_of(self) -> Self:
        given = [bool(self.files), self.value is not None, bool(self.absent)]
        if sum(given) != 1:
            raise ValueError("a part has exactly one of: files, a value, a reason for its absence")
        return self


class Snapshot(ManifestValue):
    """When and where one rank's state was taken, by that node's own clock.

    Attributes:
        at_s: Wall clock of the node, epoch seconds; compared only with stamps of the same node.
        node: The node's name.
        boot_id: Kernel boot id: stamps of two boots are not compared.
        devices: GPUs that the rank used, by PCI address or UUID, where known.
    """

    rank: int
    at_s: float
    node: str = ""
    boot_id: str = ""
    devices: tuple[str, ...] = ()


class Layout(ManifestValue):
    """Parallel layout of the saved state. Whether another world size can load it is the format's property."""

    world_size: int = Field(ge=1)
    dp: int = 1
    tp: int = 1
    pp: int = 1
    ep: int = 1
    format: str = "rerail-arrays"
    reshardable: bool = False


class PartRecord(Document):
    """What one rank wrote for one save; its last write of that save."""

    KIND = "rerail.part"

    run: str
    attempt: int
    step: int
    save_id: str
    rank: int
    parts: dict[str, StatePart]
    files: tuple[FileEntry, ...]
    snapshot: Snapshot
    state_digest: str | None = None


class CertificateRef(ManifestValue):
    """The certificate of the attempt that wrote a commit; without it a manifest is not a commit."""

    attempt: int
    digest: str


class Manifest(Document):
    """A commit: everything that a gang needs to go on from ``step`` completed optimizer steps.

    Unknown fields are kept, and covered by the digest.

    Attributes:
        step: Completed optimizer steps when the state was taken.
        folder: Prefix below which all files of this manifest stand (one LIST finds them all).
        reason: Why it was saved; ``final`` means that the run is done.
        temporary: Equal for resume; retention may drop it as soon as a newer commit exists.
        counters: What was consumed up to here, by explicit name (optimizer_steps, micro_batches, samples).
        answers: Ids of the requests whose sight came before the snapshot.
        state_digests: Digest of each rank's state as it was in memory, by rank, where an adapter can give it.
        base: The full save whose files an incremental save reuses, as its folder; None for a full save.
        full: Whether this save wrote all its files itself.
    """

    KIND = "rerail.manifest"

    model_config = ConfigDict(frozen=True, extra="allow")

    run: str
    attempt: int = Field(ge=1)
    step: int = Field(ge=0)
    save_id: str
    folder: str
    reason: SaveReason
    temporary: bool = False
    layout: Layout
    parts: dict[str, StatePart]
    files: tuple[FileEntry, ...]
    snapshots: tuple[Snapshot, ...]
    certificate: CertificateRef
    counters: dict[str, int] = Field(default_factory=dict)
    answers: tuple[str, ...] = ()
    state_digests: dict[str, str] = Field(default_factory=dict)
    environment: dict[str, str] = Field(default_factory=dict)
    loss: float | None = None
    save_s: float | None = None
    base: str | None = None
    full: bool = True

    @model_validator(mode="after")
    def _whole(self) -> Self:
        missing = [part for part in PARTS if part not in self.parts]
        if missing:
            raise ValueError(f"parts without files or a reason for their absence: {', '.join(missing)}")
        listed = {entry.path for entry in self.files}
        if len(listed) != len(self.files):
            raise ValueError("a file is listed twice")
        for name, part in self.parts.items():
            for path in part.files:
                if path not in listed:
                    raise ValueError(f"part {name!r} names {path!r}, which is not among the files")
        inside = self.folder.removeprefix("shards/")
        outside = [entry.path for entry in self.files if not entry.path.startswith(inside)]
        if outside:
            raise ValueError(f"file {outside[0]!r} lies outside the folder {self.folder!r}")
        return self
