"""Labs in which operations crash at every call. ``support/`` is shared with the process that is killed."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SUPPORT = Path(__file__).with_name("support")
sys.path.insert(0, str(SUPPORT))

from crash_points import BucketLab, FolderLab, Point  # noqa: E402
from crash_story import BUCKET_OPERATIONS, OPERATIONS, Ack  # noqa: E402

MEMORY = Path("/dev/shm")
SAMPLE = {"posix": 4, "s3": 2}
"""Points of one operation where the whole matrix is not asked for."""


@pytest.fixture
def scratch(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: what a power cut loses is told by the recording, not by the disk."""
    if not os.access(MEMORY, os.W_OK):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="rerail-crash-", dir=MEMORY))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def killer() -> Iterator[Callable[[dict[str, Any]], tuple[int, list[Ack]]]]:
    """A warm process that forks children which are killed; it ends when its input is closed."""
    worker = subprocess.Popen(
        [sys.executable, str(SUPPORT / "crash_worker.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdin
    assert worker.stdout

    def kill(job: dict[str, Any]) -> tuple[int, list[Ack]]:
        assert worker.stdin
        assert worker.stdout
        worker.stdin.write(json.dumps({"env": {}, **job}) + "\n")
        worker.stdin.flush()
        answer = worker.stdout.readline()
        assert answer, "the process that forks the victims ended; its error is on stderr"
        ended, acks = json.loads(answer)
        return ended, [Ack(*ack) for ack in acks]

    yield kill
    worker.stdin.close()
    worker.stdout.close()
    assert worker.wait(timeout=30) == 0


@pytest.fixture
def folder_lab(scratch: Path) -> Callable[..., FolderLab]:
    def make(name: str, **more) -> FolderLab:
        return FolderLab(name, OPERATIONS[name], scratch / name.replace(" ", "-"), **more)

    return make


@pytest.fixture(scope="session")
def prepared() -> dict[Callable[..., Any], tuple[dict[str, bytes], list[Ack]]]:
    """What operations find in a bucket, made once."""
    return {}


@pytest.fixture
def bucket_lab(s3_env, s3_proxy, prepared) -> Iterator[Callable[..., BucketLab]]:
    from rerail.plugins.checkpoint.s3 import Patience, S3Store, connect
    from rerail.plugins.checkpoint.s3_transfer import Tuning

    clients = []

    def client(endpoint: str):
        clients.append(connect(Patience(), endpoint=endpoint))
        return clients[-1]

    def store(made) -> S3Store:
        return S3Store(
            s3_env.bucket,
            client=lambda _: made,
            patience=Patience(tries=5, first_pause_s=0.005, longest_pause_s=0.02),
            tuning=Tuning(part_bytes=5 << 20, parallel=1),
        )

    def make(name: str, *, set_up: Callable[[Any], None] = lambda _: None, **more) -> BucketLab:
        proxy = s3_proxy()
        set_up(proxy)
        return BucketLab(
            name,
            BUCKET_OPERATIONS[name],
            s3_env.bucket,
            client(s3_env.endpoint),
            client(proxy.endpoint),
            proxy,
            store,
            prepared,
            **more,
        )

    yield make
    for made in clients:
        made.close()


@pytest.fixture
def chosen() -> Callable[[list[Point]], list[Point]]:
    """All points where CI=true, else a few that are spread over the modes and the whole length."""

    def choose(points: list[Point]) -> list[Point]:
        if os.environ.get("CI") == "true":
            return points
        by_mode = sorted(points, key=lambda point: (point.mode, point.boundary))
        count, every = SAMPLE[points[0].backend], len(by_mode)
        few = [by_mode[(at * every // count + 7 * len(points[0].operation)) % every] for at in range(count)]
        print(f"reduced: {len(few)} of {len(points)} points; CI=true takes all")
        return few

    return choose
