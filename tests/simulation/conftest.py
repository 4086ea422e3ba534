"""Loads the world as a package, since tests import nothing of each other."""

import importlib.util
import sys
from pathlib import Path

_HERE = Path(__file__).parent / "support"


def _load() -> None:
    if "rerail_simulation" in sys.modules:
        return
    spec = importlib.util.spec_from_file_location(
        "rerail_simulation", _HERE / "__init__.py", submodule_search_locations=[str(_HERE)]
    )
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules["rerail_simulation"] = module
    spec.loader.exec_module(module)


_load()
