"""A run to play with: the real commit, opening and resolve code over any store, and a store in memory."""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from rerail.plugins.checkpoint.attempts import create_run, open_attempt
from rerail.plugins.checkpoint.commit import Blob, commit, write_part
from rerail.plugins.checkpoint.notes import certificate_ref, create_certificate
from rerail.plugins.checkpoint.resolve import Resolution, resolve
from rerail.plugins.checkpoint.store import Created, Entry, Exists, Page, RunStore, Store, Uploaded
from rerail.policies import keys
from rerail.policies.documents import Certificate, RankCertificate, Rendezvous, RunDoc, Start, canonical, digest_of
from rerail.policies.errors import DamagedError, NotFoundError
from rerail.policies.manifest import CertificateRef, Layout, Manifest, Snapshot

RUN = "llama"
UNUSED = ("optimizer", "scheduler", "scaler", "data", "distributed", "user")


@dataclass
class MemoryStore:
    """The Store protocol over a dict. Views share the objects and the counter."""

    objects: dict[str, bytes] = field(default_factory=dict)
    prefix: str = ""
    made: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"memory:///{self.prefix}"

    @property
    def requests(self) -> int:
        return len(self.made)

    def below(self, prefix: str) -> "MemoryStore":
        return type(self)(self.objects, f"{self.prefix}{prefix.rstrip('/')}/", self.made)

    def prove(self) -> None:
        return

    def create(self, key: str, data: bytes) -> Created | Exists:
        self.made.append(f"create {key}")
        found = self.objects.setdefault(self.prefix + key, data)
        return Created() if found == data else Exists(found)

    def put(self, key: str, data: bytes) -> None:
        self.made.append(f"put {key}")
        self.objects[self.prefix + key] = data

    def get(self, key: str) -> bytes:
        self.made.append(f"get {key}")
        try:
            return self.objects[self.prefix + key]
        except KeyError:
            raise NotFoundError(f"{self.url}{key} is not there") from None

    def page(self, prefix: str, *, start_after: str = "", limit: int = 1000) -> Page:
        self.made.append(f"page {prefix}")
        full, cut = self.prefix + prefix, len(self.prefix)
        after = self.prefix + start_after
        found = [key for key in sorted(self.objects) if key.startswith(full) and key > after]
        entries = tuple(Entry(key[cut:], len(self.objects[key])) for key in found[:limit])
        return Page(entries, entries[-1].key if len(found) > limit else None)

    def upload(self, key: str, buffers, *, size: int) -> Uploaded:
        self.made.append(f"upload {key}")
        data = b"".join(bytes(buffer) for buffer in buffers)
        assert len(data) == size
        self.objects[self.prefix + key] = data
        return Uploaded(len(data), digest_of(data))

    def download(self, key: str, into: memoryview) -> str:
        self.made.append(f"download {key}")
        try:
            data = self.objects[self.prefix + key]
        except KeyError:
            raise NotFoundError(f"{self.url}{key} is not there") from None
        if len(data) != len(into):
            raise DamagedError(f"{key} has {len(data)} bytes, expected {len(into)}")
        into[:] = data
        return digest_of(data)

    def delete(self, keys: tuple[str, ...]) -> None:
        self.made.append(f"delete {len(keys)}")
        for key in keys:
            self.objects.pop(self.prefix + key, None)


def content(seed: str, size: int) -> bytes:
    """Bytes that depend on the seed in every place, so that a swap or a flip cannot go unseen by chance."""
    return hashlib.shake_256(seed.encode()).digest(size)


@dataclass
class Scene:
    """One run in a store, and short ways to do what supervisors and ranks do."""

    store: RunStore
    world_size: int = 2
    certificates: dict[int, CertificateRef] = field(default_factory=dict)
    saves: int = 0

    def submit(self, **change) -> RunDoc:
        doc = RunDoc(writer="submitter", run=RUN, owner="test", created_at_s=0.0, world_size=self.world_size)
        return create_run(self.store, doc.model_copy(update=change))

    def open(self, attempt: int, *, writer: str | None = None, **change) -> Start:
        wanted = {
            "attempt": attempt,
            "how": "fresh" if attempt == 1 else "new-gang",
            "gang": f"{RUN}-a{attempt}",
            "world_size": self.world_size,
            "rendezvous": Rendezvous(id=f"r{attempt}", host="127.0.0.1", port=0),
            "writer": writer or f"opener-{attempt}",
        }
        start = open_attempt(self.store, **{**wanted, **change})
        self.certify(attempt)
        return start

    def certify(self, attempt: int) -> CertificateRef:
        if attempt not in self.certificates:
            ranks = tuple(
                RankCertificate(rank=rank, bytes_read=0, files=0, state_digest=None, expected_digest=None)
                for rank in range(self.world_size)
            )
            cert = Certificate(
                writer=f"ranks-of-{attempt}", run=RUN, attempt=attempt, loaded=None, ok=True, exact=True, ranks=ranks
            )
            self.certificates[attempt] = certificate_ref(create_certificate(self.store, cert))
        return self.certificates[attempt]

    def parts(self, attempt: int, step: int, save_id: str, *, base=None, size=6000, at_s=0.0, ranks=None) -> None:
        for rank in range(self.world_size) if ranks is None else ranks:
            frozen = content(f"frozen.{rank}", size)  # the same in every save: what an incremental one reuses
            model = content(f"model.{attempt}.{step}.{rank}", size)
            rng = content(f"rng.{attempt}.{step}.{rank}", 200)
            write_part(
                self.store,
                attempt=attempt,
                step=step,
                save_id=save_id,
                rank=rank,
                blobs=[
                    Blob(f"model-{rank}.bin", "model", size, (model[:100], model[100:])),
                    Blob(f"frozen-{rank}.bin", "model", size, (frozen,)),
                    Blob(f"rng-{rank}.bin", "rng", 200, (rng,)),
                ],
                values={"step": step, "epoch": 0},
                absent=dict.fromkeys(
                    ("optimizer", "scheduler", "scaler", "data", "distributed", "user"), "not used here"
                ),
                snapshot=Snapshot(rank=rank, at_s=at_s),
                state_digest=digest_of(model),
                writer=f"rank-{rank}-{save_id}",
                base=base,
            )

    def save_id(self) -> str:
        self.saves += 1
        return f"{self.saves:08x}"

    def finish(self, attempt: int, step: int, save_id: str, *, writer: str | None = None, **change) -> Manifest:
        wanted = {
            "attempt": attempt,
            "step": step,
            "save_id": save_id,
            "world_size": self.world_size,
            "reason": "periodic",
            "certificate": self.certificates.get(attempt) or self.certify(attempt),
            "layout": Layout(world_size=self.world_size),
            "writer": writer or f"rank0-{save_id}",
            "deadline_s": 5.0,
            "poll_s": 0.005,
        }
        return commit(self.store, **{**wanted, **change})

    def save(self, attempt: int, step: int, *, base: Manifest | None = None, at_s: float = 0.0, **change) -> Manifest:
        save_id = self.save_id()
        self.parts(attempt, step, save_id, base=base, at_s=at_s)
        return self.finish(attempt, step, save_id, base=base, **change)

    def resolve(self, **how) -> Resolution:
        return resolve(self.store, **how)

    def rewrite(self, key: str, change: Callable[[dict], None], *, redigest: bool = True) -> None:
        """Replace a document, as an attacker or a bad tool would: with a fitting digest of itself, or without."""
        doc = json.loads(self.store.control.get(key))
        change(doc)
        if redigest:
            doc.pop("digest", None)
            doc["digest"] = digest_of(canonical(doc))
        self.store.control.delete((key,))
        self.store.control.create(key, canonical(doc))


@pytest.fixture
def scene_of() -> Callable[[Store], Scene]:
    """Makes a scene over a store."""

    def make(store: Store, **change) -> Scene:
        below = store.below(RUN)
        return Scene(RunStore(RUN, below, below), **change)

    return make


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def scene(scene_of, memory) -> Scene:
    """A submitted run in memory, with no attempt yet."""
    made = scene_of(memory)
    made.submit()
    return made


@pytest.fixture
def memory_type() -> Iterator[type[MemoryStore]]:
    return MemoryStore


@pytest.fixture
def manifest_key() -> Callable[[int, int], str]:
    return keys.manifest
