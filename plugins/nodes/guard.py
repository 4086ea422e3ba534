"""The guard of one machine: a locked file that all local supervisors share."""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from rerail.policies.errors import DamagedError, TransientError
from rerail.policies.guards import (
    Answer,
    GuardPolicy,
    GuardState,
    ask_quarantine,
    ask_submission,
    close_breaker,
)

_WAIT_S = 2.0
_LOOK_EVERY_S = 0.01


@dataclass(slots=True)
class LocalGuard:
    """Gives tokens to all supervisors that name the same file.

    Every method raises ``TransientError`` when the lock is not to be had; no answer means hold.
    """

    path: Path
    policy: GuardPolicy = field(default_factory=GuardPolicy)
    wall_s: Callable[[], float] = time.time
    monotonic_s: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep

    def ask_submission(self, run: str, attempt: int, *, since_s: float | None = None) -> str:
        """Ask to submit the gang of an attempt; the reason to hold, or an empty string."""
        return self._ask(
            lambda state: ask_submission(
                state, self.policy, run=run, attempt=attempt, since_s=since_s, now_s=self.wall_s()
            )
        )

    def ask_quarantine(self, node: str, incident: str, *, nodes: int, fenced: int) -> str:
        """Ask to fence a node for everybody; the reason to hold, or an empty string."""
        return self._ask(
            lambda state: ask_quarantine(
                state,
                self.policy,
                node=node,
                incident=incident,
                nodes=nodes,
                fenced=fenced,
                now_s=self.wall_s(),
            )
        )

    def close_breaker(self) -> None:
        """A person lets nodes be fenced again."""
        self._ask(lambda state: Answer(state=close_breaker(state)))

    def _ask(self, question: Callable[[GuardState], Answer]) -> str:
        with self._locked():
            state = self._read()
            answer = question(state)
            if answer.state != state:
                fresh = self.path.with_suffix(".new")
                fresh.write_text(answer.state.model_dump_json(indent=1) + "\n", encoding="utf-8")
                fresh.replace(self.path)
            return answer.hold

    def _read(self) -> GuardState:
        try:
            return GuardState.model_validate(json.loads(self.path.read_text(encoding="utf-8")))
        except FileNotFoundError:
            return GuardState()
        except (ValueError, ValidationError) as error:
            raise DamagedError(f"{self.path}: not a guard document ({error}); look at it and remove it") from error

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            deadline_s = self.monotonic_s() + _WAIT_S
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if self.monotonic_s() > deadline_s:
                        raise TransientError(
                            f"{self.path} has been locked for {_WAIT_S:g} s", retry_after_s=1.0
                        ) from None
                    self.sleep(_LOOK_EVERY_S)
            yield
        finally:
            os.close(handle)
