"""The Workflow that a step belongs to, as an object of the API server: read, annotated, and told by Events."""

import gzip
import hashlib
import json
from base64 import b64decode
from collections.abc import Iterator
from typing import Any, Final

from rerail.plugins.kube.api import KubeApi
from rerail.plugins.kube.events import About, write_event
from rerail.plugins.kube.resources import ResourceType
from rerail.policies.errors import NotFoundError, NotInstalledError
from rerail.policies.handover import LastRun
from rerail.policies.owners import WorkflowRef
from rerail.policies.reaping import WorkflowView

WORKFLOWS: Final = ResourceType("argoproj.io", "v1alpha1", "workflows", "Workflow", product="Argo Workflows")
REASON: Final = "rerail.dev/reason"
"""Annotation: why a run of the Workflow was given up, as ``run NAME: WORDS``."""

RUN: Final = "rerail.dev/run"
"""Annotation: the name of the Workflow's run, where nobody gave one."""

_STEPS: Final = ("run", "open")
"""Endings of the names of the templates that drive a gang, or open one."""

_RUN_PARAMETER: Final = "run"

Obj = dict[str, Any]


def read_workflow(api: KubeApi, workflow: WorkflowRef) -> WorkflowView:
    """The Workflow as it is; another one of its name is not it.

    Raises:
        NotInstalledError: The cluster does not know Workflows at all, so nothing can be said of one.
        ForbiddenError: Names the right that is missing.
        TransientError: The API server does not answer.
    """
    found = _read(api, workflow)
    if found is None:
        return WorkflowView(found=False)
    metadata, spec, status = found["metadata"], found.get("spec") or {}, found.get("status") or {}
    annotations = metadata.get("annotations") or {}
    return WorkflowView(
        found=True,
        phase=str(status.get("phase") or ""),
        shutdown=str(spec.get("shutdown") or ""),
        deleting=bool(metadata.get("deletionTimestamp")),
        reason=str(annotations.get(REASON) or ""),
        run=str(annotations.get(RUN) or ""),
    )


def _read(api: KubeApi, workflow: WorkflowRef) -> Obj | None:
    try:
        found = api.get(WORKFLOWS, workflow.name, namespace=workflow.namespace)
    except NotInstalledError:
        raise
    except NotFoundError:
        return None
    return found if found["metadata"].get("uid") == workflow.uid else None


def last_run(api: KubeApi, workflow: WorkflowRef, run: str) -> LastRun | None:
    """How the newest step that drove ``run`` ended, if it did not succeed; None where the Workflow does not show it.

    Raises:
        As ``read_workflow``.
    """
    found = _read(api, workflow)
    nodes = list(_nodes((found or {}).get("status") or {}))
    steps = [node for node in nodes if _is_step(node, run) and node.get("phase") in ("Failed", "Error")]
    if not steps:
        return None
    newest = max(steps, key=lambda node: str(node.get("finishedAt") or ""))
    code = (newest.get("outputs") or {}).get("exitCode")
    return LastRun(exit_code=str(code or ""), message=str(newest.get("message") or ""))


def nodes_of_workflow(api: KubeApi, workflow: WorkflowRef) -> dict[str, Obj]:
    """The Workflow's nodes by their id; none where it is gone, or keeps them in a database.

    Raises:
        As ``read_workflow``.
    """
    found = _read(api, workflow)
    return {str(node["id"]): node for node in _nodes((found or {}).get("status") or {})}


def _nodes(status: Obj) -> Iterator[Obj]:
    """The Workflow's nodes; a large one holds them compressed. One that keeps them in a database shows none."""
    packed = status.get("compressedNodes")
    nodes = json.loads(gzip.decompress(b64decode(packed))) if packed else status.get("nodes") or {}
    yield from nodes.values()


def _is_step(node: Obj, run: str) -> bool:
    template = node.get("templateName") or (node.get("templateRef") or {}).get("template") or ""
    given = {one.get("name"): one.get("value") for one in (node.get("inputs") or {}).get("parameters") or []}
    return node.get("type") == "Pod" and str(template).endswith(_STEPS) and given.get(_RUN_PARAMETER) in (run, "")


def annotate(api: KubeApi, workflow: WorkflowRef, **annotations: str | None) -> None:
    """Set annotations ``rerail.dev/KEY`` of exactly this Workflow; None takes one away.

    Raises:
        NotFoundError: It is gone.
        ConflictError: Another one has its name.
    """
    named = {f"rerail.dev/{key}": value for key, value in annotations.items()}
    patch = {"metadata": {"uid": workflow.uid, "annotations": named}}
    api.patch(WORKFLOWS, workflow.name, patch, namespace=workflow.namespace, repeatable=True)


def tell(api: KubeApi, workflow: WorkflowRef, reason: str, words: str, *, at_s: float) -> None:
    """Record a Warning on the Workflow, once for the same words.

    Raises:
        RerailError: It cannot be written.
    """
    digest = hashlib.sha256(f"{workflow.uid} {reason} {words}".encode()).hexdigest()[:16]
    write_event(
        api,
        About(WORKFLOWS, workflow.name, workflow.namespace, workflow.uid),
        name=f"{workflow.name[:200]}.{digest}",
        reason=reason,
        text=words,
        warning=True,
        component="rerail-step",
        at_s=at_s,
    )
