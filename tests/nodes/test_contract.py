"""What every implementation of ``Nodes`` keeps: folders of one machine, and nodes of a cluster."""

import threading

import pytest

from rerail.plugins.gang.ports import Nodes
from rerail.policies.errors import NotFoundError, RefusedError

DEVICE = "0000:3b:00"


def view(world, name):
    return next(one for one in world.nodes.views() if one.name == name)


def test_views_tell_slots_free_slots_and_why_a_node_is_not_usable(world, until):
    first, second = world.names
    assert isinstance(world.nodes, Nodes)
    assert [(one.name, one.slots, one.free, one.usable, one.why) for one in world.nodes.views()] == [
        (first, 2, 2, True, ""),
        (second, 2, 2, True, ""),
    ]
    world.use(first)
    world.cordon(first)
    world.nodes.mark(second, "run-a1", "xid-79")
    until(lambda: view(world, first).free == 1)
    until(lambda: view(world, first).why == "unschedulable")
    assert not view(world, first).usable
    until(lambda: not view(world, second).usable)
    assert view(world, second).why == "rerail.dev/quarantined: xid-79"
    assert view(world, second).slots == 2


def test_an_incident_marks_a_node_once_and_not_again_after_its_release(world, until):
    name = world.names[0]
    world.nodes.mark(name, "run-a1", "gpu_lost")
    world.nodes.mark(name, "run-a1", "gpu_lost")
    world.nodes.release(name)
    world.nodes.mark(name, "run-a1", "gpu_lost")
    until(lambda: view(world, name).usable)
    world.nodes.mark(name, "run-a2", "gpu_lost")
    until(lambda: not view(world, name).usable)
    assert world.noted(name) == ["run-a1", "run-a2"]


def test_a_view_tells_what_happened_and_when_it_was_released(world, until):
    name, at_s = world.names[0], world.hour.at_s
    assert view(world, name).released_at_s is None
    world.nodes.mark(name, "run-a1", "gpu_lost", device=DEVICE)
    world.hour.at_s += 60.5
    world.nodes.release(name)
    until(lambda: view(world, name).released_at_s == at_s + 60.5)
    assert [(one.incident, one.device, one.reason, one.at_s) for one in view(world, name).offences] == [
        ("run-a1", DEVICE, "gpu_lost", at_s)
    ]


def test_the_third_fault_of_a_device_needs_a_person(world, until):
    name = world.names[0]
    for number in (1, 2):
        world.nodes.mark(name, f"run-a{number}", "gpu_memory_ecc", device=DEVICE)
        world.nodes.release(name)
    world.nodes.mark(name, "run-a3", "gpu_memory_ecc", device=DEVICE)
    with pytest.raises(RefusedError, match=rf"node '{name}' is not released: 3 faults of GPU {DEVICE}.*replace it"):
        world.nodes.release(name)
    assert not view(world, name).usable
    world.nodes.release(name, by="ada")
    until(lambda: view(world, name).usable)


def test_an_unknown_node_is_named_with_those_that_are_known(world):
    for ask in (lambda: world.nodes.mark("n9", "run-a1", "x"), lambda: world.nodes.release("n9")):
        with pytest.raises(NotFoundError, match=r"'n9'.*known: .*" + world.names[0]):
            ask()


def test_a_fault_is_one_signal_that_keeps_its_identity_for_every_reader(world, until):
    name = world.names[0]
    assert world.nodes.signals() == ()
    world.fault(name)
    (told,) = until(world.nodes.signals)
    assert (told.node, told.codes, told.cleared) == (name, ("xid:79",), False)
    assert told.raw_ref
    assert world.nodes.signals() == (told,)
    assert [one.raw_ref for one in until(world.again().signals)] == [told.raw_ref]


def test_marks_at_once_are_all_kept_whoever_releases_meanwhile(world):
    """Two supervisors mark, a third party releases, again and again; no note is lost and none is doubled."""
    name = world.names[0]
    wrong: list[BaseException] = []
    gate = threading.Barrier(3)

    def mark(letter):
        nodes = world.again()
        gate.wait()
        for number in range(4):
            nodes.mark(name, f"{letter}-a{number}", "gpu_lost", device=f"{letter}{number}")

    def release():
        nodes = world.again()
        gate.wait()
        for _ in range(4):
            nodes.release(name)

    def caught(work, *given):
        try:
            work(*given)
        except BaseException as error:  # noqa: BLE001 -- shown by the test
            wrong.append(error)

    threads = [threading.Thread(target=caught, args=args) for args in ((mark, "r"), (mark, "s"), (release,))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert sorted(world.noted(name)) == sorted(f"{letter}-a{number}" for letter in "rs" for number in range(4))
    world.nodes.mark(name, "t-a1", "gpu_lost")
    world.nodes.release(name)
    world.nodes.mark(name, "t-a2", "gpu_lost")
    again = next(one for one in world.again().views() if one.name == name)
    assert not again.usable
    assert len(again.offences) == 10
    assert again.released_at_s is not None
