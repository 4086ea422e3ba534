"""The README of the templates tells all of them, and nothing that is not there."""

import re
from pathlib import Path

import pytest
from argo_documents import spec_of

import rerail.workflows
from rerail.plugins.steps.inputs import MOST_ATTEMPTS
from rerail.workflows.rbac import DUTIES

FILE = Path(rerail.workflows.__file__).with_name("README.md")
TEXT = FILE.read_text(encoding="utf-8")


def test_each_template_is_told_with_its_account(library):
    rows = dict(re.findall(r"^\| `(rerail-[a-z-]+)` \|.*\| (rerail-[a-z-]+) \|$", TEXT, re.MULTILINE))
    assert rows == {
        re.sub(r"-v\d+-\d+$", "", name): spec_of(document)["serviceAccountName"] for name, document in library.items()
    }


def test_accounts_and_bounds_that_it_tells_are_so():
    assert set(re.findall(r"`(rerail-(?:launcher|runner|reader))`", TEXT)) <= set(DUTIES)
    assert f"At most {MOST_ATTEMPTS} attempts" in " ".join(TEXT.split())


@pytest.mark.parametrize("target", re.findall(r"\]\(([^)]+)\)", TEXT))
def test_what_it_links_to_is_there(target):
    assert (FILE.parent / target).exists()
