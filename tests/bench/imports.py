"""What a training process pays once: importing the client with its S3 store, beside the two libraries it rests on."""

import subprocess
import sys
from collections.abc import Iterator

from tests.bench.pairs import Arm, Result, compare, interleave

_TIMED = "import time; begin = time.perf_counter()\n{}\nprint(time.perf_counter() - begin)"
# pydantic loads its modules when their names are first asked for: a bare "import pydantic" loads next to nothing.
_LIBRARIES = "from pydantic import BaseModel, Field, JsonValue; import boto3"
_NOTE = "pydantic loads lazily; the yardstick asks for BaseModel, Field and JsonValue, as every user of it does"
_CLIENT = "import rerail.plugins.trainer"
_WITH_S3 = f"{_CLIENT}, rerail.plugins.checkpoint.s3"


def import_client(*, pairs: int) -> Iterator[Result]:
    """Fresh processes; only the import itself counts."""
    seconds = interleave(
        [
            Arm("libraries", lambda: _import(_LIBRARIES)),
            Arm("ours", lambda: _import(_WITH_S3)),
            Arm("the client alone, as with a folder", lambda: _import(_CLIENT)),
        ],
        pairs,
    )
    yield compare("import_client", seconds, ours="ours", yardstick="libraries", note=_NOTE)


def _import(line: str) -> float:
    done = subprocess.run([sys.executable, "-c", _TIMED.format(line)], check=True, capture_output=True, text=True)
    return float(done.stdout)
