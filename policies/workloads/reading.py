"""Reading the user's manifest: a vcjob of their own, or a ``rerail.dev/v1alpha1`` Run."""

from collections.abc import Hashable
from typing import Any, Final

import yaml

from rerail.policies.errors import UsageError
from rerail.policies.workloads.fields import Field, plain_copy
from rerail.policies.workloads.run_manifest import RUN_KIND, RunManifest, to_vcjob
from rerail.policies.workloads.vcjob_reading import read_vcjob
from rerail.policies.workloads.workload import Workload
from rerail.policies.yaml_text import read_yaml

_FORMS: Final = "a vcjob (apiVersion: batch.volcano.sh/v1alpha1, kind: Job) or a Run (apiVersion: rerail.dev/v1alpha1)"


class _ManifestLoader(yaml.SafeLoader):
    """YAML as Kubernetes reads it: text that looks like a date stays text, and no key may stand twice."""

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own name and form
        first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _value in node.value:
            if key.value in seen and key.value != "<<":
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {key.value!r} stands twice", key.start_mark
                )
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def parse_manifest(text: str, source: str) -> list[object]:
    """The documents of a YAML (or JSON) manifest, without empty ones.

    Raises:
        UsageError: It is no YAML, or a key stands twice.
    """
    return [one for one in read_yaml(text, source, _ManifestLoader) if one is not None]


def read_workload(document: object, source: str, *, run: str | None = None) -> Workload:
    """Read and check the one workload of a manifest.

    Args:
        document: The manifest's document, or the list of its documents.
        source: File it came from, for messages.
        run: Name of the run; None takes the workload's own.

    Raises:
        UsageError: There is not exactly one workload, or it cannot run as a gang; names the field, the value and the
            way out.
    """
    documents = document if isinstance(document, list) else [document]
    contents = [plain_copy(one, source) for one in documents]
    workloads = [one for one in contents if _is_run(one) or _is_vcjob(one)]
    workloads = workloads or [one for one in contents if one.get("kind") == "Job"]  # the complaint says what is wrong
    others = tuple(f"{one.get('kind')}/{_name(one, source)}" for one in contents if one not in workloads)
    if not workloads:
        raise UsageError(f"{source} holds no workload{_found(others)}: write {_FORMS}")
    if len(workloads) > 1:
        names = ", ".join(f"{one['kind']}/{_name(one, source)}" for one in workloads)
        raise UsageError(
            f"{source} holds {len(workloads)} workloads ({names}): a run is one of them; give each its file"
        )
    (content,) = workloads
    if _is_run(content):
        manifest = RunManifest.from_document(content, source)
        workload = read_vcjob(to_vcjob(manifest), source, run=run)
        said = {"store": manifest.spec.store, "control": manifest.spec.control, "policy": manifest.spec.policy}
        workload = workload.model_copy(update={key: value for key, value in said.items() if value})
    else:
        workload = read_vcjob(content, source, run=run)
    return workload.model_copy(update={"beside": others})


def _is_run(document: dict[str, Any]) -> bool:
    return document.get("kind") == RUN_KIND and str(document.get("apiVersion")).startswith("rerail.dev/")


def _is_vcjob(document: dict[str, Any]) -> bool:
    return document.get("kind") == "Job" and str(document.get("apiVersion")).startswith("batch.volcano.sh/")


def _name(document: dict[str, Any], source: str) -> str:
    return Field(source, "", document).at("metadata").at("name").text("?")


def _found(others: tuple[str, ...]) -> str:
    return f", but {', '.join(others)}" if others else ""
