"""A fake API server for faults (``fake_api``), and a client of it. ``support/`` is shared with tests/volcano."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from rerail.plugins.kube.api import KubeApi, Patience

SUPPORT = Path(__file__).with_name("support") / "fake_api.py"


def load(path: Path) -> ModuleType:
    name = "rerail_test_fake_api"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec
        assert spec.loader
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


fake = load(SUPPORT)


@pytest.fixture
def fake_module() -> ModuleType:
    return fake


@pytest.fixture
def fake_api() -> Iterator[object]:
    api, stop = fake.serve()
    yield api
    stop()


@pytest.fixture
def kubeconfig(fake_api, tmp_path: Path) -> Path:
    path = tmp_path / "kubeconfig"
    path.write_text(fake.kubeconfig(fake_api.url))
    return path


@pytest.fixture
def kube(kubeconfig: Path) -> Iterator[KubeApi]:
    patience = Patience(request_s=5.0, total_s=3.0, first_pause_s=0.01, longest_pause_s=0.1)
    api = KubeApi.connect(kubeconfig, patience=patience)
    yield api
    api.close()
