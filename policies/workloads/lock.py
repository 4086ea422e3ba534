"""The preemption lock: a gang that Volcano may not take before Rerail lets it.

Volcano reads ``volcano.sh/preemptable`` on each pod (every action), and on the PodGroup as well (``gangpreempt`` and
``gangreclaim``); an annotation goes before a label. Its job controller copies the job's annotation onto both.
"""

from typing import Any, Final

from rerail.policies.workloads.fields import Field, below

LOCK_ANNOTATION: Final = "rerail.dev/preemption-lock"
"""On the user's job, and so on its PodGroup: ``"true"`` asks for the lock, and names what Rerail may open."""

PREEMPTABLE: Final = "volcano.sh/preemptable"
LOCKED: Final = "false"
OPEN: Final = "true"


def check_lock(job: Field) -> None:
    """Refuse a lock that would not be the only word about it.

    Raises:
        UsageError: The annotation is no yes or no, or the manifest sets Volcano's own key beside it.
    """
    metadata = job.at("metadata")
    asked = metadata.at("annotations").at(LOCK_ANNOTATION)
    if asked.value is None:
        return
    if asked.text() not in ("true", "false"):
        raise asked.error("write 'true' or 'false', in quotes")
    if asked.text() == "false":
        return
    templates = [task.at("template").at("metadata") for task in job.at("spec").at("tasks").each()]
    for place in (metadata, *templates):
        for kind in ("annotations", "labels"):
            own = place.at(kind).at(PREEMPTABLE)
            if own.value is not None:
                raise own.error(f"{LOCK_ANNOTATION} sets it, and opens it when somebody starves: leave it out")


def is_locked(job: dict[str, Any]) -> bool:
    """Whether the user's job asks for the lock."""
    annotations = (job.get("metadata") or {}).get("annotations") or {}
    return bool(annotations.get(LOCK_ANNOTATION) == "true")


def lock(job: dict[str, Any]) -> None:
    """Close the lock of a job that asks for it; every new gang begins so."""
    if is_locked(job):
        below(job["metadata"], "annotations")[PREEMPTABLE] = LOCKED
