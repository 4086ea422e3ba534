"""A Workflow of a library template: its parameters checked as its steps will, its object, and waiting for its end."""

import difflib
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from rerail.plugins.checkpoint.open import check_address
from rerail.plugins.kube.api import KubeApi
from rerail.plugins.kube.resources import ResourceType
from rerail.plugins.steps.inputs import Inputs
from rerail.plugins.steps.simple import check_image
from rerail.plugins.steps.workflow import REASON, WORKFLOWS
from rerail.policies.documents import Value
from rerail.policies.errors import NotFoundError, NotInstalledError, TransientError, UsageError
from rerail.policies.reaping import FINAL

Obj = dict[str, Any]

TEMPLATES: Final = ResourceType(
    "argoproj.io", "v1alpha1", "workflowtemplates", "WorkflowTemplate", product="Argo Workflows"
)
SUCCEEDED: Final = "Succeeded"
FAMILY: Final = "rerail-"

_VERSION: Final = re.compile(r"-v\d+-\d+$")
_LOOK_EVERY_S: Final = 2.0
_UNKNOWN_NAME: Final = "a-workflow"


class Known(Value):
    """A parameter that a template has.

    Attributes:
        needed: It has no value of its own.
        choices: It takes these only; empty: any.
    """

    name: str
    needed: bool = False
    choices: tuple[str, ...] = ()


def known_of(template: Mapping[str, Any]) -> tuple[Known, ...]:
    """The parameters of a WorkflowTemplate as the cluster has it."""
    arguments = (template.get("spec") or {}).get("arguments") or {}
    return tuple(
        Known(
            name=str(one["name"]),
            needed="value" not in one and "default" not in one and "valueFrom" not in one,
            choices=tuple(map(str, one.get("enum") or [])),
        )
        for one in arguments.get("parameters") or []
    )


def check_parameters(known: Sequence[Known], given: Mapping[str, str], where: str) -> None:
    """Refuse parameters that a template does not have, or has not got.

    Raises:
        UsageError: Names the parameter, the value and the nearest known name or the choices.
    """
    by_name = {one.name: one for one in known}
    for name, value in given.items():
        if name not in by_name:
            near = difflib.get_close_matches(name, list(by_name), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has: {', '.join(by_name)}"
            raise UsageError(f"{where} has no parameter {name!r}; {hint}")
        if "{{" in value:
            raise UsageError(f"parameter {name} holds '{{{{', which Argo reads as a tag of its own: write it otherwise")
        if by_name[name].choices and value not in by_name[name].choices:
            choices = ", ".join(by_name[name].choices)
            raise UsageError(f"parameter {name} = {value!r}: {where} takes one of {choices}")
    lacking = [one.name for one in known if one.needed and not given.get(one.name)]
    if lacking:
        options = " ".join(f"--param {name}=VALUE" for name in lacking)
        raise UsageError(f"{where} needs {', '.join(lacking)}: pass {options}")


def check_run(given: Mapping[str, str]) -> None:
    """Check parameters of rerail-train as its first step will, before anything is created.

    Raises:
        UsageError: Names the parameter, the value and the way out.
    """
    told = {f"RERAIL_{name.upper().replace('-', '_')}": value for name, value in given.items()}
    mine = {"RERAIL_NAMESPACE": "-", "RERAIL_WORKFLOW": _UNKNOWN_NAME, "RERAIL_WORKFLOW_UID": "-"}
    inputs = Inputs.of(told | mine)
    for check in (lambda: inputs.store, lambda: inputs.most_attempts, lambda: inputs.deadline_s, inputs.check_names):
        check()
    if inputs.control:
        check_address(inputs.control)
    if "rerail-image" in given:
        check_image("rerail-image", given["rerail-image"])
    if not given.get("run") and inputs.given() is None:
        raise UsageError("nothing to run: give a manifest FILE, or image and command; or name a run that exists")
    if inputs.given() is not None:
        inputs.wanted()  # the manifest, the policy, the backend, and who may take over
    else:
        inputs.run_name(None)


def workflow(
    template: str,
    parameters: Mapping[str, str],
    *,
    name: str | None = None,
    account: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> Obj:
    """The Workflow to create.

    Args:
        template: WorkflowTemplate that it refers to.
        parameters: By name; what is left out has the template's own value.
        name: Of the Workflow; by default the server makes one after the run, or the template.
        account: ServiceAccount; the template's by default.
        labels: Of the object.
    """
    stem = (parameters.get("run") or template)[:50].rstrip("-")
    spec: Obj = {"workflowTemplateRef": {"name": template}}
    if parameters:
        spec["arguments"] = {"parameters": [{"name": key, "value": value} for key, value in parameters.items()]}
    if account:
        spec["serviceAccountName"] = account
    return {
        "apiVersion": WORKFLOWS.api_version,
        "kind": WORKFLOWS.kind,
        "metadata": {
            **({"name": name} if name else {"generateName": f"{stem}-"}),
            "labels": {"app.kubernetes.io/managed-by": "rerail", **(labels or {})},
        },
        "spec": spec,
    }


def read_template(api: KubeApi, name: str) -> Obj:
    """A WorkflowTemplate of the connection's namespace.

    Raises:
        NotFoundError: It is not there; names those that are, and how it comes there.
        NotInstalledError: The cluster has no Argo Workflows.
    """
    try:
        return api.get(TEMPLATES, name)
    except NotInstalledError:
        raise
    except NotFoundError:
        there = sorted(str(one["metadata"]["name"]) for one in api.list(TEMPLATES).items)
        ours = [one for one in there if one.startswith(FAMILY)]
        ours = [one for one in ours if _VERSION.sub("", one) == _VERSION.sub("", name)] or ours
        others = f"; there are {', '.join(ours)}: name one with --template" if ours else ""
        raise NotFoundError(
            f"WorkflowTemplate {name!r} is not in namespace {api.namespace!r}{others}. This version's come by "
            f"`rerail render --namespace {api.namespace} | kubectl apply -n {api.namespace} -f -`"
        ) from None


def wait(api: KubeApi, name: str, *, say: Callable[[str], None], until: Callable[[], bool]) -> Obj | None:
    """Look at a Workflow until it is over, and tell what changes.

    Args:
        api: The API server.
        name: The Workflow.
        say: Takes one line.
        until: Ends the wait.

    Returns:
        The Workflow at its end; None where ``until`` ended the wait.

    Raises:
        NotFoundError: Somebody deleted it.
    """
    told: set[str] = set()
    while not until():
        try:
            found = api.get(WORKFLOWS, name)
        except TransientError as error:
            lines = [f"{error}; looking again"]
        else:
            lines = list(_lines(found))
            if (found.get("status") or {}).get("phase") in FINAL:
                for line in lines:
                    if line not in told:
                        say(line)
                return found
        for line in lines:
            if line not in told:
                told.add(line)
                say(line)
        api.sleep(_LOOK_EVERY_S)
    return None


def _lines(found: Obj) -> list[str]:
    status = found.get("status") or {}
    nodes = (status.get("nodes") or {}).values()
    lines = [f"workflow is {status.get('phase') or 'not looked at by Argo yet'}"]
    lines += [
        f"{node.get('displayName')}: {node.get('phase')}{': ' + str(node['message']) if node.get('message') else ''}"
        for node in sorted(nodes, key=lambda one: str(one.get("startedAt") or ""))
        if node.get("type") == "Pod" and node.get("phase") not in ("Pending", None)
    ]
    return lines


def reason_of(found: Obj) -> str:
    """Why a Workflow did not succeed: in the words of whoever gave up, else of the pod that failed last."""
    annotations, status = found["metadata"].get("annotations") or {}, found.get("status") or {}
    pods = [one for one in (status.get("nodes") or {}).values() if one.get("type") == "Pod"]
    failed = [one for one in pods if one.get("phase") in ("Failed", "Error") and one.get("message")]
    last: Obj = max(failed, key=lambda one: str(one.get("finishedAt") or ""), default={})
    return str(annotations.get(REASON) or status.get("message") or last.get("message") or "")
