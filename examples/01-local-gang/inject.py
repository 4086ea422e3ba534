"""Application faults for drills, ordered by the environment. Without its variables it does nothing.

``RERAIL_DRILL_RAISE="step=60,rank=1"`` raises in that rank before that step; ``RERAIL_DRILL_HANG`` with the same form
stops stepping and stays alive; several orders are separated by ``;``. Further conditions and notes of an order:
``attempt=2`` only in that attempt; ``once=PATH`` only where PATH does not exist yet, which it creates;
``note=PATH`` creates ``PATH.a<attempt>`` as a sign for the drill.

``RERAIL_DRILL_SKEW="rank=1,attempt=2"`` draws one random number too many in that rank after its restore: the drill's
proof must then fail.
"""

import os
import time
from pathlib import Path

import numpy as np


def _orders(variable: str) -> list[dict[str, str]]:
    text = os.environ.get(variable, "")
    return [dict(item.split("=", 1) for item in order.split(",")) for order in text.split(";") if order]


def _attempt() -> str:
    return os.environ.get("RERAIL_ATTEMPT", "1")


def _due(variable: str, step: int, rank: int) -> bool:
    for order in _orders(variable):
        if (step, rank) != (int(order["step"]), int(order["rank"])) or order.get("attempt", _attempt()) != _attempt():
            continue
        if "note" in order:
            Path(f"{order['note']}.a{_attempt()}").touch()
        if "once" not in order:
            return True
        try:
            Path(order["once"]).open("x").close()
        except FileExistsError:
            continue
        return True
    return False


def after_restore(rank: int, generator: np.random.Generator) -> None:
    """Disturb what was restored, where ``RERAIL_DRILL_SKEW`` orders it.

    Args:
        rank: This rank.
        generator: Its source of random numbers.
    """
    for order in _orders("RERAIL_DRILL_SKEW"):
        if rank == int(order["rank"]) and order["attempt"] == _attempt():
            generator.random()


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
