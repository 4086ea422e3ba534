"""One pod template of one attempt: the user's own, changed only where recovery needs it."""

import math
from typing import Any, Final

from rerail.policies.addresses import shown
from rerail.policies.errors import UsageError
from rerail.policies.workloads.attempt import AttemptGang
from rerail.policies.workloads.exclusion import exclude_nodes
from rerail.policies.workloads.fields import below
from rerail.policies.workloads.mounts import check_mounted
from rerail.policies.workloads.workload import Task, Workload

LAUNCH: Final = "rerail-launch"
INDEX_FIELD: Final = "metadata.annotations['volcano.sh/task-index']"
"""Volcano's job controller writes it when it creates the pod, so that the downward API has it from the start."""

_DEFAULT_GRACE_S: Final = 30
_TERMINATION_LOG: Final = "/dev/termination-log"

REASONS: Final[tuple[tuple[str, str], ...]] = (
    (r"metadata", "names the run, the attempt and its gang, so that all three can be found"),
    (r"spec\.restartPolicy", "a rank that restarts alone cannot join its gang; launch and the next attempt restart it"),
    (r"spec\.terminationGracePeriodSeconds", "SIGTERM to SIGKILL: at least the longest save that was measured"),
    (r"spec\.affinity", "keeps this attempt off nodes that failed; terms are alternatives, so each says it"),
    (r"spec\.dnsPolicy", "with hostNetwork, ranks find each other by name only so"),
    (r"spec\.schedulerName", "only Volcano starts the pods of a gang together"),
    (r"spec\.priorityClassName", "the priority class that was asked for"),
    (r"spec\.containers\[[^]]*\]\.env", "tells launch its place in the run"),
    (r"spec\.containers\[[^]]*\]\.command", "launch starts, watches and ends the ranks"),
)
"""Why a field of a pod template differs: a pattern of its path, and the reason."""


def render_template(
    template: dict[str, Any], workload: Workload, task: Task, gang: AttemptGang, *, index: int | None
) -> None:
    """Make ``template`` the template of one attempt.

    Args:
        template: A copy of the user's; changed in place.
        workload: What it belongs to.
        task: The task that it is of.
        gang: The attempt.
        index: The pod's index within the task; None has the pod read it from Volcano's annotation.

    Raises:
        UsageError: The user sets a variable that recovery must set to something else, or the store would lie inside
            the pod and go with it.
    """
    below(below(template, "metadata"), "labels").update(gang.labels)
    spec = below(template, "spec")
    if gang.priority_class and spec.get("priorityClassName"):
        spec["priorityClassName"] = gang.priority_class
    exclude_nodes(spec, gang)
    if task.ranks_per_pod:
        _hold_ranks(spec, workload, task, gang, index)


def _hold_ranks(spec: dict[str, Any], workload: Workload, task: Task, gang: AttemptGang, index: int | None) -> None:
    """Change what concerns pods with ranks only; those beside them live as the user wants."""
    spec["restartPolicy"] = "Never"
    grace_s = spec.get("terminationGracePeriodSeconds")
    least_s = _DEFAULT_GRACE_S if grace_s is None else grace_s
    spec["terminationGracePeriodSeconds"] = max(least_s, math.ceil(gang.grace_s))
    if spec.get("hostNetwork") and spec.get("dnsPolicy") in (None, "ClusterFirst"):
        spec["dnsPolicy"] = "ClusterFirstWithHostNet"
    where = f"{workload.source}: task {task.name!r}"
    container = spec["containers"][task.container]
    for address in filter(None, (gang.store, gang.control)):
        check_mounted(address, spec, container, workload.document["spec"].get("volumes") or [], where)
    if not launches_itself(container["command"]):
        container["command"] = [LAUNCH, "--", *container["command"]]
    termination_log = container.get("terminationMessagePath") or _TERMINATION_LOG
    _set_variables(container, _variables(workload, task, gang, index, termination_log), where)


def launches_itself(command: list[str]) -> bool:
    """Whether the user's command is launch already."""
    return command[0].rsplit("/", maxsplit=1)[-1] == LAUNCH or (
        command[0].rsplit("/", maxsplit=1)[-1] == "rerail" and command[1:2] == ["launch"]
    )


def _variables(
    workload: Workload, task: Task, gang: AttemptGang, index: int | None, termination_log: str
) -> list[dict[str, Any]]:
    """What launch reads, as environment of a container."""
    own_index = _field("RERAIL_POD_INDEX", INDEX_FIELD) if index is None else _value("RERAIL_POD_INDEX", str(index))
    return [
        _value("RERAIL_RUN", gang.run),
        _value("RERAIL_GANG", gang.gang),
        _value("RERAIL_STORE", gang.store),
        *([_value("RERAIL_CONTROL", gang.control)] if gang.control else []),
        _field("RERAIL_POD", "metadata.name"),
        _field("RERAIL_NODE", "spec.nodeName"),
        own_index,
        _value("RERAIL_FIRST_RANK", str(task.first_rank)),
        _value("RERAIL_LOCAL_RANKS", str(task.ranks_per_pod)),
        _value("WORLD_SIZE", str(workload.world_size)),
        _value("RERAIL_HOLD_S", _seconds(gang.hold_s)),
        _value("RERAIL_POLL_S", _seconds(gang.poll_s)),
        _value("RERAIL_TERMINATION_LOG", termination_log),
    ]


def _set_variables(container: dict[str, Any], variables: list[dict[str, Any]], where: str) -> None:
    own = list(container.get("env") or [])
    by_name = {one["name"]: one for one in own}
    for variable in variables:
        name = variable["name"]
        if name in by_name and by_name[name] != variable:
            raise UsageError(
                f"{where}: env {name} is set to {_said(by_name[name])}, and this attempt needs {_said(variable)}: "
                "remove it from the manifest; recovery sets it for each attempt"
            )
    # First, so that the user's own may refer to them as $(RERAIL_RUN).
    container["env"] = [*(one for one in variables if one["name"] not in by_name), *own]


def _value(name: str, value: str) -> dict[str, Any]:
    return {"name": name, "value": value}


def _field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _said(variable: dict[str, Any]) -> str:
    return shown(repr(variable["value"])) if "value" in variable else str(variable.get("valueFrom", "nothing"))


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}".rstrip("0").rstrip(".")
