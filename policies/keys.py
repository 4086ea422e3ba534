"""The layout of a run in the store: every key is made, and read back, here.

Order comes from keys, never from clocks. Attempts and steps stand inverted and zero-padded in key names, so that one
short LIST gives the newest attempt first, and its seal and start before its commits.
"""

import re
from typing import Final, Literal, NamedTuple, get_args

from rerail.policies.errors import UsageError

ATTEMPT_LIMIT = 10**6
STEP_LIMIT = 10**12
LEDGER_LIMIT = 10**9

RUN = "run.json"
COMMITS = "commits/"
SHARDS = "shards/"
MARKS = "marks/"
CERTIFICATES = "certificates/"
REQUESTS = "requests/"
SIGNALS = "signals/"
LEDGER = "ledger/"
HEARTBEAT = "heartbeat.json"
PAUSE = "pause.json"

_RUN_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,50}[a-z0-9])?")
_COMMIT_KEY = re.compile(r"commits/(\d{6})\.(?:0\.(seal)|1\.(start)|2\.(\d{12}))\.json")
_LEDGER_KEY = re.compile(r"ledger/\d{9}\.json")
_MARK_KEY = re.compile(r"marks/(\d{6})\.(\d{12})\.(bad|doomed|pin|suspect)\.json")
_FOLDER = re.compile(r"(\d+)\.(\d+)\.([0-9a-f]{8,64})")

MarkKind = Literal["bad", "doomed", "pin", "suspect"]
MARK_KINDS: Final[tuple[MarkKind, ...]] = get_args(MarkKind)
CommitKind = Literal["seal", "start", "manifest"]


def check_run_name(run: str) -> str:
    """Return ``run`` if it can name a run: a DNS label of at most 52 characters, since gangs and pods carry it."""
    if not _RUN_NAME.fullmatch(run):
        raise UsageError(
            f"run name {run!r} is not usable: lower-case letters, digits and '-', at most 52 characters, "
            "starting and ending with a letter or digit (for example 'llama-8b-2026-11')"
        )
    return run


def _inverted(value: int, limit: int, what: str) -> str:
    if not 0 <= value < limit:
        raise UsageError(f"{what} {value} is outside 0..{limit - 1}")
    return f"{limit - 1 - value:0{len(str(limit - 1))}d}"


def seal(attempt: int) -> str:
    """Key of the seal that opens ``attempt`` and closes all below."""
    return f"{COMMITS}{_inverted(attempt, ATTEMPT_LIMIT, 'attempt')}.0.seal.json"


def start(attempt: int) -> str:
    """Key of the start of ``attempt``."""
    return f"{COMMITS}{_inverted(attempt, ATTEMPT_LIMIT, 'attempt')}.1.start.json"


def manifest(attempt: int, step: int) -> str:
    """Key of the manifest of ``step``; a manifest is the commit."""
    return f"{COMMITS}{_inverted(attempt, ATTEMPT_LIMIT, 'attempt')}.2.{_inverted(step, STEP_LIMIT, 'step')}.json"


def manifests_of(attempt: int) -> str:
    """Prefix of all manifests of ``attempt``, the highest step first."""
    return f"{COMMITS}{_inverted(attempt, ATTEMPT_LIMIT, 'attempt')}.2."


def folder(attempt: int, step: int, save_id: str, *, base: str | None = None) -> str:
    """Folder of one save, ending in '/'. An incremental save stands inside the folder of its ``base`` (a full save)."""
    return f"{base or SHARDS}{attempt}.{step}.{save_id}/"


def part_record(save_folder: str, rank: int) -> str:
    """Key of one rank's part record, which it writes last."""
    return f"{save_folder}part-{rank:05d}.json"


def mark(attempt: int, step: int, kind: MarkKind) -> str:
    """Key of a mark. The kind and the commit stand in the key, so that one LIST tells all marks."""
    return f"{MARKS}{_inverted(attempt, ATTEMPT_LIMIT, 'attempt')}.{_inverted(step, STEP_LIMIT, 'step')}.{kind}.json"


def certificate(attempt: int) -> str:
    """Key of the certificate that the ranks of ``attempt`` gave before their first step."""
    return f"{CERTIFICATES}{attempt:06d}.json"


def request(attempt: int, number: int) -> str:
    """Key of a request to the ranks of ``attempt``."""
    return f"{REQUESTS}{attempt:06d}.{number:06d}.json"


def requests_of(attempt: int) -> str:
    """Prefix of all requests to ``attempt``."""
    return f"{REQUESTS}{attempt:06d}."


def signal(attempt: int, source: str, number: int) -> str:
    """Key of a report by launch, a watcher or a person about ``attempt``."""
    return f"{SIGNALS}{attempt:06d}.{source}.{number:06d}.json"


def signals_of(attempt: int, source: str) -> str:
    """Prefix of all signals of one source about ``attempt``."""
    return f"{SIGNALS}{attempt:06d}.{source}."


def ledger(number: int) -> str:
    """Key of a ledger entry; the newest sorts first."""
    return f"{LEDGER}{_inverted(number, LEDGER_LIMIT, 'ledger number')}.json"


def is_ledger(key: str) -> bool:
    """Whether ``key`` is one of ``ledger``; below ``ledger/`` may stand what a person put there."""
    return bool(_LEDGER_KEY.fullmatch(key))


def ledger_number(key: str) -> int:
    """The number of the ledger entry at ``key``."""
    return LEDGER_LIMIT - 1 - int(key.removeprefix(LEDGER).removesuffix(".json"))


class CommitKey(NamedTuple):
    """What a key below ``commits/`` says by its name alone."""

    attempt: int
    kind: CommitKind
    step: int | None


def parse_commit(key: str) -> CommitKey | None:
    """Read a key below ``commits/``; None for anything that is not ours."""
    found = _COMMIT_KEY.fullmatch(key)
    if not found:
        return None
    attempt = ATTEMPT_LIMIT - 1 - int(found[1])
    if found[4]:
        return CommitKey(attempt, "manifest", STEP_LIMIT - 1 - int(found[4]))
    return CommitKey(attempt, "seal" if found[2] else "start", None)


class MarkKey(NamedTuple):
    """What a key below ``marks/`` says by its name alone."""

    attempt: int
    step: int
    kind: MarkKind


def parse_mark(key: str) -> MarkKey | None:
    """Read a key below ``marks/``; None for anything that is not ours."""
    found = _MARK_KEY.fullmatch(key)
    if not found:
        return None
    kind = next(kind for kind in MARK_KINDS if kind == found[3])
    return MarkKey(ATTEMPT_LIMIT - 1 - int(found[1]), STEP_LIMIT - 1 - int(found[2]), kind)


class FolderKey(NamedTuple):
    """The save that wrote a file below ``shards/``."""

    attempt: int
    step: int
    save_id: str


def parse_shard(key: str) -> FolderKey | None:
    """The innermost save folder that ``key`` lies in (an incremental save's lies inside its base's)."""
    for name in reversed(key.removeprefix(SHARDS).split("/")[:-1]):
        found = _FOLDER.fullmatch(name)
        if found:
            return FolderKey(int(found[1]), int(found[2]), found[3])
    return None
