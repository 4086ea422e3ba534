"""One run's history, the operations that crash in it, and the judge of what a crash left.

Everything is done by the product's own functions; a ``Process`` only calls them and notes what it was told is done.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from rerail.plugins.checkpoint import proof
from rerail.plugins.checkpoint.attempts import create_run, newest_opening, open_attempt, read_run
from rerail.plugins.checkpoint.commit import Blob, commit, confirm, write_part
from rerail.plugins.checkpoint.manifests import read_entry, read_manifest
from rerail.plugins.checkpoint.notes import certificate_ref, create_certificate, mark_commit, read_marks
from rerail.plugins.checkpoint.resolve import Resolution, read_start, resolve
from rerail.plugins.checkpoint.retention import collect
from rerail.plugins.checkpoint.store import RunStore, Store, all_entries
from rerail.plugins.checkpoint.verify import verify
from rerail.plugins.gang.ledger import Lost, append
from rerail.policies import keys
from rerail.policies.documents import Certificate, RankCertificate, Rendezvous, RunDoc, Start, digest_of
from rerail.policies.errors import DamagedError, NotFoundError, RerailError
from rerail.policies.manifest import CertificateRef, Layout, Manifest, PartRecord, Snapshot
from rerail.policies.retention import LatestN
from rerail.policies.supervisor.advance import Decision
from rerail.policies.supervisor.state import RunState

RUN = "llama"


class Ack(NamedTuple):
    """What a process was told is done, and so must hold after any crash.

    Attributes:
        kind: ``commit`` (attempt, step, save id) or ``document`` (its key and digest; no digest: whoever wrote it).
    """

    kind: str
    key: str
    digest: str = ""
    attempt: int = 0
    step: int = 0
    save_id: str = ""


def content(seed: str, size: int) -> bytes:
    """Bytes that depend on the seed in every place."""
    return hashlib.shake_256(seed.encode()).digest(size)


@dataclass(frozen=True)
class Code:
    """The functions under test; broken ones take their place to show that the matrix sees it."""

    open_attempt: Callable[..., Start] = open_attempt
    commit: Callable[..., Manifest] = commit
    confirm: Callable[..., Manifest] = confirm
    shards: Callable[[Store], Store] = lambda store: store
    after_commit: Callable[[Store], None] = lambda _: None


OURS = Code()


@dataclass
class Process:
    """One process that works on the run: new code state, its own writer ids.

    Attributes:
        store: The store's root.
        name: Makes its writer ids.
        world_size: Ranks of the gang.
        ack: Called when something is acknowledged.
        size: Bytes of a rank's model file.
    """

    store: Store
    name: str
    world_size: int = 2
    ack: Callable[[Ack], None] = lambda _: None
    code: Code = OURS
    size: int = 48
    certificates: dict[int, CertificateRef] = field(default_factory=dict)

    def __post_init__(self) -> None:
        proof._proven.clear()  # a new process has proven nothing yet
        below = self.store.below(RUN)
        self.run = RunStore(RUN, control=below, shards=self.code.shards(below))

    def _document(self, key: str, data: bytes) -> None:
        self.ack(Ack("document", key, digest_of(data)))

    def submit(self) -> None:
        doc = RunDoc(
            writer=f"submitter-{self.name}", run=RUN, owner="test", created_at_s=0.0, world_size=self.world_size
        )
        self._document(keys.RUN, create_run(self.run, doc).encode())

    def open(self, attempt: int) -> Start:
        start = self.code.open_attempt(
            self.run,
            attempt=attempt,
            how="fresh" if attempt == 1 else "new-gang",
            gang=f"{RUN}-a{attempt}",
            world_size=self.world_size,
            rendezvous=Rendezvous(id=f"r-{self.name}", host="127.0.0.1", port=0),
            writer=f"opener-{self.name}",
        )
        self._document(keys.start(attempt), start.encode())
        return start

    def _certificate(self, attempt: int) -> Certificate:
        ranks = tuple(
            RankCertificate(rank=rank, bytes_read=0, files=0, state_digest=None, expected_digest=None)
            for rank in range(self.world_size)
        )
        return Certificate(
            writer=f"ranks-{self.name}", run=RUN, attempt=attempt, loaded=None, ok=True, exact=True, ranks=ranks
        )

    def certify(self, attempt: int) -> None:
        made = create_certificate(self.run, self._certificate(attempt))
        self.certificates[attempt] = certificate_ref(made)
        self._document(keys.certificate(attempt), made.encode())

    def parts(self, attempt: int, step: int, save_id: str, *, base: Manifest | None = None) -> None:
        for rank in range(self.world_size):
            model = content(f"model.{save_id}.{rank}", self.size)
            frozen = content(f"frozen.{rank}", 24)
            record = write_part(
                self.run,
                attempt=attempt,
                step=step,
                save_id=save_id,
                rank=rank,
                blobs=[
                    Blob(f"model-{rank}.bin", "model", self.size, (model[:7], model[7:])),
                    Blob(f"frozen-{rank}.bin", "model", 24, (frozen,)),
                ],
                values={"step": step},
                absent=dict.fromkeys(
                    ("optimizer", "scheduler", "epoch", "rng", "scaler", "data", "distributed", "user"), "not here"
                ),
                snapshot=Snapshot(rank=rank, at_s=0.0),
                state_digest=None,
                writer=f"rank-{rank}-{self.name}",
                base=base,
            )
            folder = keys.folder(attempt, step, save_id, base=base.folder if base else None)
            self._document(keys.part_record(folder, rank), record.encode())

    def commit(self, attempt: int, step: int, save_id: str, *, base: Manifest | None = None) -> None:
        certificate = self.certificates.get(attempt) or certificate_ref(self._old_certificate(attempt))
        self.code.commit(
            self.run,
            attempt=attempt,
            step=step,
            save_id=save_id,
            world_size=self.world_size,
            reason="periodic",
            certificate=certificate,
            layout=Layout(world_size=self.world_size),
            writer=f"rank0-{self.name}",
            base=base,
            deadline_s=0.0,
            clock=lambda: 0.0,
            sleep=lambda _: None,
        )
        self.code.after_commit(self.run.shards)
        self._committed(attempt, step, save_id)

    def _old_certificate(self, attempt: int) -> Certificate:
        key = keys.certificate(attempt)
        return Certificate.decode(self.run.control.get(key), key)

    def _committed(self, attempt: int, step: int, save_id: str) -> None:
        self.ack(Ack("commit", keys.manifest(attempt, step), attempt=attempt, step=step, save_id=save_id))

    def confirm(self, attempt: int, step: int, save_id: str) -> None:
        self.code.confirm(self.run, attempt=attempt, step=step, save_id=save_id, deadline_s=0.0, clock=lambda: 0.0)
        self._committed(attempt, step, save_id)

    def save(self, attempt: int, step: int, *, incremental: bool = False) -> None:
        base = read_manifest(self.run, attempt, step - 10) if incremental else None
        save_id = hashlib.sha256(f"{self.name}.{step}".encode()).hexdigest()[:16]
        self.parts(attempt, step, save_id, base=base)
        self.commit(attempt, step, save_id, base=base)

    def mark(self, attempt: int, step: int) -> None:
        mark_commit(self.run, attempt=attempt, step=step, kind="bad", why="flipped bit", writer=f"marker-{self.name}")
        self.ack(Ack("document", keys.mark(attempt, step, "bad")))

    def append(self, number: int) -> None:
        state = RunState(run=RUN, world_size=self.world_size, phase="running", attempt=2)
        entry = append(self.run, number, Decision(state=state, note=f"by {self.name}"), at_s=0.0)
        if not isinstance(entry, Lost):
            self._document(keys.ledger(number), entry.encode())

    def collect(self) -> None:
        collect(self.run, LatestN(n=1), keep_clean_s=0.0, wall=lambda: 1.0)


def history(process: Process) -> None:
    """Attempt 1 commits 10 and 20; attempt 2 loads 20 and commits 30."""
    process.submit()
    process.open(1)
    process.certify(1)
    process.save(1, 10)
    process.save(1, 20)
    process.open(2)
    process.certify(2)
    process.save(2, 30)
    process.append(0)


def _with_parts(process: Process) -> None:
    history(process)
    process.parts(2, 40, "40a040a040a040a0")
    process.parts(2, 40, "40b040b040b040b0")


def _with_waste(process: Process) -> None:
    history(process)
    process.parts(1, 25, "25a025a025a025a0")  # of a closed attempt, without a manifest
    process.save(2, 40)


def _opened(process: Process) -> None:
    history(process)
    process.open(3)


@dataclass(frozen=True)
class Operation:
    """Something that a process does and that may end at any call.

    Attributes:
        prepare: What was done before.
        act: The operation.
        rivals: What another process may do, in full, between any two calls of it.
        again: A new process repeats it after the crash.
        collects: It deletes commits on purpose.
        random: What it writes holds random bytes, so that two runs of it differ.
    """

    act: Callable[[Process], Any]
    prepare: Callable[[Process], Any] = history
    rivals: Mapping[str, Callable[[Process], Any]] = field(default_factory=dict)
    again: bool = False
    collects: bool = False
    random: bool = False


OPERATIONS: dict[str, Operation] = {
    "create_run": Operation(
        Process.submit,
        prepare=lambda _: None,
        rivals={"another submission": Process.submit},
        again=True,
    ),
    "write_part": Operation(
        lambda p: p.parts(2, 40, "40a0" * 4),
        rivals={"a new attempt": lambda p: p.open(3), "rank 0 commits": lambda p: p.commit(2, 40, "40a0" * 4)},
    ),
    "commit": Operation(
        lambda p: p.commit(2, 40, "40a040a040a040a0"),
        prepare=_with_parts,
        rivals={
            "a new attempt": lambda p: p.open(3),
            "the same step by another group": lambda p: p.commit(2, 40, "40b040b040b040b0"),
            "rank 1 confirms": lambda p: p.confirm(2, 40, "40a040a040a040a0"),
        },
    ),
    "incremental save": Operation(
        lambda p: p.save(2, 40, incremental=True),
        rivals={"a new attempt": lambda p: p.open(3)},
    ),
    "open_attempt": Operation(
        lambda p: p.open(3),
        rivals={"the old gang commits": lambda p: p.save(2, 40), "another opener": lambda p: p.open(3)},
        again=True,
    ),
    "collect": Operation(
        Process.collect,
        prepare=_with_waste,
        rivals={"a new attempt": lambda p: p.open(3), "the gang commits": lambda p: p.save(2, 50, incremental=True)},
        again=True,
        collects=True,
        random=True,
    ),
    "mark": Operation(lambda p: p.mark(2, 30), rivals={"the same mark": lambda p: p.mark(2, 30)}, again=True),
    "certificate": Operation(
        lambda p: p.certify(3), prepare=_opened, rivals={"a second start of the group": lambda p: p.certify(3)}
    ),
    "ledger append": Operation(
        lambda p: p.append(1), rivals={"another supervisor": lambda p: p.append(1)}, again=True, random=True
    ),
}

LARGE_BYTES = (5 << 20) + 7


def _save_large(process: Process) -> None:
    process.size = LARGE_BYTES
    process.save(2, 40)


BUCKET_OPERATIONS = {
    **OPERATIONS,
    "save in parts": Operation(_save_large, rivals={"a new attempt": lambda p: p.open(3)}),
}


def judge(
    store: Store, operation: Operation, acks: Sequence[Ack], *, world_size: int, untouched: Sequence[Ack] = ()
) -> list[str]:
    """Recover as a new process does, go on, and tell everything that is wrong.

    What is ``untouched`` has to be there, and is not read again: on S3 nobody rewrites an object but by its key.
    """
    told: list[Ack] = list(acks)
    process = Process(store, "recovery", world_size, told.append)
    try:
        return _Judge(process, operation, told, frozenset(untouched)).all_wrong()
    except (RerailError, OSError, ValueError) as error:
        return [f"recovery ended with {type(error).__name__}: {error}"]


@dataclass
class _Judge:
    process: Process
    operation: Operation
    told: list[Ack]
    untouched: frozenset[Ack]
    read: set[Ack] = field(default_factory=set)
    committed: set[tuple[int, int]] = field(default_factory=set)

    def all_wrong(self) -> list[str]:
        may_go = self._may_go()
        wrong = self._held(may_go) + self._whole(may_go)
        found = None if wrong else resolve(self.process.run, known=True)
        wrong += self._resolved(found, may_go) if found else []
        if wrong or not found:
            return [f"after the crash: {text}" for text in wrong]
        if self.operation.again:
            self.operation.act(self.process)
            found = resolve(self.process.run)
            may_go = self._may_go()
        wrong, step = self._go_on(found)
        wrong += self._held(may_go) + self._whole(may_go, None if self.operation.collects else step)
        return [f"after the next commit: {text}" for text in wrong]

    def _may_go(self) -> set[tuple[int, int]]:
        """Commits that retention may have deleted: never the newest one, nor what the newest start loads."""
        if not self.operation.collects:
            return set()
        load = read_start(self.process.run, newest_opening(self.process.run).started or 1).load
        named = {(ack.attempt, ack.step) for ack in self._commits(set())}
        return named - {max(named), (load.attempt, load.step) if load else (0, 0)}

    def _begun(self) -> bool:
        """Whether somebody was told that the run exists."""
        return any(ack.key == keys.RUN for ack in self.told)

    def _commits(self, may_go: set[tuple[int, int]]) -> list[Ack]:
        found = [ack for ack in self.told if ack.kind == "commit"]
        return [ack for ack in found if (ack.attempt, ack.step) not in may_go]

    def _held(self, may_go: set[tuple[int, int]]) -> list[str]:
        """Acknowledged documents that are gone, or are others now."""
        run, wrong = self.process.run, []
        there = {entry.key for entry in all_entries(run.control, "")}
        wrong += [f"{key} is not a key of ours" for key in there if ".rerail-" in key]
        for ack in self.told:
            if ack.kind != "document" or self._collected(ack.key, may_go):
                continue
            if ack.key not in there:
                wrong.append(f"{ack.key} was acknowledged and is gone")
            elif (
                ack.digest
                and ack not in self.read | self.untouched
                and digest_of(run.control.get(ack.key)) != ack.digest
            ):
                wrong.append(f"{ack.key} was acknowledged and is another one now")
            self.read.add(ack)
        return wrong

    def _whole(self, may_go: set[tuple[int, int]], step: int | None = None) -> list[str]:
        """Manifests that are torn, gone, or of another save. Nothing here damages storage, so all have to be whole."""
        wrong = []
        steps = None if step is None else {step}
        if self.untouched and step is None:
            named = [keys.parse_commit(entry.key) for entry in all_entries(self.process.run.control, keys.COMMITS)]
            names = {(key.attempt, key.step) for key in named if key and key.step is not None}
            self.committed |= names & {(ack.attempt, ack.step) for ack in self.untouched}
            steps = {step for _, step in names - self.committed}
        verdicts = {(one.attempt, one.step): one for one in verify(self.process.run, steps)} if steps != set() else {}
        for name, verdict in verdicts.items():
            wrong += [f"torn: {name[0]}.{name[1]}: {problem}" for problem in verdict.problems]
        for ack in self._commits(may_go):
            if (step is not None and ack.step != step) or (
                ack in self.untouched and (ack.attempt, ack.step) in self.committed
            ):
                continue
            if (ack.attempt, ack.step) not in verdicts:
                wrong.append(f"commit {ack.attempt}.{ack.step} was acknowledged and is gone")
            elif verdicts[ack.attempt, ack.step].ok:
                wrong += self._other_bytes(ack)
        if step is None:
            wrong += self._lost_parts(set(verdicts) | self.committed, may_go)
        self.committed |= verdicts.keys()
        return wrong

    def _lost_parts(self, committed: set[tuple[int, int]], may_go: set[tuple[int, int]]) -> list[str]:
        """Files of acknowledged part records, as far as no manifest names them yet."""
        run, wrong = self.process.run, []
        for ack in self.told:
            save = keys.parse_shard(ack.key)
            if save is None or (save.attempt, save.step) in committed or self._collected(ack.key, may_go):
                continue
            for entry in PartRecord.decode(run.shards.get(ack.key), ack.key).files:
                try:
                    read_entry(run, entry, memoryview(bytearray(entry.size)))
                except DamagedError as error:
                    wrong.append(f"torn part: {error}")
        return wrong

    def _collected(self, key: str, may_go: set[tuple[int, int]]) -> bool:
        save = keys.parse_shard(key)
        gone = {(1, 25), *may_go} if self.operation.collects else may_go
        return save is not None and (save.attempt, save.step) in gone

    def _other_bytes(self, ack: Ack) -> list[str]:
        manifest = read_manifest(self.process.run, ack.attempt, ack.step)
        digests = {entry.path.rsplit("/", 1)[-1]: entry.digest for entry in manifest.files}
        size = manifest.files[0].size
        for rank in range(self.process.world_size):
            expected = digest_of(content(f"model.{ack.save_id}.{rank}", size))
            if digests.get(f"model-{rank}.bin") != expected:
                return [f"commit {ack.attempt}.{ack.step} of save {ack.save_id} holds the bytes of another save"]
        return []

    def _resolved(self, found: Resolution, may_go: set[tuple[int, int]]) -> list[str]:
        """A resolution that is fresh or blocked for no reason, older than what was told, or never committed."""
        run = self.process.run
        if not self._begun() and found.decision == "blocked":
            try:
                read_run(run)
            except NotFoundError:
                return []
        good = self._commits(may_go)
        marked = {(mark.attempt, mark.step) for mark in read_marks(run) if mark.kind != "pin"} if good else set()
        names = {(ack.attempt, ack.step) for ack in good} - marked
        if not names:
            return [] if found.decision == "fresh" else [f"resolve says {found.decision} before any commit"]
        if found.decision != "resume" or found.attempt is None or found.step is None:
            return [f"resolve says {found.decision} although {max(names)} was acknowledged: {found.reason}"]
        name = (found.attempt, found.step)
        if name < max(names):
            return [f"resolve says {name}, older than {max(names)}, which was acknowledged"]
        if name not in self.committed or name in marked:
            return [f"resolve says {name}, which is marked or was never committed"]
        return []

    def _go_on(self, before: Resolution) -> tuple[list[str], int]:
        """What the supervisor does next: the next attempt, and in it the next commit, whose step this returns."""
        process, run = self.process, self.process.run
        opening = newest_opening(run)
        attempt = opening.sealed or 1
        if opening.sealed is not None and opening.started == opening.sealed:
            attempt += 1
        start = process.open(attempt)
        loaded = (start.load.attempt, start.load.step) if start.load else None
        expected = (before.attempt, before.step) if before.decision == "resume" else None
        wrong = [] if loaded == expected else [f"attempt {attempt} loads {loaded}, but {expected} was resolved"]
        process.certify(attempt)
        step = (before.step or 0) + 10
        process.save(attempt, step)
        after = resolve(run)
        if (after.decision, after.attempt, after.step) != ("resume", attempt, step):
            wrong.append(
                f"after the commit {attempt}.{step}, resolve says {after.decision} {after.attempt}.{after.step}"
            )
        return wrong, step
