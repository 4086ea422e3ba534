"""Lineage is a chain read backwards: which commits of which attempts count. Nothing off the chain ever does."""

from collections.abc import Iterable

from rerail.policies.documents import ChainLink, Start
from rerail.policies.keys import STEP_LIMIT

OPEN_STEP = STEP_LIMIT - 1
"""Upper end of a link whose attempt is the newest: all of its commits count until a seal closes it."""


def links(start: Start | None) -> tuple[ChainLink, ...]:
    """The links to read, newest first, once ``start`` is the newest start: its own attempt, then what it built on."""
    if start is None:
        return ()
    return (ChainLink(attempt=start.attempt, step=OPEN_STEP), *start.chain)


def chain_from(readable: Iterable[ChainLink], attempt: int, step: int) -> tuple[ChainLink, ...]:
    """The chain of a start that loads commit (``attempt``, ``step``), itself found on the ``readable`` links.

    Links of attempts that were passed over are left out: none of their commits counts any more.
    """
    rest = list(readable)
    for at, link in enumerate(rest):
        if link.attempt == attempt:
            return (ChainLink(attempt=attempt, step=step), *rest[at + 1 :])
    raise ValueError(f"commit {attempt}.{step} is on none of the links {rest}")


def holds(chain: Iterable[ChainLink], attempt: int, step: int) -> bool:
    """Whether commit (``attempt``, ``step``) counts on ``chain``."""
    return any(link.attempt == attempt and link.step is not None and step <= link.step for link in chain)
