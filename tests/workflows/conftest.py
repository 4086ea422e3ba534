"""The rendered library, Argo's own resource definitions, and everything that holds templates.

library        every object of the library by name, as plain documents
templates      each (object, template) of it
definitions    factory: definitions("WorkflowTemplate") -> the openAPI schema of a kind
"""

import json
import os
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent / "support"))

from argo_documents import spec_of  # noqa: E402  # from the folder above

from rerail.workflows.library import all_templates  # noqa: E402
from rerail.workflows.render import documents  # noqa: E402

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rerail" / "cluster"


@pytest.fixture(scope="session")
def library():
    return documents(all_templates())


@pytest.fixture(scope="session")
def templates(library):
    return [(name, template) for name, one in library.items() for template in spec_of(one)["templates"]]


def folder_of_definitions():
    """Where Argo's full definitions are: as told, as the test cluster keeps them, or in CI downloaded now."""
    named = os.environ.get("RERAIL_ARGO_CRDS")
    if named:
        return Path(named)
    kept = sorted(CACHE.glob("argo-definitions@*"))
    if kept:
        return kept[-1]
    if os.environ.get("CI") == "true":
        sys.path.insert(0, str(ROOT / "tests" / "cluster"))
        from rig.argo_builds import definitions

        return definitions()
    return None


@pytest.fixture(scope="session")
def definitions():
    folder = folder_of_definitions()
    if folder is None:
        pytest.skip(
            "Argo's full resource definitions are not here: `make cluster-up` or CI=true brings them, or "
            "RERAIL_ARGO_CRDS names a folder with argoproj.io_workflowtemplates.yaml"
        )
    known = {}

    def schema(kind):
        if kind not in known:
            known[kind] = read(folder, f"argoproj.io_{kind.lower()}s")
        return known[kind]

    return schema


def read(folder, name):
    quick = folder / f"{name}.json"
    if quick.is_file():
        document = json.loads(quick.read_text())
    else:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        document = yaml.load((folder / f"{name}.yaml").read_text(), loader)
    return document["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
