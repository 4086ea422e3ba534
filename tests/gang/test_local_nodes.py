import fcntl
import json
import threading

import pytest

from rerail.plugins.gang.ports import Nodes
from rerail.plugins.nodes.local import LocalNodes
from rerail.policies.errors import NotFoundError, TransientError, UsageError

LINE = (
    "2026-11-29T20:00:00.000000+00:00 n1 kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.\n"
)


@pytest.fixture
def nodes(tmp_path):
    made = LocalNodes(tmp_path / "nodes", used=lambda: {"n1": 1})
    made.add("n1", 2)
    made.add("n2", 2)
    return made


def test_views_tell_free_slots_and_why_a_node_is_not_usable(nodes):
    assert isinstance(nodes, Nodes)
    nodes.mark("n2", "run-a1", "xid-79")
    assert [(view.name, view.slots, view.free, view.usable) for view in nodes.views()] == [
        ("n1", 2, 1, True),
        ("n2", 2, 2, False),
    ]
    assert "xid-79" in nodes.views()[1].why
    nodes.update("n1", lambda node: node.model_copy(update={"unschedulable": True}))
    assert nodes.views()[0].why == "unschedulable"


def test_an_incident_marks_a_node_once_and_not_again_after_its_release(nodes):
    nodes.mark("n1", "run-a1", "xid-79")
    nodes.mark("n1", "run-a1", "xid-79")
    nodes.release("n1")
    nodes.mark("n1", "run-a1", "xid-79")
    assert nodes.views()[0].usable
    nodes.mark("n1", "run-a2", "xid-48")
    assert not nodes.views()[0].usable
    assert json.loads(nodes.read("n1").annotations["rerail.dev/incidents"]) == ["run-a1", "run-a2"]


def test_adding_a_node_again_keeps_its_marks(nodes):
    nodes.mark("n1", "run-a1", "xid-79")
    nodes.add("n1", 2)
    assert not nodes.views()[0].usable


def test_changes_at_once_are_all_kept(nodes):
    def mark(number):
        LocalNodes(nodes.folder, clock=lambda: 0.0).mark("n1", f"run-a{number}", "x")  # waits however long

    threads = [threading.Thread(target=mark, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(json.loads(nodes.read("n1").annotations["rerail.dev/incidents"])) == 8


def test_a_lock_that_is_held_is_told_after_a_bounded_time(nodes, tmp_path):
    with (tmp_path / "nodes/n1/lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        ticks = iter(range(100))
        impatient = LocalNodes(nodes.folder, clock=lambda: float(next(ticks)), sleep=lambda _: None)
        with pytest.raises(TransientError, match="lock"):
            impatient.mark("n1", "run-a1", "x")


def test_an_unknown_node_and_a_file_with_a_typo_are_named(nodes, tmp_path):
    with pytest.raises(NotFoundError, match=r"'n9'.*n1, n2"):
        nodes.mark("n9", "run-a1", "x")
    (tmp_path / "nodes/n1/node.json").write_text('{"slot": 2}')
    with pytest.raises(UsageError, match=r"n1/node.json"):
        nodes.views()


def test_every_whole_line_with_a_fault_is_one_signal_with_a_place_that_stays(nodes, tmp_path):
    log = tmp_path / "nodes/n1/kern.log"
    assert nodes.signals() == ()
    log.write_text(LINE + LINE[:30])
    first = nodes.signals()
    assert [(signal.node, signal.codes, signal.devices) for signal in first] == [("n1", ("xid:79",), ("0000:3b:00",))]
    with log.open("a") as file:
        file.write(LINE[30:])
    both = nodes.signals()
    assert both[0] == first[0]
    assert len({signal.raw_ref for signal in both}) == 2
    again = LocalNodes(nodes.folder).signals()
    assert [signal.raw_ref for signal in again] == [signal.raw_ref for signal in both], "a successor reads the same"


def test_a_rotated_log_is_read_from_its_beginning_and_nothing_is_forgotten(nodes, tmp_path):
    log = tmp_path / "nodes/n1/kern.log"
    log.write_text("x" * 10 + "\n" + LINE)
    assert len(nodes.signals()) == 1
    log.rename(log.with_suffix(".1"))
    log.write_text("y" * 400 + "\n" + LINE)
    assert len(nodes.signals()) == 2
