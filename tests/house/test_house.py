"""The house itself: what is packaged, how long its modules are, and what its documents claim."""

import re
import subprocess
import sys
import tomllib
from importlib.metadata import entry_points
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
ROOMS = ("policies", "plugins", "workflows")
MOST_LINES = 600


def packages_in_the_tree():
    for room in ROOMS:
        for init in sorted((ROOT / room).rglob("__init__.py")):
            yield "rerail." + ".".join(init.parent.relative_to(ROOT).parts)
    yield "rerail.examples.local_gang"


def test_every_package_is_listed_by_hand_and_no_other():
    assert sorted(PROJECT["tool"]["setuptools"]["packages"]) == sorted(packages_in_the_tree())


def test_every_data_file_in_the_rooms_is_packaged():
    patterns = PROJECT["tool"]["setuptools"]["package-data"]["*"]
    for room in ROOMS:
        for path in (ROOT / room).rglob("*"):
            if path.is_file() and path.suffix not in (".py", ".pyc", ".md"):
                assert any(path.match(pattern) for pattern in patterns), f"{path} would be missing in a wheel"


def test_no_module_is_longer_than_a_person_reads():
    long = {}
    for path in ROOT.rglob("*.py"):
        if not {".venv", "build", "demo"} & set(path.relative_to(ROOT).parts):
            lines = len(path.read_text(encoding="utf-8").splitlines())
            if lines > MOST_LINES:
                long[str(path)] = lines
    assert not long


def test_the_example_script_is_short_enough_to_read():
    assert len((ROOT / "examples/01-local-gang/train.py").read_text(encoding="utf-8").splitlines()) <= 150


@pytest.mark.parametrize("command", sorted(PROJECT["project"]["entry-points"]["rerail.commands"]))
def test_every_command_loads(command):
    (found,) = entry_points(group="rerail.commands", name=command)
    assert callable(found.load())


def test_the_files_that_the_readme_names_are_there():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", text):
        assert (ROOT / target).exists(), target


def test_every_drill_that_the_changelog_names_exists():
    from rerail.plugins.drill.scenarios import SCENARIOS

    text = " ".join((ROOT / "CHANGELOG.md").read_text(encoding="utf-8").split())
    named = re.search(r"drills on real processes: ([a-z, -]+)\.", text)
    assert named
    assert set(named[1].split(", ")) == set(SCENARIOS)


def test_the_lock_names_no_host():
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert "://" not in text
    assert all(re.fullmatch(r"[a-z0-9._-]+==\S+", line) for line in text.splitlines())


@pytest.mark.parametrize("package", ["typer", "kubernetes", "hera"])
def test_a_package_that_is_not_installed_is_named_with_the_way_to_have_it(package):
    code = f"import sys; sys.modules[{package!r}] = None; from rerail.plugins.cli.entry import main; main()"
    words = ["render"] if package == "hera" else ["rights", "--for", "evict"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert f"this command needs '{package}'" in done.stderr
    assert "pip install 'rerail[all]'" in done.stderr
    assert "Traceback" not in done.stderr
