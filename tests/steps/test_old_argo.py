"""A step of a template under an Argo that is too old says so before anything is made."""

import pytest


@pytest.fixture
def argo_of(stage, monkeypatch):
    """Resolve beside an executor that says this."""

    def resolve(*lines):
        program = stage.folder / "argoexec"
        program.write_text("\n".join(["#!/bin/sh", '[ "$1" = version ] || exit 9', *lines]))
        program.chmod(0o755)
        return stage.step("resolve", monkeypatch, rerail_argoexec=str(program))

    return resolve


def test_an_argo_that_is_too_old_is_refused_in_the_nodes_words(stage, argo_of):
    assert argo_of("echo argoexec: v3.5.4") == 5
    assert stage.last_words() == (
        "Refused: Argo Workflows v3.5.4 runs this step, and 4.0 or newer is needed (the templates are tried on 4.0.5): "
        "upgrade Argo Workflows"
    )
    assert stage.entry() is None


@pytest.mark.parametrize("says", ["echo argoexec: v4.0.5", "echo argoexec: v0.0.0", "exit 1", "echo nothing"])
def test_whatever_else_it_says_the_run_begins(stage, argo_of, says):
    assert argo_of(says) == 0
    assert stage.output("how") == "fresh"


def test_without_an_executor_the_run_begins(stage, monkeypatch):
    assert stage.step("resolve", monkeypatch, rerail_argoexec=str(stage.folder / "none")) == 0
