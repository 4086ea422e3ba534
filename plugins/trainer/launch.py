"""``rerail-launch -- COMMAND``: the one process of a pod that starts, watches, reports and ends its ranks.

It never decides. The store's seals and starts say what to run; it runs that, says what ended, and stays a bounded time
for an in-place attempt. One thread only: ranks are forked from it, and they die with it.
"""

import argparse
import contextlib
import os
import secrets
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Final

from rerail.plugins.checkpoint.notes import add_report
from rerail.plugins.checkpoint.open import open_run
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.trainer import farewell, processes
from rerail.plugins.trainer.orders import Leave, Order, Prepare, Run, Wait, newest_order
from rerail.plugins.trainer.ranks import Ranks
from rerail.plugins.trainer.settings import Settings
from rerail.policies import errors
from rerail.policies.documents import RankExit, Report, Start
from rerail.policies.units import duration_s

_QUIET: Final = frozenset({errors.DONE, errors.SAVED_AND_LEFT, errors.LEFT_UNSAVED})
_FINAL: Final = frozenset({errors.DO_NOT_RETRY, errors.NVRX_TERMINAL})
_CANNOT_EXECUTE = 126
_NOT_FOUND = 127
_CLAIMED = 0
_HURRY_S: Final = 10.0
_HURRIED_LOOKS: Final = 4
"""How many times as often as ``poll_s`` orders are looked for, so long after a rank failed: recovery waits for this."""
_LAST_WORDS_S: Final = 0.5
"""How long ranks of a broken group may take to say why, before they are ended. An attempt in place waits for it."""


def exit_code_of(ends: Sequence[RankExit]) -> int:
    """One exit code for all ranks of a pod, given in the order in which they ended.

    Damage met (88) and do-not-retry (87) stand above the first abnormal code, that above leaving (86, 85), and 0 means
    that every rank is done.
    """
    codes = [end.exit_code for end in ends]
    for code in (errors.DAMAGE_MET, errors.DO_NOT_RETRY):
        if code in codes:
            return code
    abnormal = next((code for code in codes if code not in _QUIET), None)
    if abnormal is not None:
        return abnormal
    return max(codes, default=errors.LEFT_UNSAVED)


@dataclass(slots=True)
class Launch:
    """The life of one pod.

    Attributes:
        ends: Ranks of the current attempt that ended by themselves, in order; those that launch killed are not here.
    """

    settings: Settings
    run: RunStore
    ranks: Ranks
    clock: Callable[[], float] = time.monotonic
    log: Callable[[str], None] = lambda line: print(f"rerail-launch: {line}", file=sys.stderr, flush=True)  # noqa: T201
    attempt: int | None = None
    ends: list[RankExit] = field(default_factory=list)
    why: str = ""
    _prepared: int = 0
    _unsent: list[Report] = field(default_factory=list)
    _told: set[int] = field(default_factory=set)
    _signalled: int | None = None
    _wake: int = -1
    _next_look_s: float = 0.0
    _hurry_until_s: float = 0.0

    def live(self) -> int:
        """Run attempts until there is nothing more to do here; returns the exit code."""
        with self._signals():
            order = self._await_order()
            while isinstance(order, Run):
                order = self._attempt(order.start)
            self.ranks.kill()
            self._send_reports(patience_s=min(self.settings.hold_s, 10.0))
            if isinstance(order, Leave):
                self.why = order.why
                return errors.LEFT_UNSAVED
            return exit_code_of(self.ends)

    def _await_order(self) -> Order:
        """Wait, bounded, for the next start; ``Wait`` when none came."""
        deadline = self.clock() + self.settings.hold_s
        while self._signalled is None and self.clock() < deadline:
            order = self._look()
            if isinstance(order, Prepare):
                self._make_ready(order.attempt)
                deadline = self.clock() + self.settings.hold_s
            elif not isinstance(order, Wait):
                return order
            self._pause(deadline)
        self.why = "asked to leave" if self._signalled else f"no start for gang {self.settings.gang} within hold_s"
        return Wait()

    def _attempt(self, start: Start) -> Order:
        """Run one attempt to its end; returns the order that follows it, ``Wait`` for leaving with the ranks' code."""
        self.attempt, self.ends, self._told = start.attempt, [], set()
        if self.settings.world_size and start.world_size != self.settings.world_size:
            self.log(f"start says world size {start.world_size}, this pod was made for {self.settings.world_size}")
        try:
            self.ranks.start(start)
        except OSError as error:
            code = _NOT_FOUND if isinstance(error, FileNotFoundError) else _CANNOT_EXECUTE
            failed = RankExit(rank=self.settings.first_rank, exit_code=code, error=f"{type(error).__name__}: {error}")
            self._note_ends((failed,))
        deadline: float | None = None
        while True:
            self._note_ends(self.ranks.reap())
            if self._is_over():
                return Wait()
            if deadline is None and any(end.exit_code != errors.DONE for end in self.ends):
                deadline = self.clock() + self.settings.hold_s
            if deadline is not None and self.clock() > deadline:
                self.why = f"no orders within {self.settings.hold_s} s after a rank ended"
                return Wait()
            order = self._look()
            if isinstance(order, Prepare):
                self._make_ready(order.attempt)
                return self._await_order()
            if not isinstance(order, Wait):
                self._end_superseded()
                return order
            self._pause(deadline)

    def _is_over(self) -> bool:
        """Whether all ranks ended and no order could be of use to this pod."""
        if self.ranks.running or not self.ends:
            return False
        codes = {end.exit_code for end in self.ends}
        return (
            self._signalled is not None or codes <= {errors.DONE, errors.SAVED_AND_LEFT} or not codes.isdisjoint(_FINAL)
        )

    def _note_ends(self, ended: Sequence[RankExit]) -> None:
        """Remember ends, and queue a report: at once for abnormal ones, for orderly leaving once all have left."""
        self.ends += ended
        for end in ended:
            self.log(f"rank {end.rank} ended with {end.exit_code}{f' ({end.error})' if end.error else ''}")
        untold = [end for end in self.ends if end.rank not in self._told and end.exit_code != errors.DONE]
        urgent = any(end.exit_code not in _QUIET for end in untold)
        if untold and (urgent or not self.ranks.running):
            self._told |= {end.rank for end in untold}
            assert self.attempt is not None
            self._unsent.append(self._report(self.attempt, exits=tuple(untold)))
            self._next_look_s, self._hurry_until_s = 0.0, self.clock() + _HURRY_S
        self._send_reports()

    def _report(self, attempt: int, *, exits: tuple[RankExit, ...] = (), ready_for: int | None = None) -> Report:
        return Report(
            writer=secrets.token_hex(8),
            run=self.settings.run,
            attempt=attempt,
            gang=self.settings.gang,
            pod=self.settings.pod,
            node=self.settings.node,
            exits=exits,
            ready_for=ready_for,
        )

    def _send_reports(self, *, patience_s: float = 0.0) -> None:
        deadline = self.clock() + patience_s
        while self._unsent:
            try:
                add_report(self.run, self._unsent[0])
            except errors.TransientError as error:
                self.log(f"report waits: {error}")
                if self.clock() >= deadline:
                    return
                time.sleep(min(0.2, self.settings.poll_s))
            except errors.RerailError as error:
                # Ranks do not end because nobody may be told about them.
                self.log(f"report dropped: {error}")
                self._unsent.pop(0)
            else:
                self._unsent.pop(0)

    def _make_ready(self, attempt: int) -> None:
        """End every rank with all it started, and say so: only then may the attempt start in this pod."""
        if self.attempt is not None:
            # The rank that broke the group may be the last to end: killed now, only its followers would be heard.
            self._note_ends(self._await_ends(_LAST_WORDS_S))
        if self.ranks.kill():
            self._prepared = attempt
            self._unsent.append(self._report(attempt, ready_for=attempt))
            self._send_reports()
            self._next_look_s = 0.0
        else:
            self.log(f"a rank cannot be ended, so this pod is not ready for attempt {attempt} in place")

    def _end_superseded(self) -> None:
        """What these ranks still do counts for nothing; a short grace lets them leave orderly."""
        self.ranks.forward(signal.SIGTERM)
        self._await_ends(self.settings.kill_grace_s)
        self.ranks.kill()

    def _await_ends(self, within_s: float) -> tuple[RankExit, ...]:
        """Let ranks end by themselves for a while; returns those that did."""
        deadline = self.clock() + within_s
        ends = self.ranks.reap()
        while self.ranks.running and self.clock() < deadline:
            select.select([self._wake], [], [], 0.02)
            self._drain()
            ends += self.ranks.reap()
        return ends

    def _look(self) -> Order:
        """Ask the store for orders when it is time; an unreachable store orders nothing."""
        if self.clock() < self._next_look_s:
            return Wait()
        try:
            order = newest_order(self.run, self.settings.gang, done=self.attempt or 0, prepared=self._prepared)
        except errors.RerailError as error:
            self.log(f"no orders: {error}")
            order = Wait()
        self._send_reports()
        now_s = self.clock()
        self._next_look_s = now_s + self.settings.poll_s / (_HURRIED_LOOKS if now_s < self._hurry_until_s else 1)
        return order

    def _pause(self, deadline: float | None) -> None:
        """Sleep until a signal (a child's end, too), the next look, or the deadline."""
        until = self._next_look_s if deadline is None else min(deadline, self._next_look_s)
        select.select([self._wake], [], [], max(0.0, until - self.clock()))
        self._drain()

    def _drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wake, 512):
                pass

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Forward the first SIGTERM or SIGINT to the ranks, and wake up on it and on every child's end."""

        def leave(number: int, _frame: FrameType | None) -> None:
            if self._signalled is None:
                self._signalled = number
                self.ranks.forward(number)

        self._wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGINT)}
        before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        old_waker = signal.set_wakeup_fd(waker)
        try:
            yield
        finally:
            signal.set_wakeup_fd(old_waker)
            for number, handler in before.items():
                signal.signal(number, handler)
            os.close(self._wake)
            os.close(waker)


def launch(command: Sequence[str], settings: Settings, environment: dict[str, str]) -> int:
    """Be the pod that ``settings`` describe, around ``command``; returns the exit code.

    Raises:
        RerailError: The store's address, or a document in it, cannot be used.
    """
    if settings.claim is not None and not farewell.claim(settings.claim):
        return _CLAIMED
    processes.adopt_orphans()
    # A pod with a folder of its own keeps its small files there, so that a killed launch leaves no other traces.
    own = environment.get("RERAIL_POD_DIR")
    scratch = Path(tempfile.mkdtemp(prefix="rerail-launch-", dir=own))
    exit_code, why = 1, ""
    ranks = Ranks(command, environment, settings.first_rank, settings.local_ranks, scratch, settings.log_dir)
    pod: Launch | None = None
    try:
        pod = Launch(settings, open_run(settings.run, store=settings.store, control=settings.control), ranks)
        exit_code = pod.live()
        why = pod.why
    except errors.RerailError as error:
        exit_code, why = error.exit_code, str(error)
        raise
    finally:
        # It is over: another SIGTERM must not take away the last words.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        ranks.kill()
        shutil.rmtree(scratch, ignore_errors=True)
        if settings.termination_log is not None:
            farewell.say(
                settings.termination_log,
                run=settings.run,
                attempt=pod.attempt if pod else None,
                gang=settings.gang,
                pod=settings.pod,
                exit_code=exit_code,
                exits=ranks.codes,
                why=why,
            )
    return exit_code


def main(arguments: Sequence[str] | None = None) -> int:
    """The console script ``rerail-launch``."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["--pre-stop"]:
        return _pre_stop(given[1:])
    parser = argparse.ArgumentParser(
        prog="rerail-launch",
        usage="rerail-launch -- COMMAND [ARGUMENT ...]",
        description="Start the ranks of one pod, watch and report them, and follow the run's store. One per pod.",
        epilog="Its place in the run comes from the environment: RERAIL_RUN, RERAIL_STORE, RERAIL_GANG, RERAIL_POD, "
        "RERAIL_NODE, RERAIL_FIRST_RANK, RERAIL_LOCAL_RANKS. Exit codes: 0 done, 85 saved and left, 86 left without "
        "saving, 87 do not retry, 88 damaged checkpoint met, else the first abnormal rank's. As a container's preStop "
        "hook: rerail-launch --pre-stop [--within 25s].",
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND")
    command: list[str] = parser.parse_args(given).command
    if command[:1] == ["--"]:
        command = command[1:]
    if not command:
        parser.error("no COMMAND: what should the ranks run? For example: rerail-launch -- python train.py")
    try:
        return launch(command, Settings.from_env(), dict(os.environ))
    except errors.RerailError as error:
        print(f"{error.headline}: {error}", file=sys.stderr)  # noqa: T201 - a console script speaks here
        return error.exit_code


def _pre_stop(given: Sequence[str]) -> int:
    """The preStop hook of a container whose first process is launch."""
    from rerail.plugins.trainer.pre_stop import WITHIN_S, pre_stop

    parser = argparse.ArgumentParser(
        prog="rerail-launch --pre-stop",
        description="Ask all ranks of the gang to save and leave, and stay until those of this pod have left.",
        epilog="Exit codes: 0 they left, or this gang trains no more; 1 not in time; then SIGTERM follows, as without.",
    )
    parser.add_argument(
        "--within", default=f"{WITHIN_S:g}s", help="a little less than the pod's grace, of which it is part [25s]"
    )
    try:
        return pre_stop(Settings.from_env(), duration_s(parser.parse_args(given).within, "--within"))
    except errors.RerailError as error:
        print(f"{error.headline}: {error}", file=sys.stderr)  # noqa: T201 - a console script speaks here
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
