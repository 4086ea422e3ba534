"""One seed, one world: its size, its policy, its faults, their times, and who is stopped where."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from rerail_simulation.checks import Checks
from rerail_simulation.cluster import Node, SimBackend, SimNodes
from rerail_simulation.kernel import Actor, Kernel, Killed
from rerail_simulation.ranks import Group, Pod
from rerail_simulation.store import Disk, SimStore

from rerail.plugins.checkpoint.store import RunStore
from rerail.plugins.gang.executor import Supervisor
from rerail.plugins.gang.ports import Clock
from rerail.policies import errors, keys
from rerail.policies.documents import RunDoc, Start
from rerail.policies.faults import FaultSignal
from rerail.policies.manifest import Manifest
from rerail.policies.recovery import Budgets, RecoveryPolicy
from rerail.policies.supervisor import advance as machine
from rerail.policies.supervisor.observations import Now, Observations
from rerail.policies.supervisor.state import GangSpec, RunState

RUN = "sim"
EPOCH_S = 1_000_000.0
LIMIT_S = 400.0
KINDS = (
    "transient",
    "deterministic",
    "do-not-retry",
    "sigkill",
    "node",
    "partition",
    "xid",
    "xid-late",
    "xid-early",
    "hang",
    "damage",
    "outage",
    "preempt",
    "evict",
    "capacity",
    "clock",
    "deaf",
)
DRAWN = (*KINDS, "partition", "partition", "xid-late", "damage")
"""The kinds that meet the protocol's narrow places come more often."""


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong.

    Attributes:
        at_s: Virtual time, for those that come by time.
        step: Step in which it comes, for those that come by step.
    """

    kind: str
    at_s: float
    step: int
    pick: float
    extra: float


@dataclass(frozen=True)
class Plan:
    """What a seed means. ``calm`` leaves out everything that happens to supervisors and to the store's operations."""

    faults: tuple[Fault, ...]
    policy: RecoveryPolicy
    node_count: int
    slots: int
    world_size: int
    final: int
    every: int
    step_s: float
    sync_saves: bool
    supervisors: int
    kill_p: float
    error_p: float
    lost_p: float
    slow_p: float
    stop_p: float
    noise_until_s: float


def plan_of(seed: int, *, faults: tuple[str, ...] | None = None, calm: bool = False) -> Plan:
    """Draw a plan.

    Args:
        seed: All of it.
        faults: Exactly these kinds; None draws.
        calm: No kills, errors, stops; one supervisor.
    """
    rng = random.Random(f"plan {seed}")
    kinds = faults if faults is not None else tuple(rng.choice(DRAWN) for _ in range(rng.choice((0, 1, 1, 2, 2, 3, 4))))
    slots = rng.choice((1, 2, 2))
    world_size = rng.choice((2, 3, 4)) if slots == 2 else rng.choice((2, 3))
    needed = -(-world_size // slots)
    rough = not calm and rng.random() < 0.7
    return Plan(
        faults=tuple(
            Fault(kind, rng.uniform(1.0, 11.0), rng.randint(1, 14), rng.random(), rng.random()) for kind in kinds
        ),
        policy=RecoveryPolicy(
            suspect_margin_s=rng.choice((0.3, 1.0, 3.0)),
            save_within_s=3.0,
            end_grace_s=rng.choice((1.5, 3.0)),
            end_grace_untrusted_s=0.5,
            end_wait_s=3.0,
            hang_after_s=4.0,
            hang_factor=5.0,
            load_within_s=8.0,
            phase_within_s=8.0,
            prepare_s=3.0,
            hold_s=rng.choice((6.0, 12.0)),
            in_place=rng.random() < 0.8,
            settle_s=rng.choice((0.3, 1.2)),
            backoff_s=0.5,
            backoff_max_s=2.0,
            capacity_wait_s=15.0,
            yielded_wait_s=20.0,
            store_wait_s=25.0,
            poll_s=0.6,
            max_attempts=14,
            keep_last=rng.choice((1, 1, 2, 4)),
            keep_clean_s=rng.choice((0.0, 2.0, 1000.0)),
            budgets=Budgets(
                application=rng.choice((2, 3)),
                hardware=rng.choice((1, 4)),
                infrastructure=rng.choice((1, 4)),
                unknown=4,
                without_progress=rng.choice((3, 5)),
            ),
        ),
        node_count=needed + rng.choice((0, 1, 2, 3)),
        slots=slots,
        world_size=world_size,
        final=rng.randint(9, 18),
        every=rng.choice((2, 3, 4)),
        step_s=rng.choice((0.35, 0.5)),
        sync_saves=rng.random() < 0.5,
        supervisors=1 if calm else rng.choice((1, 1, 2, 3)),
        kill_p=rng.choice((0.0, 0.008, 0.03)) if rough else 0.0,
        error_p=rng.choice((0.0, 0.01, 0.04)) if rough else 0.0,
        lost_p=rng.choice((0.0, 0.01, 0.04)) if rough else 0.0,
        slow_p=rng.choice((0.005, 0.01, 0.03)) if not calm else 0.0,
        stop_p=rng.choice((0.0, 0.004)) if rough else 0.0,
        noise_until_s=rng.choice((15.0, 30.0)),
    )


@dataclass(eq=False)
class Driver:
    """One supervisor process and its successors."""

    world: "World"
    name: str
    actor: Actor = field(init=False)
    supervisor: Supervisor | None = None
    wall_jump_s: float = 0.0
    over: bool = False
    errors: int = 0

    def begin(self) -> None:
        world = self.world
        self.actor = Actor(self.name)
        store = SimStore(world.disk, self.actor)
        self.supervisor = Supervisor(
            run=RunStore(RUN, store, store),
            world_size=world.world_size,
            backend=SimBackend(world, self.actor),
            nodes=SimNodes(world, self.actor),
            policy=world.policy,
            clock=Clock(
                wall_s=lambda: EPOCH_S + world.kernel.t + self.wall_jump_s,
                monotonic_s=lambda: world.kernel.t,
                sleep=world.kernel.pause,
            ),
            decide=self._decide,
        )
        self.tick()

    def _decide(self, state: RunState, seen: Observations, policy: RecoveryPolicy, now: Now):
        decision = self.world.decide(state, seen, policy, now)
        self.world.checks.decided(state, seen, now, decision)
        return decision

    def tick(self) -> None:
        world = self.world
        if self.supervisor is None or self.over:
            return
        self.actor.busy = True
        wait_s = world.policy.poll_s * world.rng.uniform(0.9, 1.3)
        try:
            state = self.supervisor.step()
            self.over = self.supervisor._is_over(state)
        except Killed:
            world.note(f"{self.name} killed at operation {self.actor.ops}")
            self.supervisor = None
            world.kernel.after(world.rng.uniform(0.5, 4.0), self.begin)
            return
        except errors.TransientError as error:
            world.note(f"{self.name} gave up: {error}")
            self.supervisor = None
            self.errors += 1
            world.kernel.after(world.rng.uniform(1.0, 4.0), self.begin)
            return
        finally:
            self.actor.busy = False
        world.kernel.after(wait_s, self.tick)


@dataclass(eq=False)
class World:
    """Everything around the supervisors of one run.

    Attributes:
        decide: The machine, or a mutant of it.
        kill_at: Boundary at which a supervisor is killed, counted over all of them; None: only where the plan says.
        supervised: How many boundaries supervisors passed so far.
    """

    seed: int
    plan: Plan
    decide: Callable = machine.advance
    kill_at: int | None = None
    supervised: int = 0
    kernel: Kernel = field(default_factory=Kernel)
    nodes: dict[str, Node] = field(default_factory=dict)
    gangs: dict[str, list[Pod]] = field(default_factory=dict)
    groups: dict[tuple[int, str], Group] = field(default_factory=dict)
    signals: list[tuple[float, FaultSignal]] = field(default_factory=list)
    answered: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)
    fired: dict[int, list[int]] = field(default_factory=dict)
    outages: list[tuple[float, float, str]] = field(default_factory=list)
    drivers: list[Driver] = field(default_factory=list)
    calm: bool = False
    _ids: int = 0

    def __post_init__(self) -> None:
        plan = self.plan
        self.rng = random.Random(f"world {self.seed}")
        self.run, self.policy, self.world_size = RUN, plan.policy, plan.world_size
        self.final, self.every, self.step_s, self.sync_saves = plan.final, plan.every, plan.step_s, plan.sync_saves
        self.disk = Disk(self._before, self._after)
        self.checks = Checks(self)
        self.disk.on_create, self.disk.on_delete = self.checks.created, self.checks.deleting
        for number in range(plan.node_count):
            name = f"n{number}"
            self.nodes[name] = Node(name, plan.slots, EPOCH_S + self.rng.uniform(-5, 5))
        for number, fault in enumerate(plan.faults):
            self._arm(number, fault)

    # -- what actors ask for

    def note(self, text: str) -> None:
        self.notes.append(f"{self.kernel.t:7.2f} {text}")

    def new_id(self) -> str:
        self._ids += 1
        return f"id-{self._ids:06d}"

    def store(self, actor: Actor) -> RunStore:
        store = SimStore(self.disk, actor)
        return RunStore(RUN, store, store)

    def wall(self, node: str) -> float:
        return self.nodes[node].offset_s + self.kernel.t

    def pods_of(self, gang: str) -> list[Pod]:
        return self.gangs.get(gang, [])

    def group_of(self, start: Start) -> Group:
        return self.groups.setdefault((start.attempt, start.rendezvous.id), Group(self, start))

    # -- operations and their failures

    def _noise(self) -> bool:
        return not self.calm and self.kernel.t < self.plan.noise_until_s

    def unreachable(self, actor: Actor) -> bool:
        whose = actor.name[:3]
        return any(begin <= self.kernel.t < end and who in ("all", whose) for begin, end, who in self.outages)

    def _before(self, actor: Actor, op: str, key: str) -> None:
        if key == "ledger/":
            actor.retaining = False
        elif op == "page" and key == "shards/":
            actor.retaining = True
        self._point(actor, f"{op} {key}")
        actor.cut = self.unreachable(actor)
        if actor.cut:
            raise errors.StoreUnreachableError("the store is away")
        if self._noise() and self.rng.random() < self.plan.error_p:
            raise errors.StoreUnreachableError("a transient error")

    def _after(self, actor: Actor, op: str, key: str) -> None:
        if self._noise() and self.rng.random() < self.plan.lost_p:
            raise errors.StoreUnreachableError(f"the reply to {op} {key} was lost")
        self._point(actor, f"after {op} {key}")

    def _point(self, actor: Actor, what: str) -> None:
        """A boundary of an operation: the actor may be slow, stopped for long, or killed here."""
        if actor.dead:
            raise Killed(what)
        plan, supervises = self.plan, actor.name.startswith("sup")
        actor.ops += 1
        self.supervised += supervises
        if supervises and self.supervised == self.kill_at:
            self.note(f"{actor.name} killed at {what}")
            raise Killed(what)
        if not self._noise():
            return
        draw = self.rng.random()
        if supervises and draw < plan.kill_p:
            raise Killed(what)
        if self.kernel.depth > 2 or actor.retaining:
            return
        draw = self.rng.random()
        # Between the steps of the protocol it matters most who is slow.
        narrow = "create commits/" in what
        slow_p = (25 if supervises else 10) * plan.slow_p if narrow else plan.slow_p
        if draw < slow_p:
            self.kernel.pause(self.rng.uniform(0.05, 3.0 if narrow else 1.0))
        elif supervises and draw < slow_p + plan.stop_p:
            duration_s = self.rng.uniform(2.0, 14.0)
            self.note(f"{actor.name} stopped for {duration_s:.1f} s at {what}")
            self.kernel.pause(duration_s)
        if actor.dead:
            raise Killed(what)

    def cluster_op(self, actor: Actor, op: str) -> None:
        self._point(actor, op)
        if self._noise() and self.rng.random() < self.plan.error_p:
            raise errors.StoreUnreachableError(f"the cluster does not answer to {op}")

    def cluster_done(self, actor: Actor, op: str) -> None:
        self._point(actor, f"after {op}")

    # -- what is told to the checks

    def acknowledged(self, manifest: Manifest) -> None:
        self.note(f"acknowledged {manifest.attempt}.{manifest.step} {manifest.reason}")
        self.answered.update(manifest.answers)
        self.checks.acknowledged(manifest)

    def loaded(self, start: Start, states: list[bytes], manifest: Manifest) -> None:
        self.checks.loaded(start, states, manifest)

    def trains(self, group: Group) -> None:
        self.note(f"attempt {group.start.attempt} trains from {group.step} on {sorted(set(self._nodes_of(group)))}")
        self.checks.trains(group.start)

    def _nodes_of(self, group: Group) -> list[str]:
        return [pod.spec.node for pod in group.pods.values()]

    def submitted(self, actor: Actor, gang: GangSpec, pod: Pod) -> None:
        self.checks.submitted(actor, gang, pod)

    def ends(self, actor: Actor, gang: str) -> None:
        self.checks.ends(actor, gang)

    def marked(self, node: str, incident: str) -> None:
        self.checks.marked(node, incident)

    # -- faults

    def _arm(self, number: int, fault: Fault) -> None:
        act = {
            "sigkill": self._sigkill,
            "node": self._node,
            "partition": self._partition,
            "xid": self._xid,
            "xid-late": self._xid,
            "xid-early": self._xid,
            "hang": self._hang,
            "damage": self._damage,
            "preempt": self._preempt,
            "evict": self._evict,
            "capacity": self._capacity,
            "clock": self._clock,
            "deaf": self._deaf,
        }.get(fault.kind)
        if fault.kind == "outage":
            who = ("all", "all", "sup", "ran")[int(fault.pick * 4)]
            self.outages.append((fault.at_s, fault.at_s + 1 + fault.extra * 12, who))
        if act is not None:
            self.kernel.after(fault.at_s, lambda: self._act(number, fault, act))

    def _act(self, number: int, fault: Fault, act: Callable[[Fault, list[Pod]], bool]) -> None:
        pods = [pod for pods in self.gangs.values() for pod in pods if pod.running and not pod.over and not pod.lost]
        pods.sort(key=lambda pod: pod.spec.name)
        training = [pod for pod in pods if pod.group is not None and pod.group.phase == "training"]
        if (not training and fault.kind not in ("capacity", "clock", "deaf")) or not act(fault, training or pods):
            if self.kernel.t < 25:
                self.kernel.after(1.0, lambda: self._act(number, fault, act))
            return
        self.note(f"fault {fault.kind}")
        self.fired.setdefault(number, []).append(0)

    def fault_at(self, group: Group, step: int) -> bool:
        """Faults of the application, which come with a step."""
        for number, fault in enumerate(self.plan.faults):
            if fault.kind not in ("transient", "deterministic", "do-not-retry") or step != min(fault.step, self.final):
                continue
            fired = self.fired.setdefault(number, [])
            if fault.kind != "deterministic" and fired:
                continue
            fired.append(group.start.attempt)
            rank = int(fault.pick * self.world_size)
            self.note(f"fault {fault.kind} of rank {rank} before step {step} in attempt {group.start.attempt}")
            code = errors.DO_NOT_RETRY if fault.kind == "do-not-retry" else 1
            group.end_rank(rank, code, f"ValueError: {fault.kind} {number}")
            return True
        return False

    def _pick(self, fault: Fault, pods: list[Pod]) -> Pod:
        return pods[int(fault.pick * len(pods))]

    def _sigkill(self, fault: Fault, pods: list[Pod]) -> bool:
        pod = self._pick(fault, pods)
        if not pod.alive or pod.group is None:
            return False
        pod.group.end_rank(min(pod.alive), 137)
        return True

    def _node(self, fault: Fault, pods: list[Pod]) -> bool:
        name = self._pick(fault, pods).spec.node
        self.checks.to_blame.add(name)
        for pods_of in self.gangs.values():
            for pod in pods_of:
                if pod.spec.node == name:
                    pod.kill()
        if fault.extra < 0.6:
            node = self.nodes[name]
            node.down = True
            self.kernel.after(3 + 10 * fault.extra, lambda: setattr(node, "down", False))
        return True

    def _partition(self, fault: Fault, pods: list[Pod]) -> bool:
        gang = self._pick(fault, pods).gang.name
        for pod in self.pods_of(gang):
            if not pod.over:
                self.checks.to_blame.add(pod.spec.node)
                pod.lost = True
                pod.reason = "NodeLost"
                pod.blind_until_s = self.kernel.t + 8 * fault.extra
        return True

    def _xid(self, fault: Fault, pods: list[Pod]) -> bool:
        pod = self._pick(fault, pods)
        code = (79, 48, 79, 31, 94)[int(fault.extra * 5)]
        first_seen_s = self.wall(pod.spec.node)
        late_s = self.rng.uniform(0.5, 4.0) if fault.kind == "xid-late" else 0.0
        early = fault.kind == "xid-early"
        signal = FaultSignal(
            source="kernlog",
            node=pod.spec.node,
            codes=(f"xid:{code}",),
            devices=("0000:3b:00",),
            first_seen_s=first_seen_s,
            raw_ref=f"{pod.spec.node}/kern.log:{self.new_id()}",
        )
        self.signals.append((self.kernel.t + late_s, signal))
        for again in range(self.rng.randint(0, 2)):  # the same line, read again, and the next line of the same fault
            next_line = signal.model_copy(
                update={"raw_ref": f"{signal.raw_ref}+{again}", "first_seen_s": first_seen_s + 0.1}
            )
            self.signals.append((self.kernel.t + late_s + 0.1 * again, self.rng.choice((signal, next_line))))
        self.rng.shuffle(self.signals)
        self.note(f"xid {code} on {pod.spec.node}, line {late_s:.1f} s late")
        if code in (79, 48):
            self.checks.faulty(signal, self.kernel.t + late_s)
        if code != 94 or fault.pick < 0.5:
            end = lambda: self._die(pod)  # noqa: E731
            self.kernel.after(self.rng.uniform(0.8, 2.0) if early else 0.01, end)
        return True

    def _die(self, pod: Pod) -> None:
        if pod.group is not None and pod.alive:
            error, code = ("", 137) if self.rng.random() < 0.5 else ("RuntimeError: CUDA error", 1)
            pod.group.end_rank(min(pod.alive), code, error)

    def _hang(self, fault: Fault, pods: list[Pod]) -> bool:
        group = self._pick(fault, pods).group
        assert group is not None
        group.stuck = True
        return True

    def _damage(self, fault: Fault, pods: list[Pod]) -> bool:
        manifests = self.checks.manifests_present()
        if not manifests:
            return False
        attempt, step, manifest = manifests[0]
        key = "shards/" + manifest.files[int(fault.pick * len(manifest.files))].path
        data = self.disk.objects.get(key)
        if data is None:
            return False
        flipped = bytes([data[0] ^ 1]) + data[1:]
        how = int(fault.extra * 3)
        self.checks.damaged.add((attempt, step))
        self.note(f"damage {('flip', 'truncate', 'delete')[how]} of {attempt}.{step}")
        if how == 2:
            self.disk.remove(key)
        else:
            self.disk.set(key, (flipped, data[:-1])[how])
        pod = self._pick(fault, pods)
        if pod.group is not None and pod.alive and fault.pick < 0.8:
            pod.group.end_rank(min(pod.alive), 137)
        return True

    def _preempt(self, _fault: Fault, pods: list[Pod]) -> bool:
        for pod in self.pods_of(pods[0].gang.name):
            pod.term()
        return True

    def _evict(self, fault: Fault, pods: list[Pod]) -> bool:
        pod = self._pick(fault, pods)
        pod.reason = "Evicted"
        pod.leave(143)
        return True

    def _capacity(self, fault: Fault, _pods: list[Pod]) -> bool:
        for node in self.nodes.values():
            if self.rng.random() < 0.6:
                node.taken = node.slots
                self.kernel.after(2 + fault.extra * 20, lambda node=node: setattr(node, "taken", 0))
        return True

    def _clock(self, fault: Fault, _pods: list[Pod]) -> bool:
        self.drivers[int(fault.pick * len(self.drivers))].wall_jump_s = (fault.extra - 0.5) * 200
        return True

    def _deaf(self, fault: Fault, pods: list[Pod]) -> bool:
        for pod in pods:
            pod.deaf_s = 6 * fault.extra
        return bool(pods)

    # -- the run

    def live(self) -> "World":
        """Run to the end of all supervisors, then check the whole."""
        doc = RunDoc(writer="submitter", run=RUN, owner="test", created_at_s=0.0, world_size=self.world_size)
        self.disk.set(keys.RUN, doc.encode())
        for number in range(self.plan.supervisors):
            driver = Driver(self, f"sup-{number}")
            self.drivers.append(driver)
            self.kernel.after(self.rng.uniform(0, 1.0) * number, driver.begin)
        self.kernel.run(LIMIT_S, lambda: all(driver.over for driver in self.drivers))
        assert all(driver.over for driver in self.drivers), (
            f"the run did not end within {LIMIT_S:g} s: {self.checks.newest_state()}"
        )
        self.kernel.run(self.kernel.t + 6.0)  # zombies go on for a while
        self.checks.at_the_end()
        return self
