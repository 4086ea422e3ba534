"""When the application's own faults become the device's: the same fault in distinct workloads on one unit.

Counting is over workloads, never over lines: one crash prints dozens of them, and teardown noise (XID 45) never counts.
"""

from collections.abc import Sequence
from typing import Final

from pydantic import Field

from rerail.policies.faults import FaultSignal, FaultValue, Scope

_DAY_S: Final = 86_400.0


class RepeatRule(FaultValue):
    """One rule.

    Attributes:
        code: The code that is counted.
        by: Details that must be equal besides node and device, for example ``("gpc", "tpc")``.
        whole_node: Count over the whole node instead of one device.
        workloads: Distinct workloads from which on the hardware is suspected.
        window_s: How far back they count, seconds.
    """

    code: str
    by: tuple[str, ...] = ()
    whole_node: bool = False
    workloads: int = Field(default=3, ge=2)
    window_s: float = Field(default=_DAY_S, gt=0)


DEFAULT_RULES: Final = (
    RepeatRule(code="xid:13", by=("gpc", "tpc")),
    RepeatRule(code="xid:31"),
    RepeatRule(code="xid:43", whole_node=True, window_s=600.0),
)


class Repeat(FaultValue):
    """The hardware is suspected: which rule, where, and after how many workloads."""

    rule: RepeatRule
    scope: Scope
    workloads: tuple[str, ...]
    first_seen_s: float


def workload_of(signal: FaultSignal) -> str | None:
    """What the signal hit: the source's name of the job or pod; None where it does not say."""
    for key in ("workload", "job", "pod"):
        value = signal.details.get(key)
        if isinstance(value, str) and value:
            return value
    return None


def find_repeat(
    current: FaultSignal, history: Sequence[FaultSignal], rules: Sequence[RepeatRule] = DEFAULT_RULES
) -> Repeat | None:
    """Whether ``current`` completes a pattern of the same fault on one unit over distinct workloads.

    Where the same workloads met the fault on other units as well, it follows the workload: then it is no repeat.

    Args:
        current: The newest signal.
        history: Earlier signals, in any order, of any node; later ones and other codes are passed over.
        rules: What counts as a repeat; the first rule that fits decides.
    """
    for rule in rules:
        if rule.code not in current.codes:
            continue
        since_s = current.first_seen_s - rule.window_s
        known = [
            signal
            for signal in (*history, current)
            if rule.code in signal.codes and since_s <= signal.first_seen_s <= current.first_seen_s
        ]
        unit = _unit(current, rule)
        here = [signal for signal in known if unit is not None and _unit(signal, rule) == unit]
        names = sorted({name for name in map(workload_of, here) if name is not None})
        elsewhere = {workload_of(signal) for signal in known if _unit(signal, rule) != unit}
        own = [name for name in names if name not in elsewhere]
        if len(own) >= rule.workloads:
            return Repeat(
                rule=rule,
                scope="node" if rule.whole_node else "device",
                workloads=tuple(own),
                first_seen_s=min(signal.first_seen_s for signal in here),
            )
    return None


def _unit(signal: FaultSignal, rule: RepeatRule) -> tuple[object, ...] | None:
    """What must be the same; None where the signal does not say."""
    if not signal.node and not signal.devices:
        return None
    if rule.whole_node:
        return (signal.node,)
    if not signal.devices or any(key not in signal.details for key in rule.by):
        return None
    return (signal.node, signal.devices[0], *(signal.details[key] for key in rule.by))
