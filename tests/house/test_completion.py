"""Completion in a shell: commands and options are offered, and one command's options load that command alone."""

import os
import subprocess
import sys

import pytest

SAYS_WHAT_IT_LOADED = """
import sys
from rerail.plugins.cli.main import main
try:
    main([])
finally:
    sys.stderr.write(" ".join(sorted(name for name in sys.modules if name.startswith("rerail.plugins.cli."))))
"""


def complete(**environ: str) -> tuple[list[str], str]:
    done = subprocess.run(
        [sys.executable, "-c", SAYS_WHAT_IT_LOADED],
        env=os.environ | environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return done.stdout.split(), done.stderr


def test_bash_completes_commands():
    offered, _ = complete(_RERAIL_COMPLETE="complete_bash", COMP_WORDS="rerail re", COMP_CWORD="1")
    assert {"render", "report", "resume"} <= set(offered)
    assert all(one.startswith("re") for one in offered)


@pytest.mark.parametrize(
    "environ",
    [
        {"_RERAIL_COMPLETE": "complete_bash", "COMP_WORDS": "rerail status --st", "COMP_CWORD": "2"},
        {"_RERAIL_COMPLETE": "complete_zsh", "_TYPER_COMPLETE_ARGS": "rerail status --st"},
        {"_RERAIL_COMPLETE": "complete_fish", "_TYPER_COMPLETE_ARGS": "rerail status --st"}
        | {"_TYPER_COMPLETE_FISH_ACTION": "get-args"},
    ],
    ids=["bash", "zsh", "fish"],
)
def test_options_of_a_command_are_offered_and_no_other_command_is_loaded(environ):
    offered, loaded = complete(**environ)
    assert any("--store" in one for one in offered), offered
    assert "rerail.plugins.cli.status" in loaded
    assert "rerail.plugins.cli.serve" not in loaded


def test_the_script_for_a_shell_is_shown():
    done = subprocess.run(
        [sys.executable, "-m", "rerail.plugins.cli.main", "--show-completion", "bash"],
        env=os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "complete -o default -F" in done.stdout, done.stderr
