"""The extender's looks at a gang's store: the request to save and leave, its commit, and when the newest one was taken.

Ranks are asked to *leave* after the save, not to stay: between a commit and an eviction that comes a scheduler's
session later they would go on training, and those steps would be lost where the grace is shorter than a second save.
Where leaving helped nobody before (policies/consent.py), they are asked to stay.
"""

import secrets
from collections.abc import Callable
from itertools import islice
from typing import Final, NamedTuple

from rerail.plugins.checkpoint.attempts import newest_opening
from rerail.plugins.checkpoint.commit import acknowledge
from rerail.plugins.checkpoint.listing import Commits
from rerail.plugins.checkpoint.manifests import load_manifest
from rerail.plugins.checkpoint.notes import add_request
from rerail.plugins.checkpoint.resolve import read_start
from rerail.plugins.checkpoint.store import RunStore
from rerail.policies.consent import Then
from rerail.policies.errors import CommitFencedError
from rerail.policies.lineage import OPEN_STEP

_GLANCE: Final = 50
_NEWEST: Final = 3
"""Commits of an attempt among which the answer to a request stands: after it the ranks leave."""


class Saved(NamedTuple):
    """Why a gang may go: its commit, or that nothing it does counts any more."""

    why: str


class Taken(NamedTuple):
    """The newest commit of a run, and when its state was taken (epoch seconds, by its nodes' clocks)."""

    attempt: int
    step: int
    at_s: float


class GangSave:
    """One gang that is to save and leave. Every call of ``look`` costs a few requests; none waits.

    Args:
        run: The run's stores.
        gang: The gang's name, as starts have it.
        then: What the ranks do after the save.
        since_s: When the save was asked for, epoch seconds; names the request of a gang that stays.
        new_id: Gives random ids of writes.
    """

    def __init__(
        self,
        run: RunStore,
        gang: str,
        *,
        then: Then = "leave",
        since_s: float = 0.0,
        new_id: Callable[[], str] = lambda: secrets.token_hex(8),
    ) -> None:
        self._run = run
        self._gang = gang
        self._then = then
        self._since_s = since_s
        self._new_id = new_id
        self._asked: int | None = None

    @property
    def asked(self) -> bool:
        """Whether the request stands in the store."""
        return self._asked is not None

    def look(self, *, reason: str, within_s: float) -> Saved | None:
        """Ask the ranks, if that was not done, and look for their answer.

        Args:
            reason: Why, for people.
            within_s: Seconds until the deadline.

        Raises:
            RerailError: The store does not answer, or holds something else than expected.
        """
        started = newest_opening(self._run).started
        if started is None:
            return None
        start = read_start(self._run, started)
        if start.gang == self._gang and self._asked != started:
            add_request(
                self._run,
                attempt=started,
                reason=reason,
                within_s=max(1.0, within_s),
                then=self._then,
                writer=self._new_id(),
                id=self._id(started),
            )
            self._asked = started
        if self._asked is None:
            return None
        answered = self._answer(self._asked)
        if answered is None and start.gang != self._gang and started > self._asked:
            return Saved(f"attempt {started} of another gang goes on: nothing that this one does counts any more")
        return answered

    def _id(self, attempt: int) -> str:
        # The same after a restart: asking again is the same request. To leave is asked once per attempt.
        again = f"-{self._since_s:.0f}" if self._then == "stay" else ""
        return f"extender-{self._gang}-{attempt}{again}"

    def _answer(self, attempt: int) -> Saved | None:
        commits = Commits(self._run.control, first_page=_GLANCE)
        for step in islice(commits.steps(attempt, OPEN_STEP), _NEWEST):
            manifest = load_manifest(self._run, attempt, step).manifest
            if manifest.reason != "final" and self._id(attempt) not in manifest.answers:
                continue
            try:
                acknowledge(self._run, attempt=attempt, step=step, deadline_s=0.0)
            except CommitFencedError:
                return None
            return Saved(f"step {step} of attempt {attempt} is committed")
        return None


def newest_commit(run: RunStore, known: Taken | None) -> Taken | None:
    """The newest commit; its manifest is read only where it is not the ``known`` one.

    Raises:
        RerailError: The store does not answer, or holds something else than expected.
    """
    commits = Commits(run.control, first_page=_GLANCE)
    attempt = commits.newest("manifest")
    step = None if attempt is None else next(commits.steps(attempt, OPEN_STEP), None)
    if attempt is None or step is None:
        return None
    if known is not None and (known.attempt, known.step) == (attempt, step):
        return known
    manifest = load_manifest(run, attempt, step).manifest
    return Taken(attempt, step, max(each.at_s for each in manifest.snapshots))
