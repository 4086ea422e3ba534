"""A supervisor in a process of its own, for tests: ``supervise.py ROOT [--stop-at BOUNDARY] [--record FILE] ...``.

Every operation on the store and every call to the backend or the nodes has a boundary before and after it, named by
what it does. At ``--stop-at`` the process stops itself with SIGSTOP, once, as if it were paused just there.
"""

import argparse
import json
import os
import re
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from rerail.plugins.checkpoint.open import open_run
from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.gang.executor import Supervisor
from rerail.plugins.gang.local import LocalBackend
from rerail.plugins.nodes.local import LocalNodes
from rerail.policies import keys
from rerail.policies.errors import StoreUnreachableError
from rerail.policies.recovery import DRILL_POLICY

LOOKS = ("view", "gangs", "views", "signals", "page", "get", "used", "rendezvous")


def short(argument: Any) -> str:
    """What an operation is about, without what changes from run to run."""
    if isinstance(argument, tuple):
        return "..."
    text = str(getattr(argument, "name", argument))
    if text.startswith(keys.LEDGER) and text.endswith(".json"):
        return f"ledger-{keys.ledger_number(text)}"
    parsed = keys.parse_commit(text)
    if parsed:
        return f"{parsed.kind}-{parsed.attempt}"
    return re.sub(r"[0-9a-f]{16}", "*", text)[:60]


class Stops:
    """Counts boundaries and stops the process at one of them."""

    def __init__(self, at: str | None, record: Path | None, outage: Path) -> None:
        self.at = at
        self.outage = outage
        self.record = record
        self.seen: Counter[str] = Counter()

    def __call__(self, name: str) -> None:
        self.seen[name] += 1
        if self.seen[name] > 1:
            return
        if self.record:
            with self.record.open("a") as file:
                file.write(name + "\n")
        if name == self.at:
            os.kill(os.getpid(), signal.SIGSTOP)

    def around(self, thing: Any) -> Any:
        return Wrapped(thing, self)


class Wrapped:
    def __init__(self, thing: Any, stops: Stops) -> None:
        self._thing = thing
        self._away = hasattr(thing, "page")  # only the store goes away
        self._stops = stops

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._thing, name)
        if name == "below":
            return lambda prefix: Wrapped(found(prefix), self._stops)
        if not callable(found):
            return found

        def call(*arguments: Any, **more: Any) -> Any:
            if self._away and self._stops.outage.exists():
                raise StoreUnreachableError("the store does not answer (the test says so)")
            what = f"{name} {short(arguments[0])}" if arguments else name
            self._stops(f"before {what}")
            result = found(*arguments, **more)
            self._stops(f"after {what}")
            return result

        return call


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("--stop-at")
    parser.add_argument("--record", type=Path)
    parser.add_argument("--policy", default="{}")
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--command", required=True)
    parser.add_argument("--environment", required=True)
    given = parser.parse_args()
    stops = Stops(given.stop_at, given.record, given.root / "outage")
    environment = json.loads(given.environment)
    opened = open_run("run", store=environment["RERAIL_STORE"])
    control = stops.around(opened.control)
    backend = LocalBackend(
        "run", given.root / "pods", json.loads(given.command), environment, log_dir=given.root / "logs"
    )
    nodes = LocalNodes(given.root / "nodes", used=backend.used)
    for number in range(given.nodes):
        nodes.add(f"n{number + 1}", 1)
    policy = DRILL_POLICY.model_copy(
        update={"poll_s": 0.05, "hang_after_s": 60.0, "prepare_s": 60.0, **json.loads(given.policy)}
    )

    def say(line: str) -> None:
        sys.stdout.write(line + "\n")
        sys.stdout.flush()

    supervisor = Supervisor(
        RunStore("run", control=control, shards=control),
        2,
        stops.around(backend),
        stops.around(nodes),
        policy,
        on_event=lambda entry: say(f"{entry.number} {entry.state.phase}: {entry.note}"),
        log=lambda line: say(f"log: {line}"),
    )
    state = supervisor.drive()
    say(f"end {state.phase} {state.reason}")
    return 0 if state.phase == "done" else 1


if __name__ == "__main__":
    sys.exit(main())
