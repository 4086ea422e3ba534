"""Upload of one large object to S3, beside boto3's own transfer with the same parts, threads and checksums."""

import io
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from rerail.plugins.checkpoint.s3 import S3Store
from rerail.plugins.checkpoint.s3_transfer import Tuning
from tests.bench.bucket import s3_server
from tests.bench.pairs import Arm, Result, compare, interleave, quantile, ratios


def upload(name: str, size_bytes: int, folder: Path, *, pairs: int) -> Iterator[Result]:
    """Ours hashes the whole object with SHA-256 besides; both send a CRC32 with each part."""
    import boto3
    from boto3.s3.transfer import TransferConfig
    from botocore.config import Config

    tuning = Tuning()
    settings = TransferConfig(
        multipart_threshold=tuning.part_bytes,
        multipart_chunksize=tuning.part_bytes,
        max_concurrency=tuning.parallel,
        use_threads=True,
    )
    checks = {"ChecksumAlgorithm": "CRC32"}
    source = folder / "object"
    folder.mkdir(parents=True, exist_ok=True)
    data = np.random.default_rng(3).bytes(size_bytes)
    source.write_bytes(data)
    with s3_server(folder / "weed") as server:
        # Over plain HTTP boto3 would hash each part once more for its signature; over HTTPS neither of the two does.
        client = boto3.client("s3", config=Config(s3={"payload_signing_enabled": False}, max_pool_connections=32))
        store = S3Store(server.bucket, "bench/", tuning=tuning)
        whole = memoryview(data)

        def remove() -> None:
            for key in ("bench/theirs", "bench/ours"):
                client.delete_object(Bucket=server.bucket, Key=key)

        cpu_s: dict[str, list[float]] = {"boto3": [], "ours": []}

        def counted(name: str, work: Callable[[], object]) -> Callable[[], None]:
            def run() -> None:
                begin = time.process_time()
                work()
                cpu_s[name].append(time.process_time() - begin)

            return run

        def from_file() -> None:
            client.upload_file(str(source), server.bucket, "bench/theirs", checks, None, settings)

        def from_memory() -> None:
            client.upload_fileobj(io.BytesIO(data), server.bucket, "bench/theirs", checks, None, settings)

        seconds = interleave(
            [
                Arm("boto3", counted("boto3", from_file), after=remove),
                Arm("ours", counted("ours", lambda: store.upload("ours", [whole], size=size_bytes)), after=remove),
                Arm("boto3 upload_fileobj from memory", from_memory, after=remove),
            ],
            pairs,
        )
        client.close()
    found = compare(name, seconds, ours="ours", yardstick="boto3")
    yield Result(
        name=name,
        ours=found.ours,
        yardstick=found.yardstick,
        ratio=ratios(seconds["boto3"], seconds["ours"]),  # throughput: more is better
        pairs=found.pairs,
        unit=found.unit,
        arms=found.arms,
        note=(
            f"CPU time of the client per upload: ours {quantile(cpu_s['ours'], 0.5):.2f} s with the SHA-256 of the "
            f"whole, boto3 {quantile(cpu_s['boto3'], 0.5):.2f} s without; the server takes the rest of the same cores, "
            "so the digest shows here and is hidden where a core is free"
        ),
    )
