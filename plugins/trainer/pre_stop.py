"""``rerail-launch --pre-stop``: a container's preStop hook. Before anybody gets SIGTERM, all ranks of the gang save.

It asks by a request, like everybody else who wants a gang away, and stays until the ranks of its own pod have left. The
kubelet ends it with the container; the time that it takes is part of the pod's grace.
"""

import secrets
import sys
import time
from collections.abc import Callable
from typing import Final

from rerail.plugins.checkpoint.attempts import newest_opening, read_start
from rerail.plugins.checkpoint.notes import add_request, read_reports
from rerail.plugins.checkpoint.open import open_run
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.trainer.settings import Settings
from rerail.policies.errors import TransientError

WITHIN_S: Final = 25.0
"""How long a hook stays, unless told otherwise: a little less than the 30 s of grace that a pod has by default."""


def pre_stop(settings: Settings, within_s: float) -> int:
    """Ask, and wait. Returns the exit code: 0 once the ranks left or nobody is to be asked, 1 when the time is over."""
    return leave_together(open_run(settings.run, store=settings.store, control=settings.control), settings, within_s)


def leave_together(
    run: RunStore,
    settings: Settings,
    within_s: float,
    *,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
    log: Callable[[str], None] = lambda line: print(f"rerail-launch --pre-stop: {line}", file=sys.stderr),  # noqa: T201
) -> int:
    """Ask all ranks of the gang to save and leave, until those of this pod have left.

    A store that does not answer is tried again for as long: SIGTERM comes after it in any case, and ranks save then.
    """
    end_s = clock() + within_s
    asked: int | None = None
    said = ""
    while True:
        try:
            if asked is None:
                asked = _ask(run, settings, max(1.0, end_s - clock()))
                if asked is None:
                    log(f"gang {settings.gang!r} is not the one that trains: nothing to save")
                    return 0
                log(f"the ranks of attempt {asked} are asked to save and leave")
            if _have_left(run, settings, asked):
                log("the ranks of this pod have left")
                return 0
        except TransientError as error:
            if str(error) != said:
                said = str(error)
                log(f"{said}; trying again")
        if clock() >= end_s:
            log(f"the ranks did not leave within {within_s:g} s; SIGTERM follows, and they save then")
            return 1
        sleep(min(settings.poll_s, 1.0))


def _ask(run: RunStore, settings: Settings, within_s: float) -> int | None:
    """The attempt that is asked; None where this gang's is over."""
    started = newest_opening(run).started
    if started is None or read_start(run, started).gang != settings.gang:
        return None
    add_request(
        run,
        attempt=started,
        reason=f"pod {settings.pod} is being stopped (preStop)",
        within_s=within_s,
        then="leave",
        writer=secrets.token_hex(8),
        # One request, however many pods of the gang are stopped at once.
        id=f"pre-stop-{settings.gang}-{started}",
    )
    return started


def _have_left(run: RunStore, settings: Settings, attempt: int) -> bool:
    own = range(settings.first_rank, settings.first_rank + settings.local_ranks)
    ended = {end.rank for _, report in read_reports(run, attempt) if report.pod == settings.pod for end in report.exits}
    return ended >= set(own)
