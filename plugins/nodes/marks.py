"""How a node of a cluster is marked: the patch that taints it and notes an incident, and what the notes say. Pure.

taint       rerail.dev/quarantined=<reason>:NoSchedule     keeps new work off; never NoExecute, what runs may save
annotation  rerail.dev/incident      the incident that fenced the node; gone once it is released
            rerail.dev/incidents     every offence, oldest first, as JSON
            rerail.dev/released-at   when the quarantine was last taken off
            rerail.dev/released-by   in whose name, where a person's word was needed
"""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from rerail.plugins.kube.api import Obj
from rerail.plugins.nodes.local import INCIDENT, INCIDENTS, QUARANTINED
from rerail.policies.offenders import Offence

RELEASED_AT: Final = "rerail.dev/released-at"
RELEASED_BY: Final = "rerail.dev/released-by"

MOST_OFFENCES: Final = 32
"""Offences kept on a node; the oldest goes first. A third one of a device already needs a person, and 32 take about
8 KiB of the 256 KiB that a node's annotations may have, in an object that every scheduler and kubelet watches."""

_LONGEST_VALUE: Final = 63
_LONGEST_WORD: Final = 128
_OFFENCES: Final = TypeAdapter(tuple[Offence, ...])


def annotations(node: Mapping[str, Any]) -> dict[str, str]:
    """A node's annotations."""
    return dict((node.get("metadata") or {}).get("annotations") or {})


def taints(node: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A node's taints."""
    return list((node.get("spec") or {}).get("taints") or [])


def offences_of(node: Mapping[str, Any]) -> tuple[Offence, ...] | None:
    """The offences noted on a node; None where the note cannot be read."""
    try:
        return _OFFENCES.validate_json(annotations(node).get(INCIDENTS, "[]"))
    except ValidationError:
        return None


def released_at_s(node: Mapping[str, Any]) -> float | None:
    """When the quarantine was last taken off, epoch seconds; None where it never was, or nobody can read when."""
    try:
        return datetime.fromisoformat(annotations(node)[RELEASED_AT]).timestamp()
    except (KeyError, ValueError):
        return None


def marked(node: Mapping[str, Any], offence: Offence) -> Obj | None:
    """The patch that fences a node for an incident; None where the incident is noted already.

    A note that cannot be read does not keep a sick node in use: it is replaced.
    """
    known = offences_of(node) or ()
    if offence.incident in {one.incident for one in known}:
        return None
    short = offence.model_copy(
        update={"reason": offence.reason[:_LONGEST_WORD], "device": offence.device[:_LONGEST_WORD]}
    )
    kept = (*known, short)[-MOST_OFFENCES:]
    others = [one for one in taints(node) if one.get("key") != QUARANTINED]
    ours = {"key": QUARANTINED, "value": label_value(offence.reason), "effect": "NoSchedule"}
    notes = {INCIDENT: offence.incident, INCIDENTS: _written(kept)}
    return _patch(node, [*others, ours], notes)


def released(node: Mapping[str, Any], *, at_s: float, by: str = "") -> Obj:
    """The patch that takes the quarantine off; what happened stays noted."""
    when = datetime.fromtimestamp(at_s, tz=UTC).isoformat(timespec="milliseconds")
    notes = {INCIDENT: None, RELEASED_AT: when, RELEASED_BY: by or None}
    return _patch(node, [one for one in taints(node) if one.get("key") != QUARANTINED], notes)


def label_value(text: str) -> str:
    """Text as the value of a label or taint: letters, digits, ``-``, ``_`` and ``.``, at most 63 of them."""
    clean = re.sub(r"[^A-Za-z0-9._-]+", "-", text)[:_LONGEST_VALUE]
    return clean.strip("._-")


def _written(offences: tuple[Offence, ...]) -> str:
    return json.dumps([one.model_dump(mode="json") for one in offences], separators=(",", ":"), ensure_ascii=False)


def _patch(node: Mapping[str, Any], new_taints: list[dict[str, Any]], notes: Mapping[str, str | None]) -> Obj:
    """Taint and notes in one, for the state of the node that was read and for no other."""
    metadata: Obj = {"resourceVersion": (node.get("metadata") or {}).get("resourceVersion"), "annotations": dict(notes)}
    return {"metadata": metadata, "spec": {"taints": new_taints}}
