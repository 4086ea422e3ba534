"""Application faults for drills, from the environment. Without the two variables it does nothing.

``RERAIL_DRILL_RAISE="step=60,rank=1,once=PATH"`` raises in that rank before that step; with ``once``, only where PATH
does not exist yet, which it creates. ``RERAIL_DRILL_HANG`` with the same form stops stepping and stays alive.
"""

import os
import time
from pathlib import Path


def _due(variable: str, step: int, rank: int) -> bool:
    wanted = os.environ.get(variable)
    if not wanted:
        return False
    where = dict(item.split("=", 1) for item in wanted.split(","))
    if (step, rank) != (int(where["step"]), int(where["rank"])):
        return False
    if "once" not in where:
        return True
    try:
        Path(where["once"]).open("x").close()
    except FileExistsError:
        return False
    return True


def before_step(step: int, rank: int) -> None:
    """Fail in the way that a drill asked for.

    Args:
        step: The step about to be made, counted from 1.
        rank: This rank.

    Raises:
        ValueError: As ordered by ``RERAIL_DRILL_RAISE``.
    """
    if _due("RERAIL_DRILL_RAISE", step, rank):
        raise ValueError(f"drill: bad batch at step {step}")
    if _due("RERAIL_DRILL_HANG", step, rank):
        while True:
            time.sleep(60)
