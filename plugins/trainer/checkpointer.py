"""The training client: what a training script holds in its hand.

A script calls ``restore()`` once, ``step_done(step)`` after every completed optimizer step, and ``finish(step)`` at the
end. Everything else (when to save, what was asked, leaving together, the certificate) is decided here.

Saves happen in ``step_done`` only, that is at optimizer-step boundaries: inside a gradient accumulation window the
accumulated gradients are part of no state, so nothing is ever recorded there. Tell what was consumed by explicit name,
``counters={"micro_batches": ..., "samples": ...}``; they are frozen with the state, and after a restore they are in
``restored_counters``.
"""

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping
from typing import NoReturn, Self, Unpack

from rerail.plugins.checkpoint.open import open_run
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.trainer.agree import Group, Solo, Wish
from rerail.plugins.trainer.background import Background
from rerail.plugins.trainer.environment import RankEnvironment, describe, read_environment
from rerail.plugins.trainer.leave import Left
from rerail.plugins.trainer.options import Options, Settings
from rerail.plugins.trainer.pacing import Pacing
from rerail.plugins.trainer.poller import Poller
from rerail.plugins.trainer.progress import Progress
from rerail.plugins.trainer.requests import RequestBook
from rerail.plugins.trainer.restoring import Restored, restore
from rerail.plugins.trainer.saves import Saves
from rerail.plugins.trainer.saving import Facts, Saver
from rerail.plugins.trainer.signals import TermSignal
from rerail.plugins.trainer.state import collect
from rerail.policies.documents import Certificate
from rerail.policies.errors import (
    DO_NOT_RETRY,
    LEFT_UNSAVED,
    SAVED_AND_LEFT,
    CommitExistsError,
    CommitFencedError,
    IncompleteStateError,
    SaveFailedError,
    UsageError,
)
from rerail.policies.manifest import Manifest, SaveReason

log = logging.getLogger("rerail.trainer")


class Checkpointer:
    """Saves and restores the state of one rank, together with all ranks of its attempt.

    Args:
        run: The run's stores; None makes a client that does nothing, so that a script runs without Rerail.
        environment: What launch told this process; None exactly when ``run`` is.
        **options: See ``Settings``.

    Attributes:
        certificate: What the ranks found when they loaded; None before ``restore``.
        skipped_saves: Periodic saves that were left out because one was still under way.

    Raises:
        UsageError: The arguments do not fit the environment.
        IncompleteStateError: A part of the state is forgotten (in strict mode).
    """

    def __init__(self, run: RunStore | None, environment: RankEnvironment | None, **options: Unpack[Options]) -> None:
        settings = Settings(**options)
        self._settings = settings
        self._run = run
        self._told = environment
        self._state = collect(
            shared=settings.shared, per_rank=settings.per_rank, absent=settings.absent, strict=settings.strict
        )
        if self._state.forgotten:
            log.warning("rerail: no checkpoint will hold %s: no resume is exact", ", ".join(self._state.forgotten))
        self._group: Group = settings.group or Solo()
        self._signal = TermSignal(clock=settings.clock)
        self._book = RequestBook()
        self._pacing = Pacing(settings.every, clock=settings.clock)
        self._background: Background[Manifest | None] = Background()
        self._progress = Progress(
            rank=environment.rank if environment else 0,
            report=environment.report if environment else None,
            argo=environment.argo_progress if environment else None,
            total_steps=settings.total_steps,
            clock=settings.clock,
            wall=settings.wall,
        )
        self.certificate: Certificate | None = None
        self.skipped_saves = 0
        self._restored = Restored()
        self._saves: Saves | None = None
        self._poller: Poller | None = None
        self._facts: Facts | None = None
        self._seen_at_wish: tuple[str, ...] = ()
        if environment is not None:
            self._check_group(environment)
            self._progress.watch_exceptions()
            if settings.handle_signals:
                self._signal.install()
            self._progress.write()  # who reads it may ask to leave from now on

    @classmethod
    def from_env(cls, *, environ: Mapping[str, str] = os.environ, **options: Unpack[Options]) -> Self:
        """The client as launch set the process up: ``RERAIL_*``, ``RANK``, ``WORLD_SIZE``.

        Without ``RERAIL_RUN`` and ``RERAIL_STORE`` the client does nothing, and says so once.

        Raises:
            UsageError: The environment, or an option, cannot be right.
            IncompleteStateError: A part of the state is forgotten (in strict mode).
        """
        told = read_environment(environ)
        if told is None:
            log.warning("rerail: RERAIL_RUN and RERAIL_STORE are not set: this training has no checkpoints of Rerail")
            return cls(None, None, **options)
        return cls(open_run(told.run, store=told.store, control=told.control), told, **options)

    def _check_group(self, told: RankEnvironment) -> None:
        if self._settings.group is None and told.world_size > 1:
            raise UsageError(
                f"WORLD_SIZE={told.world_size} needs group=...: an object with rank, world_size and all_gather(bytes), "
                "for example KeyValueGroup"
            )
        if (self._group.rank, self._group.world_size) != (told.rank, told.world_size):
            raise UsageError(
                f"the group says rank {self._group.rank} of {self._group.world_size}, RANK and WORLD_SIZE say "
                f"{told.rank} of {told.world_size}; give the group of all ranks"
            )
        self._settings.layout_for(told.world_size)

    @property
    def enabled(self) -> bool:
        """Whether there is a run to save to."""
        return self._run is not None

    @property
    def restored_step(self) -> int:
        """Completed steps of the commit that was loaded; 0 for a fresh start."""
        return self._restored.step

    @property
    def restored_epoch(self) -> int | None:
        """Epoch of the commit that was loaded; None where there is none."""
        return self._restored.epoch

    @property
    def restored_counters(self) -> Mapping[str, int]:
        """Counters of the commit that was loaded."""
        return self._restored.counters

    @property
    def last_commit(self) -> Manifest | None:
        """The newest acknowledged commit of this attempt, where this rank saw it."""
        return self._saves.last_commit if self._saves else None

    @property
    def failed_saves(self) -> int:
        """Saves that did not become a commit."""
        return self._saves.failed if self._saves else 0

    @property
    def missed(self) -> Mapping[str, int]:
        """Requests and grace periods whose deadline passed without a commit, by the phase that training was in."""
        return dict(self._book.missed)

    def restore(self) -> int:
        """Load what the attempt's start says, and certify it together with all ranks.

        Returns:
            Completed optimizer steps; 0 for a fresh start. The first step to report is the one after it.

        Raises:
            Left: 86 where this gang may not run the attempt, 87 where the restored state is not what was saved, 88
                where the checkpoint is damaged (it is marked ``bad`` then, and the next attempt skips it).
        """
        if self._run is None or self._told is None:
            return 0
        if self._saves is not None:
            raise UsageError("restore() was called twice; one process restores once")
        told, settings = self._told, self._settings
        if told.rank == 0:
            self._poller = Poller(
                self._run,
                attempt=told.attempt,
                book=self._book,
                progress=self._progress,
                signal=self._signal,
                grace_s=told.grace_s,
                poll_s=told.poll_s,
                new_id=settings.new_id,
                clock=settings.clock,
            )
            self._poller.start()
        environment = describe()
        try:
            self._restored = restore(
                self._run,
                told,
                self._state,
                group=self._group,
                seed=settings.seed,
                environment=environment,
                asked_to_leave=lambda: self._local_wish(None) >= Wish.SAVE_AND_LEAVE,
                new_id=settings.new_id,
            )
        except Left as left:
            self._leave(left.code, left.reason)
        assert self._restored.certificate_ref is not None
        self.certificate = self._restored.certificate
        saver = Saver(
            run=self._run,
            attempt=told.attempt,
            rank=told.rank,
            world_size=told.world_size,
            layout=settings.layout_for(told.world_size),
            certificate=self._restored.certificate_ref,
            environment=environment,
            new_id=settings.new_id,
            deadline_s=settings.save_deadline_s,
            poll_s=0.05,
            sleep=self._background.pause,
            clock=settings.clock,
        )
        self._saves = Saves(
            saver=saver,
            state=self._state,
            told=told,
            settings=settings,
            group=self._group,
            start_writer=self._restored.start_writer,
            pacing=self._pacing,
            book=self._book,
            progress=self._progress,
            background=self._background,
        )
        self._progress.loaded(self._restored.step)
        self._pacing.begin()
        self._announce(self._restored.step + 1)
        return self._restored.step

    @contextlib.contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Say what training is doing (``evaluation``, ``warm-up`` ...). Requests wait meanwhile: no boundary comes."""
        before, self._progress.phase = self._progress.phase, name
        self._progress.write()
        try:
            yield
        finally:
            self._progress.phase = before
            self._progress.write()

    def wish(self) -> int:
        """What this rank wants at the end of the step that is under way, as a small number.

        Reduce it with *max* over all ranks, in a collective that the loop makes anyway, and give the result to
        ``step_done(agreed=...)``. May be called any number of times in a step; the last call counts.
        """
        if not self.enabled:
            return Wish.NONE
        self._seen_at_wish = self._waiting()
        return self._local_wish(self._progress.step + 1)

    def _waiting(self) -> tuple[str, ...]:
        return tuple(asked.id for asked in self._book.waiting())

    def _why_leave(self) -> str | None:
        if self._saves and self._saves.fenced:
            return self._saves.fenced
        newer = self._poller.superseded if self._poller else None
        return f"attempt {newer} was opened" if newer else None

    def _local_wish(self, boundary: int | None) -> Wish:
        """This rank's wish; ``boundary`` is the step after which it would be fulfilled, None while loading."""
        if self._why_leave():
            return Wish.LEAVE
        wish = max(self._book.wish(), Wish.SAVE_AND_LEAVE if self._signal.pending else Wish.NONE)
        if wish or self._saves is None or boundary is None or self._group.rank != 0:
            return wish
        if boundary == self._settings.total_steps or not self._pacing.due(boundary):
            return Wish.NONE
        if self._saves.running:
            self.skipped_saves += self._pacing.skip(boundary)
            return Wish.NONE
        return Wish.SAVE

    def step_done(
        self,
        step: int,
        *,
        agreed: int | None = None,
        epoch: int | None = None,
        loss: float | None = None,
        counters: Mapping[str, int] | None = None,
    ) -> None:
        """A step is complete: tell it, and save or leave if that is due.

        Args:
            step: Completed optimizer steps. The first one is the restored step + 1.
            agreed: The maximum of all ranks' ``wish()`` in this step.
            epoch: Where the loop is.
            loss: Loss of the step.
            counters: What was consumed so far, by name (``micro_batches``, ``samples`` ...).

        Raises:
            Left: 85 after a save that was asked for, 86 without one, 87 if the resume was not applied.
            SaveFailedError: Saves failed, in the background or here, more often than ``on_save_error`` bears.
            IncompleteStateError: ``epoch`` is neither told nor declared absent.
        """
        if not self.enabled:
            return
        saves = self._ready("step_done")
        counts = dict(counters or {})
        self._check_progress(step, epoch, counts)
        self._progress.stepped(step, loss)
        saves.collect()
        wish, answers = self._decide(step, agreed)
        leaving = wish == Wish.SAVE_AND_LEAVE
        reason: SaveReason = "request" if answers else "signal" if leaving else "periodic"
        self._facts = self._make_facts(step, epoch=epoch, reason=reason, counters=counts, answers=answers, loss=loss)
        if wish == Wish.LEAVE:
            self._leave(LEFT_UNSAVED, self._why_leave() or "told to end, by a signal here or on another rank")
        # The last step is left to finish(), which commits it as the end of the run, whatever else is asked.
        if wish != Wish.NONE and step != self._settings.total_steps:
            self._save(saves, self._facts, leaving=leaving)
            if leaving:
                self._leave(SAVED_AND_LEFT, f"step {step} is committed, as asked")
        if self._group.world_size == 1 and self._why_leave():
            self._leave(LEFT_UNSAVED, self._why_leave() or "")
        self._announce(step + 1)

    def finish(
        self,
        step: int,
        *,
        epoch: int | None = None,
        loss: float | None = None,
        counters: Mapping[str, int] | None = None,
    ) -> None:
        """Training is complete: wait for a save under way, then commit the last state with reason ``final``.

        Args:
            step: Completed optimizer steps.
            epoch: As in ``step_done``; left out, what the last ``step_done`` said (as with the others).
            loss: Loss of the last step.
            counters: What was consumed.

        Raises:
            SaveFailedError: The final commit failed.
            Left: 86 if a newer attempt goes on without it.
        """
        if not self.enabled:
            return
        saves = self._ready("finish")
        self._progress.phase = "saving"
        self._progress.write()
        saves.wait()
        if not (self._restored.final and step == self._restored.step):
            if step == saves.saved_step:
                raise UsageError(
                    f"step {step} was committed as a periodic save already, and a commit never changes: pass "
                    f"total_steps={step} to the Checkpointer, so that the last step is saved by finish() alone"
                )
            last = self._facts
            facts = self._make_facts(
                step,
                epoch=epoch if epoch is not None else last.epoch if last else self._restored.epoch,
                reason="final",
                counters=counters if counters is not None else last.counters if last else self._restored.counters,
                answers=self._waiting(),
                loss=loss if loss is not None else last.loss if last else None,
            )
            self._save(saves, facts, leaving=True)
        self._progress.phase = "done"
        self._progress.write()
        self._close()

    def _ready(self, call: str) -> Saves:
        if self._saves is None:
            raise UsageError(f"{call}() before restore(): restore() comes first, on every rank")
        return self._saves

    def _check_progress(self, step: int, epoch: int | None, counters: Mapping[str, int]) -> None:
        """Being given a state is not resuming: hold the first step against what was restored."""
        if self._progress.first_step is not None:
            if step <= self._progress.step:
                raise UsageError(f"step_done({step}) after step_done({self._progress.step}): completed steps only grow")
            return
        before = self._restored
        behind = {name: count for name, count in counters.items() if count < before.counters.get(name, 0)}
        if step != before.step + 1:
            problem = f"the first step reported is {step}, not {before.step + 1}"
        elif epoch is not None and before.epoch is not None and epoch < before.epoch:
            problem = f"the first step is of epoch {epoch}, before the restored epoch {before.epoch}"
        elif behind:
            name, count = next(iter(behind.items()))
            problem = f"counter {name!r} is {count}, less than the restored {before.counters[name]}"
        else:
            return
        self._progress.note(error=f"ResumeNotApplied: {problem}")
        self._leave(
            DO_NOT_RETRY,
            f"resume not applied: {problem}. restore() gave step {before.step}, and the script has to go on from it; "
            f"nothing was committed, step {before.step} stands",
        )

    def _decide(self, step: int, agreed: int | None) -> tuple[Wish, tuple[str, ...]]:
        """What all ranks do at this boundary, and the requests that a save now answers."""
        waiting = self._waiting()
        # What was seen after the wish may be younger than another rank's snapshot: it waits for the next boundary.
        seen = tuple(one for one in self._seen_at_wish if one in waiting)
        self._seen_at_wish = ()
        if agreed is not None:
            return Wish(agreed), seen
        if self._settings.agreement is not None:
            return self._settings.agreement.decided(step), seen
        if self._group.world_size == 1:
            return self._local_wish(step), waiting
        if self._pacing.local:
            raise UsageError(
                f"a save by time on {self._group.world_size} ranks needs agreement: pass agreed=<maximum of all ranks' "
                "wish()> to step_done(), or agreement=KeyValueAgreement(...) to the Checkpointer, or use Every(steps=)"
            )
        # Without agreement only what every rank computes alike is safe. Nobody skips, so that all ranks stay together;
        # a rank that has to end leaves without a save, and launch ends the others.
        if self._local_wish(None) >= Wish.LEAVE or self._signal.pending:
            return Wish.LEAVE, ()
        return (Wish.SAVE if step != self._settings.total_steps and self._pacing.due(step) else Wish.NONE), ()

    def _announce(self, step: int) -> None:
        if self._settings.agreement is not None:
            self._seen_at_wish = self._waiting()
            self._settings.agreement.announce(self._local_wish(step), step=step)

    def _make_facts(
        self,
        step: int,
        *,
        epoch: int | None,
        reason: SaveReason,
        counters: Mapping[str, int],
        answers: tuple[str, ...],
        loss: float | None,
    ) -> Facts:
        given = {handle.part for handle in self._state.handles}
        if epoch is None and "epoch" not in given and "epoch" not in self._state.absent:
            raise IncompleteStateError(
                f"step {step}: the training state lacks epoch: pass epoch=... to step_done(), or say why there is "
                "none, as in absent={'epoch': 'the data is one endless stream'}"
            )
        return Facts(
            step=step,
            epoch=epoch,
            reason=reason,
            counters={"optimizer_steps": step, **counters},
            answers=answers,
            loss=loss,
            seed=self._settings.seed,
        )

    def _save(self, saves: Saves, facts: Facts, *, leaving: bool) -> None:
        """Save; where the process leaves afterwards, leave without if that fails."""
        try:
            saves.save(facts, leaving=leaving)
        except (CommitFencedError, CommitExistsError) as error:
            self._leave(LEFT_UNSAVED, str(error))
        except SaveFailedError as error:
            if not leaving or facts.reason == "final":
                raise
            self._leave(LEFT_UNSAVED, str(error))

    def _leave(self, code: int, reason: str) -> NoReturn:
        left = Left(code, reason)
        self._progress.note(left=str(left), exit_code=code)
        log.error("rerail: %s", left)
        self._signal.disregard()
        self._close()
        self._background.give_up()
        raise left

    def _close(self) -> None:
        if self._poller:
            self._poller.stop()
        self._signal.restore()
