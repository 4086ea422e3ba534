"""Keeping the pods of an attempt away from nodes, whatever placement rules the user has of their own."""

import re
from typing import Any, Final

from rerail.policies.workloads.attempt import AttemptGang
from rerail.policies.workloads.fields import below

HOSTNAME_LABEL: Final = "kubernetes.io/hostname"
_NAME_FIELD: Final = "metadata.name"
_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


def exclude_nodes(pod_spec: dict[str, Any], gang: AttemptGang) -> None:
    """Add the exclusion to every term of the pod's required node affinity; terms are alternatives, so each needs it.

    A term without any requirement selects no node at all. It is left as it is: with a requirement it would select some.

    Args:
        pod_spec: The pod's spec; changed in place.
        gang: Says which nodes.
    """
    if not gang.excluded_nodes:
        return
    required = pod_spec
    for key in ("affinity", "nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution"):
        required = below(required, key)
    terms = required.get("nodeSelectorTerms") or []
    required["nodeSelectorTerms"] = terms or [_merged({}, gang)]
    for position, term in enumerate(terms):
        if term.get("matchExpressions") or term.get("matchFields"):
            terms[position] = _merged(term, gang)


def _merged(term: dict[str, Any], gang: AttemptGang) -> dict[str, Any]:
    merged = dict(term)
    nodes = sorted(set(gang.excluded_nodes))
    labels = sorted(value for node in nodes if _LABEL_VALUE.fullmatch(value := gang.hostnames.get(node, node)))
    if labels:
        merged["matchExpressions"] = _without_hosts(term.get("matchExpressions") or [], labels)
    unread = [node for node in nodes if node not in gang.hostnames]
    if unread:
        # The API server allows one value for each requirement on a field.
        fields = [{"key": _NAME_FIELD, "operator": "NotIn", "values": [node]} for node in unread]
        own = list(term.get("matchFields") or [])
        merged["matchFields"] = own + [field for field in fields if field not in own]
    return merged


def _without_hosts(expressions: list[dict[str, Any]], hosts: list[str]) -> list[dict[str, Any]]:
    """The expressions with ``hosts`` excluded, in an exclusion that is there already or in one more."""
    for position, one in enumerate(expressions):
        if one.get("key") == HOSTNAME_LABEL and one.get("operator") == "NotIn":
            own = list(one.get("values") or [])
            values = own + [host for host in hosts if host not in own]
            return [*expressions[:position], {**one, "values": values}, *expressions[position + 1 :]]
    return [*expressions, {"key": HOSTNAME_LABEL, "operator": "NotIn", "values": hosts}]
