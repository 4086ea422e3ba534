"""The README's table of what Rerail was run on is what the tests' cluster and constraints.txt pin."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests/cluster"))

from rig import support  # noqa: E402

README = ROOT / "README.md"


def test_the_readme_has_the_table_as_it_is_made():
    """After a change of a version: PYTHONPATH=tests/cluster .venv/bin/python -m rig.support."""
    page = README.read_text(encoding="utf-8")
    assert support.written(page) == page


def test_another_version_changes_the_table(monkeypatch):
    page = README.read_text(encoding="utf-8")
    monkeypatch.setattr(support, "KUBERNETES", "v1.37.0")
    assert "| Kubernetes | 1.37.0 |" in support.written(page) != page


@pytest.mark.parametrize("page", ["none", f"{support.END} {support.BEGIN}", support.BEGIN * 2 + support.END])
def test_a_page_without_the_marks_is_refused(page):
    with pytest.raises(ValueError, match="needs the marks"):
        support.written(page)


def test_what_the_table_tells_of_python_and_of_argo_is_so():
    project = (ROOT / "pyproject.toml").read_text()
    assert re.search(rf'requires-python = ">={support.images.PYTHON}"', project)
    assert f"Argo Workflows {support.argo_builds.version().removeprefix('v')}" in README.read_text(encoding="utf-8")


@pytest.mark.parametrize(("program", "version"), [("containerd", support.CONTAINERD), ("runc", support.RUNC)])
def test_debians_packages_are_of_the_versions_that_it_tells(program, version):
    if shutil.which(program) is None or "bookworm" not in Path("/etc/os-release").read_text():
        pytest.skip(f"no {program} of Debian bookworm is here: make cluster-up brings it")
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    assert re.search(rf"\b{re.escape(version)}\.\d", said), said
