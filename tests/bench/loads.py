"""Loading from a volume with a cold page cache: with every digest compared, and without any."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rerail.plugins.checkpoint.manifests import read_manifest
from rerail.plugins.trainer.codec import decode
from rerail.plugins.trainer.environment import read_environment
from rerail.plugins.trainer.loading import Loader, RankLoad
from rerail.plugins.trainer.state import collect, update_in_place
from rerail.policies import keys
from rerail.policies.manifest import Manifest
from tests.bench.machine import drop_cache
from tests.bench.pairs import Arm, Result, compare, interleave
from tests.bench.subject import ABSENT, RUN, Subject, WhenAsked, training_state

_PIECE_BYTES = 8 << 20


def verified_load(size_bytes: int, folder: Path, *, pairs: int) -> Iterator[Result]:
    """Read, decode and hand over all parts, hashing beside the disk; the whole certified load beside it."""
    state = training_state(size_bytes)
    subject = Subject(folder / "store")
    subject.open(1)
    client = subject.client(1, state, every=WhenAsked())
    client.restore()
    client.step_done(1, epoch=0)
    subject.close()
    manifest = read_manifest(subject.run, 1, 1)
    told = read_environment(subject.environ(1))
    assert told is not None
    parts = collect(shared=state, per_rank={}, absent=ABSENT, strict=True)
    loader = Loader(subject.run, manifest, parts, 0, 1, None)

    def verified() -> None:
        found = RankLoad(0, "bench-node", {})
        assert len(loader.load_parts(found)) == len(parts.handles), found

    def certified() -> None:
        found = RankLoad(0, "bench-node", {})
        loader.load(found)
        assert found.held == found.expected, found

    def cold() -> None:
        drop_cache(path for path in subject.files() if path.suffix != ".json")

    seconds = interleave(
        [
            Arm("plain", lambda: _plain(subject.root / RUN, manifest, state), before=cold),
            Arm("ours", verified, before=cold),
            Arm(
                "two files at a time, as ours, without digests",
                lambda: _plain(subject.root / RUN, manifest, state, threads=2),
                before=cold,
            ),
            Arm("with the loaded state encoded and hashed once more, for the certificate", certified, before=cold),
        ],
        pairs,
    )
    note = "ours reads and hashes two files at a time; reading, hashing and copying into place share the cores"
    yield compare("verified_load", seconds, ours="ours", yardstick="plain", note=note)


def _plain(root: Path, manifest: Manifest, state: dict, *, threads: int = 1) -> None:
    """What a reader without digests does: the same files, the same decoding, the same copy into place."""

    def load(part: str) -> None:
        for path in manifest.parts[part].files:
            with open(root / keys.SHARDS / path, "rb", buffering=0) as file:  # noqa: PTH123
                size = os.fstat(file.fileno()).st_size
                into = memoryview(bytearray(size))
                done = 0
                while done < size:
                    done += file.readinto(into[done : done + _PIECE_BYTES])
            update_in_place(state[part], decode(into, part))

    if threads == 1:
        for part in state:
            load(part)
        return
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(load, state):
            pass
