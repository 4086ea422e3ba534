"""One rank that trains and saves, and is told to leave: the process that ``leaving.py`` starts and signals.

Arguments: bytes of state, seconds of one step. It prints "ready STEP_S SAVE_S" (one step and one save, as measured
here) and, after SIGTERM, "left AT" by the machine's monotonic clock, when the commit was acknowledged.
"""

import sys
import time

from rerail.plugins.trainer import Checkpointer, Left
from tests.bench.subject import ABSENT, WhenAsked, training_state

_WARM_UP = 3


def main(size_bytes: int, step_s: float) -> int:
    state = training_state(size_bytes)
    when = WhenAsked()
    client = Checkpointer.from_env(shared=dict(state), absent=ABSENT, every=when)
    step = client.restore()
    took_s, saves_s = [], []
    try:
        while True:
            begin = time.monotonic()
            _work(state, until=begin + step_s)
            middle = time.monotonic()
            step += 1
            client.step_done(step, epoch=0)
            took_s.append(middle - begin)
            saves_s.append(time.monotonic() - middle)
            if step == _WARM_UP:
                when.asked = False
                # The first save pays for first touches, as the first round of every measure does.
                print("ready", sum(took_s[1:]) / (_WARM_UP - 1), sum(saves_s[1:]) / (_WARM_UP - 1), flush=True)
    except Left as left:
        print("left", time.monotonic(), flush=True)
        return left.code


def _work(state: dict, *, until: float) -> None:
    """A step: arithmetic on the state until its time is over."""
    block = state["model"]["layer0"][:65536]
    while time.monotonic() < until:
        block *= 1.0000001


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), float(sys.argv[2])))
