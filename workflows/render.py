"""The library as files: a kustomize base, two overlays and a component, the same to the letter each time.

base/templates/            WorkflowTemplates and the CronWorkflow
base/accounts/             ServiceAccounts, Roles and bindings
base/                      both
components/nodes/          what the accounts may do in the whole cluster: look at nodes and mark them; its bindings are
                           called after the namespace, so that two of them in a cluster do not meet
overlays/namespaced/       base in one namespace; nothing of the cluster
overlays/cluster-wide/     the templates as ClusterWorkflowTemplates, and with accounts/ in it
                           the accounts and the CronWorkflow in one namespace, and components/nodes
"""

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import yaml
from hera.workflows import CronWorkflow, WorkflowTemplate

from rerail.policies.errors import UsageError
from rerail.workflows.library import all_templates
from rerail.workflows.naming import IMAGE
from rerail.workflows.rbac import accounts, cluster_rights

HEADER: Final = "# Rendered by `rerail render`; change workflows/*.py instead.\n"

NAMESPACE: Final = "rerail"
"""Of the overlays as they are released."""

_KUSTOMIZE: Final = "kustomize.config.k8s.io"


def packaged() -> Path:
    """The folder with the files as they were released."""
    return Path(__file__).with_name("manifests")


def documents(objects: Iterable[WorkflowTemplate | CronWorkflow]) -> dict[str, dict[str, Any]]:
    """The objects by name, as plain documents.

    Raises:
        UsageError: Two templates of an object have one name, of which Argo would keep one.
    """
    found = {}
    for one in objects:
        document = one.to_dict()
        name = document["metadata"]["name"]
        refuse_twins(name, document["spec"].get("templates") or document["spec"]["workflowSpec"]["templates"])
        found[name] = document
    return found


def refuse_twins(owner: str, templates: Iterable[Mapping[str, Any]]) -> None:
    """Refuse templates that share a name.

    Raises:
        UsageError: Names them, and the way out.
    """
    seen: set[str] = set()
    for template in templates:
        name = str(template["name"])
        if name in seen:
            raise UsageError(f"{owner} has two templates {name!r}, and Argo would keep one: give one another prefix")
        seen.add(name)


def to_yaml(*contents: Mapping[str, Any]) -> str:
    """Documents as YAML, fields in their order, and never a line broken: Argo's expressions stay whole."""
    return yaml.safe_dump_all(
        contents, sort_keys=False, allow_unicode=True, width=100_000, default_flow_style=False, explicit_start=False
    )


def files(namespace: str = NAMESPACE, image: str = IMAGE) -> dict[str, str]:
    """Every file by its path below the folder.

    Args:
        namespace: Of the overlays.
        image: Of Rerail's own steps, where nobody names another one.
    """
    found = _library(image)
    clustered = [_cluster_wide(one) for one in found.values() if one["kind"] == "WorkflowTemplate"]
    crons = [one for one in found.values() if one["kind"] == "CronWorkflow"]
    written = {f"base/templates/{name}.yaml": to_yaml(one) for name, one in found.items()}
    written |= {
        "base/templates/kustomization.yaml": to_yaml(_kustomization(f"{name}.yaml" for name in found)),
        "base/accounts/accounts.yaml": to_yaml(*accounts()),
        "base/accounts/kustomization.yaml": to_yaml(_kustomization(["accounts.yaml"])),
        "base/kustomization.yaml": to_yaml(_kustomization(["accounts", "templates"])),
        "components/nodes/rights.yaml": to_yaml(*cluster_rights(_suffix(namespace))),
        "components/nodes/kustomization.yaml": to_yaml(_kustomization(["rights.yaml"], kind="Component")),
        "overlays/namespaced/kustomization.yaml": to_yaml(_kustomization(["../../base"], namespace=namespace)),
        "overlays/cluster-wide/templates.yaml": to_yaml(*clustered),
        # Apart, since kustomize would put a namespace on what has none.
        "overlays/cluster-wide/kustomization.yaml": to_yaml(_kustomization(["templates.yaml", "accounts"])),
        "overlays/cluster-wide/accounts/cron.yaml": to_yaml(*crons),
        "overlays/cluster-wide/accounts/kustomization.yaml": to_yaml(
            _kustomization(
                ["../../../base/accounts", "cron.yaml"],
                namespace=namespace,
                components=["../../../components/nodes"],
            )
        ),
    }
    return {path: HEADER + text for path, text in sorted(written.items())}


def flat(namespace: str, image: str = IMAGE) -> str:
    """All objects of one namespace as one stream, for kubectl."""
    return _stream([*accounts(), *_library(image).values()], namespace)


def flat_rights(namespace: str) -> str:
    """What the accounts of a namespace may do in the whole cluster, as one stream."""
    return _stream(cluster_rights(_suffix(namespace)), namespace)


def _stream(objects: Iterable[Mapping[str, Any]], namespace: str) -> str:
    return HEADER + to_yaml(*(_placed(one, namespace) for one in objects))


def _suffix(namespace: str) -> str:
    return "" if namespace == NAMESPACE else f"-{namespace}"


def write(folder: Path, wanted: Mapping[str, str]) -> list[str]:
    """Make a folder hold these files: others of ours that stand there, of another version, stay.

    Returns:
        Paths that changed.
    """
    changed = []
    for path, text in wanted.items():
        place = folder / path
        if not place.is_file() or place.read_text(encoding="utf-8") != text:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text, encoding="utf-8")
            changed.append(path)
    return changed


def drift(folder: Path, wanted: Mapping[str, str]) -> str:
    """How a folder differs from these files, as a unified diff; empty where it does not."""
    stand = {str(path.relative_to(folder)): path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.yaml"))}
    return "".join(
        line
        for path in sorted({*stand, *wanted})
        for line in difflib.unified_diff(
            stand.get(path, "").splitlines(keepends=True),
            wanted.get(path, "").splitlines(keepends=True),
            fromfile=str(folder / path) if path in stand else "/dev/null",
            tofile=f"{path} as rendered" if path in wanted else "/dev/null",
        )
    )


def _kustomization(
    resources: Iterable[str], *, kind: str = "Kustomization", namespace: str = "", components: Iterable[str] = ()
) -> dict[str, Any]:
    version = "v1alpha1" if kind == "Component" else "v1beta1"
    content: dict[str, Any] = {"apiVersion": f"{_KUSTOMIZE}/{version}", "kind": kind}
    if namespace:
        content["namespace"] = namespace
    content["resources"] = list(resources)
    if list(components):
        content["components"] = list(components)
    return content


def _library(image: str) -> dict[str, dict[str, Any]]:
    return {name: _with_image(one, image) for name, one in documents(all_templates()).items()}


def _with_image(part: Any, image: str) -> Any:
    """The same with another image wherever ours is the default."""
    if isinstance(part, dict):
        return {key: _with_image(value, image) for key, value in part.items()}
    if isinstance(part, list):
        return [_with_image(item, image) for item in part]
    return image if part == IMAGE else part


def _placed(document: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    own = {} if document["kind"].startswith("Cluster") else {"namespace": namespace}
    placed = {**document, "metadata": {**document["metadata"], **own}}
    if "subjects" in placed:
        placed["subjects"] = [{**subject, "namespace": namespace} for subject in placed["subjects"]]
    return placed


def _cluster_wide(template: Mapping[str, Any]) -> dict[str, Any]:
    return {**template, "kind": "ClusterWorkflowTemplate"}
