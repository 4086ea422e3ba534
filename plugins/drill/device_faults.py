"""Drills whose fault is a device's or a node's: it is fenced, and training goes on elsewhere."""

from functools import partial

from rerail.plugins.drill.scenario import MIDDLE, SAVE_EVERY_STEPS, STEPS, Expectations, Scenario
from rerail.plugins.drill.world import PCI, World
from rerail.plugins.nodes.local import QUARANTINED
from rerail.plugins.report.document import Report
from rerail.policies.errors import RefusedError
from rerail.policies.manifest import Manifest

_FAULTS_OF_A_FLAP = 3
_MINUTE_S = 60.0
_TOUCHED_S = 0.25


def _xid(pci: str, text: str) -> str:
    return f"NVRM: Xid (PCI:{pci}): {text}"


def _lost(pci: str) -> str:
    return _xid(pci, "79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")


def _double_bit(pci: str, pid: int) -> str:
    return _xid(
        pci,
        f"48, pid={pid}, name=python, An uncorrectable double bit error (DBE) has been detected on GPU in the "
        "framebuffer at partition 5, subpartition 1",
    )


def _soon_after(commit: Manifest, node: str) -> float:
    """A fault of the node so close to its part of the commit that this may be touched, however slow the drill is."""
    return max(one.at_s for one in commit.snapshots if one.node == node) + _TOUCHED_S


def _gpu(world: World) -> None:
    commit = world.wait_commit(MIDDLE)
    node, pci, pid = world.place_of(1)
    world.kernel_lines(node, _lost(pci), at_s=_soon_after(commit, node))
    world.kill(pid, note=f"XID 79 on {node}: rank 1 died")


def _check_gpu(report: Report, world: World) -> list[str]:
    expect = Expectations(report, world)
    incident = expect.elsewhere("xid:79", class_="gpu_lost", scope="node")
    if incident is not None:
        expect.that(f"the device is named, not {incident.device!r}", holds=incident.device == PCI[1])
    expect.that("rank 1 was killed", holds=report.attempts[0].exit_codes.get("rank-1") == 128 + 9)
    expect.suspects_skipped()
    expect.certified()
    expect.crossings()
    return expect.told


def _node(world: World) -> None:
    world.wait_commit(MIDDLE)
    node, _, _ = world.place_of(2)
    world.kill_node(node, note=f"node {node} vanished: all its processes were killed at once")


def _check_node(report: Report, world: World) -> list[str]:
    expect = Expectations(report, world)
    expect.elsewhere(class_="node-lost", scope="node")
    newest = max((row.step for row in report.checkpoints if row.attempt == 1), default=None)
    expect.that(f"resumed from the newest commit, {newest}", holds=report.resumed_from_step == newest)
    expect.certified()
    return expect.told


def _ecc_double(world: World) -> None:
    commit = world.wait_commit(MIDDLE)
    node, pci, pid = world.place_of(1)
    at_s = _soon_after(commit, node)
    world.kernel_lines(node, _double_bit(pci, pid), at_s=at_s)
    remapped = f"63, pid={pid}, name=python, Row Remapper: New row (0x000000001a2b3c40) marked for remapping"
    world.kernel_lines(node, _xid(pci, remapped), at_s=at_s)
    world.kill(pid, note=f"XID 48 and 63 on {node}: rank 1 died of a double-bit error")


def _check_ecc_double(report: Report, world: World) -> list[str]:
    expect = Expectations(report, world)
    incident = expect.elsewhere("xid:48", "xid:63", class_="gpu_memory_ecc", scope="device")
    if incident is not None:
        what = (incident.device, incident.action)
        expect.that(f"GPU {PCI[1]} is to be reset, not {what}", holds=what == (PCI[1], "reset_gpu"))
    expect.suspects_skipped()
    expect.certified()
    return expect.told


def _ecc_uncontained(world: World) -> None:
    commit = world.wait_commit(MIDDLE)
    node, pci, pid = world.place_of(1)
    line = f"95, pid={pid}, name=python, Uncontained: LTC TAG (0x2,0x0). RST: Yes, D-RST: No"
    world.kernel_lines(node, _xid(pci, line), at_s=_soon_after(commit, node))
    world.kill(pid, note=f"XID 95 on {node}: the error may have reached anything, and rank 1 died")


def _check_ecc_uncontained(report: Report, world: World) -> list[str]:
    expect = Expectations(report, world)
    expect.elsewhere("xid:95", class_="gpu_memory_ecc", scope="device")
    expect.suspects_skipped()
    expect.certified()
    return expect.told


def _driver(world: World) -> None:
    world.wait_commit(MIDDLE)
    node, _, pid = world.place_of(1)
    texts = [
        f"119, pid={pid}, name=python, Timeout after 6s of waiting for RPC response from GPU{slot} GSP! "
        "Expected function 76 (GSP_RM_CONTROL) (0x20800a4c 0x4)."
        for slot in range(len(PCI))
    ]
    world.kernel_lines(node, *(_xid(pci, text) for pci, text in zip(PCI, texts, strict=True)))
    world.fault(f"the driver of {node} lost the firmware of all its GPUs")


def _check_driver(report: Report, world: World) -> list[str]:
    expect = Expectations(report, world)
    incident = expect.elsewhere("xid:119", class_="gpu_hang_fw", scope="node")
    if incident is not None:
        told = " ".join(incident.evidence)
        expect.that(f"every GPU is named: {told!r}", holds=all(pci in told for pci in PCI))
        expect.that("the ranks still answer, so a save is asked for", holds=incident.save_asked)
    expect.said("saved step")
    expect.that(f"lost_steps 0, not {report.lost_steps}", holds=report.lost_steps == 0)
    expect.certified()
    return expect.told


def _storm(world: World) -> None:
    """One fault, told fourteen times: at once, and again while the run goes on, with stamps minutes apart."""
    commit = world.wait_commit(MIDDLE)
    node, pci, pid = world.place_of(1)
    other = world.place_of(2)[0]
    at_s = _soon_after(commit, node)
    teardown = [_xid(where, "45, pid=4711, name=python, Ch 00000008") for where in PCI]
    world.kernel_lines(node, _lost(pci), *teardown, at_s=at_s, ahead_s=(0, _MINUTE_S, 2 * _MINUTE_S))
    world.kernel_lines(other, *teardown, at_s=at_s, ahead_s=(3 * _MINUTE_S, 4 * _MINUTE_S))
    world.kill(pid, note=f"XID 79 on {node}, the first of fourteen reports")
    world.wait_for("the next attempt to train", lambda: _trains_again(world))
    again = [_lost(pci), *teardown, _lost(pci), *teardown]
    world.kernel_lines(node, *again, ahead_s=[(5 + index) * _MINUTE_S for index in range(len(again))])
    world.kernel_lines(other, *teardown, _xid(PCI[0], "45, pid=4711, name=python, Ch 00000009"))


def _trains_again(world: World) -> bool:
    state = world.newest_state()
    return state is not None and state.attempt > 1 and state.attempts[-1].first_step_at_s is not None


def _check_storm(report: Report, world: World) -> list[str]:
    expect = Expectations(report, world)
    lines = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in world.folders.nodes.glob("*/kern.log"))
    expect.that(f"fourteen reports, not {lines}", holds=lines == 14)  # noqa: PLR2004 (the storm's size)
    found = expect.incidents(1)
    expect.attempts(2)
    expect.that(f"one restart, not {report.restarts}", holds=report.restarts == 1)
    for incident in found:
        expect.that(f"the root is xid:79: {incident.codes}", holds=incident.codes[:1] == ("xid:79",))
        expect.marked(incident)
    fenced = [name for name in world.nodes.names() if world.nodes.read(name).taints]
    expect.that(f"one node is blamed, not {fenced}", holds=len(fenced) == 1)
    expect.suspects_skipped()
    expect.certified()
    return expect.told


def _flap(world: World) -> None:
    """Three faults of one GPU: twice the node is given back to work, the third time nobody but a person may."""
    step = SAVE_EVERY_STEPS
    for number in range(1, _FAULTS_OF_A_FLAP + 1):
        world.wait_commit((number + 1) * step)
        node, pci, pid = world.place_of(1)
        world.kernel_lines(node, _double_bit(pci, pid))
        world.kill_rank(1, note=f"XID 48 on {node}, fault {number} of GPU {pci}")
        world.wait_for(f"{node} to be fenced", partial(_fenced, world, node))
        world.wait_for("the run to wait for room", lambda: _waits(world))
        try:
            world.nodes.release(node)
        except RefusedError as error:
            world.notes.append(f"refused: {error}")
            break
        world.notes.append(f"{node} was reset and released")
    world.nodes.update("node-c", lambda node: node.model_copy(update={"unschedulable": False}))
    world.notes.append("node-c was uncordoned")


def _fenced(world: World, node: str) -> bool:
    return QUARANTINED in world.nodes.read(node).taints


def _waits(world: World) -> bool:
    state = world.newest_state()
    return state is not None and state.phase == "waiting"


def _check_flap(report: Report, world: World) -> list[str]:
    expect = Expectations(report, world)
    found = expect.incidents(_FAULTS_OF_A_FLAP)
    expect.attempts(_FAULTS_OF_A_FLAP + 1)
    actions = [incident.action for incident in found]
    ladder = ["reset_gpu", "reboot_node", "replace_node"]
    expect.that(f"each cure is stronger: {actions}", holds=actions == ladder)
    places = {(incident.node, incident.device) for incident in found}
    expect.that(f"it is one GPU: {places}", holds=len(places) == 1)
    refused = [note for note in world.notes if note.startswith("refused")]
    expect.that("the third release is refused", holds=len(refused) == 1)
    expect.that(f"a person is asked to replace it: {refused}", holds="replace it" in " ".join(refused))
    if found:
        expect.that("the report asks", holds="replace-and-ask" in " ".join(found[-1].evidence))
        expect.marked(found[-1])
        expect.that("a released node is used again", holds=found[0].node in report.attempts[1].nodes)
    expect.that("it goes on elsewhere", holds="node-c" in report.attempts[-1].nodes)
    expect.certified()
    return expect.told


DEVICE_FAULTS = (
    Scenario(
        name="gpu",
        hypothesis="a GPU falls off the bus: training goes on elsewhere, from a commit that it cannot have touched",
        inject=_gpu,
        check=_check_gpu,
    ),
    Scenario(
        name="node",
        hypothesis="a node vanishes without a farewell: training goes on elsewhere from the newest commit",
        inject=_node,
        check=_check_node,
    ),
    Scenario(
        name="ecc-double",
        hypothesis="a double-bit error: the GPU is to be reset, its node is held, and its late commits are passed over",
        inject=_ecc_double,
        check=_check_ecc_double,
    ),
    Scenario(
        name="ecc-uncontained",
        hypothesis="an uncontained memory error may be in any commit after it: those are passed over, and said",
        inject=_ecc_uncontained,
        check=_check_ecc_uncontained,
    ),
    Scenario(
        name="driver",
        hypothesis="the driver loses all GPUs of a node: the ranks still save, lose nothing, and go on elsewhere",
        inject=_driver,
        check=_check_driver,
    ),
    Scenario(
        name="storm",
        hypothesis="fourteen reports of one fault, minutes apart, on two nodes: one recovery, and one node to blame",
        inject=_storm,
        check=_check_storm,
    ),
    Scenario(
        name="flap",
        hypothesis="the third fault of one GPU: it is to be replaced, and only a person gives its node back to work",
        inject=_flap,
        check=_check_flap,
        cordoned=("node-c",),
    ),
)
assert STEPS >= (_FAULTS_OF_A_FLAP + 2) * SAVE_EVERY_STEPS
