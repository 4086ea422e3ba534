"""From pods of the API server to what the supervisor's machine sees of them, with what can no longer be read there."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from rerail.plugins.volcano.facts import pod_facts
from rerail.policies.supervisor.observations import PodView
from rerail.policies.supervisor.platform import DELETED
from rerail.policies.volcano_verdict import PodFacts

Obj = Mapping[str, Any]
Phase = Literal["pending", "running", "succeeded", "failed", "gone"]

HELD_BACK: Final[Mapping[str, float]] = {
    "CreateContainerConfigError": 60.0,
    "CreateContainerError": 60.0,
    "ErrImageNeverPull": 5.0,
    "ErrImagePull": 60.0,
    "ImagePullBackOff": 60.0,
    "InvalidImageName": 5.0,
    "RunContainerError": 60.0,
}
"""Reasons for which a placed container waits, and after how many seconds it counts as one that needs a person."""

_MOST_EXIT_CODE: Final = 255

_PHASES: Final[Mapping[str, Phase]] = {
    "Pending": "pending",
    "Running": "running",
    "Succeeded": "succeeded",
    "Failed": "failed",
}


def farewell_of(pod: Obj) -> dict[str, Any] | None:
    """What launch left in the termination message of one of the pod's containers; None where it left nothing."""
    for status in (pod.get("status") or {}).get("containerStatuses") or []:
        message = ((status.get("state") or {}).get("terminated") or {}).get("message") or ""
        try:
            said = json.loads(message)
        except (ValueError, RecursionError):  # the second: a thousand brackets
            continue
        code = said.get("exit_code") if isinstance(said, dict) else None
        if type(code) is int and 0 <= code <= _MOST_EXIT_CODE:
            return dict(said)
    return None


def held_back(pod: Obj) -> tuple[str, str] | None:
    """Reason and message of a container that cannot begin; None where all can."""
    told = pod.get("status") or {}
    for status in [*(told.get("initContainerStatuses") or []), *(told.get("containerStatuses") or [])]:
        waiting = (status.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in HELD_BACK:
            return str(waiting["reason"]), str(waiting.get("message") or "")
    return None


def is_ghost(facts: PodFacts) -> bool:
    """Whether a pod is to go and lies on a node that does not report: nothing will be heard of it."""
    return facts.overdue_s is not None and facts.node_ready is False


@dataclass(slots=True)
class PodMemory:
    """What was seen of the pods of all gangs, by name. A pod that comes back under its name is another one.

    Attributes:
        node_ready: Whether a node reports; None where nobody tells.
    """

    node_ready: Callable[[str], bool | None] = lambda _node: None
    _seen: dict[str, PodView] = field(default_factory=dict)
    _uids: dict[str, str] = field(default_factory=dict)

    def view(self, pod: Obj, facts: PodFacts) -> PodView:
        """One pod as the machine sees it."""
        uid = str((pod.get("metadata") or {}).get("uid") or "")
        before = self._seen.get(facts.name)
        if before is not None and self._uids.get(facts.name) != uid:
            return self.lost(facts.name)
        said = farewell_of(pod)
        phase: Phase = "gone" if is_ghost(facts) else _PHASES.get(facts.phase, "running")
        stopped = phase in ("succeeded", "failed")
        waiting = held_back(pod)
        leaving = DELETED if facts.overdue_s is not None else ""
        seen = PodView(
            name=facts.name,
            node=facts.node or "",
            phase=phase,
            exit_code=(said["exit_code"] if said else facts.exit_code) if stopped else None,
            farewell=said is not None or not stopped,
            reason=facts.pod_reason or facts.container_reason or (waiting[0] if waiting else ""),
            disrupted=facts.disruption or (before.disrupted if before else "") or leaving,
            node_ready=self.node_ready(facts.node) if facts.node else None,
        )
        self._seen[facts.name], self._uids[facts.name] = seen, uid
        return seen

    def knows(self, name: str) -> bool:
        """Whether this pod was ever seen: where it is not there any more, it is no pod that is still to come."""
        return name in self._seen

    def lost(self, name: str) -> PodView:
        """A pod that ought to be there and is not."""
        before = self._seen.get(name)
        if before is None:
            return PodView(name=name, node="", phase="gone", farewell=False)
        ready = self.node_ready(before.node) if before.node else None
        if before.phase in ("succeeded", "failed"):
            return before
        return before.model_copy(update={"phase": "gone", "farewell": False, "node_ready": ready})


def facts_of(pods: Sequence[Obj], memory: PodMemory, *, now: Any) -> list[PodFacts]:
    """What counts about pods, with the readiness of their nodes."""
    found = []
    for pod in pods:
        facts = pod_facts(pod, now=now)
        found.append(facts.model_copy(update={"node_ready": memory.node_ready(facts.node) if facts.node else None}))
    return found
