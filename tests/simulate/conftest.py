"""Small traces for the replay, and the real one where it is."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from rerail.policies.simulate.trace import Outage, Trace, read_trace

REAL = Path(__file__).parents[3] / "shared/data/traces/infinitehbd-fault-trace.json"


@pytest.fixture(scope="session")
def real_path() -> Path:
    if not REAL.is_file():
        pytest.skip(f"the real trace is not here ({REAL})")
    return REAL


@pytest.fixture(scope="session")
def real_trace(real_path: Path) -> Trace:
    return read_trace(json.loads(real_path.read_bytes()), real_path.name, pool=400)


@pytest.fixture
def trace() -> Callable[..., Trace]:
    def make(nodes: str, *outages: tuple[str, float, float], horizon_s: float = 1000.0) -> Trace:
        found = sorted((Outage(*one) for one in outages), key=lambda one: (one.start_s, one.node))
        return Trace("test", tuple(nodes), tuple(found), horizon_s)

    return make
