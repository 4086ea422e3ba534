"""A local node remembers its devices' faults, and is not given back to work for ever."""

import pytest

from rerail.plugins.nodes.local import LocalNodes
from rerail.policies.errors import RefusedError

GPU = "0000:3b:00"


@pytest.fixture
def nodes(tmp_path):
    made = LocalNodes(tmp_path / "nodes", wall_s=lambda: 1000.0)
    made.add("n1", 2)
    return made


def test_the_third_fault_of_a_device_needs_a_person(nodes):
    for number in (1, 2):
        nodes.mark("n1", f"run-a{number}", "gpu_memory_ecc", device=GPU)
        nodes.release("n1")
    nodes.mark("n1", "run-a3", "gpu_memory_ecc", device=GPU)
    with pytest.raises(RefusedError, match=r"node 'n1' is not released: 3 faults of GPU 0000:3b:00.*replace it"):
        nodes.release("n1")
    assert not nodes.views()[0].usable
    nodes.release("n1", by="ada")
    assert nodes.views()[0].usable


def test_a_view_tells_what_happened_and_when_it_was_released(nodes):
    assert nodes.views()[0].released_at_s is None
    nodes.mark("n1", "run-a1", "gpu_lost", device=GPU)
    nodes.mark("n1", "run-a1", "gpu_lost", device=GPU)
    nodes.release("n1")
    view = nodes.views()[0]
    assert [(one.incident, one.device, one.reason, one.at_s) for one in view.offences] == [
        ("run-a1", GPU, "gpu_lost", 1000.0)
    ]
    assert view.released_at_s == 1000.0
