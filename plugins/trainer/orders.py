"""What the store orders this launch to do: run, make ready for an in-place attempt, leave, or wait."""

import re
from dataclasses import dataclass

from rerail.plugins.checkpoint.attempts import newest_opening, read_start
from rerail.plugins.checkpoint.store import RunStore
from rerail.policies import keys
from rerail.policies.documents import Seal, Start

_GANG_NUMBER = re.compile(r".*-a(\d+)")


@dataclass(frozen=True, slots=True)
class Run:
    """Run this start: it names our gang."""

    start: Start


@dataclass(frozen=True, slots=True)
class Prepare:
    """End and reap the ranks: ``attempt`` is to start in these pods."""

    attempt: int


@dataclass(frozen=True, slots=True)
class Leave:
    """A newer attempt belongs to another gang."""

    why: str


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing new for us."""


Order = Run | Prepare | Leave | Wait


def gang_number(gang: str) -> int | None:
    """The attempt that a gang was made for, by its name ``<run>-a<n>``; None for a name of another form."""
    found = _GANG_NUMBER.fullmatch(gang)
    return int(found[1]) if found else None


def newest_order(run: RunStore, gang: str, *, done: int, prepared: int) -> Order:
    """Read the newest order for the launches of ``gang``. One short LIST, and one GET when there is news.

    Args:
        run: The run's stores.
        gang: Our gang.
        done: Newest attempt that this launch started already; 0 before the first.
        prepared: Newest attempt that this launch already said to be ready for; 0 if none.
    """
    newest = newest_opening(run)
    sealed, started = newest.sealed or 0, newest.started or 0
    if max(sealed, started) <= done:
        return Wait()
    if started >= sealed:
        start = read_start(run, started)
        if start.gang == gang:
            return Run(start)
        return _other(gang, started, f"attempt {started} belongs to gang {start.gang}")
    if sealed <= prepared:
        return Wait()
    key = keys.seal(sealed)
    seal = Seal.decode(run.control.get(key), f"{run.control.url}: {key}")
    if seal.gang == gang:
        return Prepare(sealed) if seal.how == "in-place" else Wait()
    return _other(gang, sealed, f"attempt {sealed} is being opened for gang {seal.gang}")


def _other(gang: str, attempt: int, why: str) -> Order:
    """Leave, unless our gang is the newer one: pods may be created before their attempt is sealed."""
    ours = gang_number(gang)
    return Wait() if ours is not None and ours > attempt else Leave(why)
