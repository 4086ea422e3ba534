"""Pods with their launches, and process groups of ranks: what they do to the store goes through the real code."""

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rerail_simulation.kernel import Actor, Killed, Later

from rerail.plugins.checkpoint.attempts import newest_opening, read_start
from rerail.plugins.checkpoint.commit import Blob, commit, write_part
from rerail.plugins.checkpoint.manifests import load_manifest, read_entry
from rerail.plugins.checkpoint.notes import (
    add_report,
    beat,
    certificate_ref,
    create_certificate,
    mark_commit,
    read_requests,
)
from rerail.plugins.trainer.launch import exit_code_of
from rerail.plugins.trainer.orders import Leave, Prepare, Run, newest_order
from rerail.policies import errors
from rerail.policies.documents import Certificate, Heartbeat, RankCertificate, RankExit, Report, Start
from rerail.policies.manifest import Layout, Snapshot
from rerail.policies.supervisor.observations import PodView
from rerail.policies.supervisor.state import GangSpec, PodSpec

if TYPE_CHECKING:
    from rerail_simulation.world import World

ABSENT = ("optimizer", "scheduler", "scaler", "data", "distributed", "user", "rng")
FOREVER_S = 1e9


@dataclass(eq=False)
class Pod:
    """One launch with its ranks.

    Attributes:
        over: The process is gone.
        lost: The backend does not see it any more; its process may go on (a zombie).
        blind_until_s: It cannot read orders before this.
    """

    world: "World"
    spec: PodSpec
    gang: GangSpec
    actor: Actor
    running: bool = False
    over: bool = False
    lost: bool = False
    swept: bool = False
    exit_code: int | None = None
    farewell: bool = True
    reason: str = ""
    term_at_s: float | None = None
    deaf_s: float = 0.0
    blind_until_s: float = 0.0
    signalled: bool = False
    attempt: int | None = None
    group: "Group | None" = None
    alive: set[int] = field(default_factory=set)
    ends: list[RankExit] = field(default_factory=list)
    prepared: int = 0
    unsent: list[Report] = field(default_factory=list)
    told: set[int] = field(default_factory=set)
    deadline_s: float = FOREVER_S

    @property
    def ranks(self) -> range:
        return range(self.spec.first_rank, self.spec.first_rank + self.spec.ranks)

    def view(self) -> PodView:
        name, node = self.spec.name, self.spec.node
        if self.lost or (self.over and self.exit_code is None):
            return PodView(name=name, node=node, phase="gone", exit_code=137, farewell=False, reason=self.reason)
        if not self.over:
            return PodView(name=name, node=node, phase="running" if self.running else "pending")
        phase = "failed" if self.exit_code else "succeeded"
        return PodView(name=name, node=node, phase=phase, exit_code=self.exit_code, reason=self.reason)

    def begin(self) -> None:
        if not self.over:
            self.running = True
            self.deadline_s = self.world.kernel.t + self.world.policy.hold_s
            self.tick()

    def tick(self) -> None:
        if self.over:
            return
        if not self.actor.busy:
            self.actor.busy = True
            try:
                self._live()
            except Killed:
                pass
            finally:
                self.actor.busy = False
        self.world.kernel.after(self.world.rng.uniform(0.3, 0.6), self.tick)

    def _live(self) -> None:
        world = self.world
        self._send()
        codes = {end.exit_code for end in self.ends}
        if not self.alive and (
            self.signalled
            or (self.ends and (codes <= {errors.DONE, errors.SAVED_AND_LEFT} or errors.DO_NOT_RETRY in codes))
        ):
            return self.leave(exit_code_of(self.ends))
        if world.kernel.t > self.deadline_s:
            return self.leave(exit_code_of(self.ends))
        if world.kernel.t < self.blind_until_s:
            return None
        try:
            order = newest_order(
                world.store(self.actor), self.gang.name, done=self.attempt or 0, prepared=self.prepared
            )
        except (errors.TransientError, errors.NotFoundError):
            return None
        if self.over:
            return None
        if isinstance(order, Run):
            self._run(order.start)
        elif isinstance(order, Prepare):
            self._kill_ranks()
            self.prepared = order.attempt
            self.deadline_s = world.kernel.t + world.policy.hold_s
            self.unsent.append(self._report(order.attempt, ready_for=order.attempt))
            self._send()
        elif isinstance(order, Leave):
            self.leave(errors.LEFT_UNSAVED)
        return None

    def _run(self, start: Start) -> None:
        self._kill_ranks()
        self.attempt, self.ends, self.told = start.attempt, [], set()
        self.deadline_s = FOREVER_S
        self.alive = set(self.ranks)
        self.group = self.world.group_of(start)
        self.group.join(self)

    def _kill_ranks(self) -> None:
        self.alive = set()
        if self.group is not None:
            self.group.part(self)
            self.group = None

    def rank_ended(self, end: RankExit) -> None:
        if end.rank not in self.alive or self.over:
            return
        self.alive.discard(end.rank)
        self.ends.append(end)
        if end.exit_code != errors.DONE and self.deadline_s >= FOREVER_S:
            self.deadline_s = self.world.kernel.t + self.world.policy.hold_s
        untold = [one for one in self.ends if one.rank not in self.told and one.exit_code != errors.DONE]
        quiet = {errors.DONE, errors.SAVED_AND_LEFT, errors.LEFT_UNSAVED}
        if untold and (not self.alive or any(one.exit_code not in quiet for one in untold)):
            self.told |= {one.rank for one in untold}
            assert self.attempt is not None
            self.unsent.append(self._report(self.attempt, exits=tuple(untold)))

    def _report(self, attempt: int, *, exits: tuple[RankExit, ...] = (), ready_for: int | None = None) -> Report:
        return Report(
            writer=self.world.new_id(),
            run=self.world.run,
            attempt=attempt,
            gang=self.gang.name,
            pod=self.spec.name,
            node=self.spec.node,
            exits=exits,
            ready_for=ready_for,
        )

    def _send(self) -> None:
        while self.unsent:
            try:
                add_report(self.world.store(self.actor), self.unsent[0])
            except errors.TransientError:
                return
            if self.unsent:
                self.unsent.pop(0)

    def leave(self, code: int) -> None:
        self._kill_ranks()
        self.over, self.exit_code = True, code

    def term(self) -> None:
        if not self.signalled:
            self.signalled = True
            if self.group is not None:
                self.group.term = True

    def kill(self) -> None:
        """SIGKILL to everything of the pod: no farewell."""
        if not self.over:
            self.over, self.farewell = True, False
            self.actor.dead = True
            self._kill_ranks()


@dataclass(eq=False)
class Save:
    """One save under way."""

    group: "Group"
    step: int
    reason: str
    answers: tuple[str, ...]
    leaving: bool
    content: bytes
    snapshots: dict[int, Snapshot]
    save_id: str
    writer: str
    deadline_s: float
    written: set[int] = field(default_factory=set)

    def tick(self) -> None:
        group, world = self.group, self.group.world
        if group.save is not self:
            return None
        if 0 not in group.living():
            group.save = None
            return None
        if any(actor.busy for actor in group.actors.values()):
            world.kernel.after(0.05, self.tick)
            return None
        try:
            self._write()
            manifest = self._commit()
        except Later:
            late = world.kernel.t > self.deadline_s
            return self._failed() if late else world.kernel.after(0.15, self.tick)
        except Killed:
            group.save = None
            return None
        except errors.TransientError:
            late = world.kernel.t > self.deadline_s
            return self._failed() if late else world.kernel.after(0.1, self.tick)
        except errors.NotFoundError:  # retention took the parts of an attempt that is closed
            return self._failed()
        except (errors.CommitFencedError, errors.CommitExistsError):
            group.save = None
            return group.leave_all(errors.LEFT_UNSAVED)
        if group.save is self:
            world.acknowledged(manifest)
            group.saved(self)
        return None

    def _write(self) -> None:
        group, world = self.group, self.group.world
        for rank in range(world.world_size):
            if rank in self.written or rank not in group.living():
                continue
            actor = group.actors[rank]
            actor.busy = True
            try:
                blob = Blob(f"model-{rank}.bin", "model", len(self.content), (self.content,))
                write_part(
                    world.store(actor),
                    attempt=group.start.attempt,
                    step=self.step,
                    save_id=self.save_id,
                    rank=rank,
                    blobs=[blob],
                    values={"step": self.step, "epoch": 0},
                    absent=dict.fromkeys(ABSENT, "not used here"),
                    snapshot=self.snapshots[rank],
                    state_digest=None,
                    writer=f"{self.writer}-{rank}",
                )
                self.written.add(rank)
            finally:
                actor.busy = False

    def _commit(self):
        group, world = self.group, self.group.world
        actor = group.actors[0]
        actor.busy = True

        def later(_duration_s: float) -> None:
            raise Later

        try:
            return commit(
                world.store(actor),
                attempt=group.start.attempt,
                step=self.step,
                save_id=self.save_id,
                world_size=world.world_size,
                reason=self.reason,
                certificate=group.certificate,
                layout=Layout(world_size=world.world_size),
                writer=self.writer,
                answers=self.answers,
                deadline_s=FOREVER_S,
                clock=lambda: 0.0,
                sleep=later,
            )
        finally:
            actor.busy = False

    def _failed(self) -> None:
        self.group.save = None
        self.group.save_failed(self)


@dataclass(eq=False)
class Group:
    """The process group of one start: it forms, loads together, steps together, breaks together."""

    world: "World"
    start: Start
    pods: dict[int, Pod] = field(default_factory=dict)
    actors: dict[int, Actor] = field(default_factory=dict)
    phase: str = "forming"
    step: int = 0
    first_step: int | None = None
    first_step_at_s: float | None = None
    loaded_at_s: float | None = None
    history: list[list[int]] = field(default_factory=list)
    certificate: object = None
    save: Save | None = None
    saves: int = 0
    failed: int = 0
    committed: int = -1
    fenced: bool = False
    term: bool = False
    stuck: bool = False
    broken: bool = False
    asked: dict[str, str] = field(default_factory=dict)

    def living(self) -> set[int]:
        return {rank for rank, pod in self.pods.items() if rank in pod.alive and pod.group is self and not pod.over}

    def join(self, pod: Pod) -> None:
        for rank in pod.ranks:
            self.pods[rank] = pod
            self.actors[rank] = Actor(f"rank-{self.start.attempt}-{rank}")
        if len(self.living()) == self.world.world_size and self.phase == "forming":
            self.phase = "loading"
            self.world.kernel.after(self.world.rng.uniform(0.1, 0.6), self.load)

    def part(self, pod: Pod) -> None:
        """A pod's ranks were ended from outside."""
        for rank in pod.ranks:
            if rank in self.actors:
                self.actors[rank].dead = True
        self._break()

    def _break(self) -> None:
        """The collective is broken: the others find out, or wait in it."""
        if self.broken:
            return
        self.broken = True
        if self.world.rng.random() < 0.6:
            self.world.kernel.after(self.world.rng.uniform(0.1, 0.8), self._find_out)

    def _find_out(self) -> None:
        for rank in sorted(self.living()):
            self.end_rank(rank, 1, "ConnectionError: a peer is gone")

    def end_rank(self, rank: int, code: int, error: str = "") -> None:
        if rank in self.living():
            self.actors[rank].dead = True
            self.pods[rank].rank_ended(RankExit(rank=rank, exit_code=code, error=error, step=self.step))
            if code != errors.DONE:
                self._break()

    def leave_all(self, code: int) -> None:
        self.broken = True
        for rank in sorted(self.living()):
            self.end_rank(rank, code)

    # -- loading

    def load(self) -> None:
        world = self.world
        if self.broken or len(self.living()) < world.world_size:
            return
        if any(actor.busy for actor in self.actors.values()):
            world.kernel.after(0.05, self.load)
            return
        code = errors.LEFT_UNSAVED
        for actor in self.actors.values():
            actor.busy = True
        try:
            code = self._load()
        except Killed:
            return
        except (errors.TransientError, errors.NotFoundError, errors.SupersededError):
            code = errors.LEFT_UNSAVED
        finally:
            for actor in self.actors.values():
                actor.busy = False
        if self.broken:
            return
        if code:
            self.leave_all(code)
            return
        self.phase = "training"
        self.loaded_at_s = world.wall(self.pods[0].spec.node)
        self._beat()
        world.kernel.after(world.step_s, self.tick)
        world.kernel.after(0.7, self.poll)

    def _load(self) -> int:
        world, attempt = self.world, self.start.attempt
        run = world.store(self.actors[0])
        start = read_start(run, attempt)
        sealed = newest_opening(run).sealed
        if start.gang != self.pods[0].gang.name or (sealed is not None and sealed > attempt):
            return errors.LEFT_UNSAVED
        damage = ""
        if start.load is not None:
            try:
                stored = load_manifest(run, start.load.attempt, start.load.step)
                if stored.ref != start.load:
                    raise errors.DamagedError("another manifest than the start names")  # noqa: TRY301
                states = []
                for entry in stored.manifest.files:
                    into = bytearray(entry.size)
                    read_entry(world.store(self.actors[entry.rank]), entry, memoryview(into))
                    states.append(bytes(into))
                self.step = stored.manifest.step
                self.history = [list(part) for part in json.loads(states[0])["history"]]
                world.loaded(start, states, stored.manifest)
            except (errors.DamagedError, errors.NotFoundError) as error:
                damage = str(error)
        certificate = Certificate(
            writer=world.new_id(),
            run=world.run,
            attempt=attempt,
            loaded=start.load,
            ok=not damage,
            exact=not damage,
            ranks=tuple(
                RankCertificate(rank=rank, bytes_read=0, files=0, state_digest=None, expected_digest=None)
                for rank in range(world.world_size)
            ),
        )
        self.certificate = certificate_ref(create_certificate(run, certificate))
        if damage:
            assert start.load
            mark_commit(
                run,
                attempt=start.load.attempt,
                step=start.load.step,
                kind="bad",
                why=damage,
                writer=world.new_id(),
            )
            return errors.DAMAGE_MET
        world.trains(self)
        return errors.LEFT_UNSAVED if self.term else 0

    # -- training

    def tick(self) -> None:
        world = self.world
        if self.broken or self.stuck or self.phase != "training" or not self.living():
            return
        if self.save is not None and (self.save.leaving or world.sync_saves):
            world.kernel.after(0.1, self.tick)
            return
        if self.step < world.final:
            if world.fault_at(self, self.step + 1):
                return
            self.step += 1
            self._remember()
            if self.first_step is None:
                self.first_step, self.first_step_at_s = self.step, world.wall(self.pods[0].spec.node)
            if self.step % 2 == 0 or self.first_step == self.step:
                self._beat()
        self._wish()
        if not self.broken and self.phase == "training":
            world.kernel.after(world.step_s, self.tick)

    def _remember(self) -> None:
        if self.history and self.history[-1][0] == self.start.attempt:
            self.history[-1][2] = self.step
        else:
            self.history.append([self.start.attempt, self.step, self.step])

    def _wish(self) -> None:
        if self.fenced:
            self.leave_all(errors.LEFT_UNSAVED)
        elif self.step >= self.world.final:
            if self.save is None:
                self._save("final", leaving=True)
        elif self.term or "leave" in self.asked.values():
            if self.save is None:
                self._save("request" if self.asked else "signal", leaving=True)
        elif (self.step % self.world.every == 0 or self.asked) and self.save is None and self.committed != self.step:
            self._save("request" if self.asked else "periodic", leaving=False)

    def _save(self, reason: str, *, leaving: bool) -> None:
        world = self.world
        if self.committed == self.step and reason != "final":  # this very step is committed already
            return self.saved_and_left() if leaving else None
        if self.committed == self.step or (reason == "final" and self.first_step is None):
            return self._done()  # it was loaded, and is the end of the run already
        content = json.dumps({"history": self.history}).encode()
        self.saves += 1
        nodes = {rank: pod.spec.node for rank, pod in self.pods.items()}
        self.save = Save(
            self,
            step=self.step,
            reason=reason,
            answers=tuple(self.asked),
            leaving=leaving,
            content=content,
            snapshots={rank: Snapshot(rank=rank, at_s=world.wall(node), node=node) for rank, node in nodes.items()},
            save_id=f"{self.start.attempt:04x}{self.saves:04x}",
            writer=world.new_id(),
            deadline_s=world.kernel.t + 4.0,
        )
        world.kernel.after(world.rng.uniform(0.05, 0.4), self.save.tick)
        return None

    def saved_and_left(self) -> None:
        self.leave_all(errors.SAVED_AND_LEFT)

    def saved(self, save: Save) -> None:
        self.save, self.failed, self.committed = None, 0, save.step
        for answered in save.answers:
            self.asked.pop(answered, None)
        if save.reason == "final":
            self._done()
        elif save.leaving:
            self.saved_and_left()

    def _done(self) -> None:
        for rank in sorted(self.living()):
            self.end_rank(rank, errors.DONE)
        self.phase = "over"

    def save_failed(self, save: Save) -> None:
        self.failed += 1
        if save.leaving and save.reason != "final":
            self.leave_all(errors.LEFT_UNSAVED)
        elif save.reason == "final" or self.failed > 1:
            for rank in sorted(self.living()):
                self.end_rank(rank, 1, f"SaveFailedError: step {save.step}" if rank == 0 else "ConnectionError: gone")

    def poll(self) -> None:
        """Rank 0 looks for requests and for newer attempts."""
        world = self.world
        if self.phase != "training" or 0 not in self.living():
            return
        actor = self.actors[0]
        if not actor.busy and world.kernel.t >= self.pods[0].blind_until_s:
            actor.busy = True
            try:
                run = world.store(actor)
                opening = newest_opening(run)
                self.fenced = opening.sealed is not None and opening.sealed > self.start.attempt
                for _, request in read_requests(run, self.start.attempt):
                    if request.id not in world.answered:
                        self.asked.setdefault(request.id, request.then)
                self._beat()
            except (Killed, errors.TransientError):
                pass
            finally:
                actor.busy = False
        world.kernel.after(world.rng.uniform(0.5, 0.9), self.poll)

    def _beat(self) -> None:
        world = self.world
        try:
            beat(
                world.store(self.actors[0]),
                Heartbeat(
                    writer="heartbeat",
                    run=world.run,
                    attempt=self.start.attempt,
                    step=self.step,
                    phase="training" if self.first_step is not None else "loading",
                    at_s=world.wall(self.pods[0].spec.node),
                    step_time_s=world.step_s,
                    started_from_step=self.start.load.step if self.start.load else 0,
                    first_step=self.first_step,
                    first_step_at_s=self.first_step_at_s,
                    loaded_at_s=self.loaded_at_s,
                ),
            )
        except (Killed, errors.TransientError):
            return
