"""The fault signals that conditions of nodes told since somebody looks: each once, and what took them back."""

from rerail.plugins.kube.api import Obj
from rerail.policies.faults import FaultSignal
from rerail.policies.faults.conditions import ConditionTable, read_conditions

MOST_SIGNALS = 4096
"""Signals that are kept; of those that no longer stand, the oldest goes first."""


class SignalHistory:
    """A condition that flaps between two looks, or went back before a decision, is not lost. Not safe for threads.

    Args:
        table: Which conditions tell of faults.
    """

    def __init__(self, table: ConditionTable) -> None:
        self._table = table
        self._told: dict[str, FaultSignal] = {}
        self._standing: dict[tuple[str, str], frozenset[str]] = {}

    def read(self, node: Obj, *, read_at_s: float) -> bool:
        """Take in what a node's conditions tell now; returns whether any of it is new.

        A condition that is gone, or Unknown, takes nothing back: missing telemetry is not health.
        """
        before = len(self._told)
        name = str((node.get("metadata") or {}).get("name") or "")
        for reading in read_conditions(node, self._table, read_at_s=read_at_s):
            place = name, reading.type
            if reading.standing == "fault":
                self._standing[place] = frozenset(one.raw_ref for one in reading.signals)
            elif reading.standing == "unknown" or self._standing.pop(place, None) is None:
                continue  # what nobody here saw broken needs no taking back
            for one in reading.signals:
                self._told.setdefault(one.raw_ref, one)
        news = len(self._told) > before
        if len(self._told) > MOST_SIGNALS:
            self._forget()
        return news

    def signals(self) -> tuple[FaultSignal, ...]:
        """All of them, oldest first."""
        return tuple(sorted(self._told.values(), key=lambda one: (one.first_seen_s, one.raw_ref)))

    def _forget(self) -> None:
        standing = frozenset[str]().union(*self._standing.values())
        over = [ref for ref in self._told if ref not in standing][: len(self._told) - MOST_SIGNALS]
        for ref in over:
            del self._told[ref]
