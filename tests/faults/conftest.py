"""What fault tests share: the packaged catalogue, cases from outside where they exist, and a way to write signals."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rerail.policies.catalog import load_catalogue
from rerail.policies.faults import FaultSignal
from rerail.policies.faults.catalogue import Catalogue

CASES = Path(__file__).resolve().parents[3] / "shared" / "data" / "cases"
GPU = "0000:3b:00"


@pytest.fixture(scope="session")
def catalogue() -> Catalogue:
    return load_catalogue()


@pytest.fixture(scope="session")
def cases() -> Callable[[str], dict[str, dict[str, Any]]]:
    def load(name: str) -> dict[str, dict[str, Any]]:
        path = CASES / f"{name}.jsonl"
        if not path.exists():
            pytest.skip(f"{path} is not on this machine")
        found = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
        return {case["id"]: case for case in found}

    return load


@pytest.fixture
def signal() -> Callable[..., FaultSignal]:
    def build(code: str | None, at_s: float = 1000.0, **fields: Any) -> FaultSignal:
        known = {"source": "kernlog", "node": "n1", "devices": (GPU,), "codes": (code,) if code else ()}
        return FaultSignal(**{**known, "first_seen_s": at_s, **fields})

    return build
