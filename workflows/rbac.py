"""One ServiceAccount and one Role for each duty, with the rights that its code is known to use and no others.

launcher     who submits workflows: people, CI
runner       supervises a run's gang; in the cluster's part it looks at nodes and marks them
pre-evict    asks a gang to leave, and evicts it
reaper       ends gangs whose workflow is over
node-keeper  judges, marks, empties and releases nodes; judges steps that failed
reader       writes reports: it needs the store, and nothing of the cluster
rank         runs your code in pods that Argo makes: as little of the cluster as the reader, and a store of its own
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rerail.plugins.evict.rights import DRAIN, EVICT, LOOK_AT_NODES
from rerail.plugins.gang.rights import LOOK_AT_QUEUES, TELL, WITH_ARGO, WITH_GROUPS, WITH_JOBS
from rerail.plugins.gang.volumes import READ_ATTACHMENTS, READ_CLAIMS
from rerail.plugins.kube.resources import EVENTS, PODS, ResourceType
from rerail.plugins.kube.rights import cluster_role, role, rules
from rerail.plugins.nodes.kube_guard import NAME as GUARD_NAME
from rerail.plugins.nodes.rights import GUARD, LOOK_AND_MARK, MAKE_GUARD
from rerail.plugins.steps.failover import DEPLOYMENTS
from rerail.plugins.steps.workflow import WORKFLOWS
from rerail.workflows.accounts import LAUNCHER, NODE_KEEPER, PRE_EVICT, RANK, READER, REAPER, RUNNER
from rerail.workflows.naming import LABELS

Document = dict[str, Any]
Verbs = Mapping[ResourceType, Sequence[str]]

_RBAC: Final = "rbac.authorization.k8s.io"
_WHY: Final = "rerail.dev/duty"


def _argo(plural: str, kind: str) -> ResourceType:
    return ResourceType("argoproj.io", "v1alpha1", plural, kind, product="Argo Workflows")


_TASK_RESULTS: Final = _argo("workflowtaskresults", "WorkflowTaskResult")
_TEMPLATES: Final = _argo("workflowtemplates", "WorkflowTemplate")
_CRONS: Final = _argo("cronworkflows", "CronWorkflow")
_LOGS: Final = ResourceType("", "v1", "pods/log", "Pod")

_EXECUTOR: Final[Verbs] = {_TASK_RESULTS: ("create", "patch")}
"""Every pod of a workflow tells the controller its outputs by these."""

DUTIES: Final[Mapping[str, str]] = {
    LAUNCHER: "submits, stops and looks at workflows of the library",
    RUNNER: "supervises the gangs of runs, and tells their workflow what happened",
    PRE_EVICT: "asks gangs to save and leave, and evicts them",
    REAPER: "ends gangs whose workflow is over",
    NODE_KEEPER: "judges, marks, empties and releases nodes",
    READER: "writes reports from the store",
    RANK: "runs the user's code in pods that Argo makes",
}


def united(*rights: Verbs) -> dict[ResourceType, tuple[str, ...]]:
    """All verbs of several rights, each once, by kind."""
    verbs: dict[ResourceType, dict[str, None]] = {}
    for one in rights:
        for kind, allowed in one.items():
            verbs.setdefault(kind, {}).update(dict.fromkeys(allowed))
    return {kind: tuple(allowed) for kind, allowed in verbs.items()}


_RUN: Final = united(WITH_JOBS, WITH_GROUPS, WITH_ARGO, READ_CLAIMS, TELL)

IN_NAMESPACE: Final[Mapping[str, Verbs]] = {
    LAUNCHER: {
        WORKFLOWS: ("get", "list", "watch", "create", "patch"),
        _TEMPLATES: ("get", "list"),
        _CRONS: ("get", "list"),
        PODS: ("get", "list"),
        _LOGS: ("get",),
        EVENTS: ("list",),
    },
    RUNNER: united(_EXECUTOR, _RUN, {WORKFLOWS: ("get", "patch")}),
    PRE_EVICT: united(_EXECUTOR, EVICT),
    REAPER: united(_EXECUTOR, _RUN, {WORKFLOWS: ("get",)}),
    NODE_KEEPER: united(_EXECUTOR, EVICT, {WORKFLOWS: ("get",), DEPLOYMENTS: ("get",)}),
    READER: _EXECUTOR,
    RANK: _EXECUTOR,
}
"""Rights in the namespace of the workflows. Those in ``_GUARDED`` have those on the guard's ConfigMap besides."""

IN_CLUSTER: Final[Mapping[str, Verbs]] = {
    RUNNER: united(LOOK_AT_QUEUES, LOOK_AND_MARK, READ_ATTACHMENTS, TELL),
    PRE_EVICT: LOOK_AT_NODES,
    REAPER: united(LOOK_AT_QUEUES, LOOK_AND_MARK, TELL),
    NODE_KEEPER: united(LOOK_AND_MARK, DRAIN),
}
"""Rights in the whole cluster. Without them gangs run, and no fault of a node is seen. Events of nodes stand in
``default``, where kustomize, which puts all of an overlay into one namespace, could not put a Role."""

_GUARDED: Final = (RUNNER, REAPER, NODE_KEEPER)


def accounts() -> list[Document]:
    """ServiceAccounts, Roles and bindings of one namespace; an overlay says which."""
    documents: list[Document] = []
    for account, verbs in IN_NAMESPACE.items():
        allowed = rules(verbs)
        if account in _GUARDED:
            allowed += rules(GUARD, names=[GUARD_NAME]) + rules(MAKE_GUARD)
        bound = role(account, "", allowed)
        documents += [_account(account), _told(bound, account), _binding("RoleBinding", "Role", account)]
    return documents


def cluster_rights(suffix: str = "") -> list[Document]:
    """ClusterRoles and their bindings, for the accounts of one namespace.

    Args:
        suffix: After the bindings' names, so that a second namespace does not take the first one's away.
    """
    documents: list[Document] = []
    for account, verbs in IN_CLUSTER.items():
        binding = _binding("ClusterRoleBinding", "ClusterRole", account)
        binding["metadata"]["name"] += suffix
        documents += [_told(cluster_role(account, rules(verbs)), account), binding]
    return documents


def _account(name: str) -> Document:
    return _told({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}, name)


def _binding(kind: str, of: str, account: str) -> Document:
    subject = {"kind": "ServiceAccount", "name": account}  # kustomize puts the namespace in only where none stands
    document = {
        "apiVersion": f"{_RBAC}/v1",
        "kind": kind,
        "metadata": {"name": account},
        "roleRef": {"apiGroup": _RBAC, "kind": of, "name": account},
        "subjects": [subject],
    }
    return _told(document, account)


def _told(document: Document, account: str) -> Document:
    """With labels and the duty; without an empty namespace, which is the overlay's to say."""
    metadata = {key: value for key, value in document["metadata"].items() if value}
    metadata |= {"labels": dict(LABELS), "annotations": {_WHY: DUTIES[account]}}
    return {**document, "metadata": metadata}
