"""Repeat offenders: a fault that comes back on the same device is cured more strongly each time, and never for ever.

The first fault gets what its diagnosis asks for, the second at least a reboot, the third a replacement, about which a
person is asked. Offences are counted per device; a fault that names none is the node's own. A node that was given back
to work is on probation: of repaired nodes a fifth fail again within a day, so a gang takes others first. Pure: the
ledger of a node (its annotations in a cluster, ``node.json`` on one machine) is given.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Literal

from pydantic import Field

from rerail.policies.documents import Value
from rerail.policies.faults import Action, strongest

Cure = Literal["reset", "reboot", "replace-and-ask"]

_AT_LEAST: Final[dict[Cure, Action]] = {"reset": "none", "reboot": "reboot_node", "replace-and-ask": "replace_node"}


class Offence(Value):
    """One incident that fenced a node.

    Attributes:
        incident: Id of the incident; one incident is one offence, however often it is reported.
        device: PCI address or UUID; empty where the fault named none.
        reason: Class of the fault.
        at_s: When the node was fenced, epoch seconds by the node's clock.
    """

    incident: str
    device: str = ""
    reason: str = ""
    at_s: float


class OffenderPolicy(Value):
    """When a fault counts as one that came back.

    Attributes:
        window_s: Offences older than this count no more, seconds.
        reboot_from: From this offence on, the node is rebooted at least.
        replace_from: From this offence on, the device is to be replaced, and the node is not released by a machine.
        probation_s: For this long after its release a node is used last, seconds.
    """

    window_s: float = Field(60 * 86_400.0, gt=0)
    reboot_from: int = Field(2, ge=2)
    replace_from: int = Field(3, ge=2)
    probation_s: float = Field(14 * 86_400.0, ge=0)


def offences(history: Iterable[Offence], device: str, *, now_s: float, policy: OffenderPolicy) -> tuple[Offence, ...]:
    """The offences of ``device`` that count, one per incident, in their order."""
    found: dict[str, Offence] = {}
    for one in history:
        if one.device == device and one.at_s > now_s - policy.window_s:
            found.setdefault(one.incident, one)
    return tuple(found.values())


def cure(
    history: Iterable[Offence], device: str, incident: str, *, now_s: float, policy: OffenderPolicy | None = None
) -> Cure:
    """How strongly the fault that ``incident`` is about has to be cured, whether it stands in the history already.

    Args:
        history: Everything noted about the device's node.
        device: The faulty device.
        incident: The incident at hand.
        now_s: Epoch seconds by the node's clock.
        policy: Window and steps.
    """
    rules = policy or OffenderPolicy()
    before = [one for one in offences(history, device, now_s=now_s, policy=rules) if one.incident != incident]
    number = len(before) + 1
    if number >= rules.replace_from:
        return "replace-and-ask"
    return "reboot" if number >= rules.reboot_from else "reset"


def escalated(action: Action, step: Cure) -> Action:
    """What is done: the diagnosis's own action, or the step's where that is stronger."""
    return strongest((action, _AT_LEAST[step]))


def why_not_released(history: Sequence[Offence], *, now_s: float, policy: OffenderPolicy | None = None) -> str:
    """Why a node must not be released without a person's word; empty where it may."""
    rules = policy or OffenderPolicy()
    for device in dict.fromkeys(one.device for one in history):
        found = offences(history, device, now_s=now_s, policy=rules)
        if len(found) >= rules.replace_from:
            what = f"GPU {device}" if device else "the node itself"
            incidents = ", ".join(one.incident for one in found)
            return (
                f"{len(found)} faults of {what} within {rules.window_s / 86_400:g} days ({incidents}): replace it, "
                "then release the node in a person's name"
            )
    return ""


def last_trouble_s(
    history: Iterable[Offence], released_at_s: float | None, *, now_s: float, policy: OffenderPolicy | None = None
) -> float | None:
    """When a node last gave trouble that still counts: an offence within the window, or a release on probation.

    Args:
        history: Everything noted about the node, whatever the device.
        released_at_s: When it was last given back to work, epoch seconds; None if never.
        now_s: Epoch seconds by the node's clock.
        policy: Window and probation.

    Returns:
        Epoch seconds, the newest of them; None where nothing speaks against the node.
    """
    rules = policy or OffenderPolicy()
    times = [one.at_s for one in history if one.at_s > now_s - rules.window_s]
    if released_at_s is not None and released_at_s > now_s - rules.probation_s:
        times.append(released_at_s)
    return max(times, default=None)
