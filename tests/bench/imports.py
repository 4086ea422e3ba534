"""What a training process pays once: importing the client with its S3 store, beside the two libraries it rests on."""

import os
import subprocess
import sys
from collections.abc import Iterator

from tests.bench.pairs import Arm, Result, compare, interleave

_TIMED = "import time; begin = time.perf_counter()\n{}\nprint(time.perf_counter() - begin)"
# pydantic loads its modules when their names are first asked for: a bare "import pydantic" loads next to nothing.
_LIBRARIES = "from pydantic import BaseModel, Field, JsonValue; import boto3"
_ONE_MODEL = f"{_LIBRARIES}\nclass Model(BaseModel):\n    field: int"
_NOTE = (
    "pydantic loads lazily; the yardstick asks for BaseModel, Field and JsonValue, as every user of it does, and "
    "defines no model. More than half of what ours adds is the definition of 25 models and 22 dataclasses; with the "
    "first model pydantic looks for plugins in every installed package. Named tuples for small records, and imports "
    "where they are needed, took 5 % of the whole; pydantic's defer_build would move 3 % to the first use"
)
_CLIENT = "import rerail.plugins.trainer"
_WITH_S3 = f"{_CLIENT}, rerail.plugins.checkpoint.s3"


def import_client(*, pairs: int) -> Iterator[Result]:
    """Fresh processes; only the import itself counts."""
    seconds = interleave(
        [
            Arm("libraries", lambda: _import(_LIBRARIES)),
            Arm("ours", lambda: _import(_WITH_S3)),
            Arm("the client alone, before it opens a store", lambda: _import(_CLIENT)),
            Arm("the libraries and one model of one field", lambda: _import(_ONE_MODEL)),
        ],
        pairs,
    )
    yield compare("import_client", seconds, ours="ours", yardstick="libraries", note=_NOTE)


def _import(line: str) -> float:
    """Seconds. Bytecode may be written: else an edited module is compiled each time, as an installed one never is."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(
        [sys.executable, "-c", _TIMED.format(line)], check=True, capture_output=True, text=True, env=environ
    )
    return float(done.stdout)
