"""Stages that say how long they took, and waits that end."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class ClusterError(Exception):
    """The cluster cannot come up; the message says why, and the way out."""


def say(line: str) -> None:
    """Tell the user, on standard error: standard output is for the kubeconfig's path."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Print the seconds that a stage took, to standard error, also when it fails."""
    start = time.monotonic()
    try:
        yield
    except BaseException:
        say(f"{time.monotonic() - start:7.1f} s  {name}: failed")
        raise
    say(f"{time.monotonic() - start:7.1f} s  {name}")


def wait_for(what: str, condition: Callable[[], bool], *, deadline_s: float, hint: str, every_s: float = 0.2) -> None:
    """Ask until the condition holds.

    Raises:
        ClusterError: It did not hold within ``deadline_s``; ``hint`` says where to look.
    """
    end = time.monotonic() + deadline_s
    while not condition():
        if time.monotonic() > end:
            raise ClusterError(f"{what}: not within {deadline_s:.0f} s; look into {hint}")
        time.sleep(every_s)
