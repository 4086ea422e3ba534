"""What a drill is, and what several drills expect of a report."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from rerail.plugins.drill.world import Folders, World, trace_lines
from rerail.plugins.nodes.local import INCIDENTS, QUARANTINED
from rerail.plugins.report.document import IncidentRow, Report
from rerail.plugins.report.facts import read_facts
from rerail.policies import keys
from rerail.policies.recovery import DRILL_POLICY, RecoveryPolicy

STEPS = 120
SAVE_EVERY_STEPS = 20
MIDDLE = STEPS // 2
WORLD_SIZE = 4

# A drill shares its machine with others: only drills about silence may take a slow machine for a hang.
PATIENT = DRILL_POLICY.model_copy(update={"hang_after_s": 30.0, "load_within_s": 60.0, "prepare_s": 15.0})

Check = Callable[[Report, World], list[str]]


@dataclass(frozen=True)
class Scenario:
    """One drill.

    Attributes:
        hypothesis: What the drill claims; the verdict is whether it held.
        inject: Breaks the world while the run goes; runs in a thread of its own.
        check: Returns what was expected and did not come true.
        finishes: Whether training rightly finishes; then it must be identical to the uninterrupted run.
        environment: Extra environment of the ranks, given the drill's folders.
        policy: What the supervisor decides by; printed in the report.
        cordoned: Nodes that a person keeps new work off in the beginning.
        relayed: Nodes reach each other through TCP relays that the drill can freeze.
        control_apart: Control documents have a root of their own, so that checkpoints can be out of reach alone.
    """

    name: str
    hypothesis: str
    inject: Callable[[World], None]
    check: Check
    finishes: bool = True
    environment: Callable[[Folders], Mapping[str, str]] = field(default=lambda _: {})
    policy: RecoveryPolicy = PATIENT
    cordoned: tuple[str, ...] = ()
    relayed: bool = False
    control_apart: bool = False


def nothing(_: World) -> None:
    """The fault comes from the environment."""


class Expectations:
    """Collects what was expected and did not come true."""

    def __init__(self, report: Report, world: World) -> None:
        self.report, self.world = report, world
        self.told: list[str] = []

    def that(self, text: str, *, holds: bool) -> None:
        """Note ``text`` unless it holds."""
        if not holds:
            self.told.append(text)

    def incidents(self, number: int) -> list[IncidentRow]:
        """Expect exactly that many incidents; returns them."""
        found = list(self.report.incidents)
        what = ", ".join(f"{one.class_} in attempt {one.attempt}" for one in found)
        self.that(f"exactly {number} incidents, not {len(found)} ({what})", holds=len(found) == number)
        return found

    def attempts(self, number: int) -> None:
        """Expect exactly that many attempts."""
        found = len(self.report.attempts)
        self.that(f"exactly {number} attempts, not {found}", holds=found == number)

    def marked(self, incident: IncidentRow) -> None:
        """The node was fenced for the incident, was used when it failed, and was not used by the next attempt."""
        name = incident.node
        rows = {row.n: row for row in self.report.attempts}
        self.that(
            f"{name or 'the node'} was used by attempt {incident.attempt}", holds=name in rows[incident.attempt].nodes
        )
        after = rows.get(incident.attempt + 1)
        if after is not None:
            self.that(f"{name} is left out of attempt {after.n}", holds=name not in after.nodes)
        if not name:
            return
        node = self.world.nodes.read(name)
        self.that(f"{name} carries the taint in node.json", holds=QUARANTINED in node.taints)
        noted = node.annotations.get(INCIDENTS, "")
        self.that(f"incident {incident.id} is noted on {name}: {noted!r}", holds=f'"{incident.id}"' in noted)

    def unmarked(self) -> None:
        """No node is accused of anything."""
        for name in self.world.nodes.names():
            node = self.world.nodes.read(name)
            self.that(f"{name} is not fenced: {node.taints}", holds=not node.taints)
        self.that(f"no node is kept away from: {self.report.quarantined}", holds=not self.report.quarantined)

    def elsewhere(self, *codes: str, class_: str, scope: str) -> IncidentRow | None:
        """One incident of a device or node: fenced, and gone on in one new gang elsewhere."""
        found = self.incidents(1)
        self.attempts(2)
        last = self.report.attempts[-1]
        self.that(f"a new gang, not {last.how}", holds=last.how == "new-gang")
        if not found:
            return None
        incident = found[0]
        what = (incident.class_, incident.scope, set(incident.codes))
        self.that(f"{class_}, scope {scope}, codes {codes}, not {what}", holds=what == (class_, scope, set(codes)))
        self.marked(incident)
        return incident

    def suspects_skipped(self) -> None:
        """Commits of the untrusted device were passed over, and the start says so; no save was asked of the device."""
        report = self.report
        suspect = [row for row in report.checkpoints if row.state == "suspect"]
        self.that("a commit of the untrusted device is marked suspect", holds=bool(suspect))
        said = " ".join(text for attempt in report.attempts for text in attempt.skipped)
        for row in suspect:
            self.that(
                f"step {row.step} is said to be passed over: {said!r}", holds=f"step {row.step} of attempt" in said
            )
            from_it = [a.n for a in report.attempts if a.n > row.attempt and a.started_from_step == row.step]
            self.that(f"nothing goes on from suspect step {row.step}", holds=not from_it)
        asked = [entry.key for entry in self.world.run.control.page(keys.REQUESTS).entries]
        self.that(f"no save is asked for: {asked}", holds=not asked)
        self.that("no save is noted", holds=not any(incident.save_asked for incident in report.incidents))

    def certified(self) -> None:
        """Every attempt that made a step has a certificate in which every rank stands, exact, against the manifest."""
        by_attempt = {row.attempt: row for row in self.report.certificates}
        for attempt in self.report.attempts:
            if attempt.first_step_s is None:
                continue
            row = by_attempt.get(attempt.n)
            if row is None:
                self.told.append(f"attempt {attempt.n} has a certificate")
                continue
            ranks = [rank.rank for rank in row.ranks]
            self.that(f"certificate {attempt.n} has every rank, not {ranks}", holds=ranks == [*range(WORLD_SIZE)])
            self.that(f"certificate {attempt.n} is ok and exact: {row.reasons}", holds=row.ok and row.exact)
            for rank in row.ranks:
                same = rank.state_digest == rank.expected_digest and not rank.problems
                read = row.loaded is None or (rank.state_digest is not None and rank.bytes_read > 0)
                self.that(f"rank {rank.rank} of attempt {attempt.n} loaded what the manifest says", holds=same and read)

    def crossings(self) -> None:
        """On both sides of the fault an epoch ended and a step was skipped: the state that resume tends to forget."""
        numbers = [attempt.n for attempt in self.report.attempts]
        for side, attempts in (("before", numbers[:1]), ("after", numbers[1:])):
            lines = [line for n in attempts for line in trace_lines(self.world.folders.trace, n, 0)]
            epochs = {line["epoch"] for line in lines}
            self.that(f"an epoch ended {side} the fault", holds=len(epochs) > 1)
            self.that(f"a step was skipped {side} the fault", holds=any(line["skipped"] for line in lines))

    def said(self, text: str) -> None:
        """One of the supervisor's decisions speaks of ``text``."""
        notes = [note.text for note in read_facts(self.world.run).notes]
        self.that(f"a decision says {text!r}", holds=any(text in note for note in notes))
