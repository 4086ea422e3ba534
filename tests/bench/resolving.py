"""Resolving among many checkpoints on S3: requests, and time beside one LIST."""

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rerail.plugins.checkpoint.attempts import create_run, open_attempt
from rerail.plugins.checkpoint.notes import certificate_ref, create_certificate
from rerail.plugins.checkpoint.resolve import resolve
from rerail.plugins.checkpoint.s3 import S3Store
from rerail.plugins.checkpoint.store import RunStore, all_entries
from rerail.policies import keys
from rerail.policies.documents import Certificate, RankCertificate, Rendezvous, RunDoc, digest_of
from rerail.policies.manifest import PARTS, CertificateRef, FileEntry, Layout, Manifest, Snapshot, StatePart
from tests.bench.bucket import s3_server
from tests.bench.pairs import Arm, Result, compare, interleave, spread

_RUN = "bench"
_WRITERS = 16
_CONTENT = b"x" * 256
_SHORT = {10: "10", 1_000: "1k", 10_000: "10k", 100_000: "100k"}
_ROUND_TRIP_S = 0.02


def resolving(counts: tuple[int, ...], folder: Path, *, pairs: int) -> Iterator[Result]:
    """One run that grows; each checkpoint has a manifest and a file, as one rank leaves them."""
    with s3_server(folder / "weed") as server:
        view = S3Store(server.bucket, f"{_RUN}-store/").below(_RUN)
        run = RunStore(_RUN, control=view, shards=view)
        certificate = _opened(run)
        done = 0
        for count in counts:
            begin = time.monotonic()
            _grow(run, certificate, done, count)
            sys.stderr.write(f"  {count - done} checkpoints made in {time.monotonic() - begin:.0f} s\n")
            done = count
            found = resolve(run)
            assert (found.decision, found.step) == ("resume", count), found
            requests = float(found.requests)
            yield Result(
                f"resolve_requests_{_SHORT[count]}", requests, None, spread([requests]), pairs=1, unit="requests"
            )
            if count >= max(_SHORT) // 10:
                yield _timed(run, count, pairs=pairs)


def _timed(run: RunStore, count: int, *, pairs: int) -> Result:
    """Beside one LIST of a full page; and both once more with a round trip added to every request."""
    store = run.control
    away = {"s": 0.0}
    client = store._bucket._connected()
    client.meta.events.register("before-send.s3", lambda **_: time.sleep(away["s"]))

    def far() -> None:
        away["s"] = _ROUND_TRIP_S

    def near() -> None:
        away["s"] = 0.0

    def one_list() -> None:
        assert store.page(keys.COMMITS).entries

    def ours() -> None:
        assert resolve(run).step == count

    def every_key() -> None:
        assert sum(1 for _ in all_entries(store, keys.COMMITS)) >= count

    distant = f"with {_ROUND_TRIP_S * 1e3:.0f} ms more per request"
    arms = [
        Arm("list", one_list),
        Arm("ours", ours),
        Arm(f"resolve, {distant}", ours, before=far, after=near),
        Arm(f"one LIST, {distant}", one_list, before=far, after=near),
        Arm("LIST of every commit key, page by page", every_key),
    ]
    seconds = interleave(arms, pairs)
    apart = compare("", seconds, ours=arms[2].name, yardstick=arms[3].name).ratio
    note = f"{distant} the ratio to one LIST is {apart.median:.2f} ({apart.p5:.2f}-{apart.p95:.2f})"
    return compare(f"resolve_time_{_SHORT[count]}", seconds, ours="ours", yardstick="list", note=note)


def _opened(run: RunStore) -> CertificateRef:
    create_run(run, RunDoc(writer="bench-submit", run=_RUN, owner="bench", created_at_s=0.0, world_size=1))
    rendezvous = Rendezvous(id="bench", host="127.0.0.1", port=0)
    open_attempt(run, attempt=1, how="fresh", gang=_RUN, world_size=1, rendezvous=rendezvous, writer="bench-opener")
    rank = RankCertificate(rank=0, bytes_read=0, files=0, state_digest=None, expected_digest=None)
    made = Certificate(writer="bench-rank-0", run=_RUN, attempt=1, loaded=None, ok=True, exact=True, ranks=(rank,))
    return certificate_ref(create_certificate(run, made))


def _grow(run: RunStore, certificate: CertificateRef, done: int, count: int) -> None:
    def one(step: int) -> None:
        saved = f"{step:016x}"
        folder = keys.folder(1, step, saved)
        name = f"{folder}model.safetensors"
        run.shards.create(name, _CONTENT)
        path = name.removeprefix(keys.SHARDS)
        parts = {part: StatePart(absent="not in this benchmark") for part in PARTS}
        manifest = Manifest(
            writer="bench-rank-0",
            run=_RUN,
            attempt=1,
            step=step,
            save_id=saved,
            folder=folder,
            reason="periodic",
            layout=Layout(world_size=1),
            parts=parts | {"model": StatePart(files=(path,)), "step": StatePart(value=step)},
            files=(FileEntry(path=path, size=len(_CONTENT), digest=digest_of(_CONTENT), rank=0),),
            snapshots=(Snapshot(rank=0, at_s=0.0),),
            certificate=certificate,
        )
        run.control.create(keys.manifest(1, step), manifest.encode())

    with ThreadPoolExecutor(_WRITERS) as pool:
        for _ in pool.map(one, range(done + 1, count + 1)):
            pass
