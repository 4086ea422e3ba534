"""The Containerfile, which only a machine with a registry can build, says what the tests' image holds, and is sound."""

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tests/cluster"))

from rig import images

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "Containerfile").read_text(encoding="utf-8")
LAST_STAGE = TEXT.rpartition("\nFROM ")[2]


def instructions(word):
    joined = TEXT.replace("\\\n", " ")
    return [line.removeprefix(f"{word} ") for line in joined.splitlines() if line.startswith(f"{word} ")]


def test_it_stands_on_the_system_and_the_python_of_the_tests():
    assert instructions("ARG") == [f"BASE=python:{images.PYTHON}-slim-{images.SUITE}"]


def test_no_registry_is_named():
    assert instructions("FROM") == ["${BASE} AS build", "${BASE}"]
    assert "." not in instructions("ARG")[0].removeprefix("BASE=").partition(":")[0]


def test_it_installs_the_extra_of_the_tests_by_the_constraints_of_the_tests():
    (build,) = (line for line in instructions("RUN") if "pip wheel" in line)
    installs = [part for line in instructions("RUN") for part in line.split("&&") if " install " in part]

    assert re.findall(r"\[(\w+)\]", build) == [images.EXTRA]
    assert len(installs) == 2
    assert all("-c constraints.txt" in install for install in installs)
    assert re.findall(r"site-packages/(\S+)", build) == list(images.UNUSED_MODULES)


def test_nothing_of_the_build_is_left_to_chance():
    assert all("--no-build-isolation" in part for part in instructions("RUN") if "pip wheel" in part)
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    assert int(pinned["setuptools"].split(".")[0]) >= images.SETUPTOOLS


def test_it_copies_all_that_the_tests_copy():
    copied = {word for line in instructions("COPY") for word in line.split()[:-1] if not word.startswith("-")}

    assert copied - {"/opt/rerail"} == {"constraints.txt", *images.FILES, *images.ROOMS}


def test_it_runs_as_nobody_and_writes_nowhere():
    assert re.search(r"^USER (\d+):(\d+)$", LAST_STAGE, re.MULTILINE)
    assert "USER 0" not in LAST_STAGE
    assert "PYTHONDONTWRITEBYTECODE=1" in LAST_STAGE
    assert 'ENTRYPOINT ["rerail"]' in LAST_STAGE
    assert "RUN" not in LAST_STAGE


@pytest.mark.parametrize("library", ["pydantic", "boto3", "numpy", "typer", "kubernetes", "hera[yaml]", "PyYAML"])
def test_the_image_holds_what_ranks_and_steps_need(library):
    assert library in {re.split(r"[<>=!]", line)[0] for line in images.requirements()}
