"""A real S3 server for the benchmarks: the one of the tests, started by their own code."""

import importlib.util
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

_CONFTEST = Path(__file__).parents[1] / "conftest.py"


@contextmanager
def s3_server(folder: Path) -> Iterator[Any]:
    """A SeaweedFS on loopback with an empty bucket; the usual AWS variables of this process point at it."""
    spec = importlib.util.spec_from_file_location("rerail_bench_conftest", _CONFTEST)
    assert spec is not None
    assert spec.loader is not None
    tests = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tests)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "log").open("wb") as log:
        process, port = tests.start_weed(folder, log.fileno())
        try:
            server = tests.S3Server(f"http://127.0.0.1:{port}", tests.BUCKET, tests.ACCESS, tests.SECRET)
            if not tests.answers(server, process):
                raise RuntimeError(f"the S3 server did not start; see {folder / 'log'}")
            for name in [name for name in os.environ if name.startswith("AWS_") or name.lower().endswith("_proxy")]:
                del os.environ[name]
            os.environ.update(server.env)
            yield server
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
