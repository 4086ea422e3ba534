"""What the names in a checkpoint folder say: the step, and whether a file is a shard, a marker or a pointer.

Foreign layouts carry no manifest of ours, so their names are all there is; steps are parsed as integers, never
compared as text.
"""

import re
from typing import Final

_COUNTED = re.compile(r"([A-Za-z]+)?[-_=.]*(\d+)")
_STEP_WORDS: Final = ("step", "steps", "iter", "iters", "iteration", "iterations", "ba", "batch", "update", "updates")
_SAVE_WORDS: Final = ("checkpoint", "checkpoints", "ckpt", "chkpt", "cp", "save")
_EPOCH_WORDS: Final = ("epoch", "epochs", "ep", "e")
_NOT_STEPS: Final = frozenset(
    (
        "run",
        "exp",
        "job",
        "trial",
        "rank",
        "node",
        "host",
        "version",
        "v",
        "seed",
        "gpu",
        "attempt",
        "a",
        "part",
        "shard",
    )
)
_BEST, _WEAK, _LAST = 0, 2, 3

_TEMPORARY = re.compile(r"(^|[._-])(tmp|temp|partial|incomplete|staging|in-?progress|writing)([._-]|$)", re.IGNORECASE)
_IN_PROGRESS = re.compile(r"^[._]*(in[-_]?progress|dirty|incomplete|writing)$", re.IGNORECASE)
_MARKER = re.compile(
    r"^[._]*(complete|completed|success|done|committed|finished|commit_success(\.txt)?)$", re.IGNORECASE
)
_MAY_BE_EMPTY = re.compile(r"(\.(lock|keep|gitkeep|done|complete))$", re.IGNORECASE)
_POINTER = re.compile(
    r"^(dlrover_)?(latest|newest|last_checkpoint|latest_checkpointed_iteration|latest_universal)(\.\w+)?$",
    re.IGNORECASE,
)
_RANKED = re.compile(r"^(.*?rank[-_]?)(\d+)(.*)$", re.IGNORECASE)
_DCP_SHARD = re.compile(r"^__(\d+)_\d+\.distcp$")
_NUMBERED_OF = re.compile(r"^(.*?[-_.])(\d+)(-of-)(\d+)(.*)$")

RECORDS: Final = ("manifest.json", "metadata.json")
"""Names of a commit record: the document that is written last and makes the checkpoint."""

DATA_SUFFIXES: Final = (".pt", ".pth", ".bin", ".safetensors", ".ckpt", ".distcp", ".npz", ".npy", ".tensors")
"""Endings of files that hold state."""


def _strength(word: str | None) -> int:
    """How surely a number after ``word`` is a step; lower is surer."""
    lowered = (word or "").lower()
    if lowered in _STEP_WORDS or lowered.endswith(("step", "iter", "iteration")):
        return _BEST
    if lowered in _SAVE_WORDS or lowered.endswith(("checkpoint", "ckpt")):
        return _BEST + 1
    if lowered in _EPOCH_WORDS:
        return _WEAK
    return _LAST


def _best_number(name: str) -> tuple[int, int] | None:
    """Strength and value of the number in ``name`` that is most likely its step."""
    found = [
        (_strength(match[1]), int(match[2]))
        for match in _COUNTED.finditer(name)
        if (match[1] or "").lower() not in _NOT_STEPS
    ]
    if not found:
        return None
    strength = min(one[0] for one in found)
    values = [value for grade, value in found if grade == strength]
    return strength, values[0] if strength < _LAST else values[-1]


def step_of(name: str) -> int | None:
    """The step that a folder, file or address names, as an integer; zero padding does not matter.

    ``checkpoint-10000``, ``iter_0000900``, ``ep3-ba300`` and ``epoch=3-step=200.ckpt`` give 10000, 900, 300 and 200.
    """
    place = locate(name.rstrip("/"), leaf_counts=True)
    return place[1] if place else None


def locate(path: str, *, leaf_counts: bool = False) -> tuple[str, int] | None:
    """The checkpoint that a path belongs to.

    Args:
        path: Address of a file, relative to the store.
        leaf_counts: Whether a number without a telling word counts in the last component too.

    Returns:
        The folder (or the file, where a checkpoint is one file) and its step; None where nothing names a step.
    """
    components = path.split("/")
    graded = []
    for index, component in enumerate(components):
        best = _best_number(component)
        if best is None:
            continue
        strength, step = best
        is_leaf = index == len(components) - 1
        if strength == _LAST and is_leaf and not leaf_counts:
            continue
        # A folder inside a checkpoint may repeat the step (checkpoint-20/global_step20): the outermost one counts.
        rank = (0, index) if strength < _WEAK else (1, index) if strength == _WEAK else (2, -index)
        graded.append((rank, index, step))
    if not graded:
        return None
    _, index, step = min(graded)
    return "/".join(components[: index + 1]), step


def is_unfinished(path: str) -> bool:
    """Whether a folder on the path still has the temporary name under which it is written."""
    return any(_TEMPORARY.search(component) for component in path.split("/"))


def is_in_progress(name: str) -> bool:
    """Whether a file is a marker that is removed when the save is complete."""
    return _IN_PROGRESS.match(name) is not None


def is_marker(name: str) -> bool:
    """Whether a file is a marker that is written when the save is complete."""
    return _MARKER.match(name) is not None


def may_be_empty(name: str) -> bool:
    """Whether a file of zero bytes is no sign of damage: markers and locks carry their meaning in the name."""
    return not name or is_marker(name) or is_in_progress(name) or _MAY_BE_EMPTY.search(name) is not None


def is_pointer(name: str) -> bool:
    """Whether a file only names another checkpoint. A pointer is a hint, never evidence."""
    return _POINTER.match(name) is not None


def rank_of(name: str) -> tuple[str, int, int] | None:
    """Template (with ``{}``), rank and number of digits of a per-rank file; None for other files."""
    match = _RANKED.match(name)
    if match is None:
        return None
    return f"{match[1]}{{}}{match[3]}", int(match[2]), len(match[2])


def dcp_rank(name: str) -> int | None:
    """The rank that wrote a torch DCP shard (``__1_0.distcp``)."""
    match = _DCP_SHARD.match(name)
    return int(match[1]) if match else None


def missing_of(files: frozenset[str]) -> list[str]:
    """Names that the ``-00001-of-00003`` numbering of the given files promises, and that are not there."""
    missing: list[str] = []
    series: dict[tuple[str, str, str], set[int]] = {}
    for name in sorted(files):
        match = _NUMBERED_OF.match(name)
        if match:
            series.setdefault((match[1], match[4], match[5]), set()).add(int(match[2]))
    for (before, total, after), there in series.items():
        first = 0 if 0 in there else 1
        absent = (index for index in range(first, first + int(total)) if index not in there)
        missing.extend(f"{before}{index:0{len(total)}d}-of-{total}{after}" for index in absent)
    return missing
