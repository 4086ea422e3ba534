"""What a backend tells launch through the environment."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rerail.policies.errors import UsageError

_REQUIRED = ("RERAIL_RUN", "RERAIL_STORE", "RERAIL_GANG")
_WAY_OUT = "start it through `rerail run`, a rendered template, or set it by hand"


@dataclass(frozen=True, slots=True)
class Settings:
    """One launch's place in its run. Durations in seconds.

    Attributes:
        first_rank: RERAIL_FIRST_RANK, plus the ranks of the pods before it where pods of one template are numbered by
            RERAIL_POD_INDEX.
        local_ranks: Ranks of this pod.
        world_size: Ranks of the gang; 0 leaves it to the start.
        termination_log: Where launch says how it ended; None says it nowhere.
        claim: File that makes this process the pod; a second process of the same pod leaves. None without a claim.
        hold_s: How long launch keeps the pod without orders, before its first start and after its ranks ended.
        poll_s: How often the store is asked for orders.
        kill_grace_s: Between SIGTERM and SIGKILL of ranks whose attempt was superseded.
    """

    run: str
    store: str
    control: str | None
    gang: str
    pod: str
    node: str
    first_rank: int
    local_ranks: int
    world_size: int
    termination_log: Path | None
    claim: Path | None
    log_dir: Path | None
    hold_s: float
    poll_s: float
    kill_grace_s: float

    @classmethod
    def from_env(cls, environment: Mapping[str, str] = os.environ) -> "Settings":
        """Read the environment.

        Raises:
            UsageError: Names the variable, its value and the way out.
        """
        for name in _REQUIRED:
            if not environment.get(name):
                raise UsageError(f"{name} is not set: launch does not know its place in a run; {_WAY_OUT}")
        gang = environment["RERAIL_GANG"]
        local_ranks = _whole(environment, "RERAIL_LOCAL_RANKS", 1, least=1)
        return cls(
            run=environment["RERAIL_RUN"],
            store=environment["RERAIL_STORE"],
            control=environment.get("RERAIL_CONTROL") or None,
            gang=gang,
            pod=environment.get("RERAIL_POD") or environment.get("HOSTNAME") or gang,
            node=environment.get("RERAIL_NODE", ""),
            first_rank=_whole(environment, "RERAIL_FIRST_RANK", 0, least=0)
            + _whole(environment, "RERAIL_POD_INDEX", 0, least=0) * local_ranks,
            local_ranks=local_ranks,
            world_size=_whole(environment, "WORLD_SIZE", 0, least=0),
            termination_log=_path(environment, "RERAIL_TERMINATION_LOG"),
            claim=_path(environment, "RERAIL_CLAIM"),
            log_dir=_path(environment, "RERAIL_LOG_DIR"),
            hold_s=_seconds(environment, "RERAIL_HOLD_S", 120.0),
            poll_s=_seconds(environment, "RERAIL_POLL_S", 1.0),
            kill_grace_s=_seconds(environment, "RERAIL_KILL_GRACE_S", 1.0),
        )


def _path(environment: Mapping[str, str], name: str) -> Path | None:
    value = environment.get(name)
    return Path(value) if value else None


def _whole(environment: Mapping[str, str], name: str, default: int, *, least: int) -> int:
    value = environment.get(name) or str(default)
    if not re.fullmatch(r"\d{1,9}", value) or int(value) < least:
        raise UsageError(f"{name}={value!r} is not a whole number of at least {least}; {_WAY_OUT}")
    return int(value)


def _seconds(environment: Mapping[str, str], name: str, default: float) -> float:
    value = environment.get(name) or str(default)
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value):
        raise UsageError(f"{name}={value!r} is not a number of seconds (for example {default}); {_WAY_OUT}")
    return float(value)
