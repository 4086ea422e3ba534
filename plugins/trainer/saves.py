"""The saves of one attempt, one at a time: begun at a step boundary, settled in the training thread."""

import logging
from dataclasses import dataclass, field

from rerail.plugins.trainer.agree import Group
from rerail.plugins.trainer.background import Background
from rerail.plugins.trainer.environment import RankEnvironment
from rerail.plugins.trainer.options import Settings
from rerail.plugins.trainer.pacing import Pacing
from rerail.plugins.trainer.progress import Progress
from rerail.plugins.trainer.requests import RequestBook
from rerail.plugins.trainer.saving import Buffers, Facts, Saver, freeze, save_id
from rerail.plugins.trainer.state import TrainingState
from rerail.policies.errors import (
    CommitExistsError,
    CommitFencedError,
    IncompleteStateError,
    RerailError,
    SaveFailedError,
    SupersededError,
    UsageError,
)
from rerail.policies.manifest import Manifest, Snapshot

log = logging.getLogger("rerail.trainer")

_FENCED = (CommitFencedError, CommitExistsError, SupersededError)
_IN_A_ROW = 2


@dataclass(slots=True, eq=False)
class Saves:
    """Begins saves and learns what became of them.

    A failed background save is learned at the next boundary: one is borne with a warning, the second in a row (or the
    first, where the settings say so) is raised.

    Attributes:
        saver: Writes.
        state: The user's objects.
        told: This rank's environment.
        settings: The script's choices.
        group: The process group.
        start_writer: Random id of the attempt's start.
        pacing: Learns what saves cost.
        book: Learns which requests are answered.
        progress: Learns how long training stood still.
        background: Runs the save.
        fenced: Why this gang has to leave; None while its commits count.
        failed: Saves that did not become a commit.
        saved_step: Step of the newest save that did, as far as this rank knows.
        last_commit: The newest acknowledged commit that this rank saw.
    """

    saver: Saver
    state: TrainingState
    told: RankEnvironment
    settings: Settings
    group: Group
    start_writer: str
    pacing: Pacing
    book: RequestBook
    progress: Progress
    background: Background[Manifest | None]
    fenced: str | None = None
    failed: int = 0
    saved_step: int | None = None
    last_commit: Manifest | None = None
    _buffers: Buffers = field(default_factory=Buffers)
    _count: int = 0
    _since_full: int = 0
    _in_a_row: int = 0
    _in_flight: Facts | None = None

    @property
    def running(self) -> bool:
        """Whether a save is under way."""
        return self.background.running

    def save(self, facts: Facts, *, leaving: bool) -> None:
        """Take the state now and write it; the one before is waited for.

        Args:
            facts: What the commit says.
            leaving: The process ends afterwards: write here and now, and wait for the acknowledged commit.

        Raises:
            SaveFailedError: It failed, and that cannot be borne; always when leaving.
            CommitFencedError: A newer attempt goes on without it (only when leaving; else see ``fenced``).
        """
        clock = self.settings.clock
        begin = clock()
        phase, self.progress.phase = self.progress.phase, "saving"
        here = leaving or not self.settings.asynchronous
        if here or self.running:
            self.progress.write()
        self.wait()
        told = self.told
        frozen = freeze(
            self.state,
            facts,
            save_id=save_id(self.start_writer, facts.step, self._count),
            rank=told.rank,
            layout=self.saver.layout,
            snapshot=Snapshot(
                rank=told.rank, at_s=self.settings.wall(), node=told.node, boot_id=told.boot_id, devices=told.devices
            ),
            buffers=None if here else self._buffers,
        )
        self._count += 1
        base = self._agree_on_base()
        self.book.begin(facts.answers)
        self.pacing.began()
        self._in_flight = facts

        def job() -> Manifest | None:
            manifest = self.saver.write(frozen, base=base, wait=leaving)
            self.pacing.committed(clock() - begin)
            self.progress.committed(clock() - begin)
            return manifest

        self.background.start(job)
        try:
            if here:
                self._settle(leaving=leaving, bear=False)
        finally:
            self.progress.phase = phase
            stall_s = clock() - begin
            self.pacing.stalled(stall_s)
            self.progress.saved(stall_s)

    def collect(self) -> None:
        """Learn what became of a background save, if it has ended.

        Raises:
            SaveFailedError: It failed, and that cannot be borne.
        """
        if self.background.finished:
            self._settle(leaving=False, bear=False)

    def wait(self) -> None:
        """Wait for a save under way. Its failure is counted and told, and matters less than what comes next."""
        if self._in_flight is not None:
            self._settle(leaving=False, bear=True)

    def _settle(self, *, leaving: bool, bear: bool) -> None:
        facts, self._in_flight = self._in_flight, None
        assert facts is not None
        try:
            manifest = self.background.take()
        except _FENCED as error:
            self.book.failed(facts.answers)
            self.fenced = str(error)
            if leaving:
                raise
        except (UsageError, IncompleteStateError):
            raise
        except (RerailError, OSError) as error:
            self.book.failed(facts.answers)
            self.failed += 1
            self._in_a_row += 1
            message = f"the save of step {facts.step} did not become a commit: {type(error).__name__}: {error}"
            unbearable = self.settings.on_save_error == "raise" or self._in_a_row >= _IN_A_ROW
            if leaving or (unbearable and not bear):
                raise SaveFailedError(f"{message} ({self._in_a_row} failed in a row)") from error
            log.warning("rerail: %s", message)
        else:
            self._in_a_row = 0
            self.saved_step = facts.step
            self.last_commit = manifest or self.last_commit
            self.book.answered(facts.answers)

    def _agree_on_base(self) -> tuple[int, int] | None:
        """The commit whose equal files this save reuses: rank 0's newest, told to all, in the training thread."""
        if self.settings.full_every == 1:
            return None
        newest, full = self.last_commit, self._since_full + 1 >= self.settings.full_every
        text = "" if full or newest is None else f"{newest.attempt}.{newest.step}"
        chosen = self.group.all_gather(text.encode())[0].decode()
        self._since_full = self._since_full + 1 if chosen else 0
        if not chosen:
            return None
        attempt, _, step = chosen.partition(".")
        return int(attempt), int(step)
