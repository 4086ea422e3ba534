"""All drills, in the order in which ``rerail drill all`` runs them."""

from collections.abc import Mapping

from rerail.plugins.drill.device_faults import DEVICE_FAULTS
from rerail.plugins.drill.outside_faults import OUTSIDE_FAULTS
from rerail.plugins.drill.process_faults import PROCESS_FAULTS
from rerail.plugins.drill.scenario import Scenario

_ORDER = (
    "gpu",
    "node",
    "hang",
    "preempt",
    "app-error",
    "app-transient",
    "torn",
    "ecc-double",
    "ecc-contained",
    "ecc-uncontained",
    "oom",
    "driver",
    "partition",
    "store-down",
    "storm",
    "flap",
)

_ALL = {scenario.name: scenario for scenario in (*DEVICE_FAULTS, *PROCESS_FAULTS, *OUTSIDE_FAULTS)}

SCENARIOS: Mapping[str, Scenario] = {name: _ALL[name] for name in _ORDER}
