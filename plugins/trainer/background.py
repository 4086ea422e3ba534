"""One job at a time beside the training thread, whose outcome the training thread asks for."""

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from rerail.policies.errors import SaveFailedError

Result = TypeVar("Result")


class Background(Generic[Result]):
    """Runs one job at a time. An exception of the job is kept and raised where the outcome is taken.

    The interpreter's exit waits for a running job (a commit in flight may finish), until ``give_up`` is called.
    """

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="rerail-save")
        self._job: Future[Result] | None = None
        self._given_up = threading.Event()

    @property
    def running(self) -> bool:
        """Whether a job is under way."""
        return self._job is not None and not self._job.done()

    @property
    def finished(self) -> bool:
        """Whether a job has ended whose outcome nobody took yet."""
        return self._job is not None and self._job.done()

    def start(self, job: Callable[[], Result]) -> None:
        """Begin a job; the one before must have been taken."""
        assert self._job is None
        self._job = self._pool.submit(job)

    def take(self) -> Result:
        """Wait for the job and give its result, or raise its exception."""
        assert self._job is not None
        job, self._job = self._job, None
        return job.result()

    def pause(self, seconds: float) -> None:
        """``sleep`` for jobs: ends them when they are given up.

        Raises:
            SaveFailedError: The process is leaving.
        """
        if self._given_up.wait(seconds):
            raise SaveFailedError("the process leaves; the save that was under way is given up")

    def give_up(self) -> None:
        """Let a job that waits for others end at its next pause."""
        self._given_up.set()
        self._pool.shutdown(wait=False)
