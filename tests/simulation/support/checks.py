"""The guarantees, held against what happened: by the truth of the world, never by what the supervisors believe."""

import json
from typing import TYPE_CHECKING

from rerail_simulation.kernel import Actor
from rerail_simulation.store import SimStore

from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.gang.ledger import all_decisions
from rerail.policies import keys
from rerail.policies.documents import Start
from rerail.policies.faults import FaultSignal
from rerail.policies.lineage import holds, links
from rerail.policies.manifest import Manifest
from rerail.policies.supervisor.advance import Decision
from rerail.policies.supervisor.judge import signal_key
from rerail.policies.supervisor.observations import Now, Observations
from rerail.policies.supervisor.state import GangSpec, LedgerEntry, RunState
from rerail.policies.supervisor.suspicion import doubt

if TYPE_CHECKING:
    from rerail_simulation.ranks import Pod
    from rerail_simulation.world import World


class Checks:
    """Watches one world."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.acks: list[tuple[int, int, int]] = []
        self.starts: dict[int, Start] = {}
        self.manifests: dict[tuple[int, int], Manifest] = {}
        self.deleted: set[tuple[int, int]] = set()
        self.damaged: set[tuple[int, int]] = set()
        self.faults: list[tuple[float, FaultSignal]] = []
        self.decisions: dict[int, list[tuple[RunState, Observations, Decision]]] = {}
        self.incidents_of_nodes: dict[str, set[str]] = {}
        self.to_blame: set[str] = set()
        self.trained: dict[int, str] = {}
        self.entries: list[LedgerEntry] = []
        self.known_at_opening: dict[int, frozenset[str]] = {}

    # -- while it happens

    @property
    def newest(self) -> LedgerEntry | None:
        return self.entries[-1] if self.entries else None

    def decided(self, state: RunState, seen: Observations, now: Now, decision: Decision | None) -> None:
        if decision is not None:
            self.decisions.setdefault(len(self.entries), []).append((state, seen, decision))
            again = self.world.decide(state, seen, self.world.policy, now)
            assert again == decision, "the machine is not a function of its arguments"

    def created(self, key: str, data: bytes) -> None:
        if key.startswith(keys.LEDGER):
            self._ledger(key, data)
        found = keys.parse_commit(key)
        if found is None:
            return
        if found.kind == "start":
            self._start(Start.decode(data, key))
        elif found.kind == "manifest":
            assert found.step is not None
            self.manifests[found.attempt, found.step] = Manifest.decode(data, key)

    def _ledger(self, key: str, data: bytes) -> None:
        entry = LedgerEntry.decode(data, key)
        wanted = self.newest.number + 1 if self.newest else 0
        assert entry.number == wanted == keys.ledger_number(key), f"ledger entry {entry.number} where {wanted} follows"
        before = self.newest.state if self.newest else None
        if before is not None:
            made = [
                seen
                for decisions in self.decisions.values()
                for state, seen, decision in decisions
                if state == before and decision.state == entry.state and decision.effects == entry.effects
            ]
            assert made, f"ledger entry {entry.number} does not follow from the one before"
            assert before.phase not in ("done", "stopped"), "a decision after the end"
            assert entry.state.attempt >= before.attempt, "attempts went back"
            assert entry.state.attempt <= self.world.policy.max_attempts, "more attempts than policy max_attempts"
            if entry.state.attempt not in self.known_at_opening and entry.state.phase == "opening":
                self.known_at_opening[entry.state.attempt] = frozenset(signal_key(one) for one in made[0].signals)
        self.entries.append(entry)
        self.world.note(f"ledger {entry.number}: {entry.note}")

    def newest_state(self) -> str:
        if self.newest is None:
            return "no decision"
        return f"{self.newest.state.phase}, {self.newest.note}"

    def _start(self, start: Start) -> None:
        assert start.attempt not in self.starts, f"two starts of attempt {start.attempt}"
        self.starts[start.attempt] = start
        load = start.load
        if load is None:
            assert not self.acks or all(self._excused(a, s, start) for a, s, _ in self.acks), (
                f"attempt {start.attempt} starts fresh although {self.acks} were acknowledged"
            )
            assert not start.chain
        else:
            name = (load.attempt, load.step)
            assert name in self.manifests, f"attempt {start.attempt} loads {name}, which is no commit"
            earlier = [other for number, other in self.starts.items() if number < start.attempt]
            base = max(earlier, key=lambda other: other.attempt)
            assert holds(links(base), *name), f"attempt {start.attempt} loads {name}, off the chain of {base.attempt}"
            assert (start.chain[0].attempt, start.chain[0].step) == name
            self._not_suspect(start, self.manifests[name])
            self._not_marked(start, name)
        for attempt, step, _ in self.acks:
            if attempt < start.attempt:
                assert holds(start.chain, attempt, step) or self._excused(attempt, step, start), (
                    f"attempt {start.attempt} goes on from {load} without the acknowledged commit {attempt}.{step}"
                )
        for skip in start.skipped:
            self._skip_is_true(skip.attempt, skip.step, skip.why)

    def _excused(self, attempt: int, step: int, start: Start) -> bool:
        """A commit may be passed over if a start says why, or if it built on one that was."""
        said = {
            (skip.attempt, skip.step)
            for number, other in self.starts.items()
            if number <= start.attempt
            for skip in other.skipped
        }
        if (attempt, step) in said:
            return True
        if (attempt, step) in self.deleted:
            return any(other >= (attempt, step) for other in said)
        return False

    def _skip_is_true(self, attempt: int, step: int, why: str) -> None:
        """What a start passes over is damaged, or a fault speaks against it."""
        if (attempt, step) in self.damaged or (attempt, step) in self.deleted:
            return
        manifest = self.manifests[attempt, step]
        margin_s = self.world.policy.suspect_margin_s
        accused = [
            signal
            for _, signal in self.faults
            for snapshot in manifest.snapshots
            if snapshot.node == signal.node and snapshot.at_s > signal.first_seen_s - margin_s
        ]
        assert accused, f"the good commit {attempt}.{step} was passed over: {why}"

    def _not_marked(self, start: Start, name: tuple[int, int]) -> None:
        """Marks that stood before the seal was followed by a list. The seal is older than the list."""
        seal = self.world.disk.born[keys.seal(start.attempt)]
        for kind in ("bad", "suspect"):
            born = self.world.disk.born.get(keys.mark(*name, kind))
            assert born is None or born > seal, f"attempt {start.attempt} loads {name}, which is marked {kind}"

    def _not_suspect(self, start: Start, manifest: Manifest) -> None:
        assert self.newest is not None
        known = self.known_at_opening.get(start.attempt, frozenset())
        for _, signal in self.faults:
            if signal_key(signal) not in known:
                continue
            since_s = signal.first_seen_s - self.world.policy.suspect_margin_s
            for snapshot in manifest.snapshots:
                assert snapshot.node != signal.node or snapshot.at_s <= since_s, (
                    f"attempt {start.attempt} loads {manifest.attempt}.{manifest.step}, "
                    f"whose snapshot on {signal.node} is {snapshot.at_s - since_s:.2f} s "
                    "later than the first sign minus the margin"
                )
        why = doubt(self.newest.state.suspicions, manifest) if self.newest.state.attempt == start.attempt else None
        assert why is None, f"attempt {start.attempt} loads a suspect commit: {why}"

    def acknowledged(self, manifest: Manifest) -> None:
        name = (manifest.attempt, manifest.step)
        self.acks.append((*name, self.world.disk.sequence))
        later = [start for number, start in self.starts.items() if number > manifest.attempt]
        if later:
            newest = max(later, key=lambda start: start.attempt)
            assert holds(newest.chain, *name), (
                f"{name} was acknowledged although attempt {newest.attempt} goes on without it"
            )

    def faulty(self, signal: FaultSignal, visible_s: float) -> None:
        self.faults.append((visible_s, signal))
        self.to_blame.add(signal.node)

    def loaded(self, start: Start, states: list[bytes], manifest: Manifest) -> None:
        """The state that is loaded holds each step once, of the attempts that the chain names."""
        histories = [json.loads(state)["history"] for state in states]
        assert all(history == histories[0] for history in histories), "ranks load different states"
        self._history(histories[0], manifest)
        chain = [[link.attempt, link.step] for link in reversed(start.chain)]
        assert [[attempt, last] for attempt, _, last in histories[0]] == chain, f"{histories[0]} is not {chain}"

    def _history(self, history: list[list[int]], manifest: Manifest) -> None:
        following = 1
        for _, first, last in history:
            assert first == following, f"step {following} is missing or trained twice: {history}"
            following = last + 1
        assert following == manifest.step + 1, f"history {history} of step {manifest.step}"

    def trains(self, start: Start) -> None:
        who = f"{start.gang} {start.rendezvous.id}"
        assert self.trained.setdefault(start.attempt, who) == who, f"two gangs train attempt {start.attempt}"
        assert self.starts[start.attempt].gang == start.gang

    def submitted(self, actor: Actor, gang: GangSpec, pod: "Pod") -> None:
        assert pod.spec.node not in gang.excluded_nodes
        assert not actor.cut, f"{actor.name} starts {gang.name} while the store does not answer"
        state = next(entry.state for entry in self.entries if entry.state.gang == gang)
        assert any(start.gang == gang.name for start in self.starts.values()), f"{gang.name} began before its start"
        assert pod.spec.node not in state.quarantined, f"{gang.name} uses {pod.spec.node}, which is kept away from"
        known = self.known_at_opening.get(state.attempt, frozenset())
        faulty = {signal.node for _, signal in self.faults if signal_key(signal) in known}
        assert pod.spec.node not in faulty, f"{gang.name} is placed on the faulty node {pod.spec.node}"

    def ordered_gangs(self) -> set[str]:
        """Gangs that some decision named."""
        return {entry.state.gang.name for entry in self.entries if entry.state.gang is not None}

    def marked(self, node: str, incident: str) -> None:
        self.incidents_of_nodes.setdefault(node, set()).add(incident)

    def ends(self, actor: Actor, gang: str) -> None:
        """Only a gang that a decision gave up is ended: an older one, or one that a decision names."""
        assert self.newest is not None
        state = self.newest.state
        if state.gang is None or gang != state.gang.name or state.phase in ("done", "stopped", "waiting"):
            return
        ordered = any(effect.do == "end" and effect.gang == gang for entry in self.entries for effect in entry.effects)
        dead = any(pod.over or pod.lost for pod in self.world.pods_of(gang))
        assert ordered or dead, f"{actor.name} ends the current gang {gang}, which no decision ordered"

    def manifests_present(self) -> list[tuple[int, int, Manifest]]:
        """All commits that are stored, the newest first."""
        found = []
        for key in self.world.disk.under(keys.COMMITS):
            name = keys.parse_commit(key)
            if name is not None and name.step is not None:
                found.append((name.attempt, name.step, self.manifests[name.attempt, name.step]))
        return found

    def deleting(self, key: str) -> None:
        """Retention never deletes the newest good commit, nor the one that the newest start loads, nor their files."""
        if key.startswith(keys.SHARDS):
            for attempt, step, manifest in self.manifests_present():
                assert all(keys.SHARDS + entry.path != key for entry in manifest.files), (
                    f"{key} goes, which {attempt}.{step} names"
                )
            return
        name = keys.parse_commit(key)
        if name is None:
            return
        assert name.kind == "manifest", f"{key} is deleted"
        assert name.step is not None
        start = max(self.starts.values(), key=lambda other: other.attempt)
        load = start.load
        assert load is None or (load.attempt, load.step) != (name.attempt, name.step), f"{key} goes, but it is loaded"
        chain = links(start)
        marks = {
            (mark.attempt, mark.step) for entry in self.world.disk.under(keys.MARKS) if (mark := keys.parse_mark(entry))
        }
        good = [
            (attempt, step)
            for attempt, step, _ in self.manifests_present()
            if holds(chain, attempt, step) and (attempt, step) not in marks
        ]
        assert not good or good[0] != (name.attempt, name.step), f"{key} goes, the newest good commit"
        self.deleted.add((name.attempt, name.step))

    # -- at the end

    def at_the_end(self) -> None:
        world = self.world
        store = SimStore(world.disk, Actor("reader"))
        world.outages.clear()
        world.calm = True
        entries = all_decisions(RunStore(world.run, store, store))
        assert [entry.number for entry in entries] == list(range(len(entries))), "the ledger has gaps"
        state = entries[-1].state
        assert state.phase in ("done", "stopped")
        assert state.phase == "done" or state.reason, "stopped without a reason"
        assert all(pod.swept for pods in world.gangs.values() for pod in pods), "a gang was not ended"
        innocent = (set(state.quarantined) | set(self.incidents_of_nodes)) - self.to_blame
        assert not innocent, f"{sorted(innocent)} kept away from without a fault there: {state.quarantined}"
        numbers = [record.n for record in state.attempts]
        assert numbers == list(range(1, len(numbers) + 1)), f"attempts {numbers}"
        ids = [incident.id for incident in state.incidents]
        assert len(set(ids)) == len(ids), f"an attempt is charged twice: {ids}"
        charged = [record.n for record in state.attempts if record.charged_to is not None]
        assert [incident.attempt for incident in state.incidents] == charged, "charges and incidents differ"
        assert len(state.attempts) <= len(state.incidents) + 1, "more attempts than incidents call for"
        assert len(world.gangs) <= len(state.incidents) + 1, "more gangs than incidents call for"
        for number, fault in enumerate(world.plan.faults):
            if fault.kind == "deterministic":
                fired = world.fired.get(number, [])
                others = len(world.plan.faults) - 1
                # A report that was lost leaves only what its error did to the others, which is another failure.
                unheard = sum(
                    one.failure is not None and "a peer is gone" in one.failure.error for one in state.attempts
                )
                allowed = world.policy.budgets.identical + others + unheard
                assert len(fired) <= allowed, f"the same error came {len(fired)} times, {allowed} allowed"
        if state.phase == "done":
            self._finished()

    def _finished(self) -> None:
        newest = max(self.starts.values(), key=lambda other: other.attempt)
        finals = [
            manifest
            for manifest in self.manifests.values()
            if manifest.reason == "final" and holds(links(newest), manifest.attempt, manifest.step)
        ]
        assert finals, "done without a final commit"
        final = max(finals, key=lambda manifest: manifest.attempt)
        assert {manifest.step for manifest in finals} == {self.world.final}
        data = self.world.disk.objects.get(keys.SHARDS + final.files[0].path)
        if (final.attempt, final.step) in self.damaged or data is None:
            return
        self._history(json.loads(data)["history"], final)
